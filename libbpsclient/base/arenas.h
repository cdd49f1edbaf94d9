#ifndef BPSCLIENT_ARENAS_H
#define BPSCLIENT_ARENAS_H
/* Arenas: memory that the agent has created and this process has mapped. Each arena has an id. An
 * arena holds either inputs (writable) or sums (read-only) of tensors.
 *
 *   arenas_add ── arenas_resolve_address ── arenas_make_inputs_private ── arenas_fini
 *
 * A zeroed struct mapped_arenas is empty. The caller must hold the session's lock. */
#include <stdbool.h>
#include <stdint.h>

#include "common/local/local.h"

#define ARENA_MAX_BYTES (UINT64_C(1) << 46)

struct mapped_arena {
	uint32_t id;
	bool is_writable;
	char *base;
	uint64_t bytes;
	/* Descriptor, kept to map the arena again. -1 if the arena is not mapped, or is frozen. */
	int fd;
	int code; /* error with which the mapping failed; valid if `base` is NULL */
};
struct mapped_arenas {
	struct mapped_arena *all;
	uint32_t n;
	bool has_lost_some; /* an arena is missing from `all`, because memory ran out */
};

/* Map shared memory that the agent created. is_writable: map the memory writable, else read-only.
 * The memory must be sealed against shrinking. Otherwise the agent could shrink it, and an access
 * here would raise SIGBUS. Owns: the caller keeps fd. Errors: BPS_EPROTO when the memory is not
 * sealed, or when it has less than `bytes` bytes; -errno. */
int arenas_map_sealed_file(int fd, uint64_t bytes, bool is_writable, void **ret);
/* Map the arena that message m announces. *fd is the descriptor of the arena, or -1 if the message
 * had none. It is -EMFILE if the descriptor was lost, because this process has too many descriptors
 * open. An arena that is mapped already is not changed. If descriptors or memory run out, the
 * function returns 0 and records the reason (arenas_why_lost). Tensors in this arena cannot be used
 * until the agent announces the arena again. Owns: sets *fd to -1 if the function keeps the
 * descriptor; otherwise the caller keeps the descriptor. Errors: BPS_EPROTO when the announcement
 * is invalid. */
int arenas_add(struct mapped_arenas *as, const struct local_arena *m, int *fd);
/* Return why arena `id` could not be mapped, as -errno. Returns 0 if it was mapped or
 * never announced. */
int arenas_why_lost(const struct mapped_arenas *as, uint32_t id);
/* Return the address at `offset` in arena `id`. is_writable: true if the caller needs an arena of
 * inputs, false if it needs an arena of sums. Returns NULL if the arena is unknown, is not mapped,
 * or is of the other kind. Also returns NULL if the arena cannot hold `bytes` bytes at `offset`, or
 * if `offset` is not a multiple of LOCAL_ALIGN. */
void *arenas_resolve_address(const struct mapped_arenas *as, uint32_t id, bool is_writable,
	uint64_t offset, uint64_t bytes);
/* Map `bytes` bytes of sums a second time, copy-on-write. *ret: start of the second mapping, which
 * the kernel chooses. address: start of the sums, a page boundary in a mapped arena of sums. The
 * arena must have at least `bytes` bytes from `address` on. Owns: the caller unmaps *ret, which
 * stays valid after arenas_fini. Errors: -EINVAL if no mapped arena of sums contains `address`;
 * -ENOMEM. */
int arenas_copy_on_write(
	const struct mapped_arenas *as, const void *address, uint64_t bytes, void **ret);
/* Replace the mapped inputs by private copies. Other processes then no longer see what this process
 * writes to the inputs. If address space runs out, the inputs stay shared. */
void arenas_make_inputs_private(struct mapped_arenas *as);
void arenas_fini(struct mapped_arenas *as);
#endif
