#ifndef BPS_SCHEDULER_MODEL_MEMBER_H
#define BPS_SCHEDULER_MODEL_MEMBER_H
/* A member of the cluster, a server or an agent, and its connection. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/ctlmsg.h"

#define DRAIN_REASON_MAX 255
#define DRAIN_WHO_MAX    191

struct sched_core;
struct sched_conn;

/* Bytes that a member has moved; a sample and the rate since the one before. */
struct sched_traffic {
	uint64_t at_ns, rx_bytes, tx_bytes;
	double rx_bytes_s, tx_bytes_s;
};

/* What one server tells of a job; lists are copied. */
struct sched_server_report {
	struct ctl_beat_job job; /* its late is not valid */
	struct ctl_beat_late late[CTL_BEAT_LATE_MAX];
};

/* A server that takes long from the last contribution to the sum. score and is_slow have the
 * hysteresis of a straggler, per beat in which it has summed; without sums it recovers. */
struct sched_sum_delay {
	unsigned score;
	bool is_slow;
};

/* The speed of a member's network card (placement/speed.h). Zeroed: nothing is measured. */
struct sched_nic_speed {
	uint64_t span_ns;    /* when the present span began */
	uint64_t best, past; /* Mbit/s, in the present span and the one before */
	uint64_t then_mbps;  /* measured when speeds were taken over last; 0: nothing was */
	uint64_t used_mbps;  /* that it was taken for */
};

enum member_state { MEMBER_EXPECTED, MEMBER_UP, MEMBER_SUSPECT, MEMBER_DOWN, MEMBER_STATES };

struct sched_member {
	uint32_t id;
	enum role role;
	enum member_state state;
	bool is_dirty; /* in c->dirty_members: to be persisted and told */
	bool needs_sync;
	bool has_come; /* since the scheduler's start: views of this term may be known to it */
	char *name, *host, *addr, *version;
	uint32_t host_idx; /* in c->hosts */
	uint32_t pid;
	uint16_t port, threads;
	uint64_t nic_mbps, quota_bytes, instance;
	uint64_t former_instance; /* that this one replaced while it was live; 0: none */
	struct sched_conn *conn;
	uint64_t heard_ns;    /* last message */
	uint64_t deadline_ns; /* EXPECTED, SUSPECT: dead then */
	uint64_t since_ns;    /* of the state */
	uint64_t moved_ns;    /* progress changed */
	/* Agent, rule C4: when a server last heard it, and when they were last asked; 0: never. */
	uint64_t seen_ns, asked_ns;
	bool is_drained;                /* durable: gets nothing new, see drain.h */
	bool is_leaving;                /* server: this instance is about to end */
	bool has_left;                  /* is_leaving: it was told LEFT */
	char *drain_reason, *drain_who; /* when is_drained */
	bool is_behind; /* agent: something of its jobs could not be told to it, or it may not be */
	char why_down[64];
	struct ctl_beat beat; /* last one, without its lists */
	struct sched_server_report
		*reports; /* what it told of jobs then; room for CTL_BEAT_JOBS_MAX */
	uint32_t n_reports;
	struct sched_traffic rate;
	struct sched_nic_speed speed;
	struct sched_sum_delay sums; /* server */
	uint64_t last_rounds;        /* of the beat before */
	uint64_t tx_seq;
	uint64_t *thread_bytes; /* server: [threads], all jobs */
	uint64_t scaled_bytes;  /* server: sum over jobs of members x bytes */
	uint32_t restart_count;
	struct sched_member *next_dirty;
};

static inline bool sched_is_usable(const struct sched_member *m)
{
	return m->state != MEMBER_DOWN;
}
/* Does it get new work? */
static inline bool sched_is_open(const struct sched_member *m)
{
	return sched_is_usable(m) && !m->is_drained && !m->is_leaving;
}
const char *sched_role_name(enum role role);
const char *sched_member_state_name(enum member_state s);
/* The only writer of a member's state. why: for the log. NULL: the state comes from a record, which
 * may be any and is not logged. */
void sched_member_set_state(
	struct sched_core *c, struct sched_member *m, enum member_state to, const char *why);
/* A member with this id, which is new. name: copied. */
struct sched_member *sched_member_add(
	struct sched_core *c, uint32_t id, enum role role, const char *name);
/* Take what HELLO says about the process. */
void sched_member_describe(struct sched_core *c, struct sched_member *m, const struct ctl_hello *h);
/* NULL is allowed. */
void sched_member_free(struct sched_member *m);
/* Silence after which it is dead. */
uint64_t sched_member_dead_ns(const struct sched_core *c, const struct sched_member *m);
/* When members must be back that could not connect until now: twice the dead time from now. */
uint64_t sched_grace_end_ns(const struct sched_core *c);
/* Time to come back after its connection closed. */
uint64_t sched_member_window_ns(const struct sched_core *c, const struct sched_member *m);
#endif
