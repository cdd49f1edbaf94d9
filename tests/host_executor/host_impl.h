#ifndef BPS_TESTS_HOST_EXECUTOR_HOST_IMPL_H
#define BPS_TESTS_HOST_EXECUTOR_HOST_IMPL_H
/* Declarations that the files of the back-end "host" share. Memory and the table of functions are
 * in host.c, queues in host_queue.c, collectives in host_clique.c.
 *
 * A queue is a thread with a ring buffer of pieces of work (struct host_job). In a collective, the
 * threads of several queues wait for each other on the device's condition variable. */
#include <pthread.h>
#include <stdatomic.h>

#include "bps-agent/executor/device/device.h"

#define HOST_JOBS 1024 /* limit of pieces of work per queue; a full queue returns DEVICE_AGAIN */

struct host_device {
	struct device d;
	int n_gpus;
	/* protects the state of collectives; threads wait for changes of the state */
	pthread_mutex_t lock;
	pthread_cond_t moved;
};

struct host_mem {
	struct device_mem m;
	int fd; /* memfd of memory that host_alloc has allocated, else -1 */
	void *map;
	/* size of the mapping; 0: the memory is pinned, and the caller owns the mapping */
	uint64_t map_bytes;
	char *base;
};

struct host_clique;
enum coll_kind { COLL_SCATTER, COLL_GATHER, COLL_REDUCE, COLL_BROADCAST };

struct host_coll {
	struct host_clique *clique;
	enum coll_kind kind;
	enum dtype dtype;
	enum op op;
	int root, n;
	/* number of elements; for SCATTER and GATHER: number of elements per rank */
	uint64_t count;
	/* number of references: one for the queue of each member. The device's lock protects refs,
	 * n_arrived and is_done. */
	unsigned refs;
	int n_arrived;
	bool is_done;
	char *piece[DEVICE_GPUS_MAX];
};

enum host_job_kind { HOST_COPY, HOST_POST, HOST_COLL };

struct host_job {
	enum host_job_kind kind;
	void *dst;
	const void *src;
	uint64_t bytes, value;
	struct host_coll *coll;
};

/* host_queue.c */
int host_queue_open(struct device *dev, int gpu, int priority, struct device_queue **ret);
void host_queue_close(struct device_queue *q);
int host_queue_poll(struct device_queue *q);
int host_copy(struct device_queue *q, struct device_mem *dst, uint64_t dst_offset,
	struct device_mem *src, uint64_t src_offset, uint64_t bytes);
int host_post(struct device_queue *q, struct device_mem *page, uint64_t offset, uint64_t value);
/* Append one piece of work. Errors: DEVICE_AGAIN. */
int host_queue_push(struct device_queue *q, const struct host_job *job);
bool host_queue_has_room(struct device_queue *q);

/* host_clique.c */
int host_clique_id(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES]);
int host_clique_open(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
	const int *gpu, const int *rank, int n_local, struct device_clique **ret);
int host_clique_poll(struct device_clique *c);
int host_reduce_scatter(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype, enum op op);
int host_all_gather(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype);
int host_reduce(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, enum op op, int root);
int host_broadcast(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, int root);
int host_group(struct device_clique *c);
void host_clique_abort(struct device_clique *c);
void host_clique_close(struct device_clique *c);
/* Wait until the queues of all members have reached the collective, or until the clique is aborted.
 * The thread that arrives last performs the collective. Thread: the queue's. */
void host_coll_run(struct host_coll *coll, struct host_device *dev);
/* Do the arithmetic of the collective. */
void host_coll_perform(struct host_coll *coll);
/* Drop one member's reference to the collective. */
void host_coll_put(struct host_coll *coll, struct host_device *dev);
#endif
