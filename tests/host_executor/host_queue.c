/* Queues of the back-end "host": each queue has a thread that does copies, posts and collectives
 * (host_coll_run) in order. Thread: the executor's thread adds pieces of work (struct host_job) to
 * a queue; the queue's own thread does the work. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/host_executor/host_impl.h"

struct host_queue {
	struct device_queue q;
	struct host_device *dev;
	pthread_t thread;
	/* Protects all fields below. */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	uint64_t n_pushed, n_taken, n_done;
	bool is_closing;
	struct host_job jobs[HOST_JOBS];
};

static bool take(struct host_queue *q, struct host_job *ret)
{
	bool has;

	pthread_mutex_lock(&q->lock);
	while (q->n_taken == q->n_pushed && !q->is_closing)
		pthread_cond_wait(&q->wake, &q->lock);
	has = q->n_taken < q->n_pushed;
	if (has)
		*ret = q->jobs[q->n_taken++ % HOST_JOBS];
	pthread_mutex_unlock(&q->lock);
	return has;
}

static void run(struct host_queue *q, const struct host_job *job)
{
	switch (job->kind) {
	case HOST_COPY:
		memcpy(job->dst, job->src, job->bytes);
		break;
	case HOST_POST:
		/* Release: pairs with the acquire load of the counter by the executor's thread. */
		atomic_store_explicit(
			(_Atomic uint64_t *)job->dst, job->value, memory_order_release);
		break;
	case HOST_COLL:
		host_coll_run(job->coll, q->dev);
		host_coll_put(job->coll, q->dev);
		break;
	}
}

static void *queue_main(void *arg)
{
	struct host_queue *q = arg;
	struct host_job job;

	while (take(q, &job)) {
		run(q, &job);
		pthread_mutex_lock(&q->lock);
		q->n_done++;
		pthread_mutex_unlock(&q->lock);
	}
	return NULL;
}

static void queue_free(struct host_queue *q)
{
	pthread_cond_destroy(&q->wake);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

int host_queue_open(struct device *dev, int gpu, int priority, struct device_queue **ret)
{
	struct host_queue *q = calloc(1, sizeof(*q));
	sigset_t all, old;
	int rc;

	(void)priority;
	if (!q)
		return err_set(&dev->why, DEVICE_NOMEM, "out of memory");
	q->q = (struct device_queue){dev, gpu};
	q->dev = (struct host_device *)dev;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->wake, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&q->thread, NULL, queue_main, q);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		queue_free(q);
		return err_set(&dev->why, DEVICE_NOMEM,
			"cannot start the thread of a device queue: %s", strerror(rc));
	}
	*ret = &q->q;
	return 0;
}

/* Wait until all queued work has been done, then free the queue. */
void host_queue_close(struct device_queue *queue)
{
	struct host_queue *q = (struct host_queue *)queue;

	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	q->is_closing = true;
	pthread_cond_signal(&q->wake);
	pthread_mutex_unlock(&q->lock);
	pthread_join(q->thread, NULL);
	queue_free(q);
}

int host_queue_poll(struct device_queue *queue)
{
	struct host_queue *q = (struct host_queue *)queue;
	bool is_idle;

	pthread_mutex_lock(&q->lock);
	is_idle = q->n_done == q->n_pushed;
	pthread_mutex_unlock(&q->lock);
	return is_idle ? 0 : DEVICE_AGAIN;
}

int host_queue_push(struct device_queue *queue, const struct host_job *job)
{
	struct host_queue *q = (struct host_queue *)queue;
	int rc = DEVICE_AGAIN;

	pthread_mutex_lock(&q->lock);
	if (q->n_pushed - q->n_taken < HOST_JOBS) {
		q->jobs[q->n_pushed++ % HOST_JOBS] = *job;
		pthread_cond_signal(&q->wake);
		rc = 0;
	}
	pthread_mutex_unlock(&q->lock);
	return rc;
}

bool host_queue_has_room(struct device_queue *queue)
{
	struct host_queue *q = (struct host_queue *)queue;
	bool has;

	pthread_mutex_lock(&q->lock);
	has = q->n_pushed - q->n_taken < HOST_JOBS;
	pthread_mutex_unlock(&q->lock);
	return has;
}

static char *at(struct device_mem *mem, uint64_t offset)
{
	return ((struct host_mem *)mem)->base + offset;
}

int host_copy(struct device_queue *q, struct device_mem *dst, uint64_t dst_offset,
	struct device_mem *src, uint64_t src_offset, uint64_t bytes)
{
	struct host_job job = {.kind = HOST_COPY, .bytes = bytes};

	if (!bytes || !device_mem_holds(dst, dst_offset, bytes) ||
		!device_mem_holds(src, src_offset, bytes))
		return err_set(&q->dev->why, DEVICE_ARG,
			"a copy exceeds the memory of its source or destination");
	job.dst = at(dst, dst_offset);
	job.src = at(src, src_offset);
	return host_queue_push(q, &job);
}

int host_post(struct device_queue *q, struct device_mem *page, uint64_t offset, uint64_t value)
{
	struct host_job job = {.kind = HOST_POST, .value = value};

	if (offset % 8 || !device_mem_holds(page, offset, 8))
		return err_set(
			&q->dev->why, DEVICE_ARG, "a counter is outside of the pinned memory");
	job.dst = at(page, offset);
	return host_queue_push(q, &job);
}
