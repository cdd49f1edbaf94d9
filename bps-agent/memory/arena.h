#ifndef BPS_AGENT_MEMORY_ARENA_H
#define BPS_AGENT_MEMORY_ARENA_H
/* Memory that the agent makes and shares with trainers, or keeps for itself: memfds of fixed size,
 * sealed against shrinking and growing, offered to servers as segments. Space is handed out front
 * to back and is freed only with the whole set, when its job is gone.
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
	ARENA_PRIVATE, /* not shared with trainers */
};

struct arena {
	struct arena *next; /* of the set, newest first */
	enum arena_kind kind;
	uint32_t id;
	int fd; /* for the trainer: writable for ARENA_INPUT, else read-only; -1 when private */
	char *mem;
	size_t bytes, used;
	uint64_t *kept_used; /* a second place where `used` is written; may be NULL */
	uint32_t node;       /* node of its memory */
	uint16_t segment;
};

/* A memfd and its mapping. mem NULL: there is none. */
struct memory {
	int fd; /* -1: closed already */
	void *mem;
	size_t bytes, n_made;
	int more_seals;
	uint32_t node; /* argument of memory_prefer */
};

/* The account that pays for arenas. */
struct arena_owner {
	/* Check whether that much more may be made, with that many descriptors kept open. Errors:
	 * with a text.
	 * release: the memory is freed, or was not made. */
	int (*admit)(void *ctx, size_t bytes, unsigned n_fds, struct err_text *err);
	void (*release)(void *ctx, size_t bytes, unsigned n_fds);
	size_t (*room)(void *ctx); /* bytes that admit would accept */
	void (*drop)(void *ctx, const struct memory *m);
};

/* The arenas of one job, or of its executor. Zeroing takes long, so memory is made on another
 * thread (memory_thread.h). arena_alloc returns -EINPROGRESS and the wanted size. The caller makes
 * and adopts an arena, and passes it as `prefer` to the next call. */
struct arena_set {
	struct xport *x; /* NULL: freed already, at the end */
	const struct arena_owner *owner;
	void *owner_ctx;
	size_t want_bytes;
	enum arena_kind want_kind;
	/* Another process will map outputs for writing, so no seal can prevent trainers from it.
	 * They get a read-only descriptor, of a file that they may only read. */
	bool keeps_outputs_writable;
	/* Record a new arena, whose descriptor is still writable, for the next process. May set
	 * kept_used. Errors: the arena is dropped. NULL: nothing is recorded. */
	int (*adopted)(void *owner_ctx, struct arena *a);
	struct arena *head;
	uint32_t next_id;
};

/* Allocate zero-filled memory for n_bytes, 64-byte aligned (page-aligned for a page and more).
 * prefer: the caller's last arena of this kind, or NULL; a new one is made when it is full.
 * *ret_arena is the arena, *ret the memory. Errors: -ENOMEM, -errno, those of admit; with a text.
 * -EINPROGRESS: no arena has room; a new one is admitted, so that arena_adopt or arena_forgo must
 * follow. */
int arena_alloc(struct arena_set *set, enum arena_kind kind, struct arena *prefer, size_t n_bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err);
/* Return by how many bytes the set must grow at least, so that arena_alloc has n_bytes; 0: a has
 * room. */
size_t arena_growth(const struct arena *a, size_t n_bytes);
/* Return the bytes that a request takes of an arena. */
size_t arena_round(size_t n_bytes);
/* Withdraw and unmap all arenas. No read may target them any more. */
void arena_set_fini(struct arena_set *set);

/* Add the wanted memory, which was made, to the set. Owns: takes m. Errors: -errno with a text; m
 * is freed and the admitted amount given back. */
int arena_adopt(struct arena_set *set, enum arena_kind kind, struct memory *m, struct arena **ret,
	struct err_text *err);
/* Give back the admitted amount of an arena that was not made. */
void arena_forgo(struct arena_set *set, enum arena_kind kind, size_t bytes);
/* Restore an arena after a restart, on that node. Owns: takes fd unless it fails. *kept_used: how
 * much of it is handed out; it is kept up to date from now on. Errors: -errno, BPS_EPROTO too small
 * or not sealed; with a text. */
int arena_restore(struct arena_set *set, enum arena_kind kind, uint32_t id, uint32_t node, int fd,
	size_t bytes, uint64_t *kept_used, struct err_text *err);
/* Returns NULL if there is none. */
struct arena *arena_find(const struct arena_set *set, uint32_t id);
/* Return the last arena that was made for that node, or NULL. */
struct arena *arena_newest(const struct arena_set *set, uint32_t node);
/* Return the seals of an arena's memory besides those against shrinking and growing. */
int arena_seals(const struct arena_set *set, enum arena_kind kind);

/* Create a memfd of that size, mapped, without pages yet. Leaves nothing on an error. Errors:
 * -errno with a text. */
int memory_begin(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err);
/* Allocate some of its pages (16 MiB, 3 ms and more), so that none is missing later; the last step
 * seals its size. Returns 1 when there is more to do, 0 when it is done. Errors: -errno with a
 * text; call memory_drop then. */
int memory_step(struct memory *m, struct err_text *err);
/* Place its pages on NUMA node `node` - 1 if there is room; 0: any. Call it before the first
 * step. */
void memory_prefer(struct memory *m, uint32_t node);
/* Unmap and close. */
void memory_drop(struct memory *m);
/* Do all these steps at once. */
int memory_make(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err);
#endif
