#ifndef BPS_SERVER_THREAD_H
#define BPS_SERVER_THREAD_H
/* A data thread of the server: one libuv loop with one transport and one core. Started when the
 * scheduler has told our id; the control thread posts what the scheduler says. */
#include "bps-server/core/core.h"
#include "common/control/member.h"
#include "common/datapath/datapath.h"

struct data_thread;

struct thread_config {
	struct srv_config core;
	uint32_t spin_us;
	const struct shm_config *same_host; /* NULL: off; outlives the thread */
	/* The job cannot go on; any thread. */
	void (*fail)(void *ctx, uint32_t job, int code, const char *text);
	/* The answer to a SIGHT; any thread. */
	void (*seen)(void *ctx, const struct ctl_sight *s);
	void *ctx;
};

/* Make and start it. net must outlive it; cfg is copied. Thread: control, as for all that
 * follows.
 * Errors: negative, with a sentence. */
int thread_new(struct net *net, const struct thread_config *cfg, struct data_thread **ret,
	struct err_text *err);
/* Closes all connections, joins, frees. NULL is allowed. */
void thread_free(struct data_thread *t);
/* What is posted to a data thread; PEER_WINDOW by thread_set_peer_window alone. */
enum thread_event { THREAD_MESSAGE, THREAD_RESYNC_BEGIN, THREAD_RESYNC_END, THREAD_PEER_WINDOW };
/* m: of THREAD_MESSAGE, else NULL; it takes its own reference. Errors: -EAGAIN, -ENOMEM: it is
 * lost. */
int thread_post(struct data_thread *t, enum thread_event event, struct member_msg *m);
/* Change srv_config.peer_window_bytes. Errors: -EAGAIN, -ENOMEM: it stays as it was. */
int thread_set_peer_window(struct data_thread *t, size_t bytes);
/* Add this thread's, of a moment ago. Does not wait, also when the data thread hangs. */
void thread_arrivals(struct data_thread *t, struct arrivals_figures *to);
/* Figures of a moment ago, and when the thread last turned. Does not wait either. */
void thread_stats(struct data_thread *t, struct srv_stats *ret, uint64_t *ret_beat_ns);
#endif
