#ifndef BPS_COMMON_OS_HANDOVER_QUEUE_H
#define BPS_COMMON_OS_HANDOVER_QUEUE_H
/* Bounded queue into a thread: from a transport's connection thread to a data thread, and the posts
 * of an event loop. An eventfd wakes the thread. The queue copies items when they are pushed and
 * popped. The queue erases its own copy of a popped item, because items may contain keys. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct handover_queue {
	pthread_mutex_t lock;
	/* Number of items. The thread that pops is allowed to read this field without the lock. The
	 * thread may then read 0 although an item was just pushed. In this case the push makes
	 * wake_fd readable, and the thread takes the item in its next poll. */
	atomic_uint n;
	bool is_closed;
	unsigned head, max;
	size_t item_bytes;
	char *items;
	int wake_fd; /* eventfd, readable after a push */
};

/* Initialize the queue. Call handover_queue_fini even when the initialization fails.
 * Errors: -errno. */
int handover_queue_init(struct handover_queue *q, unsigned max, size_t item_bytes);
void handover_queue_fini(struct handover_queue *q);
/* Append an item and wake the thread. Thread: any. Errors: -EAGAIN: `limit` items wait already;
 * BPS_ECLOSED: the queue is closed. */
int handover_queue_push(struct handover_queue *q, const void *item, unsigned limit);
/* Refuse further items, and wake the thread. Thread: any. */
void handover_queue_close(struct handover_queue *q);
/* Return whether the queue is closed and all its items were popped. */
bool handover_queue_is_over(struct handover_queue *q);
/* Remove the first item and copy it to ret_item. Returns false when the queue is empty. */
bool handover_queue_pop(struct handover_queue *q, void *ret_item);
/* Reset wake_fd, so that it is not readable until the next push. Call this before taking the items.
 * Else the wake-up for an item that is pushed meanwhile would be lost. */
void handover_queue_clear_wake(const struct handover_queue *q);
#endif
