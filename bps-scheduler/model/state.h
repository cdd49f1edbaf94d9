#ifndef BPS_SCHEDULER_MODEL_STATE_H
#define BPS_SCHEDULER_MODEL_STATE_H
/* Defines the records of the state log, which contain the scheduler's durable state. There is one
 * kind of record: the objects that one transaction (one view) changed. Applying the records in
 * order gives the state. A snapshot is one record that holds the whole state. If several records
 * contain the same object, the object in the newest of these records is valid.
 *
 * Some state is not durable, because the members report it again: connections, jobs that have not
 * formed, declarations that not all agents have made, and which workers have finished. */
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/ctlmsg_cause.h"
#include "common/wire/ctlmsg_member.h"
#include "common/wire/ctlmsg_tensor.h"
#include "common/wire/shape_layout.h"

#define STATE_ID_BYTES     16
#define STATE_SECRET_BYTES 32

struct state_member {
	uint32_t id;
	uint8_t is_up; /* 0 if the member was declared dead, else 1 */
	uint8_t is_drained;
	const char *drain_reason; /* reason of the drain; "" when the member is not drained */
	const char *drain_who;
	/* The member's HELLO, without the fields proto, cluster_id and view */
	struct ctl_hello hello;
};

struct state_worker {
	uint32_t rank;
	uint32_t pid;
	uint32_t seq; /* number of the worker's JOIN message */
};
struct state_job_member {
	uint32_t agent; /* agent id */
	struct state_worker *workers;
	uint32_t n_workers;
	uint8_t is_gone;
	const char *why; /* reason why the member is gone; "" if it is not gone */
	uint64_t since;  /* view in which the agent became a member of the job */
};
struct state_job {
	uint32_t id;
	uint32_t uid;
	const char *name;
	uint32_t size;
	uint32_t flags;
	uint32_t part_bytes;
	uint64_t view;    /* view in which the job's state, members or barrier last changed */
	uint8_t is_ended; /* the job has ended; its record stays for members that missed JOB_END */
	uint32_t code;
	const char *text;
	struct state_job_member *members; /* array of the job's members, indexed by member number */
	uint32_t n_members;
	struct blob token; /* proof of the job token (core/admission.c); empty: no token */
	uint64_t formed;   /* view in which the job formed */
	uint16_t backup;
	uint32_t grace_ms;
	uint32_t max_size;
	uint64_t barrier, border, border_barrier;
	/* time of the job's end, or 0 if the job has not ended or an older release wrote the
	 * record */
	uint64_t ended_unix_s;
	struct ctl_cause cause; /* worker or host that caused the end of the job */
};

struct state_tensor {
	uint32_t job;
	uint32_t tensor;
	const char *name;
	struct tensor_shape shape;
	uint32_t part_elems;
};
struct state_run {
	uint32_t job;
	struct ctl_run run;
};

struct state_mute {
	const char *code; /* code of the muted problem */
	const char *reason;
	const char *who;
	/* id of the boot of the machine, STATE_ID_BYTES long; end_ns is valid only in this boot */
	struct blob boot_id;
	uint64_t end_ns; /* end of the mute, on CLOCK_MONOTONIC */
	/* wall-clock time at which the mute ends; used if the machine has been booted again since
	 * the record was written, or if the record comes from another machine */
	uint64_t end_unix_s;
};

struct state_record {
	struct blob cluster_id; /* random id of the cluster, STATE_ID_BYTES long */
	/* random secret, STATE_SECRET_BYTES long, from which the keys of data connections are
	 * derived */
	struct blob secret;
	uint32_t term;
	uint64_t view;
	uint32_t job_id_limit; /* job ids from this number on have never been assigned */
	struct state_member *members;
	uint32_t n_members;
	struct state_job *jobs;
	uint32_t n_jobs;
	struct state_tensor *tensors;
	uint32_t n_tensors;
	struct state_run *runs;
	uint32_t n_runs;
	/* 1 if the field `mutes` lists all mutes, or 0 if the record does not change the mutes */
	uint8_t has_mutes;
	struct state_mute *mutes;
	uint32_t n_mutes;
};

/* Return the layout of struct state_record, for common/wire/codec.h. */
const struct layout *state_record_layout(void);
#endif
