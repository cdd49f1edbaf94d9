#ifndef BPS_AGENT_MEMORY_ARENA_H
#define BPS_AGENT_MEMORY_ARENA_H
/* Memory that the agent makes and shares with trainers, or keeps for itself: memfds of fixed size,
 * sealed against shrinking and growing, offered to servers as segments. Space is handed out front
 * to back and comes back only with the whole set, when its job is gone.
 *
 * Thread: that of the transport. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "common/base/error.h"
#include "common/transport/xport.h"

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
	uint64_t *kept_used; /* where `used` is written too; may be NULL */
	uint32_t node;       /* as its memory's */
	uint16_t segment;
};

/* A memfd and its mapping. mem NULL: there is none. */
struct memory {
	int fd; /* -1: closed already */
	void *mem;
	size_t bytes, n_made;
	int more_seals;
	uint32_t node; /* of memory_prefer */
};

/* What pays for arenas, and frees them. */
struct arena_owner {
	/* May that much more be made, with that many descriptors kept open? Errors: with a
	 * sentence. release: it is gone, or was not made. */
	int (*admit)(void *ctx, size_t bytes, unsigned n_fds, struct err_text *err);
	void (*release)(void *ctx, size_t bytes, unsigned n_fds);
	size_t (*room)(void *ctx); /* bytes that admit would take */
	void (*drop)(void *ctx, const struct memory *m);
};

/* The arenas of one job, or of its executor. They are made elsewhere, since zeroing takes long
 * (memory_thread.h): arena_alloc returns -EINPROGRESS and what is wanted, and finds it as `prefer`
 * when the caller has made and adopted it. */
struct arena_set {
	struct xport *x; /* NULL: it is gone already, at the end */
	const struct arena_owner *owner;
	void *owner_ctx;
	size_t want_bytes;
	enum arena_kind want_kind;
	/* Another process will map outputs for writing: no seal can keep trainers from that, they
	 * get a descriptor that can only be read, of a file that they may only read. */
	bool keeps_outputs_writable;
	/* A new one is there, its descriptor still writable: for a successor. May set kept_used.
	 * Errors: it is given up. NULL: nothing is written down. */
	int (*adopted)(void *owner_ctx, struct arena *a);
	struct arena *head;
	uint32_t next_id;
};

/* Zero-filled memory for n_bytes, 64-byte aligned (a page for a page and more). prefer: the
 * caller's last arena of this kind, or NULL; a new one is made when it is full. *ret_arena is where
 * it lies, *ret the memory.
 * Errors: -ENOMEM, -errno, those of admit; with a sentence. -EINPROGRESS: none has room; one
 * is admitted, so that arena_adopt or arena_forgo must follow. */
int arena_alloc(struct arena_set *set, enum arena_kind kind, struct arena *prefer, size_t n_bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err);
/* Bytes by which the set has to grow at least, so that arena_alloc has n_bytes; 0: a has room. */
size_t arena_growth(const struct arena *a, size_t n_bytes);
/* Bytes that a request takes of an arena. */
size_t arena_round(size_t n_bytes);
/* Withdraw and unmap all. No read may target them any more. */
void arena_set_fini(struct arena_set *set);

/* The wanted arena was made: put it into the set. Owns: takes m. Errors: -errno with a sentence; m
 * is freed and what was admitted given back. */
int arena_adopt(struct arena_set *set, enum arena_kind kind, struct memory *m, struct arena **ret,
	struct err_text *err);
/* It was not made after all. */
void arena_forgo(struct arena_set *set, enum arena_kind kind, size_t bytes);
/* Restore one after a restart, on that node. Owns: takes fd unless it fails. *kept_used: how much
 * of it is handed out, and is kept up to date from now on. Errors: -errno, BPS_EPROTO it is too
 * small or not sealed; with a sentence. */
int arena_restore(struct arena_set *set, enum arena_kind kind, uint32_t id, uint32_t node, int fd,
	size_t bytes, uint64_t *kept_used, struct err_text *err);
/* NULL: there is none. */
struct arena *arena_find(const struct arena_set *set, uint32_t id);
/* The last one that was made for that node, or NULL. */
struct arena *arena_newest(const struct arena_set *set, uint32_t node);
/* Seals of an arena's memory beside those against shrinking and growing. */
int arena_seals(const struct arena_set *set, enum arena_kind kind);

/* A memfd of that size, mapped, without pages yet. On an error nothing is left.
 * Errors: -errno with a sentence. */
int memory_begin(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err);
/* Make some of its pages (16 MiB, 3 ms and more), so that none is missing later; the last step
 * seals its size. Returns 1 when there is more to do, 0 when it is done. Errors: -errno with a
 * sentence; memory_drop it. */
int memory_step(struct memory *m, struct err_text *err);
/* Before the first step: place its pages on that NUMA node + 1 if there is room; 0: any. */
void memory_prefer(struct memory *m, uint32_t node);
/* Unmap and close. */
void memory_drop(struct memory *m);
/* All of that at once. */
int memory_make(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err);
#endif
