#ifndef BPSCLIENT_ARENAS_H
#define BPSCLIENT_ARENAS_H
/* The agent's memory that this process has mapped. It consists of numbered pieces that hold inputs
 * (writable) and sums (read-only) of tensors.
 *
 *   arenas_add ── arenas_place ── arenas_freeze (inputs become private copies) ── arenas_fini
 *
 * Zeroed: empty. Thread: the one that holds the session's lock. */
#include <stdbool.h>
#include <stdint.h>

#include "common/local/local.h"

#define ARENA_MAX_BYTES (UINT64_C(1) << 46)

struct mapped_arena {
	uint32_t id;
	bool is_writable;
	char *base;
	uint64_t bytes;
	int fd;   /* descriptor of a writable arena, until it is frozen; else -1 */
	int code; /* if base is NULL: why this process could not map it */
};
struct mapped_arenas {
	struct mapped_arena *all;
	uint32_t n;
	bool has_lost_some; /* some were lost for lack of memory, before they were noted in `all` */
};

/* Map shared memory that the agent created. It must be sealed against shrinking; otherwise an
 * access could raise SIGBUS. Owns: fd stays the caller's. Errors: BPS_EPROTO the memory is not
 * sealed, or is smaller than bytes; -errno. */
int arenas_map(int fd, uint64_t bytes, bool is_writable, void **ret);
/* Map the arena that m announces; *fd refers to it. -1: no descriptor came along; -EMFILE: it was
 * lost on its way. An arena that is already known is not changed. If descriptors or memory run out,
 * the failure is noted: only the contents of this arena cannot be used (arenas_why_lost). Owns: if
 * it keeps the descriptor it sets *fd to -1; otherwise the caller keeps it. Errors: BPS_EPROTO the
 * announcement is invalid. */
int arenas_add(struct mapped_arenas *as, const struct local_arena *m, int *fd);
/* Return why that arena could not be mapped: -errno. 0: it was mapped, or was never announced. */
int arenas_why_lost(const struct mapped_arenas *as, uint32_t id);
/* Return the address of `bytes` bytes at that offset of an arena. NULL: they do not lie in an arena
 * of that kind. */
void *arenas_place(const struct mapped_arenas *as, uint32_t id, bool is_writable, uint64_t offset,
	uint64_t bytes);
/* Make inputs private: no other process sees what is written into them from now on. Without address
 * space for that, they stay shared. */
void arenas_freeze(struct mapped_arenas *as);
void arenas_fini(struct mapped_arenas *as);
#endif
