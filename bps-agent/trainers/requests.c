/* Dispatches the requests of trainers to the files that serve them. Thread: the data thread. */
#include "bps-agent/trainers/requests.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "bps-agent/steps/trace.h"
#include "bps-agent/trainers/barrier.h"
#include "bps-agent/trainers/declare.h"
#include "bps-agent/trainers/hello.h"
#include "bps-agent/trainers/job.h"
#include "bps-agent/trainers/roster.h"
#include "bps-agent/trainers/tensor.h"
#include "bps-agent/trainers/trainer.h"
#include "bps-agent/trainers/why_stuck.h"

/* Answer ASK_TRAFFIC with the numbers of bytes that the agent has sent and received. net_stats
 * locks the transport only for a short time. */
static void trainer_send_traffic(struct trainer *t, uint32_t seq)
{
	struct local_msg m = {.type = LOCAL_TRAFFIC, .seq = seq};
	struct agt_stats core;
	struct net_stats net;

	agt_core_stats(t->agent->core, &core);
	cards_net_stats(t->agent->cfg.io.cards, &net);
	m.traffic.instance = t->agent->cfg.instance;
	m.traffic.sent_bytes = agent_sent_bytes(&core, &net);
	m.traffic.received_bytes = net.rx_bytes;
	trainer_send_message(t, &m, NULL, 0);
}

/* Largest number of traces that a trainer may leave in its socket. Each one takes memory. */
#define UNREAD_TRACES_MAX 4

/* A trainer's request for a trace. The trainer is held until the trace is ready, so the agent
 * writes at most one trace for each trainer at a time. It does not refuse a second trainer, because
 * all workers of a machine request their traces after the same step. */
struct trace_request {
	struct trainer *trainer;
	uint32_t seq;
};

/* fd: a memory file with the trace, or a negative error code. */
static void trainer_send_trace(struct trainer *t, uint32_t seq, int fd)
{
	struct local_msg m = {.type = LOCAL_TRACE, .seq = seq, .trace = {.text = ""}};

	if (fd < 0)
		m.trace = (struct local_text){.code = (uint32_t)-fd,
			.text = fd == -EBUSY ? "earlier traces are not read yet; try again"
					     : "the agent cannot write the trace"};
	trainer_send_message(t, &m, &fd, fd < 0 ? 0 : 1);
}

static void on_trace_ready(void *arg, int fd)
{
	struct trace_request *r = arg;
	struct trainer *t = r->trainer;

	if (t->state != TRAINER_GONE) {
		trainer_send_trace(t, r->seq, fd);
		trainer_answered(t);
		trainer_set_held(t, false);
	}
	if (fd >= 0)
		close(fd);
	trainer_unref(t);
	free(r);
}

/* Return whether the trainer may have left too many traces in its socket. */
static bool trainer_has_unread_traces(struct trainer *t)
{
	int n_bytes = 0;

	if (ioctl(t->sock, SIOCOUTQ, &n_bytes) == 0 && !n_bytes)
		t->n_unread_traces = 0;
	return t->n_unread_traces == UNREAD_TRACES_MAX;
}

static void on_trace_request(struct trainer *t, uint32_t seq, const struct local_ask_trace *ask)
{
	const struct round_choice choice = {ask->since_ns, ask->first_round, ask->last_round};
	bool is_unread = trainer_has_unread_traces(t);
	struct trace_request *r = is_unread ? NULL : malloc(sizeof(*r));
	int rc = is_unread ? -EBUSY : -ENOMEM;
	struct trace_machine *machines;
	size_t n_machines;

	if (r) {
		*r = (struct trace_request){t, seq};
		machines = roster_copy_machines(t->job, &n_machines);
		rc = trace_start(t->job, &choice, machines, n_machines, on_trace_ready, r);
	}
	if (rc == 0) {
		t->n_unread_traces++;
		trainer_ref(t);
		trainer_set_held(t, true);
		return;
	}
	free(r);
	trainer_send_trace(t, seq, rc);
}

static void on_trainer_message(struct trainer *t, const struct local_msg *m, void **mem)
{
	if (t->state == TRAINER_GREETING && m->type != LOCAL_HELLO) {
		trainer_disconnect(t, true, "the trainer's first message is not HELLO");
		return;
	}
	switch (m->type) {
	case LOCAL_HELLO:
		on_hello_of_trainer(t, m, mem);
		break;
	case LOCAL_DECLARE:
		declare_begin(t, m->seq, &m->declare, mem);
		break;
	case LOCAL_WHY:
		why_stuck_accept_request(t, m->seq, &m->why);
		break;
	case LOCAL_DEVICE:
		t->agent->executor_ops->ask(t, m->seq);
		break;
	case LOCAL_FINISH:
		job_finish_worker(t, m->seq);
		break;
	case LOCAL_BARRIER:
		barrier_accept_request(t, m->seq, m->barrier.number);
		break;
	case LOCAL_ASK:
		roster_answer_request(t, m->seq, &m->ask);
		break;
	case LOCAL_ASK_TRAFFIC:
		trainer_send_traffic(t, m->seq);
		break;
	case LOCAL_ASK_TRACE:
		on_trace_request(t, m->seq, &m->ask_trace);
		break;
	default:
		trainer_disconnect(t, true,
			"the trainer sent a message of a type that the agent does not handle");
	}
}

static void on_trainer_going(struct trainer *t, const char *why)
{
	declare_cancel(t);
	if (t->job)
		job_detach_trainer(t, why);
}

const struct trainer_events trainer_events = {.message = on_trainer_message,
	.submission = tensor_on_submission,
	.going = on_trainer_going,
	.freed = declare_free};
