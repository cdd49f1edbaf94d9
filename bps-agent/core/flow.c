/* The way of one partition: see the drawing in core.h. Nothing here waits; every wait is a state
 * with a timer. */
#include "bps-agent/core/core_impl.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/data/crc32c.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

/* Retries double up to this factor. */
#define MAX_BACKOFF_LOG2 4
/* The same partition's bytes were wrong this often: not chance. */
#define MAX_BAD_CRC 4

static const struct {
	const char *name;
	unsigned next;
} part_states[] = {
	[PART_IDLE] = {"idle", 1u << PART_READY},
	[PART_READY] = {"ready", 1u << PART_SENT | 1u << PART_OFFERED | 1u << PART_IDLE},
	[PART_SENT] = {"sent",
		1u << PART_READY | 1u << PART_WAITING | 1u << PART_OFFERED | 1u << PART_IDLE},
	[PART_WAITING] = {"waiting", 1u << PART_READY | 1u << PART_OFFERED | 1u << PART_IDLE},
	[PART_OFFERED] = {"offered",
		1u << PART_READY | 1u << PART_SENT | 1u << PART_FETCHING | 1u << PART_IDLE},
	[PART_FETCHING] = {"fetching", 1u << PART_READY | 1u << PART_IDLE},
};

static void part_set_state(struct agt_part *part, enum agt_part_state state, const char *why)
{
	assert(part_states[part->state].next >> state & 1);
	log_trace("part %s to %s: job=%u tensor=%u part=%u round=%llu why=%s",
		part_states[part->state].name, part_states[state].name, part->tensor->job->id,
		part->tensor->id, part->index, (unsigned long long)part->round, why);
	part->state = state;
}

size_t part_elems(const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	uint64_t first = (uint64_t)part->index * t->part_elems;

	return t->n_elems - first < t->part_elems ? (size_t)(t->n_elems - first) : t->part_elems;
}

uint32_t part_bytes(const struct agt_part *part)
{
	return (uint32_t)(part_elems(part) * dtype_bytes(part->tensor->dtype));
}

static uint64_t part_offset(const struct agt_part *part)
{
	return (uint64_t)part->index * part->tensor->part_elems * dtype_bytes(part->tensor->dtype);
}

static struct agt_core *core_of(const struct agt_part *part)
{
	return part->tensor->job->core;
}

/* ---- timers and lists ---- */

static void timer_stop(struct agt_part *part)
{
	if (heap_has(&part->timer))
		heap_remove(&core_of(part)->timers, &part->timer);
}

/* Longer each time, by its own count: who has asked for pauses has answered. */
static void timer_start(struct agt_part *part, uint64_t span_ns, uint8_t *count)
{
	timer_stop(part);
	part->timer.key = core_of(part)->now_ns + (span_ns << *count);
	heap_push(&core_of(part)->timers, &part->timer);
	if (*count < MAX_BACKOFF_LOG2)
		++*count;
}

/* For an answer to what was just sent. */
static void answer_timer(struct agt_part *part)
{
	timer_start(part, core_of(part)->cfg.retry_ns, &part->n_tries);
}

static void uncharge(struct agt_part *part)
{
	if (part->is_charged) {
		part->link->inflight -= part_bytes(part);
		part->tensor->job->inflight -= part_bytes(part);
		core_of(part)->stats.inflight_bytes -= part_bytes(part);
		link_activate(part->link);
	}
	part->is_charged = false;
	job_unpark(part->tensor->job);
}

static void charge(struct agt_part *part)
{
	if (part->is_charged || part->is_overdue)
		return;
	part->is_charged = true;
	part->link->inflight += part_bytes(part);
	part->tensor->job->inflight += part_bytes(part);
	core_of(part)->stats.inflight_bytes += part_bytes(part);
}

static void enqueue(struct agt_part *part)
{
	struct agt_tensor *t = part->tensor;

	if (part->is_staging)
		return; /* part_staged will */
	part->node.key = heap_key_part(t->priority, t->begun_seq, part->index);
	if (t->job->is_local)
		heap_push(&core_of(part)->local, &part->node);
	else if (part->link)
		lockstep_push(part);
}

static void dequeue(struct agt_part *part)
{
	struct agt_job *job = part->tensor->job;

	if (!heap_has(&part->node))
		return;
	if (!part->is_parked && !job->is_local)
		lockstep_remove(part);
	else
		heap_remove(job->is_local ? &core_of(part)->local : &job->parked, &part->node);
	part->is_parked = false;
}

bool part_fits_job(const struct agt_part *part)
{
	const struct agt_job *job = part->tensor->job;
	uint64_t limit = job->core->cfg.job_inflight_bytes;

	return part->is_overdue || !limit || !job->inflight ||
	       job->inflight + part_bytes(part) <= limit;
}

void part_park(struct agt_part *part)
{
	dequeue(part);
	part->is_parked = true;
	heap_push(&part->tensor->job->parked, &part->node);
}

void job_unpark(struct agt_job *job)
{
	uint64_t limit = job->core->cfg.job_inflight_bytes, expected = job->inflight;
	struct heap_node *node;

	while ((node = heap_min(&job->parked))) {
		struct agt_part *part = part_of(node);

		expected += part_bytes(part);
		/* With nothing under way all go: which of them can be sent is not known here, and
		 * nothing would unpark the others. */
		if (limit && job->inflight && expected > limit)
			return;
		dequeue(part);
		enqueue(part);
	}
}

void part_stop(struct agt_part *part)
{
	timer_stop(part);
	uncharge(part);
	if (part->state == PART_READY)
		dequeue(part);
	if (part->state == PART_OFFERED)
		TAILQ_REMOVE(&part->link->offered, part, offered);
	if (part->state == PART_FETCHING)
		part->is_stale = true;
}

/* The last round whose sum is here. */
static uint64_t last_round(const struct agt_part *part)
{
	return part->state == PART_IDLE ? part->round : part->round - 1;
}

/* As the wire numbers it. */
static uint64_t wire_round(const struct agt_part *part, uint64_t round)
{
	return round - part->kept->base;
}

/* HAVE of the last round is still to be said, or to be heard. */
static bool is_have_due(const struct agt_part *part)
{
	return part->is_have_unconfirmed && (part->state == PART_IDLE || part->state == PART_READY);
}

/* CONTRIB(r) says HAVE(r - 1) too, but it may have to wait for window, and others may wait for this
 * word. */
static void owe_have(struct agt_part *part)
{
	if (is_have_due(part) && !heap_has(&part->timer))
		link_owe(part, OWE_HAVE);
}

static void make_ready(struct agt_part *part, const char *why)
{
	part_set_state(part, PART_READY, why);
	enqueue(part);
	owe_have(part);
}

void part_start(struct agt_part *part)
{
	part->n_tries = part->n_agains = part->n_bad_crc = part->n_misfits = 0;
	part->is_overdue = false;
	part->sent_ns = 0;
	part->round++;
	part->is_staging = part->tensor->is_device;
	make_ready(part, "submitted");
}

void part_staged(struct agt_part *part)
{
	part->is_staging = false;
	enqueue(part);
}

/* The server of this pgen, or of this connection, knows nothing of it: say all again. */
static void resend_all(struct agt_part *part, const char *why)
{
	part->n_tries = part->n_agains = 0;
	part->is_overdue = false;
	if (part->state == PART_FETCHING)
		return; /* when the stale read has ended */
	if (part->state != PART_IDLE && part->state != PART_READY)
		part_set_state(part, PART_READY, why);
	if (part->state == PART_READY && !heap_has(&part->node))
		enqueue(part);
	owe_have(part);
}

void part_restart(struct agt_part *part)
{
	link_drop_owed(part);
	part_stop(part);
	resend_all(part, "connection");
}

void part_abandon(struct agt_part *part, const char *why)
{
	part_send_got(part);
	link_drop_owed(part);
	part_stop(part);
	part->is_staging = false;
	if (part->state != PART_FETCHING && part->state != PART_IDLE)
		part_set_state(part, PART_IDLE, why);
}

void part_move(struct agt_part *part, struct agt_link *link, uint64_t pgen)
{
	FAILPOINT(AGENT_PART_MOVE);
	/* The same server hears it from the next CONTRIB or HAVE, but for an offer that is not
	 * read. */
	if (part->link != link || part->state == PART_OFFERED)
		part_send_got(part);
	part_stop(part);
	link_detach(part);
	part->pgen = pgen;
	if (pgen >= part->tensor->job->border && part->kept->border < part->tensor->job->border) {
		part->kept->base = last_round(part);
		part->kept->border = part->tensor->job->border;
	}
	part->is_have_unconfirmed =
		wire_round(part, last_round(part)) > 0 || part->tensor->job->has_backup;
	if (link && link_attach(link, part) < 0)
		agt_job_error(part->tensor->job, -ENOMEM, "out of memory in the agent");
	resend_all(part, "new placement");
}

void part_timer(struct agt_part *part)
{
	timer_stop(part);
	FAILPOINT(AGENT_RETRY);
	if (part->state == PART_IDLE || part->state == PART_READY) {
		owe_have(part);
		return;
	}
	core_of(part)->stats.repushes++;
	uncharge(part);
	part->is_overdue = part->state == PART_SENT;
	make_ready(part, "timer");
}

/* ---- sending ---- */

/* The local sum of one block of the contribution, into dst. */
static void sum_block(
	struct agt_part *part, size_t first, size_t n, char *dst, enum op op, uint32_t divisor)
{
	struct agt_tensor *t = part->tensor;
	size_t elem = dtype_bytes(t->dtype);
	uint64_t offset = part_offset(part) + first * elem;
	bool is_half = dtype_acc_bytes(t->dtype) != elem;
	void *acc = is_half ? (void *)core_of(part)->scratch : dst;

	for (uint32_t w = 0; w < t->n_in; w += REDUCE_MAX_SRC) {
		const void *src[REDUCE_MAX_SRC];
		unsigned n_src = 0;

		while (n_src < REDUCE_MAX_SRC && w + n_src < t->n_in) {
			src[n_src] = (char *)t->in[w + n_src].mem + offset;
			n_src++;
		}
		reduce_fold(acc, src, n_src, n, t->dtype, t->op, w == 0);
	}
	reduce_finish(dst, acc, n, t->dtype, op, divisor);
}

static struct agt_mem contribution(const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	struct agt_mem m = t->n_in > 1 ? t->staging : t->in[0];

	m.mem = (char *)m.mem + part_offset(part);
	m.offset += part_offset(part);
	return m;
}

/* Local sum and crc, block by block while it is in cache. The sum is made once per round, also when
 * another process made it: a server on this host may be reading it since (B6). */
static void prepare(struct agt_part *part, bool wants_crc)
{
	_Atomic uint64_t *summed = &part->kept->summed;
	bool wants_sum = part->tensor->n_in > 1 &&
			 atomic_load_explicit(summed, memory_order_acquire) != part->round;
	size_t elem = dtype_bytes(part->tensor->dtype), left = part_elems(part), first = 0;
	char *mem = contribution(part).mem;
	uint32_t crc = 0;

	if (!wants_sum && !wants_crc)
		return;
	FAILPOINT(AGENT_CONTRIB_PREPARE);
	while (left > 0) {
		size_t n = left < AGT_BLOCK_ELEMS ? left : AGT_BLOCK_ELEMS;

		if (wants_sum)
			sum_block(part, first, n, mem + first * elem, OP_SUM, 1);
		if (wants_crc)
			crc = crc32c(crc, mem + first * elem, n * elem);
		first += n;
		left -= n;
	}
	part->crc = crc;
	part->crc_round = wants_crc ? part->round : 0;
	if (wants_sum) /* release: for whoever comes after us, should we die now */
		atomic_store_explicit(summed, part->round, memory_order_release);
}

static struct wire_msg message(const struct agt_part *part, enum wire_type type, uint64_t round)
{
	const struct agt_tensor *t = part->tensor;

	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = part->pgen,
		.round = wire_round(part, round),
		.job = t->job->id,
		.tensor = t->id,
		.part = part->index,
		.member = t->job->member,
		.segment = WIRE_NO_SEGMENT};
}

void part_send_got(struct agt_part *part)
{
	struct wire_msg m = message(part, WIRE_GOT, part->round);

	if (!part->link || part_bytes(part) <= WIRE_INLINE_MAX)
		return;
	/* CONTRIB said it for the round before; a running read says it at its end. */
	if (part->state == PART_SENT || part->state == PART_FETCHING)
		return;
	if (part->state == PART_READY || part->state == PART_WAITING)
		m.round--;
	if (m.round > 0)
		link_send_got(part->link, &m);
}

static void describe(struct wire_msg *m, const struct agt_mem *mem, uint32_t len, uint32_t crc)
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

int part_send_contrib(struct agt_part *part)
{
	struct agt_core *core = core_of(part);
	const struct agt_tensor *t = part->tensor;
	bool is_same_host = part->link->conn->is_same_host;
	bool has_crc = !is_same_host || t->job->may_shrink;
	/* Sent before in this round, it may well be there; and repeats do not wait for room. */
	bool is_eager = !part->sent_ns && part_bytes(part) > WIRE_INLINE_MAX;
	struct agt_mem mem = contribution(part);
	struct wire_msg m;
	int rc;

	prepare(part, has_crc && part->crc_round != part->round);
	m = message(part, WIRE_CONTRIB, part->round);
	m.priority = t->priority;
	m.contrib.op = t->op;
	m.contrib.workers = t->job->n_workers;
	m.contrib.crc_prev = m.round > 1 ? part->kept->result_crc[(part->round - 1) & 1] : 0;
	if (FAILPOINT(AGENT_CONTRIB_ECHO))
		m.contrib.crc_prev = ~m.contrib.crc_prev;
	describe(&m, &mem, part_bytes(part), has_crc ? part->crc : 0);
	if (FAILPOINT(AGENT_CONTRIB_BEFORE_SEND))
		rc = 0;
	else if (is_eager)
		rc = xport_send_eager(part->link->conn, &m, true);
	else
		rc = xport_send(part->link->conn, &m);
	if (rc < 0)
		return rc;
	lockstep_sent(part);
	part_set_state(part, PART_SENT, "pushed");
	if (!part->sent_ns && m.len > WIRE_INLINE_MAX && !is_same_host)
		core->stats.offered_bytes += m.len;
	if (!part->sent_ns)
		part->sent_ns = core->now_ns;
	charge(part);
	answer_timer(part);
	core->stats.pushed_bytes += m.len;
	return 0;
}

/* Is the sum of that round in its out-slot? That of the round before the last one is until the next
 * one lands; it is asked for where members may be late, which those ahead of them wait for. */
static bool is_kept(const struct agt_part *part, uint64_t round)
{
	uint64_t last = last_round(part);

	return round > part->kept->base &&
	       (round == last || (part->tensor->job->has_backup && round + 1 == last &&
					 part->state != PART_FETCHING));
}

static int send_donate(struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	uint64_t r = part->donate_round;
	struct agt_mem mem = t->out[r & 1];
	struct wire_msg m = message(part, WIRE_DONATE, r);

	if (!is_kept(part, r))
		return 0;
	mem.mem = (char *)mem.mem + part_offset(part);
	mem.offset += part_offset(part);
	if (!part->kept->result_crc[r & 1]) /* it came without, within this host */
		part->kept->result_crc[r & 1] = crc32c(0, mem.mem, part_bytes(part));
	m.result.workers = part->kept->workers[r & 1];
	m.result.n_members = t->job->n_members;
	m.result.contributors = part->kept->contributors[r & 1];
	describe(&m, &mem, part_bytes(part), part->kept->result_crc[r & 1]);
	return FAILPOINT(AGENT_DONATE_BEFORE_SEND) ? 0 : xport_send(part->link->conn, &m);
}

int part_send_owed(struct agt_part *part, enum part_owe what)
{
	struct wire_msg m;
	int rc;

	if (what == OWE_DONATE)
		return send_donate(part);
	if (!is_have_due(part))
		return 0;
	m = message(part, WIRE_HAVE, last_round(part));
	rc = FAILPOINT(AGENT_HAVE_BEFORE_SEND) ? 0 : xport_send(part->link->conn, &m);
	if (rc == 0)
		answer_timer(part);
	return rc;
}

/* ---- receiving ---- */

/* K1. Release: partner is the acquire load of a successor, which finds what was stored before. */
static void landed(struct agt_part *part)
{
	atomic_store_explicit(&part->kept->landed, part->round, memory_order_release);
}

/* Its sum lies in the output. */
static void sum_done(struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	struct agt_env *env = &core_of(part)->env;

	if (t->is_device)
		env->unstage(env->ctx, t->user, part->index, part->round);
	agt_tensor_part_done(part->tensor);
}

static void deliver(struct agt_part *part, const struct wire_msg *m)
{
	struct agt_kept_part *kept = part->kept;
	unsigned i = part->round & 1;

	FAILPOINT(AGENT_RESULT_DELIVER);
	kept->result_crc[i] = m->crc;
	kept->workers[i] = m->result.workers;
	kept->contributors[i] = m->result.contributors;
	landed(part);
	/* Others may be ahead, and wait to hear it. */
	part->is_have_unconfirmed = part->tensor->job->has_backup;
	core_of(part)->stats.pulled_bytes += m->len;
	uncharge(part);
	part_set_state(part, PART_IDLE, "result is in");
	owe_have(part);
	sum_done(part);
}

static char *output(const struct agt_part *part)
{
	return (char *)part->tensor->out[part->round & 1].mem + part_offset(part);
}

bool part_fetch(struct agt_part *part)
{
	struct agt_link *link = part->link;
	int rc;

	FAILPOINT(AGENT_READ_START);
	part->read = (struct xport_read){.conn = link->conn,
		.dst = output(part),
		.own_segment = part->tensor->out[part->round & 1].segment,
		.segment = part->offer.segment,
		.len = part->offer.len,
		.offset = part->offer.offset,
		.is_past_caches = !part->tensor->is_device &&
				  part->offer.len >= AGT_MUCH_PART_BYTES &&
				  part->tensor->job->tensor_bytes >= AGT_MUCH_BYTES};
	rc = xport_read(&part->read);
	if (rc == -EAGAIN)
		return false;
	TAILQ_REMOVE(&link->offered, part, offered);
	if (rc < 0) { /* a nonsense offer, or the connection is going down: ask again */
		part_set_state(part, PART_SENT, "offer cannot be read");
		answer_timer(part);
		return true;
	}
	part_set_state(part, PART_FETCHING, "offer");
	part->tensor->job->n_reads++;
	return true;
}

static void bad_result(struct agt_part *part)
{
	core_of(part)->stats.crc_errors++;
	if (++part->n_bad_crc > MAX_BAD_CRC)
		agt_job_error(part->tensor->job, BPS_EPROTO,
			"tensor %u partition %u round %llu: what server %u sends does not match "
			"its crc, %u times in a row; check that machine's memory and network card",
			part->tensor->id, part->index, (unsigned long long)part->round,
			part->link ? part->link->server : 0, part->n_bad_crc);
}

void part_read_done(struct agt_part *part, int status)
{
	struct agt_job *job = part->tensor->job;
	bool is_stale = part->is_stale || part->offer.pgen != part->pgen;
	int rc = FAILPOINT(AGENT_READ_DONE);

	status = rc < 0 ? rc : status;
	part->is_stale = false;
	job->n_reads--;
	if (is_stale || job->is_closing)
		link_send_got(part->read.conn->user, &part->offer);
	if (job->is_closing) {
		part_set_state(part, PART_IDLE, "job is closing");
		agt_job_reads_ended(job);
		return;
	}
	if (job->failed || part->tensor->failed) {
		part_set_state(part, PART_IDLE, "job has failed");
		return;
	}
	if (status == 0 && !is_stale) {
		if (part->read.conn->is_same_host ||
			xport_read_crc(&part->read) == part->offer.crc) {
			histogram_add(&core_of(part)->stats.pull,
				core_of(part)->now_ns - part->offered_ns);
			deliver(part, &part->offer);
			return;
		}
		bad_result(part);
		if (job->failed) {
			part->is_stale = false;
			part_set_state(part, PART_IDLE, "job has failed");
			return;
		}
	}
	if (is_stale)
		core_of(part)->stats.stale++;
	uncharge(part);
	make_ready(part, "read was in vain");
}

/* Is that very result to be read, or being read? Its end says GOT. */
static bool is_taken(const struct agt_part *part, const struct wire_msg *m)
{
	return part && (part->state == PART_OFFERED || part->state == PART_FETCHING) &&
	       part->offer.pgen == m->pgen && part->offer.round == m->round;
}

/* An offer that will not be read, so that the server need not keep it for us. */
static void decline(struct agt_part *part, const struct wire_msg *m)
{
	core_of(part)->stats.stale++;
	if (m->flags & WIRE_INLINE)
		return;
	if (is_taken(part, m))
		return; /* the same once more */
	link_send_got(part->link, m);
}

static void sum_is_there(struct agt_part *part)
{
	struct agt_core *core = core_of(part);

	part->offered_ns = core->now_ns;
	if (part->sent_ns) /* else it comes from an older contribution's server */
		histogram_add(&core->stats.push, core->now_ns - part->sent_ns);
}

/* A new connection may help, once: a sum that another member donated stays what it is, and other jobs
 * use this connection too. */
static void on_misfit(struct agt_part *part, const struct wire_msg *m)
{
	log_rated(LOG_WARN,
		"result does not fit its partition: server=%u job=%u tensor=%u part=%u len=%u "
		"members=%u workers=%u",
		part->link->server, m->job, m->tensor, m->part, m->len, m->result.n_members,
		m->result.workers);
	if (part->n_misfits++ == 0)
		xport_close(part->link->conn, "result does not fit its partition");
	else
		agt_job_error(part->tensor->job, BPS_EPROTO,
			"tensor %u partition %u round %llu: server %u offers a sum of %u bytes by "
			"%u workers, which cannot be; does another machine run another release?",
			part->tensor->id, part->index, (unsigned long long)part->round,
			part->link->server, m->len, m->result.workers);
}

static void on_result(struct agt_part *part, const struct wire_msg *m)
{
	const struct agt_job *job = part->tensor->job;

	/* What is still being copied from a device must not be overwritten there. The server keeps
	 * its sum, and offers it again for the contribution. */
	if (part->is_staging && m->pgen == part->pgen && m->round == wire_round(part, part->round))
		return;
	/* A4: the waited round, in the current pgen. */
	if (m->pgen != part->pgen || m->round != wire_round(part, part->round) ||
		part->state == PART_IDLE || part->state == PART_OFFERED ||
		part->state == PART_FETCHING) {
		decline(part, m);
		return;
	}
	if (m->len != part_bytes(part) || m->result.n_members != job->n_members ||
		m->result.workers == 0 || m->result.workers > job->size) {
		on_misfit(part, m);
		return;
	}
	if (m->flags & WIRE_INLINE) {
		if (!part->link->conn->is_same_host && crc32c(0, m->payload, m->len) != m->crc) {
			bad_result(part);
			return; /* its timer asks again */
		}
		part_stop(part);
		memcpy(output(part), m->payload, m->len);
		sum_is_there(part);
		deliver(part, m);
		return;
	}
	timer_stop(part);
	dequeue(part);
	part_set_state(part, PART_OFFERED, "result offered");
	sum_is_there(part);
	part->offer = *m;
	TAILQ_INSERT_TAIL(&part->link->offered, part, offered);
	part_fetch(part);
}

/* The server read something else than we described: a torn read, or the trainer wrote into a
 * submitted buffer. */
static void on_bad_crc(struct agt_part *part, const struct wire_msg *m)
{
	struct agt_tensor *t = part->tensor;
	uint32_t was = part->crc;

	if (part->state != PART_SENT || m->round != wire_round(part, part->round) ||
		m->crc != part->crc)
		return; /* of an older offer */
	core_of(part)->stats.crc_errors++;
	atomic_store(&part->kept->summed, 0); /* it was read over a network, and in vain */
	prepare(part, true);
	if (++part->n_bad_crc > 1 && part->crc != was) {
		agt_job_error(t->job, BPS_EINPUT_CHANGED,
			"tensor %u partition %u round %llu: its input was written to while in "
			"flight, by rank %u%s",
			t->id, part->index, (unsigned long long)part->round, t->job->ranks[0],
			t->job->n_workers > 1 ? " or another rank of this machine" : "");
		return;
	}
	if (part->n_bad_crc > MAX_BAD_CRC) {
		agt_job_error(t->job, BPS_EPROTO,
			"tensor %u partition %u round %llu: server %u received it damaged %u "
			"times; check the network between here and there",
			t->id, part->index, (unsigned long long)part->round, part->link->server,
			part->n_bad_crc);
		return;
	}
	part_stop(part);
	make_ready(part, "bad crc");
}

static void on_again(struct agt_part *part, const struct wire_msg *m)
{
	if (part->state == PART_SENT && m->round == wire_round(part, part->round)) {
		uncharge(part);
		part_set_state(part, PART_WAITING, "server asked for a pause");
	} else if (!is_have_due(part) || m->round != wire_round(part, last_round(part))) {
		return;
	}
	part->n_tries = 0;
	if (part->tensor->job->has_backup)
		part->n_agains = 0; /* it may take as long as the slowest worker */
	timer_start(part, core_of(part)->cfg.again_ns, &part->n_agains);
}

static void on_have_ok(struct agt_part *part, const struct wire_msg *m)
{
	if (!is_have_due(part) || m->round != wire_round(part, last_round(part)))
		return;
	part->is_have_unconfirmed = false;
	timer_stop(part);
}

void part_message(struct agt_link *link, const struct wire_msg *m)
{
	struct agt_job *job = agt_job_find(link->core, m->job);
	struct agt_tensor *t = job && m->tensor < job->n_by_id ? job->by_id[m->tensor] : NULL;
	struct agt_part *part = t && m->part < t->n_parts ? &t->parts[m->part] : NULL;

	if (!part || m->member != job->member || job->failed || t->failed || job->is_closing) {
		link->core->stats.stale++;
		if (m->type == WIRE_RESULT && !(m->flags & WIRE_INLINE) && !is_taken(part, m))
			link_send_got(link, m);
		return;
	}
	if (m->type != WIRE_RESULT && (m->pgen != part->pgen || part->link != link)) {
		link->core->stats.stale++;
		return;
	}
	if (part->link != link) { /* a result from where it lived before */
		link->core->stats.stale++;
		if (!(m->flags & WIRE_INLINE) && !is_taken(part, m))
			link_send_got(link, m);
		return;
	}
	switch (m->type) {
	case WIRE_RESULT:
		if (!FAILPOINT(AGENT_RESULT_RECEIVED))
			on_result(part, m);
		break;
	case WIRE_DONATE_REQ:
		part->donate_round = m->round + part->kept->base;
		link_owe(part, OWE_DONATE);
		break;
	case WIRE_HAVE_OK:
		on_have_ok(part, m);
		break;
	case WIRE_AGAIN:
		on_again(part, m);
		break;
	case WIRE_BAD_CRC:
		on_bad_crc(part, m);
		break;
	default:
		log_rated(LOG_WARN, "not a message for an agent: server=%u type=%s", link->server,
			wire_type_name(m->type));
		xport_close(link->conn, "not a message for an agent");
	}
}

void part_sum_local(struct agt_part *part)
{
	struct agt_tensor *t = part->tensor;
	size_t elem = dtype_bytes(t->dtype), left = part_elems(part), first = 0;
	struct agt_core *core = core_of(part);
	char *dst = output(part);

	heap_remove(&core->local, &part->node);
	while (left > 0) {
		size_t n = left < AGT_BLOCK_ELEMS ? left : AGT_BLOCK_ELEMS;

		sum_block(part, first, n, dst + first * elem, t->op, t->job->n_workers);
		first += n;
		left -= n;
	}
	part->kept->workers[part->round & 1] = t->job->n_workers;
	landed(part);
	part_set_state(part, PART_IDLE, "summed locally");
	sum_done(part);
}
