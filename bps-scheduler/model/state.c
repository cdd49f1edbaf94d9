/* Layout of the durable records (state.h) for the codec: the fields of each object, in order. This
 * file neither reads nor writes files. core/record.c converts the objects. The tables are constant,
 * so any thread may use them. */
#include "bps-scheduler/model/state.h"

#include "bps-scheduler/model/member.h"
#include "bps-scheduler/model/mute.h"
#include "common/wire/ctlmsg.h"

/* Limit on the length of a list. No list reaches this limit, because the size of the whole record
 * is limited. */
#define MANY (1u << 28)

static const struct field member_fields[] = {
	FIELD_U32_(state_member, id),
	FIELD_U8_(state_member, hello.role),
	FIELD_U8_(state_member, is_up),
	FIELD_U64_(state_member, hello.instance),
	FIELD_STR_(state_member, hello.name, CTL_NAME_MAX),
	FIELD_STR_(state_member, hello.host, CTL_NAME_MAX),
	FIELD_STR_(state_member, hello.addr, CTL_NAME_MAX),
	FIELD_STR_(state_member, hello.version, CTL_NAME_MAX),
	FIELD_U32_(state_member, hello.pid),
	FIELD_U16_(state_member, hello.port),
	FIELD_U16_(state_member, hello.threads),
	FIELD_U64_(state_member, hello.nic_mbps),
	FIELD_U64_(state_member, hello.quota_bytes),
	FIELD_U8_(state_member, is_drained),
	FIELD_STR_(state_member, drain_reason, DRAIN_REASON_MAX),
	FIELD_STR_(state_member, drain_who, DRAIN_WHO_MAX),
	FIELD_U64_(state_member, hello.memory_bytes),
	FIELD_STR_(state_member, hello.provider, CTL_NAME_MAX),
	FIELD_BLOB_(state_member, hello.boot_id, CTL_BOOT_ID_BYTES),
	FIELD_STR_(state_member, hello.domain, CTL_NAME_MAX),
};
static const struct layout member_layout = LAYOUT_(state_member, member_fields);

static const struct field worker_fields[] = {
	FIELD_U32_(state_worker, rank),
	FIELD_U32_(state_worker, pid),
	FIELD_U32_(state_worker, seq),
};
static const struct layout worker_layout = LAYOUT_(state_worker, worker_fields);

static const struct field job_member_fields[] = {
	FIELD_U32_(state_job_member, agent),
	FIELD_LIST_(state_job_member, workers, CTL_WORKERS_MAX, &worker_layout),
	FIELD_U8_(state_job_member, is_gone),
	FIELD_STR_(state_job_member, why, CTL_WHY_GONE_MAX),
	FIELD_U64_(state_job_member, since),
};
static const struct layout job_member_layout = LAYOUT_(state_job_member, job_member_fields);

static const struct field job_fields[] = {
	FIELD_U32_(state_job, id),
	FIELD_U32_(state_job, uid),
	FIELD_STR_(state_job, name, CTL_JOB_NAME_MAX),
	FIELD_U32_(state_job, size),
	FIELD_U32_(state_job, flags),
	FIELD_U32_(state_job, part_bytes),
	FIELD_U64_(state_job, view),
	FIELD_U8_(state_job, is_ended),
	FIELD_U32_(state_job, code),
	FIELD_STR_(state_job, text, CTL_TEXT_MAX),
	FIELD_LIST_(state_job, members, CTL_WORKERS_MAX, &job_member_layout),
	FIELD_BLOB_(state_job, token, CTL_TOKEN_BYTES),
	FIELD_U64_(state_job, formed),
	FIELD_U16_(state_job, backup),
	FIELD_U32_(state_job, grace_ms),
	FIELD_U32_(state_job, max_size),
	FIELD_U64_(state_job, barrier),
	FIELD_U64_(state_job, border),
	FIELD_U64_(state_job, border_barrier),
	FIELD_U64_(state_job, ended_unix_s),
	FIELD_CAUSE_(state_job),
};
static const struct layout job_layout = LAYOUT_(state_job, job_fields);

static const struct field tensor_fields[] = {
	FIELD_U32_(state_tensor, job),
	FIELD_U32_(state_tensor, tensor),
	FIELD_STR_(state_tensor, name, CTL_TENSOR_NAME_MAX),
	FIELD_SHAPE_(state_tensor),
	FIELD_U32_(state_tensor, part_elems),
};
static const struct layout tensor_layout = LAYOUT_(state_tensor, tensor_fields);

static const struct field run_fields[] = {
	FIELD_U32_(state_run, job),
	FIELD_U32_(state_run, run.tensor),
	FIELD_U32_(state_run, run.first),
	FIELD_U32_(state_run, run.n),
	FIELD_U32_(state_run, run.server),
	FIELD_U64_(state_run, run.instance),
	FIELD_U16_(state_run, run.thread),
	FIELD_U64_(state_run, run.pgen),
};
static const struct layout run_layout = LAYOUT_(state_run, run_fields);

static const struct field mute_fields[] = {
	FIELD_STR_(state_mute, code, MUTE_CODE_MAX),
	FIELD_STR_(state_mute, reason, MUTE_REASON_MAX),
	FIELD_STR_(state_mute, who, MUTE_WHO_MAX),
	FIELD_BLOB_(state_mute, boot_id, STATE_ID_BYTES),
	FIELD_U64_(state_mute, end_ns),
	FIELD_U64_(state_mute, end_unix_s),
};
static const struct layout mute_layout = LAYOUT_(state_mute, mute_fields);

static const struct field record_fields[] = {
	FIELD_BLOB_(state_record, cluster_id, STATE_ID_BYTES),
	FIELD_BLOB_(state_record, secret, STATE_SECRET_BYTES),
	FIELD_U32_(state_record, term),
	FIELD_U64_(state_record, view),
	FIELD_U32_(state_record, job_id_limit),
	FIELD_LIST_(state_record, members, MANY, &member_layout),
	FIELD_LIST_(state_record, jobs, MANY, &job_layout),
	FIELD_LIST_(state_record, tensors, MANY, &tensor_layout),
	FIELD_LIST_(state_record, runs, MANY, &run_layout),
	FIELD_U8_(state_record, has_mutes),
	FIELD_LIST_(state_record, mutes, MUTES_MAX, &mute_layout),
};
static const struct layout record_layout = LAYOUT_(state_record, record_fields);

const struct layout *state_record_layout(void)
{
	return &record_layout;
}
