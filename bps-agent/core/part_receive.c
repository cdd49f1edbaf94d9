/* Messages that a partition receives: the result of its round (inline or by a read), and messages
 * by which a server delays a contribution or requests a message again. A result is accepted only
 * for the awaited round and the present pgen (A4). Contributions are sent in part_send.c. Thread:
 * the core's thread. */
#include "bps-agent/core/part.h"

#include <errno.h>
#include <string.h>

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/link.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/data/crc32c.h"

/* Limit of wrong crcs of one partition in a round. The job fails beyond this limit, because only a
 * defect causes that many wrong crcs. */
#define MAX_BAD_CRC 4

static void part_complete_round(struct agt_part *part, const struct wire_msg *m)
{
	struct agt_kept_part *kept = part->kept;
	unsigned i = part->round & 1;

	FAILPOINT(AGENT_RESULT_DELIVER);
	kept->result_crc[i] = m->crc;
	kept->workers[i] = m->result.workers;
	kept->is_late[i] = (m->flags & WIRE_LATE) != 0;
	kept->version[i] = m->result.version;
	kept->contributors[i] = m->result.contributors;
	agt_tensor_record_landing(part, part->offered_ns, m);
	part_store_landed(part);
	part->n_tries = 0;
	/* In a job with backup machines, members that have started a later round may wait for this
	 * partition's HAVE. If this member owns the result, the others wait for its HAVE (O1). */
	part->is_have_unconfirmed = part->tensor->job->has_backup ||
				    (part->tensor->n_shards > 1 && !part->has_other_owner);
	part_core(part)->stats.pulled_bytes += m->len;
	part_uncharge_inflight(part);
	part_set_state(part, PART_IDLE, "result received");
	part_queue_have(part);
	part_report_sum(part);
}

bool part_start_result_read(struct agt_part *part)
{
	struct agt_link *link = part->link;
	int rc;

	FAILPOINT(AGENT_READ_START);
	part->read = (struct xport_read){.conn = link->conn,
		.dst = part_output_address(part),
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
	/* The offer is invalid, or the connection is being closed. Wait for the timer, which sends
	 * the contribution again. */
	if (rc < 0) {
		part_set_state(part, PART_SENT, "the offer cannot be read");
		part_await_offer(part);
		return true;
	}
	part_set_state(part, PART_FETCHING, "offer");
	part->tensor->job->n_reads++;
	return true;
}

static void part_count_bad_result(struct agt_part *part)
{
	part_core(part)->stats.crc_errors++;
	if (++part->n_bad_crc > MAX_BAD_CRC)
		agt_job_fail_and_report(part->tensor->job, BPS_EPROTO,
			"tensor %u partition %u round %llu: data from server %u does not match its "
			"crc, %u times in a row; check that machine's memory and network card",
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
		agt_job_work_ended(job);
		return;
	}
	if (job->failed || part->tensor->failed) {
		part_set_state(part, PART_IDLE, "job has failed");
		return;
	}
	if (!is_stale && (status == BPS_EPROTO || status == -EINVAL)) {
		/* The offer is invalid, which an I/O thread has found. Wait, as after an error of
		 * xport_read. */
		part_set_state(part, PART_SENT, "the offer cannot be read");
		part_await_offer(part);
		return;
	}
	if (status == 0 && !is_stale) {
		if (part->read.conn->is_same_host ||
			xport_read_crc(&part->read) == part->offer.crc) {
			histogram_add(&part_core(part)->stats.pull,
				part_core(part)->now_ns - part->offered_ns);
			/* The server has two copies of a value for all members, so it needs this
			 * one soon. */
			if (tensor_is_value(part->tensor))
				link_send_got(part->link, &part->offer);
			part_complete_round(part, &part->offer);
			return;
		}
		part_count_bad_result(part);
		if (job->failed) {
			part->is_stale = false;
			part_set_state(part, PART_IDLE, "job has failed");
			return;
		}
	}
	if (is_stale)
		part_core(part)->stats.stale++;
	part_uncharge_inflight(part);
	part_make_ready(part, "the result of the read is outdated");
}

/* Return whether the result that m offers is being read, or is queued to be read. In both cases,
 * GOT is sent when the read ends. */
static bool offer_is_being_read(const struct agt_part *part, const struct wire_msg *m)
{
	return part && (part->state == PART_OFFERED || part->state == PART_FETCHING) &&
	       part->offer.pgen == m->pgen && part->offer.round == m->round;
}

/* Reject a result that will not be used. If the result is an offer, send GOT, so that the server
 * can free the memory of the sum. */
static void part_decline_result(struct agt_part *part, const struct wire_msg *m)
{
	part_core(part)->stats.stale++;
	if (m->flags & WIRE_INLINE)
		return;
	if (offer_is_being_read(part, m))
		return; /* the server has repeated the offer of a result that is being read */
	link_send_got(part->link, m);
}

static void part_record_offer_time(struct agt_part *part)
{
	struct agt_core *core = part_core(part);

	part->offered_ns = core->now_ns;
	/* If sent_ns is 0, this process has not sent the contribution, so the push time is
	 * unknown. */
	if (part->sent_ns)
		histogram_add(&core->stats.push, core->now_ns - part->sent_ns);
}

/* Handle a result whose length, number of members or number of workers does not fit the partition.
 * After the partition's first misfit in a round, close the connection, because a new connection may
 * help. After later misfits, fail the job instead: a donated sum that is wrong stays wrong on a new
 * connection. Also, closing the connection disturbs other jobs. */
static void on_result_misfit(struct agt_part *part, const struct wire_msg *m)
{
	log_rated(LOG_WARN,
		"result does not fit its partition: server=%u job=%u tensor=%u part=%u len=%u "
		"members=%u workers=%u",
		part->link->server, m->job, m->tensor, m->part, m->len, m->result.n_members,
		m->result.workers);
	if (part->n_misfits++ == 0)
		link_close(part->link, "the result does not fit its partition");
	else
		agt_job_fail_and_report(part->tensor->job, BPS_EPROTO,
			"tensor %u partition %u round %llu: server %u offers a sum of %u bytes "
			"from %u workers, which does not fit the partition; check that all "
			"machines run the same release",
			part->tensor->id, part->index, (unsigned long long)part->round,
			part->link->server, m->len, m->result.workers);
}

static void on_result_message(struct agt_part *part, const struct wire_msg *m)
{
	const struct agt_tensor *t = part->tensor;
	const struct agt_job *job = t->job;

	/* The inputs are still being copied from a device, or a task still uses them (A9), so the
	 * round cannot end yet. Ignore the result. The server keeps the result, and offers the
	 * result again when this machine's contribution arrives at the server. */
	if ((part->is_staging || part->is_working) && m->pgen == part->pgen &&
		m->round == part_wire_round(part, part->round))
		return;
	/* Rule A4: accept a result only for the awaited round and the present pgen. */
	if (m->pgen != part->pgen || m->round != part_wire_round(part, part->round) ||
		part->state == PART_IDLE || part->state == PART_OFFERED ||
		part->state == PART_FETCHING) {
		part_decline_result(part, m);
		return;
	}
	/* A round that does not wait for this machine may end without any values. */
	if (m->len != (part->has_other_owner ? 0 : part_bytes(part)) ||
		m->result.n_members != job->n_members || m->result.last > job->n_members ||
		m->result.workers > job->size || !m->result.version != !tensor_is_value(t) ||
		(!m->result.workers && t->n_given && !job->has_backup)) {
		on_result_misfit(part, m);
		return;
	}
	if (m->flags & WIRE_INLINE) {
		if (!part->link->conn->is_same_host && crc32c(0, m->payload, m->len) != m->crc) {
			part_count_bad_result(part);
			/* the contribution is sent again when the partition's timer expires */
			return;
		}
		part_stop_activity(part);
		if (m->len)
			memcpy(part_output_address(part), m->payload, m->len);
		part_record_offer_time(part);
		part_complete_round(part, m);
		return;
	}
	part_stop_timer(part);
	part_dequeue(part);
	part_set_state(part, PART_OFFERED, "result offered");
	part_record_offer_time(part);
	part->offer = *m;
	TAILQ_INSERT_TAIL(&part->link->offered, part, offered);
	part_start_result_read(part);
}

/* Handle the server's report that the crc of a contribution is wrong. Either the network damaged
 * the bytes, or a trainer wrote into its input after submitting the input. */
static void on_bad_crc_message(struct agt_part *part, const struct wire_msg *m)
{
	if (part->is_working || part->state != PART_SENT ||
		m->round != part_wire_round(part, part->round) || m->crc != part->crc)
		return; /* the report is about an older contribution */
	part_core(part)->stats.crc_errors++;
	part->n_bad_crc++;
	part_stop_activity(part);
	part_set_state(part, PART_READY, "bad crc");
	part_queue_have(part);
	part_compute_again(part); /* then the contribution is queued */
}

void part_judge_crc(struct agt_part *part, uint32_t was)
{
	struct agt_tensor *t = part->tensor;

	if (part->n_bad_crc > 1 && part->crc != was) {
		agt_job_fail_and_report(t->job, BPS_EINPUT_CHANGED,
			"tensor %u partition %u round %llu: the input was changed while the round "
			"was in flight, by rank %u%s; write to an input only between rounds",
			t->id, part->index, (unsigned long long)part->round, t->job->ranks[0],
			t->job->n_workers > 1 ? " or another rank of this machine" : "");
		return;
	}
	if (part->n_bad_crc > MAX_BAD_CRC) {
		agt_job_fail_and_report(t->job, BPS_EPROTO,
			"tensor %u partition %u round %llu: server %u received the "
			"contribution damaged %u times; check the network between this machine and "
			"the server",
			t->id, part->index, (unsigned long long)part->round,
			part->link ? part->link->server : 0, part->n_bad_crc);
		return;
	}
	part_enqueue_to_send(part);
}

static void on_again_message(struct agt_part *part, const struct wire_msg *m)
{
	if (part->state == PART_SENT && m->round == part_wire_round(part, part->round)) {
		part_uncharge_inflight(part);
		part_set_state(part, PART_WAITING, "the server answered AGAIN");
	} else if (!part_is_have_due(part) ||
		   m->round != part_wire_round(part, part_last_round(part))) {
		return;
	}
	part->n_tries = 0;
	if (part->tensor->job->has_backup)
		/* Keep the delay short, because the server may accept the contribution at any
		 * time. */
		part->n_agains = 0;
	part_start_timer(part, part_core(part)->cfg.again_ns, &part->n_agains);
}

static void on_have_ok_message(struct agt_part *part, const struct wire_msg *m)
{
	if (!part_is_have_due(part) || m->round != part_wire_round(part, part_last_round(part)))
		return;
	part->is_have_unconfirmed = false;
	part_stop_timer(part);
	if (part->state == PART_READY && !heap_node_is_queued(&part->node))
		part_enqueue_to_send(part);
}

void part_receive_message(struct agt_link *link, const struct wire_msg *m)
{
	struct agt_job *job = agt_job_find(link->core, m->job);
	struct agt_tensor *t = job && m->tensor < job->n_by_id ? job->by_id[m->tensor] : NULL;
	struct agt_part *part = t && m->part < t->n_parts ? &t->parts[m->part] : NULL;

	if (!part || m->member != job->member || job->failed || t->failed || job->is_closing) {
		link->core->stats.stale++;
		if (m->type == WIRE_RESULT && !(m->flags & WIRE_INLINE) &&
			!offer_is_being_read(part, m))
			link_send_got(link, m);
		return;
	}
	if (m->type != WIRE_RESULT && (m->pgen != part->pgen || part->link != link)) {
		link->core->stats.stale++;
		return;
	}
	if (part->link != link) { /* the result comes from the partition's previous server */
		link->core->stats.stale++;
		if (!(m->flags & WIRE_INLINE) && !offer_is_being_read(part, m))
			link_send_got(link, m);
		return;
	}
	switch (m->type) {
	case WIRE_RESULT:
		if (!FAILPOINT(AGENT_RESULT_RECEIVED))
			on_result_message(part, m);
		break;
	case WIRE_DONATE_REQ:
		part->donate_round = m->round + part->kept->base;
		link_queue_owed(part, OWE_DONATE);
		break;
	case WIRE_HAVE_OK:
		on_have_ok_message(part, m);
		break;
	case WIRE_AGAIN:
		on_again_message(part, m);
		break;
	case WIRE_BAD_CRC:
		on_bad_crc_message(part, m);
		break;
	default:
		log_rated(LOG_WARN,
			"closing the connection to a server, because it sent a message that no "
			"agent handles: server=%u type=%s",
			link->server, wire_type_name(m->type));
		link_close(link, "the server sent a message that no agent handles");
	}
}
