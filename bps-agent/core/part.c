/* States, timers, queues and placement of one partition: see the diagram in core.h. The functions
 * do not block: a partition that waits for a server's answer has a state and a timer. Messages are
 * in part_send.c and part_receive.c. Thread: the core's thread. */
#include "bps-agent/core/part.h"

#include <assert.h>
#include <errno.h>

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/lockstep.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/state.h"

/* The time between retries doubles up to a factor of 2^MAX_BACKOFF_LOG2. */
#define MAX_BACKOFF_LOG2 4

static const struct state_row part_states[] = {
	[PART_IDLE] = {"idle", 1u << PART_READY},
	[PART_READY] = {"ready", 1u << PART_SENT | 1u << PART_OFFERED | 1u << PART_IDLE},
	[PART_SENT] = {"sent",
		1u << PART_READY | 1u << PART_WAITING | 1u << PART_OFFERED | 1u << PART_IDLE},
	[PART_WAITING] = {"waiting", 1u << PART_READY | 1u << PART_OFFERED | 1u << PART_IDLE},
	[PART_OFFERED] = {"offered",
		1u << PART_READY | 1u << PART_SENT | 1u << PART_FETCHING | 1u << PART_IDLE},
	[PART_FETCHING] = {"fetching", 1u << PART_READY | 1u << PART_SENT | 1u << PART_IDLE},
};

void part_set_state(struct agt_part *part, enum agt_part_state state, const char *why)
{
	assert(part_states[part->state].next >> state & 1);
	log_trace("partition changes from %s to %s: job=%u tensor=%u part=%u round=%llu why=%s",
		part_states[part->state].name, part_states[state].name, part->tensor->job->id,
		part->tensor->id, part->index, (unsigned long long)part->round, why);
	part->state = state;
}

void part_init(
	struct agt_part *part, struct agt_tensor *t, uint32_t index, struct agt_kept_part *kept)
{
	uint32_t rank = shape_part_shard(&t->shape, t->n_shards, t->part_elems, index);

	part->tensor = t;
	part->index = index;
	part->kept = kept;
	part->round = kept->landed;
	part->has_other_owner = t->n_shards > 1;
	for (uint32_t w = 0; w < t->job->n_workers; w++)
		if (t->job->ranks[w] == rank)
			part->has_other_owner = false;
}

size_t part_elems(const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;

	return shape_part_elems(&t->shape, t->n_shards, t->part_elems, part->index);
}

uint32_t part_bytes(const struct agt_part *part)
{
	return (uint32_t)(part_elems(part) * dtype_bytes(part->tensor->shape.dtype));
}

uint64_t part_byte_offset(const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;

	return shape_part_first(&t->shape, t->n_shards, t->part_elems, part->index) *
	       dtype_bytes(t->shape.dtype);
}

struct agt_core *part_core(const struct agt_part *part)
{
	return part->tensor->job->core;
}

/* ---- timers and lists ---- */

void part_stop_timer(struct agt_part *part)
{
	if (heap_node_is_queued(&part->timer))
		heap_remove(&part_core(part)->timers, &part->timer);
}

/* count: how many times span_ns is doubled. Callers pass n_agains after an AGAIN, n_unread after an
 * offer that could not be read, and n_tries while an answer is missing. The counters are separate,
 * because an AGAIN or an offer shows that the server works. */
void part_start_timer(struct agt_part *part, uint64_t span_ns, uint8_t *count)
{
	part_stop_timer(part);
	part->timer.key = part_core(part)->now_ns + (span_ns << *count);
	heap_push(&part_core(part)->timers, &part->timer);
	if (*count < MAX_BACKOFF_LOG2)
		++*count;
}

void part_await_answer(struct agt_part *part)
{
	part_start_timer(part, part_core(part)->cfg.retry_ns, &part->n_tries);
}

void part_await_offer(struct agt_part *part)
{
	part->n_tries = 0; /* the server has answered */
	if (part->n_unread < MAX_BACKOFF_LOG2)
		part_start_timer(part, part_core(part)->cfg.again_ns, &part->n_unread);
	else
		part_await_answer(part);
}

void part_uncharge_inflight(struct agt_part *part)
{
	if (part->is_charged) {
		part->link->inflight -= part_bytes(part);
		part->tensor->job->inflight -= part_bytes(part);
		part_core(part)->stats.inflight_bytes -= part_bytes(part);
		link_activate(part->link);
	}
	part->is_charged = false;
	job_unpark_parts(part->tensor->job);
}

void part_enqueue_to_send(struct agt_part *part)
{
	struct agt_tensor *t = part->tensor;

	if (part->is_staging || part->is_working || part_awaits_value(part))
		/* part_staging_done, part_task_done or on_have_ok_message queues the partition
		 * later */
		return;
	part->node.key = heap_key_of_partition(t->priority, t->begun_seq, part->index);
	if (t->job->is_local)
		heap_push(&part_core(part)->local, &part->node);
	else if (part->link)
		lockstep_push_part(part);
}

void part_dequeue(struct agt_part *part)
{
	struct agt_job *job = part->tensor->job;

	if (!heap_node_is_queued(&part->node))
		return;
	if (!part->is_parked && !job->is_local)
		lockstep_remove(part);
	else
		heap_remove(job->is_local ? &part_core(part)->local : &job->parked, &part->node);
	part->is_parked = false;
}

bool part_has_room_in_job(const struct agt_part *part)
{
	const struct agt_job *job = part->tensor->job;
	uint64_t limit = job->core->cfg.job_inflight_bytes;

	return part->is_overdue || !limit || !job->inflight ||
	       job->inflight + part_bytes(part) <= limit;
}

void part_park_in_job(struct agt_part *part)
{
	part_dequeue(part);
	part->is_parked = true;
	heap_push(&part->tensor->job->parked, &part->node);
}

void job_unpark_parts(struct agt_job *job)
{
	uint64_t limit = job->core->cfg.job_inflight_bytes, expected = job->inflight;
	struct heap_node *node;

	while ((node = heap_min(&job->parked))) {
		struct agt_part *part = part_of_heap_node(node);

		expected += part_bytes(part);
		/* If no bytes are in flight, move all partitions to their links. If only some
		 * partitions were moved and none of them could be sent, no sum would ever arrive.
		 * Then no event would move the remaining partitions. */
		if (limit && job->inflight && expected > limit)
			return;
		part_dequeue(part);
		part_enqueue_to_send(part);
	}
}

void part_stop_activity(struct agt_part *part)
{
	part_stop_timer(part);
	part_uncharge_inflight(part);
	if (part->state == PART_READY)
		part_dequeue(part);
	if (part->state == PART_OFFERED)
		TAILQ_REMOVE(&part->link->offered, part, offered);
	if (part->state == PART_FETCHING)
		part->is_stale = true;
}

uint64_t part_last_round(const struct agt_part *part)
{
	return part->state == PART_IDLE ? part->round : part->round - 1;
}

uint64_t part_wire_round(const struct agt_part *part, uint64_t round)
{
	return round - part->kept->base;
}

bool part_awaits_value(const struct agt_part *part)
{
	return tensor_is_value(part->tensor) && part->is_have_unconfirmed;
}

bool part_is_have_due(const struct agt_part *part)
{
	return part->is_have_unconfirmed && (part->state == PART_IDLE || part->state == PART_READY);
}

void part_queue_have(struct agt_part *part)
{
	if (part_is_have_due(part) && !heap_node_is_queued(&part->timer))
		link_queue_owed(part, OWE_HAVE);
}

void part_make_ready(struct agt_part *part, const char *why)
{
	part_set_state(part, PART_READY, why);
	part_enqueue_to_send(part);
	part_queue_have(part);
}

void part_start_round(struct agt_part *part)
{
	part->n_tries = part->n_agains = part->n_unread = 0;
	part->n_bad_crc = part->n_misfits = 0;
	part->is_overdue = false;
	part->sent_ns = 0;
	part->round++;
	part->is_staging = part->tensor->is_device;
	part_make_ready(part, "submitted");
}

void part_staging_done(struct agt_part *part)
{
	part->is_staging = false;
	part_enqueue_to_send(part);
}

/* Queue all messages of the partition again after a change of the pgen or the connection, because
 * the server then has no state of the partition. */
static void part_requeue_messages(struct agt_part *part, const char *why)
{
	part->n_tries = part->n_agains = part->n_unread = 0;
	part->is_overdue = false;
	if (part->state == PART_FETCHING)
		return; /* part_read_done makes the partition READY when the stale read has ended */
	if (part->state != PART_IDLE && part->state != PART_READY)
		part_set_state(part, PART_READY, why);
	if (part->state == PART_READY && !heap_node_is_queued(&part->node))
		part_enqueue_to_send(part);
	part_queue_have(part);
}

void part_restart_sending(struct agt_part *part)
{
	link_drop_owed(part);
	part_stop_activity(part);
	part_requeue_messages(part, "the connection has changed");
}

void part_abandon_round(struct agt_part *part, const char *why)
{
	part_send_got(part);
	link_drop_owed(part);
	part_stop_activity(part);
	part->is_staging = false;
	if (part->state != PART_FETCHING && part->state != PART_IDLE)
		part_set_state(part, PART_IDLE, why);
}

void part_move_to_server(struct agt_part *part, struct agt_link *link, uint64_t pgen)
{
	FAILPOINT(AGENT_PART_MOVE);
	/* Send GOT if no later message will imply it. If the partition stays on its server, the
	 * next CONTRIB or HAVE will imply GOT for the results that the agent has read. Neither
	 * message implies GOT for a result that was only offered (state OFFERED). */
	if (part->link != link || part->state == PART_OFFERED)
		part_send_got(part);
	part_stop_activity(part);
	link_detach_part(part);
	part->pgen = pgen;
	if (pgen >= part->tensor->job->border && part->kept->border < part->tensor->job->border) {
		part->kept->base = part_last_round(part);
		part->kept->border = part->tensor->job->border;
	}
	part->is_have_unconfirmed = part_wire_round(part, part_last_round(part)) > 0 ||
				    part->tensor->job->has_backup ||
				    (tensor_is_value(part->tensor) && link);
	if (link && link_attach_part(link, part) < 0)
		agt_job_fail_and_report(part->tensor->job, -ENOMEM, "out of memory in the agent");
	part_requeue_messages(part, "new placement");
}

void on_part_timer_expiry(struct agt_part *part)
{
	part_stop_timer(part);
	FAILPOINT(AGENT_RETRY);
	if (part->state == PART_IDLE || part->state == PART_READY) {
		part_queue_have(part);
		return;
	}
	part_core(part)->stats.repushes++;
	part_uncharge_inflight(part);
	part->is_overdue = part->state == PART_SENT;
	part_make_ready(part, "timer");
}

void part_store_landed(struct agt_part *part)
{
	/* Release: pairs with the acquire load in kept_last_complete_round. The next process then
	 * sees all earlier stores. */
	atomic_store_explicit(&part->kept->landed, part->round, memory_order_release);
}

void part_report_sum(struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	struct agt_env *env = &part_core(part)->env;

	if (t->is_device)
		env->unstage(env->ctx, t->user, part->index, part->round);
	agt_tensor_part_done(part->tensor);
}

char *part_output_address(const struct agt_part *part)
{
	return (char *)part->tensor->out[part->round & 1].mem + part_byte_offset(part);
}
