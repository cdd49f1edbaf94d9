#ifndef BPS_AGENT_MEMORY_ARENA_H
#define BPS_AGENT_MEMORY_ARENA_H
/* Memory that the agent allocates for trainers or for its own use: memfds of fixed size, sealed
 * against shrinking and growing, and offered to servers as segments. Space in an arena is allocated
 * from front to back. Space is freed only together with all arenas of the job.
 *
 * Thread: the data thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "common/base/error.h"
#include "common/transport/xport.h"

enum arena_kind {
	ARENA_INPUT,   /* one trainer writes to the arena */
	ARENA_OUTPUT,  /* trainers map the arena read-only */
	ARENA_PRIVATE, /* not shared with trainers */
};

struct arena {
	struct arena *next; /* next older arena of the set */
	enum arena_kind kind;
	uint32_t id;
	/* descriptor for trainers: writable for ARENA_INPUT, read-only for ARENA_OUTPUT, -1 for
	 * ARENA_PRIVATE */
	int fd;
	char *mem;
	size_t bytes, used;
	uint64_t *kept_used; /* the ledger's copy of `used`, for the next process; may be NULL */
	uint32_t node;       /* 1 + number of the memory's NUMA node; 0: any node */
	uint16_t segment;
};

/* A memfd and its mapping. mem NULL: there is no mapping. */
struct memory {
	int fd; /* -1: closed */
	void *mem;
	size_t bytes, n_made;
	int more_seals;
	uint32_t node; /* 1 + number of the preferred NUMA node; 0: any node */
};

/* Functions of the quota account that is charged for arenas. */
struct arena_owner {
	/* Charge the account with `bytes` bytes and n_fds open descriptors. Errors: a negative code
	 * if a limit would be exceeded; err gets the text. */
	int (*admit)(void *ctx, size_t bytes, unsigned n_fds, struct err_text *err);
	void (*release)(void *ctx, size_t bytes, unsigned n_fds);
	size_t (*room)(void *ctx); /* returns how many bytes `admit` would still accept */
	void (*drop)(void *ctx, const struct memory *m);
};

/* The arenas of one job, or of its executor. Zeroing takes a long time, so memory is made on
 * another thread (memory_thread.h). If the arena `prefer` has no room, arena_alloc returns
 * -EINPROGRESS and sets want_bytes and want_kind. The caller then requests the memory from that
 * thread and adds it with arena_adopt. Then the caller calls arena_alloc again with the new arena
 * as `prefer`. */
struct arena_set {
	struct xport *x; /* NULL: the transport has been freed */
	const struct arena_owner *owner;
	void *owner_ctx;
	size_t want_bytes;
	enum arena_kind want_kind;
	/* The next process of the agent must map outputs for writing, so a seal against writing is
	 * not possible. Instead trainers get a read-only descriptor of a file whose mode is
	 * read-only. */
	bool keeps_outputs_writable;
	/* Record a new arena, so that the agent's next process can restore the arena. Called while
	 * the arena's descriptor is still writable. May set kept_used of the arena. Errors: a
	 * negative code; the arena is then freed. NULL in place of this function: arenas are not
	 * recorded. */
	int (*adopted)(void *owner_ctx, struct arena *a);
	struct arena *head;
	uint32_t next_id;
};

/* Allocate zero-filled memory for n_bytes, aligned to 64 bytes, or to a page if n_bytes is at least
 * a page. prefer: the newest arena of this kind, or NULL. The memory is taken from `prefer` if this
 * arena has room. *ret_arena: the arena, *ret: the memory. Errors: the errors of the callback
 * `admit`; err then gets the text. -EINPROGRESS: `prefer` is NULL or has no room. In this case, the
 * account has been charged for a new arena, and the caller must call arena_adopt or
 * arena_release_charge. */
int arena_alloc(struct arena_set *set, enum arena_kind kind, struct arena *prefer, size_t n_bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err);
/* Return the least size of a new arena that can hold n_bytes; 0: arena `a` has room for n_bytes. */
size_t arena_bytes_to_grow(const struct arena *a, size_t n_bytes);
/* Return the number of bytes that an allocation of n_bytes takes in an arena: n_bytes, rounded up
 * to the alignment. */
size_t arena_round_up_bytes(size_t n_bytes);
/* Withdraw all arenas from servers, and unmap them. All reads into the arenas must have ended. */
void arena_set_fini(struct arena_set *set);

/* Add a new arena to the set, after the memory thread has made the memory that arena_alloc needs.
 * Owns: the function takes m. Errors: -errno, and err gets the text; m is freed, and its bytes are
 * returned to the account. */
int arena_adopt(struct arena_set *set, enum arena_kind kind, struct memory *m, struct arena **ret,
	struct err_text *err);
/* Undo the charge of arena_alloc for an arena that was not made: return the bytes to the
 * account. */
void arena_release_charge(struct arena_set *set, enum arena_kind kind, size_t bytes);
/* Restore an arena after a restart. node: 1 + number of the NUMA node; 0: any node. Owns: the
 * function takes fd, unless the call fails. kept_used: the ledger's copy of `used`. This call reads
 * the copy, and each later allocation updates the copy. Errors: -errno; BPS_EPROTO if the file has
 * a wrong size or lacks the seals; err gets the text. */
int arena_restore(struct arena_set *set, enum arena_kind kind, uint32_t id, uint32_t node, int fd,
	size_t bytes, uint64_t *kept_used, struct err_text *err);
/* Return the arena with this id, or NULL. */
struct arena *arena_find(const struct arena_set *set, uint32_t id);
/* Return the newest arena that was made for `node`, or NULL. node: 1 + number of the NUMA node;
 * 0: any node. */
struct arena *arena_newest_on_node(const struct arena_set *set, uint32_t node);
/* Return which seals an arena of kind `kind` gets, in addition to the seals against shrinking and
 * growing, which all arenas have. */
int arena_seals_of_kind(const struct arena_set *set, enum arena_kind kind);

/* Create a memfd of `bytes` bytes and map it, without allocating pages. Errors: -errno, and err
 * gets the text; nothing is left to free. */
int memory_create_mapping(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err);
/* Allocate the next 16 MiB of pages, so that no later access can fail for lack of a page. One call
 * takes 3 ms or more. The last call adds the memfd's seals. Returns 1 if there are more pages to
 * allocate, otherwise 0. Errors: -errno, and err gets the text; the caller must then call
 * memory_unmap_and_close. */
int memory_allocate_piece(struct memory *m, struct err_text *err);
/* Place the pages on a NUMA node, if the node has room. node: 1 + number of the NUMA node; 0: any
 * node. Call this function before the first memory_allocate_piece. */
void memory_prefer_node(struct memory *m, uint32_t node);
/* Unmap and close the memory. */
void memory_unmap_and_close(struct memory *m);
/* Call memory_create_mapping, then call memory_allocate_piece until it has allocated all pages.
 * Errors: -errno, and err gets the text. */
int memory_make_sealed(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err);
#endif
