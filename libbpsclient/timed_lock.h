#ifndef BPSCLIENT_TIMED_LOCK_H
#define BPSCLIENT_TIMED_LOCK_H
/* A lock that can be waited for until a point on the monotonic clock, and may be held across system
 * calls. Thread: any may take it, and the one that holds it gives it back. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct timed_lock {
	pthread_mutex_t mutex; /* of is_taken */
	pthread_cond_t is_free;
	bool is_taken;
};

/* Free at first. */
void timed_lock_init(struct timed_lock *t);
void timed_lock_fini(struct timed_lock *t);
/* Take the lock, waiting until deadline_ns at most (0: not at all). Errors: -ETIMEDOUT. */
int timed_lock_take(struct timed_lock *t, uint64_t deadline_ns);
void timed_lock_give(struct timed_lock *t);
#endif
