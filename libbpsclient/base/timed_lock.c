#include "libbpsclient/base/timed_lock.h"

#include <errno.h>
#include <time.h>

void timed_lock_init(struct timed_lock *t)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&t->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->is_free, &attr);
	pthread_condattr_destroy(&attr);
}

void timed_lock_fini(struct timed_lock *t)
{
	pthread_cond_destroy(&t->is_free);
	pthread_mutex_destroy(&t->mutex);
}

int timed_lock_take(struct timed_lock *t, uint64_t deadline_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u)};
	int rc = deadline_ns ? 0 : ETIMEDOUT;

	pthread_mutex_lock(&t->mutex);
	while (t->is_taken && !rc)
		rc = pthread_cond_timedwait(&t->is_free, &t->mutex, &ts);
	rc = t->is_taken ? -ETIMEDOUT : 0;
	t->is_taken = true;
	pthread_mutex_unlock(&t->mutex);
	return rc;
}

void timed_lock_give(struct timed_lock *t)
{
	pthread_mutex_lock(&t->mutex);
	t->is_taken = false;
	pthread_cond_signal(&t->is_free);
	pthread_mutex_unlock(&t->mutex);
}
