#ifndef BPSCLIENT_TURN_H
#define BPSCLIENT_TURN_H
/* A lock that can be waited for until a point on the monotonic clock: whose turn it is on a
 * connection. It may be held across system calls. Thread: any may take it, who has it gives it. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct turn {
	pthread_mutex_t mutex; /* of is_taken */
	pthread_cond_t is_free;
	bool is_taken;
};

/* Nobody's turn. */
void turn_init(struct turn *t);
void turn_fini(struct turn *t);
/* Take it, waiting until deadline_ns at most (0: not at all). Errors: -ETIMEDOUT. */
int turn_take(struct turn *t, uint64_t deadline_ns);
void turn_give(struct turn *t);
#endif
