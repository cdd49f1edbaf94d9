#ifndef BPS_AGENT_ARENA_H
#define BPS_AGENT_ARENA_H
/* Memory that the agent makes and shares with trainers, or keeps for itself: memfds of fixed size,
 * sealed against shrinking and growing, offered to servers as segments. Space is handed out front
 * to back and comes back only with the whole set, when its job is gone.
 *
 * Thread: that of the transport. */
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core.h"
#include "common/error.h"
#include "common/xport.h"

enum arena_kind {
	ARENA_INPUT,   /* the trainer writes */
	ARENA_OUTPUT,  /* trainers map it read-only */
	ARENA_PRIVATE, /* no trainer sees it */
};

struct arena {
	struct arena *next; /* of the set, newest first */
	enum arena_kind kind;
	uint32_t id;
	int fd; /* for the trainer: writable for ARENA_INPUT, else read-only; -1 when private */
	char *mem;
	size_t bytes, used;
	uint16_t segment;
};

/* The arenas of one job. */
struct arena_set {
	struct xport *x;
	void (*progress)(
		void *ctx); /* called now and then while much memory is being made; NULL is allowed */
	void *progress_ctx;
	/* May that much more be made, with that many descriptors kept open? Errors: with a
	 * sentence. release: it is gone, or was not made. NULL: all may be made. */
	int (*admit)(void *ctx, size_t bytes, unsigned n_fds, struct err_text *err);
	void (*release)(void *ctx, size_t bytes, unsigned n_fds);
	size_t (*room)(void *ctx); /* bytes that admit would take */
	void *admit_ctx;
	struct arena *head;
	uint32_t next_id;
	size_t bytes; /* of all */
};

/* Zero-filled memory for n_bytes, 64-byte aligned (a page for a page and more). prefer: the
 * caller's last arena of this kind, or NULL; a new one is made when it is full. *ret_arena is where
 * it lies, *ret the memory.
 * Errors: -ENOMEM, -errno, those of set->admit; with a sentence. */
int arena_alloc(struct arena_set *set, enum arena_kind kind, struct arena *prefer, size_t n_bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err);
/* Bytes that a request takes of an arena. */
size_t arena_round(size_t n_bytes);
/* Withdraw and unmap all. No read may target them any more. */
void arena_set_fini(struct arena_set *set);

/* A memfd of that size, mapped, sealed in size and with more_seals. progress: as in the set.
 * Errors: -errno with a sentence. */
int arena_memfd(const char *name, size_t bytes, int more_seals, void (*progress)(void *ctx),
	void *progress_ctx, int *ret_fd, void **ret_mem, struct err_text *err);
#endif
