#ifndef BPS_AGENT_IO_IO_QUEUE_H
#define BPS_AGENT_IO_IO_QUEUE_H
/* Records that one thread writes and one other thread reads, in order. The writer collects records
 * and publishes them once per turn of its loop, so that both threads take the lock, and the reader
 * is woken, at most once per turn. The queue has no limit of its own: the writer limits what is in
 * flight (io_xport.c), so no thread waits for room. If no memory is left, the process ends, because
 * a lost record would make a job hang. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A record begins with its size in bytes, which includes this field. */
struct io_head {
	uint32_t n_bytes;
};
struct io_batch {
	char *mem;
	size_t used, room;
};

struct io_queue {
	pthread_mutex_t lock;
	struct io_batch ready; /* published records; guarded by the lock */
	bool is_asleep;        /* the reader sleeps, or is about to; guarded by the lock */
	int wake_fd;           /* eventfd: readable when a sleeping reader must wake up */
	struct io_batch mine;  /* the writer's records that are not published yet */
	struct io_batch taken; /* the reader's records */
	size_t at;             /* position of the reader's next record in `taken` */
};

/* Initialize the queue. Call io_queue_fini even when this function fails. Errors: -errno. */
int io_queue_init(struct io_queue *q);
void io_queue_fini(struct io_queue *q);

/* ---- the writer ---- */
/* Add a record of n_bytes bytes and return its memory, aligned to 8 bytes. The memory is valid
 * until the next call of a writer's function. */
void *io_queue_put(struct io_queue *q, size_t n_bytes);
/* Publish all records, and wake the reader if it sleeps. */
void io_queue_publish(struct io_queue *q);
/* Wake the reader if it sleeps, even without a record. */
void io_queue_wake(struct io_queue *q);

/* ---- the reader ---- */
/* Return the next record, or NULL. The record is valid until the next call. */
void *io_queue_next(struct io_queue *q);
/* Declare that the reader sleeps until wake_fd is readable. Returns false if there are records. */
bool io_queue_may_sleep(struct io_queue *q);
/* Declare that the reader no longer sleeps. */
void io_queue_awake(struct io_queue *q);
#endif
