#ifndef BPS_COMMON_TRANSPORT_HANDOVER_QUEUE_H
#define BPS_COMMON_TRANSPORT_HANDOVER_QUEUE_H
/* Bounded queue from a transport's connection thread to a data thread, which an eventfd wakes.
 * Items are copied in and out, and wiped when they leave, because they hold keys. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct handover_queue {
	pthread_mutex_t lock;
	atomic_uint n; /* read without the lock: a stale value only delays, and wake_fd wakes */
	unsigned head, max;
	size_t item_bytes;
	char *items;
	int wake_fd; /* readable after a push */
};

/* Initialize the queue; call handover_queue_fini in any case.
 * Errors: -errno. */
int handover_queue_init(struct handover_queue *q, unsigned max, size_t item_bytes);
void handover_queue_fini(struct handover_queue *q);
/* Append an item unless `limit` items wait, and wake the data thread. Returns false when full. */
bool handover_queue_push(struct handover_queue *q, const void *item, unsigned limit);
/* Take the first item; false: there is none. */
bool handover_queue_pop(struct handover_queue *q, void *ret_item);
/* Make wake_fd unreadable, before the items are taken. */
void handover_queue_clear_wake(const struct handover_queue *q);
#endif
