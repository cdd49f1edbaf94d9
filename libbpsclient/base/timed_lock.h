#ifndef BPSCLIENT_TIMED_LOCK_H
#define BPSCLIENT_TIMED_LOCK_H
/* A lock whose wait has a time-out on the monotonic clock. A thread may hold the lock across
 * system calls. Thread: any thread may take the lock. The thread that holds the lock releases
 * it. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct timed_lock {
	pthread_mutex_t mutex; /* protects is_taken; held only for a short time */
	pthread_cond_t is_free;
	bool is_taken;
};

/* Initialize a lock in zeroed memory. No thread holds the new lock. */
void timed_lock_init(struct timed_lock *t);
void timed_lock_fini(struct timed_lock *t);
/* Take the lock, waiting until deadline_ns at most (0: do not wait). Errors: -ETIMEDOUT. */
int timed_lock_take(struct timed_lock *t, uint64_t deadline_ns);
void timed_lock_give(struct timed_lock *t);
#endif
