#include "common/os/handover_queue.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/error.h"
#include "common/base/log.h"

int handover_queue_init(struct handover_queue *q, unsigned max, size_t item_bytes)
{
	*q = (struct handover_queue){.max = max, .item_bytes = item_bytes};
	pthread_mutex_init(&q->lock, NULL);
	q->items = calloc(max, item_bytes);
	q->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return q->wake_fd < 0 ? -errno : q->items ? 0 : -ENOMEM;
}

void handover_queue_fini(struct handover_queue *q)
{
	if (q->wake_fd >= 0)
		close(q->wake_fd);
	free(q->items);
	pthread_mutex_destroy(&q->lock);
}

static void handover_queue_wake(const struct handover_queue *q)
{
	uint64_t one = 1;

	/* EAGAIN means that the eventfd's counter is full. Then a wake-up is pending anyway. */
	if (write(q->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_error("cannot wake a thread: %s", strerror(errno));
}

int handover_queue_push(struct handover_queue *q, const void *item, unsigned limit)
{
	unsigned n;
	int rc;

	pthread_mutex_lock(&q->lock);
	n = atomic_load_explicit(&q->n, memory_order_relaxed);
	rc = q->is_closed ? BPS_ECLOSED : n < limit ? 0 : -EAGAIN;
	if (!rc) {
		memcpy(q->items + (q->head + n) % q->max * q->item_bytes, item, q->item_bytes);
		atomic_store_explicit(&q->n, n + 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&q->lock);
	if (!rc)
		handover_queue_wake(q);
	return rc;
}

void handover_queue_close(struct handover_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->is_closed = true;
	pthread_mutex_unlock(&q->lock);
	handover_queue_wake(q);
}

bool handover_queue_is_over(struct handover_queue *q)
{
	bool is_over;

	pthread_mutex_lock(&q->lock);
	is_over = q->is_closed && !atomic_load_explicit(&q->n, memory_order_relaxed);
	pthread_mutex_unlock(&q->lock);
	return is_over;
}

bool handover_queue_pop(struct handover_queue *q, void *ret_item)
{
	unsigned n;

	pthread_mutex_lock(&q->lock);
	n = atomic_load_explicit(&q->n, memory_order_relaxed);
	if (n) {
		char *item = q->items + q->head * q->item_bytes;

		memcpy(ret_item, item, q->item_bytes);
		explicit_bzero(item, q->item_bytes);
		q->head = (q->head + 1) % q->max;
		atomic_store_explicit(&q->n, n - 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&q->lock);
	return n;
}

void handover_queue_clear_wake(const struct handover_queue *q)
{
	uint64_t count;

	if (read(q->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		log_rated(LOG_ERROR, "cannot read the wake-up descriptor of a thread: %s",
			strerror(errno));
}
