/* The queue of io_queue.h: three batches of records. The writer fills one, the lock guards one, and
 * the reader empties one. Publishing and taking swap two batches. */
#include "bps-agent/io/io_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"

#define BATCH_FIRST ((size_t)16 << 10)

int io_queue_init(struct io_queue *q)
{
	*q = (struct io_queue){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	pthread_mutex_init(&q->lock, NULL);
	return q->wake_fd < 0 ? -errno : 0;
}

void io_queue_fini(struct io_queue *q)
{
	if (q->wake_fd >= 0)
		close(q->wake_fd);
	pthread_mutex_destroy(&q->lock);
	free(q->ready.mem);
	free(q->mine.mem);
	free(q->taken.mem);
	*q = (struct io_queue){.wake_fd = -1};
}

static void *batch_extend(struct io_batch *b, size_t n_bytes)
{
	size_t room = b->room ? b->room : BATCH_FIRST;
	char *mem;

	while (room - b->used < n_bytes)
		room *= 2;
	if (room != b->room) {
		mem = realloc(b->mem, room);
		if (!mem) {
			log_error("out of memory for the messages between data threads");
			abort();
		}
		b->mem = mem;
		b->room = room;
	}
	mem = b->mem + b->used;
	b->used += n_bytes;
	return mem;
}

static void batches_swap(struct io_batch *a, struct io_batch *b)
{
	struct io_batch was = *a;

	*a = *b;
	*b = was;
}

void *io_queue_put(struct io_queue *q, size_t n_bytes)
{
	size_t rounded = (n_bytes + 7) & ~(size_t)7;
	struct io_head *head = batch_extend(&q->mine, rounded);

	head->n_bytes = (uint32_t)rounded;
	return head;
}

static void queue_wake_reader(const struct io_queue *q)
{
	const uint64_t one = 1;

	/* The write fails only if the counter is full, and then the descriptor is readable. */
	if (write(q->wake_fd, &one, sizeof(one)) < 0)
		return;
}

void io_queue_publish(struct io_queue *q)
{
	bool is_asleep;

	if (!q->mine.used)
		return;
	pthread_mutex_lock(&q->lock);
	if (q->ready.used) {
		memcpy(batch_extend(&q->ready, q->mine.used), q->mine.mem, q->mine.used);
		q->mine.used = 0;
	} else {
		batches_swap(&q->ready, &q->mine);
	}
	is_asleep = q->is_asleep;
	q->is_asleep = false;
	pthread_mutex_unlock(&q->lock);
	if (is_asleep)
		queue_wake_reader(q);
}

void io_queue_wake(struct io_queue *q)
{
	bool is_asleep;

	pthread_mutex_lock(&q->lock);
	is_asleep = q->is_asleep;
	q->is_asleep = false;
	pthread_mutex_unlock(&q->lock);
	if (is_asleep)
		queue_wake_reader(q);
}

void *io_queue_next(struct io_queue *q)
{
	struct io_head *head;

	if (q->at == q->taken.used) {
		q->at = q->taken.used = 0;
		pthread_mutex_lock(&q->lock);
		batches_swap(&q->ready, &q->taken);
		pthread_mutex_unlock(&q->lock);
		if (!q->taken.used)
			return NULL;
	}
	head = (struct io_head *)(void *)(q->taken.mem + q->at);
	q->at += head->n_bytes;
	return head;
}

bool io_queue_may_sleep(struct io_queue *q)
{
	bool may;

	if (q->at < q->taken.used)
		return false;
	pthread_mutex_lock(&q->lock);
	may = !q->ready.used;
	q->is_asleep = may;
	pthread_mutex_unlock(&q->lock);
	return may;
}

void io_queue_awake(struct io_queue *q)
{
	uint64_t n;

	pthread_mutex_lock(&q->lock);
	q->is_asleep = false;
	pthread_mutex_unlock(&q->lock);
	/* The read fails if the reader was not woken. */
	if (read(q->wake_fd, &n, sizeof(n)) < 0)
		return;
}
