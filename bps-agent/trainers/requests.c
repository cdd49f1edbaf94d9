/* Dispatches the requests of trainers to the files that serve them. Thread: the data thread. */
#include "bps-agent/trainers/requests.h"

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
