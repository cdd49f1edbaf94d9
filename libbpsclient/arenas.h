#ifndef BPSCLIENT_ARENAS_H
#define BPSCLIENT_ARENAS_H
/* The agent's memory that this process has mapped: pieces with a number, in which inputs (writable)
 * and sums (not) of tensors lie.
 *
 *   arenas_add ── arenas_place ── arenas_freeze (inputs become private copies) ── arenas_fini
 *
 * All zero is an empty one. Thread: that of the session's lock. */
#include <stdbool.h>
#include <stdint.h>

#include "common/local/local.h"

#define ARENA_MAX_BYTES (UINT64_C(1) << 46)

struct mapped_arena {
	uint32_t id;
	bool is_writable;
	char *base;
	uint64_t bytes;
	int fd;   /* of one that is writable, until it is frozen; else -1 */
	int code; /* with base NULL: why this process could not map it */
};
struct mapped_arenas {
	struct mapped_arena *all;
	uint32_t n;
	bool has_lost_some; /* for lack of memory, before they were noted in `all` */
};

/* Map shared memory that the agent made. It must be sealed against shrinking, or an access could
 * raise SIGBUS. Owns: fd stays the caller's.
 * Errors: BPS_EPROTO it is not, or is smaller than bytes; -errno. */
int arenas_map(int fd, uint64_t bytes, bool is_writable, void **ret);
/* Map what m announces, which lies behind *fd (-1: no descriptor came along; -EMFILE: it was lost on
 * its way). One that is known already is left as it is. One that cannot be mapped for lack of
 * descriptors or memory is noted: what lies there cannot be used (arenas_why_lost), all else can.
 * Owns: a descriptor that it keeps is -1 in *fd, else the caller's.
 * Errors: BPS_EPROTO for what makes no sense. */
int arenas_add(struct mapped_arenas *as, const struct local_arena *m, int *fd);
/* Why that arena could not be mapped: -errno; 0: it was, or was never announced. */
int arenas_why_lost(const struct mapped_arenas *as, uint32_t id);
/* bytes at that offset of an arena; NULL when they do not lie in one of that kind. */
void *arenas_place(const struct mapped_arenas *as, uint32_t id, bool is_writable, uint64_t offset,
	uint64_t bytes);
/* What is written into inputs from here on is seen by nobody else. Without address space for it they
 * stay as they are. */
void arenas_freeze(struct mapped_arenas *as);
void arenas_fini(struct mapped_arenas *as);
#endif
