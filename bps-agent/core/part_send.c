/* Messages that a partition sends: its contribution (the sum of this machine's workers, with a
 * crc), HAVE, GOT and donations. If a job has only one member, its partitions send no messages. The
 * sum of such a partition is written directly to the output. link.c decides when each message is
 * sent; this depends on the link's credit and window. Thread: the core's thread. */
#include "bps-agent/core/part.h"

#include <string.h>

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/lockstep.h"
#include "common/base/failpoint.h"
#include "common/data/crc32c.h"

/* ---- tasks ---- */

/* List at most REDUCE_MAX_SRC of the inputs that are in the contribution, with their weights.
 * offset: of the first value, in bytes. *input: index of the first input to look at; then the index
 * after the last one. Returns the length of the list. */
static unsigned tensor_list_given(const struct agt_tensor *t, uint64_t offset, uint32_t *input,
	const void *ret_src[static REDUCE_MAX_SRC], float ret_weights[static REDUCE_MAX_SRC])
{
	unsigned n = 0;

	for (; n < REDUCE_MAX_SRC && *input < t->n_in; ++*input) {
		if (!t->is_given[*input])
			continue;
		ret_src[n] = (char *)t->in[*input].mem + offset;
		ret_weights[n++] = t->weights[*input];
	}
	return n;
}

/* Add the value of the round before to the sum of the inputs in dst. has_no_input: all workers
 * abstain, and dst is not written yet. Used for jobs with one member. */
static void part_add_to_local_value(
	const struct agt_part *part, size_t first, size_t n, char *dst, bool has_no_input)
{
	const struct agt_tensor *t = part->tensor;
	size_t elem = dtype_bytes(t->shape.dtype);
	const void *before = (const char *)t->out[(part->round - 1) & 1].mem +
			     part_byte_offset(part) + first * elem;

	if (has_no_input)
		memset(dst, 0, n * elem);
	if (part->round > 1)
		reduce_fold(dst, &before, 1, n, t->shape.dtype, OP_SUM, has_no_input);
}

/* Compute the sum of the inputs for one step of the partition into dst. If op is OP_AVG, compute
 * the mean of the machine's workers instead. If all workers abstain, write zeros. */
static void part_reduce_step(
	const struct agt_part *part, size_t first, size_t n, char *dst, enum op op)
{
	struct agt_tensor *t = part->tensor;
	bool takes_means = op_takes_means(t->op, t->shape.dtype);
	size_t elem = dtype_bytes(t->shape.dtype);
	uint64_t offset = part_byte_offset(part) + first * elem;
	float values[AGT_STEP_VALUES];
	void *acc = dtype_acc_bytes(t->shape.dtype) != elem ? (void *)values : dst;
	const void *src[REDUCE_MAX_SRC];
	float weights[REDUCE_MAX_SRC];
	uint32_t input = 0;
	bool is_first = true;
	unsigned n_src;

	while ((n_src = tensor_list_given(t, offset, &input, src, weights))) {
		if (takes_means)
			reduce_means_fold(acc, src, weights, n_src, n, is_first);
		else
			reduce_fold(acc, src, n_src, n, t->shape.dtype, t->op, is_first);
		is_first = false;
	}
	if (part->task.kind == TASK_LOCAL && tensor_is_value(t))
		part_add_to_local_value(part, first, n, dst, is_first);
	else if (is_first)
		memset(dst, 0, n * elem);
	else
		reduce_finish(dst, acc, n, t->shape.dtype, op, tensor_n_contributing_workers(t));
}

static struct agt_mem part_contrib_memory(const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	struct agt_mem m = t->n_given > 1 ? t->staging : t->in[t->first_given];

	m.mem = (char *)m.mem + part_byte_offset(part);
	m.offset += part_byte_offset(part);
	return m;
}

/* Compute the sum, the crc, or both. The function works step by step, so that each step is still in
 * the cache for the crc. Thread: the transport's choice. */
static void part_task_run(struct xport_task *base)
{
	struct agt_part *part = part_of_task(base);
	const struct part_task *task = &part->task;
	size_t elem = dtype_bytes(part->tensor->shape.dtype), left = part_elems(part), first = 0;
	size_t step = dtype_elems_in_step(part->tensor->shape.dtype, AGT_STEP_VALUES);
	const char *mem = task->sum ? task->sum : part_contrib_memory(part).mem;
	uint32_t crc = 0;

	if (task->kind != TASK_LOCAL)
		FAILPOINT(AGENT_CONTRIB_PREPARE);
	while (left > 0) {
		size_t n = left < step ? left : step;

		if (task->sum)
			part_reduce_step(part, first, n, task->sum + first * elem, task->op);
		if (task->wants_crc)
			crc = crc32c(crc, mem + first * elem, n * elem);
		first += n;
		left -= n;
	}
	if (task->wants_crc)
		part->task.base.crc = crc;
	/* Memory order release: after a restart, the agent's new process may continue this round.
	 * Its acquire load in part_begin_contrib_task pairs with this store, so that the new
	 * process sees the sum. */
	if (task->sum && task->kind != TASK_LOCAL)
		atomic_store_explicit(&part->kept->summed, part->round, memory_order_release);
}

static struct xport_task *part_begin_task(
	struct agt_part *part, enum part_task_kind kind, enum op op, char *sum, bool wants_crc)
{
	part->task =
		(struct part_task){.base = {.run = part_task_run,
					   .crc = part->crc_round == part->round ? part->crc : 0},
			.kind = kind,
			.op = op,
			.sum = sum,
			.wants_crc = wants_crc};
	part->is_working = true;
	part->tensor->n_tasks++;
	part->tensor->job->n_tasks++;
	return &part->task.base;
}

static void part_end_task(struct agt_part *part)
{
	part->is_working = false;
	part->tensor->n_tasks--;
	part->tensor->job->n_tasks--;
}

/* Begin the task that must run before the contribution is sent. NULL: there is nothing to do. The
 * local sum is computed only once per round. After a restart, it is not computed again, because a
 * server on this host may be reading it (B6). */
static struct xport_task *part_begin_contrib_task(
	struct agt_part *part, enum part_task_kind kind, bool wants_crc)
{
	const struct agt_tensor *t = part->tensor;
	bool wants_sum = t->n_given > 1 && atomic_load_explicit(&part->kept->summed,
						   memory_order_acquire) != part->round;

	if (!wants_sum && !wants_crc)
		return NULL;
	/* The contribution is the machine's reduction, or for averages of f16 the mean of its
	 * workers. */
	return part_begin_task(part, kind, op_takes_means(t->op, t->shape.dtype) ? OP_AVG : OP_SUM,
		wants_sum ? part_contrib_memory(part).mem : NULL, wants_crc);
}

void part_compute_again(struct agt_part *part)
{
	/* The server has discarded the contribution, so no peer is reading the memory of the local
	 * sum. */
	atomic_store(&part->kept->summed, 0);
	xport_run(part_core(part)->x, part_begin_contrib_task(part, TASK_AGAIN, true));
}

void part_sum_local(struct agt_part *part)
{
	struct agt_core *core = part_core(part);

	heap_remove(&core->local, &part->node);
	core->n_local_tasks++;
	agt_tensor_record_push(part->tensor);
	xport_run(core->x, part_begin_task(part, TASK_LOCAL, part->tensor->op,
				   part_output_address(part), false));
}

static void part_local_sum_done(struct agt_part *part)
{
	/* a value has the deltas of all workers */
	part->kept->workers[part->round & 1] =
		tensor_is_value(part->tensor) ? part->tensor->job->n_workers
					      : tensor_n_contributing_workers(part->tensor);
	part_store_landed(part);
	part_set_state(part, PART_IDLE, "summed locally");
	part_report_sum(part);
}

void part_task_done(struct agt_part *part)
{
	const struct part_task *task = &part->task;
	struct agt_tensor *t = part->tensor;
	uint32_t was = part->crc;

	part_end_task(part);
	if (task->kind == TASK_LOCAL)
		part_core(part)->n_local_tasks--;
	if (t->failed || t->job->failed || t->job->is_closing) {
		agt_tensor_task_ended(t);
		return;
	}
	if (task->wants_crc) {
		part->crc = task->base.crc;
		part->crc_round = part->round;
	}
	if (task->kind == TASK_LOCAL)
		part_local_sum_done(part);
	else if (task->kind == TASK_AGAIN)
		part_judge_crc(part, was);
	else if (part->state == PART_READY && !heap_node_is_queued(&part->node))
		part_enqueue_to_send(part);
}

/* ---- messages ---- */

static struct wire_msg part_message_of(
	const struct agt_part *part, enum wire_type type, uint64_t round)
{
	const struct agt_tensor *t = part->tensor;

	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = part->pgen,
		.round = part_wire_round(part, round),
		.job = t->job->id,
		.tensor = t->id,
		.part = part->index,
		.member = t->job->member,
		.segment = WIRE_NO_SEGMENT};
}

void part_send_got(struct agt_part *part)
{
	struct wire_msg m = part_message_of(part, WIRE_GOT, part->round);

	if (!part->link || part_bytes(part) <= WIRE_INLINE_MAX)
		return;
	/* In state SENT, no GOT is needed: a CONTRIB implies GOT for the previous round. In state
	 * FETCHING, the sum is still being read. GOT is sent when the read ends. */
	if (part->state == PART_SENT || part->state == PART_FETCHING)
		return;
	if (part->state == PART_READY || part->state == PART_WAITING)
		m.round--;
	if (m.round > 0)
		link_send_got(part->link, &m);
}

static void describe_payload(
	struct wire_msg *m, const struct agt_mem *mem, uint32_t len, uint32_t crc)
{
	m->len = len;
	m->crc = crc;
	if (len <= WIRE_INLINE_MAX) {
		m->flags = WIRE_INLINE;
		m->payload = mem->mem;
	} else {
		m->segment = mem->segment;
		m->offset = mem->offset;
	}
}

static void part_charge_inflight(struct agt_part *part)
{
	if (part->is_charged || part->is_overdue)
		return;
	part->is_charged = true;
	part->link->inflight += part_bytes(part);
	part->tensor->job->inflight += part_bytes(part);
	part_core(part)->stats.inflight_bytes += part_bytes(part);
}

/* Send m after the task. NULL: there is no task. */
static int part_send_with_task(
	struct agt_part *part, struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	struct xconn *conn = part->link->conn;
	int rc;

	if (FAILPOINT(AGENT_CONTRIB_BEFORE_SEND)) {
		if (task)
			xport_task_run_here(part_core(part)->x, task);
		return 0;
	}
	if (!task)
		return is_eager ? xport_send_eager(conn, m, true) : xport_send(conn, m);
	rc = xport_offer(conn, m, task, is_eager);
	if (rc < 0 && part->is_working)
		part_end_task(part); /* the task has not run, and never will */
	return rc;
}

int part_send_contrib(struct agt_part *part)
{
	struct agt_core *core = part_core(part);
	const struct agt_tensor *t = part->tensor;
	bool is_same_host = part->link->conn->is_same_host;
	bool has_crc = t->n_given && (!is_same_host || t->job->may_shrink);
	/* Send the bytes with the offer only the first time. A repeated offer carries no bytes,
	 * because the server may have received the bytes of the first offer. So a repeated offer
	 * need not wait for space in the send queue. */
	bool is_eager = !part->sent_ns && t->n_given && part_bytes(part) > WIRE_INLINE_MAX;
	struct agt_mem mem = part_contrib_memory(part);
	struct xport_task *task = part_begin_contrib_task(
		part, TASK_CONTRIB, has_crc && part->crc_round != part->round);
	struct wire_msg m;
	int rc;

	/* An inline message carries the bytes, so compute them before the message is made. */
	if (task && part_bytes(part) <= WIRE_INLINE_MAX) {
		xport_task_run_here(part_core(part)->x, task);
		task = NULL;
	}
	m = part_message_of(part, WIRE_CONTRIB, part->round);
	m.priority = t->priority;
	m.contrib.op = t->op;
	m.contrib.workers = tensor_n_contributing_workers(t);
	/* members hold different versions of a value, so there is no crc to compare */
	m.contrib.crc_prev = m.round > 1 && !tensor_is_value(t)
				     ? part->kept->result_crc[(part->round - 1) & 1]
				     : 0;
	if (FAILPOINT(AGENT_CONTRIB_ECHO))
		m.contrib.crc_prev = ~m.contrib.crc_prev;
	/* If all workers abstain, the message has no bytes (W1). */
	describe_payload(&m, &mem, t->n_given ? part_bytes(part) : 0, has_crc ? part->crc : 0);
	rc = part_send_with_task(part, &m, task, is_eager);
	if (rc < 0)
		return rc;
	lockstep_record_sent(part);
	part_set_state(part, PART_SENT, "pushed");
	if (!part->sent_ns && m.len > WIRE_INLINE_MAX && !is_same_host)
		core->stats.offered_bytes += m.len;
	if (!part->sent_ns)
		part->sent_ns = core->now_ns;
	agt_tensor_record_push(part->tensor);
	part_charge_inflight(part);
	part_await_answer(part);
	core->stats.pushed_bytes += m.len;
	return 0;
}

/* Return whether the sum of the given round is in its out-slot. The two out-slots contain the sums
 * of the last two rounds. When the agent reads the next sum from the server, the next sum
 * overwrites the older of these two sums. Only jobs with backup machines need the older sum: the
 * agent donates it to members that are behind. */
static bool part_has_result(const struct agt_part *part, uint64_t round)
{
	uint64_t last = part_last_round(part);

	return round > part->kept->base &&
	       (round == last || (part->tensor->job->has_backup && round + 1 == last &&
					 part->state != PART_FETCHING));
}

static int part_send_donation(struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	uint64_t r = part->donate_round;
	struct agt_mem mem = t->out[r & 1];
	struct wire_msg m = part_message_of(part, WIRE_DONATE, r);
	bool has_owner = t->n_shards > 1;

	if (!part_has_result(part, r))
		return 0;
	mem.mem = (char *)mem.mem + part_byte_offset(part);
	mem.offset += part_byte_offset(part);
	/* a result from a server on this host has no crc, so compute the crc for the donation */
	if (!has_owner && !part->kept->result_crc[r & 1])
		part->kept->result_crc[r & 1] = crc32c(0, mem.mem, part_bytes(part));
	m.result.workers = part->kept->workers[r & 1];
	m.result.n_members = t->job->n_members;
	m.result.contributors = part->kept->contributors[r & 1];
	m.result.version = part->kept->version[r & 1];
	/* The owner keeps the bytes. The others need only the contributors. */
	describe_payload(&m, &mem, has_owner ? 0 : part_bytes(part),
		has_owner ? 0 : part->kept->result_crc[r & 1]);
	return FAILPOINT(AGENT_DONATE_BEFORE_SEND) ? 0 : xport_send(part->link->conn, &m);
}

int part_send_owed(struct agt_part *part, enum part_owe what)
{
	struct wire_msg m;
	int rc;

	if (what == OWE_DONATE)
		return part_send_donation(part);
	if (!part_is_have_due(part))
		return 0;
	m = part_message_of(
		part, tensor_is_value(part->tensor) ? WIRE_HOLD : WIRE_HAVE, part_last_round(part));
	if (m.type == WIRE_HOLD && part_last_round(part))
		m.hold.version = part->kept->version[part_last_round(part) & 1];
	rc = FAILPOINT(AGENT_HAVE_BEFORE_SEND) ? 0 : xport_send(part->link->conn, &m);
	if (rc == 0)
		part_await_answer(part);
	return rc;
}
