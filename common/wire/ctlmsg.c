/* Field tables of the control channel's messages, and their decoder. The decoder checks only the
 * encoding; the receivers check the values. The functions keep no state and may be called on any
 * thread. */
#include "common/wire/ctlmsg.h"

#include "common/base/error.h"
#include "common/wire/wire.h"

#define CLUSTER_ID_BYTES 16

static const struct field hello_fields[] = {
	FIELD_U16_(ctl_hello, proto),
	FIELD_U8_(ctl_hello, role),
	FIELD_U64_(ctl_hello, instance),
	FIELD_STR_(ctl_hello, name, CTL_NAME_MAX),
	FIELD_STR_(ctl_hello, host, CTL_NAME_MAX),
	FIELD_STR_(ctl_hello, version, CTL_NAME_MAX),
	FIELD_U32_(ctl_hello, pid),
	FIELD_STR_(ctl_hello, addr, CTL_NAME_MAX),
	FIELD_U16_(ctl_hello, port),
	FIELD_U16_(ctl_hello, threads),
	FIELD_U64_(ctl_hello, nic_mbps),
	FIELD_BLOB_(ctl_hello, cluster_id, CLUSTER_ID_BYTES),
	FIELD_U64_(ctl_hello, view),
	FIELD_U64_(ctl_hello, quota_bytes),
	FIELD_U64_(ctl_hello, memory_bytes),
	FIELD_STR_(ctl_hello, provider, CTL_NAME_MAX),
	FIELD_BLOB_(ctl_hello, boot_id, CTL_BOOT_ID_BYTES),
	FIELD_STR_(ctl_hello, domain, CTL_NAME_MAX),
	FIELD_STR_(ctl_hello, http, CTL_HTTP_MAX),
};

static const struct field welcome_fields[] = {
	FIELD_BLOB_(ctl_welcome, cluster_id, CLUSTER_ID_BYTES),
	FIELD_U32_(ctl_welcome, term),
	FIELD_U64_(ctl_welcome, view),
	FIELD_U32_(ctl_welcome, member_id),
	FIELD_U32_(ctl_welcome, beat_ms),
	FIELD_U32_(ctl_welcome, dead_ms),
	FIELD_U32_(ctl_welcome, restarts),
	FIELD_U32_(ctl_welcome, window_ms),
	FIELD_U8_(ctl_welcome, has_master),
};

static const struct field refuse_fields[] = {
	FIELD_U32_(ctl_refuse, code),
	FIELD_STR_(ctl_refuse, text, CTL_TEXT_MAX),
};

static const struct field beat_late_fields[] = {
	FIELD_U32_(ctl_beat_late, agent),
	FIELD_U32_(ctl_beat_late, rounds),
	FIELD_U32_(ctl_beat_late, lag_us),
};
static const struct layout beat_late_layout = LAYOUT_(ctl_beat_late, beat_late_fields);

static const struct field beat_job_fields[] = {
	FIELD_U32_(ctl_beat_job, job),
	FIELD_U64_(ctl_beat_job, round),
	FIELD_U64_(ctl_beat_job, rounds),
	FIELD_U64_(ctl_beat_job, bytes),
	FIELD_U32_(ctl_beat_job, window_rounds),
	FIELD_U32_(ctl_beat_job, wait_p50_us),
	FIELD_U32_(ctl_beat_job, wait_p99_us),
	FIELD_LIST_(ctl_beat_job, late, CTL_BEAT_LATE_MAX, &beat_late_layout),
};
static const struct layout beat_job_layout = LAYOUT_(ctl_beat_job, beat_job_fields);

static const struct field beat_link_fields[] = {
	FIELD_U32_(ctl_beat_link, server),
	FIELD_U32_(ctl_beat_link, losses),
};
static const struct layout beat_link_layout = LAYOUT_(ctl_beat_link, beat_link_fields);

static const struct field beat_fields[] = {
	FIELD_U64_(ctl_beat, seq),
	FIELD_U64_(ctl_beat, echo),
	FIELD_U64_(ctl_beat, view),
	FIELD_U64_(ctl_beat, progress),
	FIELD_U64_(ctl_beat, rounds),
	FIELD_U64_(ctl_beat, rx_bytes),
	FIELD_U64_(ctl_beat, tx_bytes),
	FIELD_U64_(ctl_beat, mem_bytes),
	FIELD_U32_(ctl_beat, connections),
	FIELD_U32_(ctl_beat, trainers),
	FIELD_U32_(ctl_beat, sum_us),
	FIELD_LIST_(ctl_beat, jobs, CTL_BEAT_JOBS_MAX, &beat_job_layout),
	FIELD_U8_(ctl_beat, same_host),
	FIELD_U32_(ctl_beat, same_host_connections),
	FIELD_U64_(ctl_beat, same_host_bytes),
	FIELD_U8_(ctl_beat, nic_source),
	FIELD_U64_(ctl_beat, measured_mbps),
	FIELD_LIST_(ctl_beat, links, CTL_BEAT_LINKS_MAX, &beat_link_layout),
	FIELD_U8_(ctl_beat, threads),
	FIELD_U8_(ctl_beat, more_threads),
	FIELD_U8_(ctl_beat, busy_percent),
};

static const struct field peer_fields[] = {
	FIELD_U32_(ctl_peer, id),
	FIELD_U8_(ctl_peer, state),
	FIELD_U64_(ctl_peer, instance),
	FIELD_STR_(ctl_peer, name, CTL_NAME_MAX),
	FIELD_STR_(ctl_peer, host, CTL_NAME_MAX),
	FIELD_STR_(ctl_peer, addr, CTL_NAME_MAX),
	FIELD_U16_(ctl_peer, port),
	FIELD_U16_(ctl_peer, threads),
	FIELD_BLOB_(ctl_peer, key, CTL_KEY_BYTES),
};
static const struct layout peer_layout = LAYOUT_(ctl_peer, peer_fields);

static const struct field peers_fields[] = {
	FIELD_U64_(ctl_peers, view),
	FIELD_LIST_(ctl_peers, peers, CTL_LIST_MAX, &peer_layout),
};

static const struct field join_fields[] = {
	FIELD_U32_(ctl_join, seq),
	FIELD_U32_(ctl_join, uid),
	FIELD_STR_(ctl_join, job, CTL_JOB_NAME_MAX),
	FIELD_U32_(ctl_join, rank),
	FIELD_U32_(ctl_join, size),
	FIELD_U32_(ctl_join, flags),
	FIELD_U32_(ctl_join, pid),
	FIELD_U32_(ctl_join, part_bytes),
	FIELD_BLOB_(ctl_join, token, CTL_TOKEN_BYTES),
	FIELD_U16_(ctl_join, backup),
	FIELD_U32_(ctl_join, grace_ms),
	FIELD_U32_(ctl_join, max_size),
	FIELD_U32_(ctl_join, local_size),
};

static const struct field joined_fields[] = {
	FIELD_U32_(ctl_joined, seq),
	FIELD_U32_(ctl_joined, code),
	FIELD_STR_(ctl_joined, text, CTL_TEXT_MAX),
	FIELD_U32_(ctl_joined, job),
	FIELD_U32_(ctl_joined, rank),
};

static const struct field rank_fields[] = {
	FIELD_U32_(ctl_rank, rank),
};
static const struct layout rank_layout = LAYOUT_(ctl_rank, rank_fields);

static const struct field job_member_fields[] = {
	FIELD_U32_(ctl_job_member, agent),
	FIELD_STR_(ctl_job_member, host, CTL_NAME_MAX),
	FIELD_LIST_(ctl_job_member, ranks, CTL_WORKERS_MAX, &rank_layout),
	FIELD_U8_(ctl_job_member, is_gone),
	FIELD_STR_(ctl_job_member, why, CTL_WHY_GONE_MAX),
	FIELD_U64_(ctl_job_member, since),
	FIELD_STR_(ctl_job_member, name, CTL_NAME_MAX),
};
static const struct layout job_member_layout = LAYOUT_(ctl_job_member, job_member_fields);

static const struct field job_fields[] = {
	FIELD_U64_(ctl_job, view),
	FIELD_U32_(ctl_job, job),
	FIELD_U32_(ctl_job, uid),
	FIELD_STR_(ctl_job, name, CTL_JOB_NAME_MAX),
	FIELD_U32_(ctl_job, size),
	FIELD_U32_(ctl_job, flags),
	FIELD_LIST_(ctl_job, members, WIRE_MEMBERS_MAX, &job_member_layout),
	FIELD_U64_(ctl_job, formed),
	FIELD_U16_(ctl_job, backup),
	FIELD_U32_(ctl_job, grace_ms),
	FIELD_U64_(ctl_job, barrier),
	FIELD_U64_(ctl_job, border),
	FIELD_U64_(ctl_job, border_barrier),
};

static const struct field job_end_fields[] = {
	FIELD_U32_(ctl_job_end, job),
	FIELD_U32_(ctl_job_end, code),
	FIELD_STR_(ctl_job_end, text, CTL_TEXT_MAX),
	FIELD_CAUSE_(ctl_job_end),
};

static const struct field decl_fields[] = {
	FIELD_U32_(ctl_decl, rank),
	FIELD_STR_(ctl_decl, name, CTL_TENSOR_NAME_MAX),
	FIELD_SHAPE_(ctl_decl),
	FIELD_U32_(ctl_decl, code),
};
static const struct layout decl_layout = LAYOUT_(ctl_decl, decl_fields);

static const struct field declare_fields[] = {
	FIELD_U32_(ctl_declare, job),
	FIELD_LIST_(ctl_declare, tensors, CTL_LIST_MAX, &decl_layout),
};

static const struct field tensor_fields[] = {
	FIELD_U32_(ctl_tensor, tensor),
	FIELD_STR_(ctl_tensor, name, CTL_TENSOR_NAME_MAX),
	FIELD_SHAPE_(ctl_tensor),
	FIELD_U32_(ctl_tensor, part_elems),
};
static const struct layout tensor_layout = LAYOUT_(ctl_tensor, tensor_fields);

static const struct field run_fields[] = {
	FIELD_U32_(ctl_run, tensor),
	FIELD_U32_(ctl_run, first),
	FIELD_U32_(ctl_run, n),
	FIELD_U32_(ctl_run, server),
	FIELD_U64_(ctl_run, instance),
	FIELD_U16_(ctl_run, thread),
	FIELD_U64_(ctl_run, pgen),
};
static const struct layout run_layout = LAYOUT_(ctl_run, run_fields);

static const struct field plan_fields[] = {
	FIELD_U64_(ctl_plan, view),
	FIELD_U32_(ctl_plan, job),
	FIELD_LIST_(ctl_plan, tensors, CTL_LIST_MAX, &tensor_layout),
	FIELD_LIST_(ctl_plan, runs, CTL_LIST_MAX, &run_layout),
};

static const struct field tensor_fail_fields[] = {
	FIELD_U32_(ctl_tensor_fail, job),
	FIELD_STR_(ctl_tensor_fail, name, CTL_TENSOR_NAME_MAX),
	FIELD_U32_(ctl_tensor_fail, code),
	FIELD_STR_(ctl_tensor_fail, text, CTL_TEXT_MAX),
	FIELD_CAUSE_(ctl_tensor_fail),
};

static const struct field worker_fields[] = {
	FIELD_U32_(ctl_worker, job),
	FIELD_U32_(ctl_worker, rank),
	FIELD_U8_(ctl_worker, event),
	FIELD_STR_(ctl_worker, text, CTL_TEXT_MAX),
	FIELD_U64_(ctl_worker, barrier),
};

static const struct field fail_fields[] = {
	FIELD_U32_(ctl_fail, job),
	FIELD_U32_(ctl_fail, code),
	FIELD_STR_(ctl_fail, text, CTL_TEXT_MAX),
	FIELD_CAUSE_(ctl_fail),
};

static const struct field why_fields[] = {
	FIELD_U32_(ctl_why, seq),
	FIELD_U32_(ctl_why, job),
	FIELD_U32_(ctl_why, tensor),
	FIELD_U64_(ctl_why, round),
};

static const struct field why_text_fields[] = {
	FIELD_U32_(ctl_why_text, seq),
	FIELD_STR_(ctl_why_text, text, CTL_TEXT_MAX),
};

static const struct field probe_fields[] = {
	FIELD_U32_(ctl_probe, seq),
	FIELD_U32_(ctl_probe, job),
	FIELD_U32_(ctl_probe, tensor),
};

static const struct field report_worker_fields[] = {
	FIELD_U32_(ctl_report_worker, rank),
	FIELD_U32_(ctl_report_worker, pid),
	FIELD_U64_(ctl_report_worker, submitted),
	FIELD_U64_(ctl_report_worker, calls),
	FIELD_U64_(ctl_report_worker, completed),
	FIELD_U32_(ctl_report_worker, quiet_ms),
	FIELD_U32_(ctl_report_worker, oldest_tensor),
	FIELD_U64_(ctl_report_worker, oldest_round),
	FIELD_U32_(ctl_report_worker, oldest_ms),
	FIELD_U8_(ctl_report_worker, is_attached),
	FIELD_U8_(ctl_report_worker, gpu_open),
	FIELD_U32_(ctl_report_worker, gpu_open_ms),
	FIELD_U8_(ctl_report_worker, is_waiting),
	FIELD_U64_(ctl_report_worker, oldest_name),
};
static const struct layout report_worker_layout = LAYOUT_(ctl_report_worker, report_worker_fields);

static const struct field steps_fields[] = {
	FIELD_U32_(ctl_steps, n_steps),
	FIELD_U32_(ctl_steps, length_us),
	FIELD_U32_(ctl_steps, exposed_us),
	FIELD_U32_(ctl_steps, phase_us[PHASE_LOCAL]),
	FIELD_U32_(ctl_steps, phase_us[PHASE_QUEUE]),
	FIELD_U32_(ctl_steps, phase_us[PHASE_PUSH]),
	FIELD_U32_(ctl_steps, phase_us[PHASE_WAIT]),
	FIELD_U32_(ctl_steps, phase_us[PHASE_SUM]),
	FIELD_U32_(ctl_steps, phase_us[PHASE_PULL]),
	FIELD_U16_(ctl_steps, last_member),
	FIELD_U32_(ctl_steps, n_last),
	FIELD_U64_(ctl_steps, bytes),
};
static const struct layout steps_layout = LAYOUT_(ctl_steps, steps_fields);

static const struct field report_fields[] = {
	FIELD_U32_(ctl_report, seq),
	FIELD_U32_(ctl_report, job),
	FIELD_STR_(ctl_report, text, CTL_TEXT_MAX),
	FIELD_LIST_(ctl_report, workers, CTL_WORKERS_MAX, &report_worker_layout),
	FIELD_STRUCT_(ctl_report, steps, &steps_layout),
};

static const struct field steer_arg_fields[] = {
	FIELD_STR_(ctl_steer_arg, name, CTL_NAME_MAX),
	FIELD_STR_(ctl_steer_arg, value, CTL_STEER_VALUE_MAX),
};
static const struct layout steer_arg_layout = LAYOUT_(ctl_steer_arg, steer_arg_fields);

static const struct field steer_fields[] = {
	FIELD_STR_(ctl_steer, verb, CTL_NAME_MAX),
	FIELD_STR_(ctl_steer, target, CTL_STEER_VALUE_MAX),
	FIELD_LIST_(ctl_steer, args, CTL_STEER_ARGS_MAX, &steer_arg_layout),
	FIELD_U32_(ctl_steer, uid),
	FIELD_STR_(ctl_steer, user, CTL_NAME_MAX),
	FIELD_STR_(ctl_steer, host, CTL_NAME_MAX),
};

static const struct field steered_fields[] = {
	FIELD_U32_(ctl_steered, code),
	FIELD_STR_(ctl_steered, text, CTL_TEXT_MAX),
	FIELD_STR_(ctl_steered, json, CTL_JSON_MAX),
};

static const struct field sight_fields[] = {
	FIELD_U32_(ctl_sight, member),
	FIELD_U64_(ctl_sight, instance),
	FIELD_U32_(ctl_sight, quiet_ms),
};

static const struct field leave_fields[] = {
	FIELD_U32_(ctl_leave, bound_ms),
};

static const struct field left_fields[] = {
	FIELD_U32_(ctl_left, code),
	FIELD_STR_(ctl_left, text, CTL_TEXT_MAX),
};

static const struct field unjoin_fields[] = {
	FIELD_U32_(ctl_unjoin, seq),
};

static const struct ctl_row {
	const char *name;
	struct layout layout;
} rows[CTL_TYPE_END] = {
	[CTL_HELLO] = {"HELLO", LAYOUT_(ctl_hello, hello_fields)},
	[CTL_WELCOME] = {"WELCOME", LAYOUT_(ctl_welcome, welcome_fields)},
	[CTL_REFUSE] = {"REFUSE", LAYOUT_(ctl_refuse, refuse_fields)},
	[CTL_BEAT] = {"BEAT", LAYOUT_(ctl_beat, beat_fields)},
	[CTL_PEERS] = {"PEERS", LAYOUT_(ctl_peers, peers_fields)},
	[CTL_JOIN] = {"JOIN", LAYOUT_(ctl_join, join_fields)},
	[CTL_JOINED] = {"JOINED", LAYOUT_(ctl_joined, joined_fields)},
	[CTL_JOB] = {"JOB", LAYOUT_(ctl_job, job_fields)},
	[CTL_JOB_END] = {"JOB_END", LAYOUT_(ctl_job_end, job_end_fields)},
	[CTL_DECLARE] = {"DECLARE", LAYOUT_(ctl_declare, declare_fields)},
	[CTL_PLAN] = {"PLAN", LAYOUT_(ctl_plan, plan_fields)},
	[CTL_TENSOR_FAIL] = {"TENSOR_FAIL", LAYOUT_(ctl_tensor_fail, tensor_fail_fields)},
	[CTL_WORKER] = {"WORKER", LAYOUT_(ctl_worker, worker_fields)},
	[CTL_FAIL] = {"FAIL", LAYOUT_(ctl_fail, fail_fields)},
	[CTL_WHY] = {"WHY", LAYOUT_(ctl_why, why_fields)},
	[CTL_WHY_TEXT] = {"WHY_TEXT", LAYOUT_(ctl_why_text, why_text_fields)},
	[CTL_PROBE] = {"PROBE", LAYOUT_(ctl_probe, probe_fields)},
	[CTL_REPORT] = {"REPORT", LAYOUT_(ctl_report, report_fields)},
	[CTL_STEER] = {"STEER", LAYOUT_(ctl_steer, steer_fields)},
	[CTL_STEERED] = {"STEERED", LAYOUT_(ctl_steered, steered_fields)},
	[CTL_SIGHT] = {"SIGHT", LAYOUT_(ctl_sight, sight_fields)},
	[CTL_SEEN] = {"SEEN", LAYOUT_(ctl_sight, sight_fields)},
	[CTL_LEAVE] = {"LEAVE", LAYOUT_(ctl_leave, leave_fields)},
	[CTL_LEFT] = {"LEFT", LAYOUT_(ctl_left, left_fields)},
	[CTL_UNJOIN] = {"UNJOIN", LAYOUT_(ctl_unjoin, unjoin_fields)},
};

static const struct ctl_row *ctl_row_find_type(unsigned type)
{
	return type < CTL_TYPE_END && rows[type].name ? &rows[type] : NULL;
}

const struct layout *ctl_layout(unsigned type)
{
	const struct ctl_row *row = ctl_row_find_type(type);

	return row ? &row->layout : NULL;
}

const char *ctl_same_host_name(unsigned state)
{
	static const char *const names[] = {[SAME_HOST_UNTOLD] = "unknown",
		[SAME_HOST_OFF] = "off",
		[SAME_HOST_NO_PLACE] = "no place",
		[SAME_HOST_ON] = "on"};

	return names[state <= SAME_HOST_ON ? state : SAME_HOST_UNTOLD];
}

const char *ctl_type_name(unsigned type)
{
	const struct ctl_row *row = ctl_row_find_type(type);

	return row ? row->name : NULL;
}

int ctl_decode(unsigned type, const void *buf, size_t n_bytes, struct ctl_msg *ret, void **ret_mem,
	struct err_text *err)
{
	const struct layout *l = ctl_layout(type);
	int rc;

	if (!l)
		return err_set(err, BPS_EPROTO, "unknown control message type %u", type);
	/* &ret->hello is the address of every member of the union. */
	rc = codec_decode(l, buf, n_bytes, CTL_MEM_MAX, &ret->hello, ret_mem, err);
	if (rc)
		return rc;
	ret->type = (uint16_t)type;
	return 0;
}
