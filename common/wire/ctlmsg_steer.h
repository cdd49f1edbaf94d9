#ifndef BPS_COMMON_WIRE_CTLMSG_STEER_H
#define BPS_COMMON_WIRE_CTLMSG_STEER_H
/* Control messages for people: why a tensor does not complete, and commands of an operator. See
 * ctlmsg.h. */
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/round_phase.h"

/* An agent asks why a round of a tensor does not complete. If `tensor` is CTL_NO_ID, the agent asks
 * why the job does not form. The scheduler sends PROBE to all agents of the job, waits at most a
 * second for their REPORTs, then answers with WHY_TEXT. */
struct ctl_why {
	uint32_t seq;
	uint32_t job;
	uint32_t tensor;
	uint64_t round;
};
struct ctl_why_text {
	uint32_t seq;
	const char *text;
};
struct ctl_probe {
	uint32_t seq;
	uint32_t job;
	uint32_t tensor; /* CTL_NO_ID: report only the facts that do not depend on a tensor */
};
/* State of a worker in bps_gpu_open, a call in which the workers of one machine wait for each
 * other */
enum ctl_gpu_open {
	GPU_OPEN_NONE,
	GPU_OPEN_WAITS, /* the worker has called bps_gpu_open and waits */
	/* The worker has not called bps_gpu_open, and other workers of the machine wait for this
	 * worker */
	GPU_OPEN_MISSING,
};
struct ctl_report_worker {
	uint32_t rank;
	uint32_t pid;
	uint64_t submitted; /* the worker's last submitted round of the PROBE's tensor */
	uint64_t calls;     /* number of push_pulls submitted so far */
	uint64_t completed;
	uint32_t quiet_ms; /* time since the worker's last submission */
	/* Tensor for which the worker waits, and whose round has been in flight for the longest
	 * time. If the worker waits for no tensor, any tensor may be this one. CTL_NO_ID: no round
	 * is in flight, or the tensor has no id yet */
	uint32_t oldest_tensor;
	uint64_t oldest_round;
	uint32_t oldest_ms;
	uint8_t is_attached;
	uint8_t gpu_open;     /* enum ctl_gpu_open */
	uint32_t gpu_open_ms; /* time since the machine's first worker called bps_gpu_open */
	/* A thread of the worker, or a stream, waits for the round now. A round in flight alone
	 * need not have a call that waits for it. */
	uint8_t is_waiting;
	uint64_t oldest_name; /* name_hash of the tensor's name; 0: no round is in flight */
};
/* Where the time of a job's last steps went on one machine: sums over n_steps steps, means of the
 * machine's workers. length_us = computing + exposed_us, and exposed_us is the sum of the phases
 * (round_phase.h). */
struct ctl_steps {
	uint32_t n_steps; /* 0: not known */
	uint32_t length_us, exposed_us;
	uint32_t phase_us[N_PHASES];
	/* 1 + number of the member for which the machine waited longest in most of the steps; 0: no
	 * known one. n_last: number of these steps */
	uint16_t last_member;
	uint32_t n_last;
	uint64_t bytes; /* of the tensors whose rounds ended in these steps; 0: not known */
};
struct ctl_report {
	uint32_t seq;
	uint32_t job;
	/* Reason why this agent waits for its servers; "": the agent does not wait for its
	 * servers */
	const char *text;
	struct ctl_report_worker *workers;
	uint32_t n_workers;
	struct ctl_steps steps;
};

/* Command of an operator. A connection carries one command, as its first and only message. */
struct ctl_steer_arg {
	const char *name;
	const char *value;
};
struct ctl_steer {
	const char *verb;   /* the command, such as "job kill" */
	const char *target; /* what the command applies to; "" for none */
	struct ctl_steer_arg *args;
	uint32_t n_args;
	/* uid, user, host: the user who sent the command and the user's host, as that host reports
	 * them. The scheduler records these three fields, but never uses them for a decision. */
	uint32_t uid;
	const char *user;
	const char *host;
};
struct ctl_steered {
	uint32_t code;    /* error code as a positive number; 0: the command succeeded */
	const char *text; /* a sentence that states the action, or the reason for the refusal */
	const char *json; /* details for programs; "" for none */
};
#endif
