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

/* Bytes that a member has moved: a sample, and the rate since the previous sample. */
struct sched_traffic {
	uint64_t at_ns, rx_bytes, tx_bytes;
	double rx_bytes_s, tx_bytes_s;
};

/* The report of one server about a job. Lists are copied. */
struct sched_server_report {
	struct ctl_beat_job job; /* its field `late` is not valid */
	struct ctl_beat_late late[CTL_BEAT_LATE_MAX];
};

/* Detects a server that takes long from the last contribution to the sum. score and is_slow have
 * the hysteresis of a straggler. They change once per beat in which the server summed; without sums
 * it recovers. */
struct sched_sum_delay {
	unsigned score;
	bool is_slow;
};

/* The speed of a member's network card (placement/speed.h). Zeroed: not measured. */
struct sched_nic_speed {
	uint64_t span_ns;    /* start of the present span */
	uint64_t best, past; /* Mbit/s, in the present span and in the previous one */
	uint64_t then_mbps;  /* measured when speeds were last taken over; 0: not measured */
	uint64_t used_mbps;  /* the value that placement uses */
};

enum member_state { MEMBER_EXPECTED, MEMBER_UP, MEMBER_SUSPECT, MEMBER_DOWN, MEMBER_STATES };

struct sched_member {
	uint32_t id;
	enum role role;
	enum member_state state;
	bool is_dirty; /* in c->dirty_members: to be persisted and sent */
	bool needs_sync;
	/* it has connected since the scheduler's start, and may know views of this term */
	bool has_come;
	char *name, *host, *addr, *version;
	char *provider;    /* of its data connections; "": unknown */
	uint32_t host_idx; /* in c->hosts */
	uint32_t pid;
	uint16_t port, threads;
	uint64_t nic_mbps, quota_bytes, memory_bytes, instance;
	uint64_t former_instance; /* live instance that this one replaced; 0: none */
	struct sched_conn *conn;
	uint64_t heard_ns;    /* time of its last message */
	uint64_t deadline_ns; /* EXPECTED, SUSPECT: time when it is declared dead */
	uint64_t since_ns;    /* time of the present state */
	uint64_t moved_ns;    /* time of the last progress */
	/* Rules C2 and C4: when a member of the other role last received from it, when these were
	 * last asked, and when one last answered. 0: never. */
	uint64_t seen_ns, asked_ns, answered_ns;
	bool is_drained;                /* durable: gets nothing new, see drain.h */
	bool is_leaving;                /* server: this instance is about to end */
	bool has_left;                  /* is_leaving: LEFT was sent */
	char *drain_reason, *drain_who; /* set when is_drained */
	bool is_behind; /* agent: it lacks some message about its jobs, or must not get it yet */
	char why_down[64];
	struct ctl_beat beat; /* last heartbeat, without its lists */
	struct sched_server_report
		*reports; /* jobs in the last heartbeat; room for CTL_BEAT_JOBS_MAX */
	uint32_t n_reports;
	struct sched_traffic rate;
	struct sched_nic_speed speed;
	struct sched_sum_delay sums; /* server */
	uint64_t last_rounds;        /* from the previous heartbeat */
	uint64_t tx_seq;
	uint64_t *thread_bytes; /* server: [threads], of all jobs */
	uint64_t scaled_bytes;  /* server: sum of members x bytes over all jobs */
	uint32_t restart_count;
	struct sched_member *next_dirty;
};

static inline bool sched_is_usable(const struct sched_member *m)
{
	return m->state != MEMBER_DOWN;
}
/* Return whether the member gets new work. */
static inline bool sched_is_open(const struct sched_member *m)
{
	return sched_is_usable(m) && !m->is_drained && !m->is_leaving;
}
const char *sched_role_name(enum role role);
const char *sched_member_state_name(enum member_state s);
/* Set a member's state; no other code writes it. why: for the log; NULL: the state comes from a
 * record, may be any state, and is not logged. */
void sched_member_set_state(
	struct sched_core *c, struct sched_member *m, enum member_state to, const char *why);
/* Add a member with a new id. name is copied. */
struct sched_member *sched_member_add(
	struct sched_core *c, uint32_t id, enum role role, const char *name);
/* Store the description of the process from its HELLO. */
void sched_member_describe(struct sched_core *c, struct sched_member *m, const struct ctl_hello *h);
/* Free a member; m may be NULL. */
void sched_member_free(struct sched_member *m);
/* Return the silence after which the member is declared dead. */
uint64_t sched_member_dead_ns(const struct sched_core *c, const struct sched_member *m);
/* Return the time by which members that could not connect until now must return: twice the dead
 * time from now. */
uint64_t sched_grace_end_ns(const struct sched_core *c);
/* Return the time that the member has to return after its connection closed. */
uint64_t sched_member_window_ns(const struct sched_core *c, const struct sched_member *m);
#endif
