#ifndef BPS_SERVER_THREAD_H
#define BPS_SERVER_THREAD_H
/* A data thread of the server: one libuv loop with one transport and one core. The thread starts
 * when the scheduler has assigned an id to this server. The control thread posts the scheduler's
 * messages to the data thread. */
#include "bps-server/core/core.h"
#include "common/control/member.h"
#include "common/datapath/datapath.h"

struct data_thread;

struct thread_config {
	struct srv_config core;
	uint32_t spin_us;
	/* settings of the same-host path; NULL: the path is off. The settings must outlive the
	 * thread. */
	const struct shm_config *same_host;
};

/* Create the thread and start it. net and member must outlive the thread; cfg is copied. Returns 0,
 * or a negative error code with a text in err. Only the control thread may call this function and
 * the functions below. */
int thread_new(struct net *net, struct member *member, const struct thread_config *cfg,
	struct data_thread **ret, struct err_text *err);
/* Close all connections, join the thread and free it. NULL is allowed. */
void thread_free(struct data_thread *t);
/* Events for a data thread. Only thread_set_peer_window posts PEER_WINDOW. */
enum thread_event { THREAD_MESSAGE, THREAD_RESYNC_BEGIN, THREAD_RESYNC_END, THREAD_PEER_WINDOW };
/* Post an event to the data thread. m: the message of the event THREAD_MESSAGE, NULL for other
 * events. The function takes its own reference to m. On the errors -EAGAIN and -ENOMEM, the event
 * is lost. */
int thread_post_event(struct data_thread *t, enum thread_event event, struct member_msg *m);
/* Change srv_config.peer_window_bytes. Errors: -EAGAIN, -ENOMEM: the old value stays. */
int thread_set_peer_window(struct data_thread *t, size_t bytes);
/* Add to `to` the latest arrival figures of the data thread t. Does not block, even if t hangs. */
void thread_arrivals(struct data_thread *t, struct arrivals_figures *to);
/* Return the latest counters, and the time at which the thread's loop last ran. Does not block. */
void thread_read_stats(struct data_thread *t, struct srv_stats *ret, uint64_t *ret_beat_ns);
#endif
