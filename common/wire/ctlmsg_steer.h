#ifndef BPS_COMMON_WIRE_CTLMSG_STEER_H
#define BPS_COMMON_WIRE_CTLMSG_STEER_H
/* Control messages of people: why a tensor does not complete, and what an operator wants done. See
 * ctlmsg.h. */
#include <stdint.h>

#include "common/wire/codec.h"

/* Why does (tensor, round) not complete? tensor is CTL_NO_ID for the forming of the job. The
 * scheduler asks all agents of the job (PROBE, REPORT) for at most a second and answers. */
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
	uint32_t tensor; /* CTL_NO_ID: only the general figures */
};
enum ctl_gpu_open { /* bps_gpu_open, in which the workers of one machine wait for each other */
	GPU_OPEN_NONE,
	GPU_OPEN_WAITS,   /* it waits there */
	GPU_OPEN_MISSING, /* it has not called it, and others wait */
};
struct ctl_report_worker {
	uint32_t rank;
	uint32_t pid;
	uint64_t submitted; /* last round of the asked tensor that it submitted */
	uint64_t calls;     /* push_pulls submitted in all */
	uint64_t completed;
	uint32_t quiet_ms;      /* since its last submission */
	uint32_t oldest_tensor; /* waiting longest, CTL_NO_ID: none */
	uint64_t oldest_round;
	uint32_t oldest_ms;
	uint8_t is_attached;
	uint8_t gpu_open;     /* enum ctl_gpu_open */
	uint32_t gpu_open_ms; /* since the first of the machine called it */
};
struct ctl_report {
	uint32_t seq;
	uint32_t job;
	const char *text; /* what this agent's network waits for, "" when nothing */
	struct ctl_report_worker *workers;
	uint32_t n_workers;
};

/* One thing that an operator wants done, the first and only message of its connection. */
struct ctl_steer_arg {
	const char *name;
	const char *value;
};
struct ctl_steer {
	const char *verb;   /* "job kill" */
	const char *target; /* what it acts on, "" nothing */
	struct ctl_steer_arg *args;
	uint32_t n_args;
	/* Who asks, as its own host says: for the record, never for a decision. */
	uint32_t uid;
	const char *user;
	const char *host;
};
struct ctl_steered {
	uint32_t code;    /* 0: done; else the positive value of the error code */
	const char *text; /* one sentence: what was done, or why not */
	const char *json; /* more, for programs; "" nothing */
};
#endif
