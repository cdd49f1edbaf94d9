/* Messages that a partition sends: its contribution (the sum of this machine's workers, with a
 * crc), HAVE, GOT and donations. If a job has only one member, its partitions send no messages. The
 * sum of such a partition is written directly to the output. link.c decides when each message is
 * sent; this depends on the link's credit and window. Thread: the core's thread. */
#include "bps-agent/core/part.h"

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/lockstep.h"
#include "common/base/failpoint.h"
#include "common/data/crc32c.h"

/* Compute the sum of the inputs for one step of the partition into dst. If op is OP_AVG, compute
 * the mean of the machine's workers instead. */
static void part_reduce_step(struct agt_part *part, size_t first, size_t n, char *dst, enum op op)
{
	struct agt_tensor *t = part->tensor;
	bool takes_means = op_takes_means(t->op, t->shape.dtype);
	size_t elem = dtype_bytes(t->shape.dtype);
	uint64_t offset = part_byte_offset(part) + first * elem;
	bool has_acc = dtype_acc_bytes(t->shape.dtype) != elem;
	void *acc = has_acc ? (void *)part_core(part)->scratch : dst;

	for (uint32_t w = 0; w < t->n_in; w += REDUCE_MAX_SRC) {
		const void *src[REDUCE_MAX_SRC];
		unsigned n_src = 0;

		while (n_src < REDUCE_MAX_SRC && w + n_src < t->n_in) {
			src[n_src] = (char *)t->in[w + n_src].mem + offset;
			n_src++;
		}
		if (takes_means)
			reduce_means_fold(acc, src, t->weights + w, n_src, n, w == 0);
		else
			reduce_fold(acc, src, n_src, n, t->shape.dtype, t->op, w == 0);
	}
	reduce_finish(dst, acc, n, t->shape.dtype, op, t->job->n_workers);
}

static struct agt_mem part_contrib_memory(const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	struct agt_mem m = t->n_in > 1 ? t->staging : t->in[0];

	m.mem = (char *)m.mem + part_byte_offset(part);
	m.offset += part_byte_offset(part);
	return m;
}

void part_prepare_contrib(struct agt_part *part, bool wants_crc)
{
	_Atomic uint64_t *summed = &part->kept->summed;
	bool wants_sum = part->tensor->n_in > 1 &&
			 atomic_load_explicit(summed, memory_order_acquire) != part->round;
	size_t elem = dtype_bytes(part->tensor->shape.dtype), left = part_elems(part), first = 0;
	size_t step = dtype_elems_in_step(part->tensor->shape.dtype, AGT_STEP_VALUES);
	char *mem = part_contrib_memory(part).mem;
	/* The contribution is the machine's reduction, or for averages of f16 the mean of its
	 * workers. */
	enum op op = op_takes_means(part->tensor->op, part->tensor->shape.dtype) ? OP_AVG : OP_SUM;
	uint32_t crc = 0;

	if (!wants_sum && !wants_crc)
		return;
	FAILPOINT(AGENT_CONTRIB_PREPARE);
	while (left > 0) {
		size_t n = left < step ? left : step;

		if (wants_sum)
			part_reduce_step(part, first, n, mem + first * elem, op);
		if (wants_crc)
			crc = crc32c(crc, mem + first * elem, n * elem);
		first += n;
		left -= n;
	}
	part->crc = crc;
	part->crc_round = wants_crc ? part->round : 0;
	/* Memory order release: after a restart, the agent's new process may continue this round.
	 * Its acquire load at the start of this function pairs with this store, so that the new
	 * process sees the sum. */
	if (wants_sum)
		atomic_store_explicit(summed, part->round, memory_order_release);
}

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

int part_send_contrib(struct agt_part *part)
{
	struct agt_core *core = part_core(part);
	const struct agt_tensor *t = part->tensor;
	bool is_same_host = part->link->conn->is_same_host;
	bool has_crc = !is_same_host || t->job->may_shrink;
	/* Send the bytes with the offer only the first time. A repeated offer carries no bytes,
	 * because the server may have received the bytes of the first offer. So a repeated offer
	 * need not wait for space in the send queue. */
	bool is_eager = !part->sent_ns && part_bytes(part) > WIRE_INLINE_MAX;
	struct agt_mem mem = part_contrib_memory(part);
	struct wire_msg m;
	int rc;

	part_prepare_contrib(part, has_crc && part->crc_round != part->round);
	m = part_message_of(part, WIRE_CONTRIB, part->round);
	m.priority = t->priority;
	m.contrib.op = t->op;
	m.contrib.workers = t->job->n_workers;
	m.contrib.crc_prev = m.round > 1 ? part->kept->result_crc[(part->round - 1) & 1] : 0;
	if (FAILPOINT(AGENT_CONTRIB_ECHO))
		m.contrib.crc_prev = ~m.contrib.crc_prev;
	describe_payload(&m, &mem, part_bytes(part), has_crc ? part->crc : 0);
	if (FAILPOINT(AGENT_CONTRIB_BEFORE_SEND))
		rc = 0;
	else if (is_eager)
		rc = xport_send_eager(part->link->conn, &m, true);
	else
		rc = xport_send(part->link->conn, &m);
	if (rc < 0)
		return rc;
	lockstep_record_sent(part);
	part_set_state(part, PART_SENT, "pushed");
	if (!part->sent_ns && m.len > WIRE_INLINE_MAX && !is_same_host)
		core->stats.offered_bytes += m.len;
	if (!part->sent_ns)
		part->sent_ns = core->now_ns;
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

	if (!part_has_result(part, r))
		return 0;
	mem.mem = (char *)mem.mem + part_byte_offset(part);
	mem.offset += part_byte_offset(part);
	/* a result from a server on this host has no crc, so compute the crc for the donation */
	if (!part->kept->result_crc[r & 1])
		part->kept->result_crc[r & 1] = crc32c(0, mem.mem, part_bytes(part));
	m.result.workers = part->kept->workers[r & 1];
	m.result.n_members = t->job->n_members;
	m.result.contributors = part->kept->contributors[r & 1];
	describe_payload(&m, &mem, part_bytes(part), part->kept->result_crc[r & 1]);
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
	m = part_message_of(part, WIRE_HAVE, part_last_round(part));
	rc = FAILPOINT(AGENT_HAVE_BEFORE_SEND) ? 0 : xport_send(part->link->conn, &m);
	if (rc == 0)
		part_await_answer(part);
	return rc;
}

void part_sum_local(struct agt_part *part)
{
	struct agt_tensor *t = part->tensor;
	size_t elem = dtype_bytes(t->shape.dtype), left = part_elems(part), first = 0;
	size_t step = dtype_elems_in_step(t->shape.dtype, AGT_STEP_VALUES);
	struct agt_core *core = part_core(part);
	char *dst = part_output_address(part);

	heap_remove(&core->local, &part->node);
	while (left > 0) {
		size_t n = left < step ? left : step;

		part_reduce_step(part, first, n, dst + first * elem, t->op);
		first += n;
		left -= n;
	}
	part->kept->workers[part->round & 1] = t->job->n_workers;
	part_store_landed(part);
	part_set_state(part, PART_IDLE, "summed locally");
	part_report_sum(part);
}
