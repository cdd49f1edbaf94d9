#ifndef BPS_SCHEDULER_MODEL_MEMBER_H
#define BPS_SCHEDULER_MODEL_MEMBER_H
/* A member of the cluster (a server or an agent) and the member's connection. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/ctlmsg.h"

#define DRAIN_REASON_MAX 255
#define DRAIN_WHO_MAX    191

struct machine_rival;
struct sched_core;
struct sched_conn;

/* Bytes that a member had received and sent in total at the time `at_ns`, and the rates since the
 * previous sample. */
struct sched_traffic {
	uint64_t at_ns, rx_bytes, tx_bytes;
	double rx_bytes_s, tx_bytes_s;
};

/* Report of one server about a job, from its last heartbeat. The report is a copy, because the
 * message is freed after the core has handled it. */
struct sched_server_report {
	/* The report. Its pointer `late` is NULL, because the array `late` below replaces it. */
	struct ctl_beat_job job;
	struct ctl_beat_late late[CTL_BEAT_LATE_MAX];
};

/* Detection of a server that is slow to complete sums. A heartbeat reports the time between the
 * last contribution and the completion of the sum. The score rises if this time is long and falls
 * if it is short. The score for stragglers works in the same way (core/progress.h). A heartbeat
 * without new sums lowers the score. */
struct sched_sum_delay {
	unsigned score;
	bool is_slow;
};

/* The measured speed of a member's network card (placement/speed.h). All fields are 0 if the speed
 * has not been measured. */
struct sched_nic_speed {
	uint64_t span_ns; /* start of the present measuring span (SPEED_SPAN_NS) */
	/* highest measured speeds in Mbit/s, in the present span and in the previous span */
	uint64_t best, past;
	/* measured speed at the last update of `used_mbps`, in Mbit/s; 0: not measured */
	uint64_t then_mbps;
	uint64_t used_mbps; /* speed that placement uses, in Mbit/s */
};

enum member_state { MEMBER_EXPECTED, MEMBER_UP, MEMBER_SUSPECT, MEMBER_DOWN, MEMBER_STATES };

struct sched_member {
	uint32_t id;
	enum role role;
	enum member_state state;
	/* the open transaction has changed the member, which is in the list c->dirty_members */
	bool is_dirty;
	bool needs_sync;
	/* the member has connected since the scheduler's start, so it may have received views of
	 * this term */
	bool has_come;
	char *name, *host, *addr, *version;
	/* domain and boot id of the machine, from HELLO; empty and all zero: unknown (machine.h) */
	char *domain;
	char *http; /* address of the member's HTTP server, from HELLO; "": unknown */
	uint8_t boot_id[CTL_BOOT_ID_BYTES];
	/* process on another machine that was refused in favour of this member; may be NULL */
	struct machine_rival *rival;
	/* transport of the member's data connections, such as "sockets"; "": unknown */
	char *provider;
	uint32_t host_idx; /* index of the member's host in c->hosts */
	uint32_t pid;
	uint16_t port, threads;
	uint64_t nic_mbps, quota_bytes, memory_bytes, instance;
	/* If the present process replaced a process that had not been declared dead, this field is
	 * the instance of the replaced process. Otherwise the field is 0. */
	uint64_t former_instance;
	struct sched_conn *conn;
	uint64_t heard_ns; /* when the member's last message arrived */
	/* time at which a member that is EXPECTED or SUSPECT is declared dead */
	uint64_t deadline_ns;
	uint64_t since_ns; /* when the member's present state began */
	uint64_t moved_ns; /* when the member's heartbeats last showed progress */
	/* For rules C2 and C4 of docs/reference/faults.md. The peers of a server are the agents,
	 * and the peers of an agent are the servers. seen_ns: when a peer last received data from
	 * this member. asked_ns: when the scheduler last asked the peers for seen_ns. answered_ns:
	 * when a peer last answered. 0: never. */
	uint64_t seen_ns, asked_ns, answered_ns;
	/* an operator has drained the member, so it gets no new work (drain.h); durable */
	bool is_drained;
	/* the process has announced that it is about to end; set for servers and drained agents */
	bool is_leaving;
	/* the scheduler has sent LEFT to this leaving server, which has no partitions any more */
	bool has_left;
	/* reason and operator of the last drain; their readers check is_drained */
	char *drain_reason, *drain_who;
	/* Set for an agent that has not received a change of its jobs, or whose key is revoked.
	 * Such an agent is declared dead even if servers still receive from it. */
	bool is_behind;
	char why_down[64];
	struct ctl_beat beat; /* the member's last heartbeat, without its lists */
	/* the reports about jobs in the last heartbeat; an array of CTL_BEAT_JOBS_MAX, or NULL */
	struct sched_server_report *reports;
	uint32_t n_reports;
	/* only for an agent: servers to which it has lost data connections, from its last
	 * heartbeat; an array of CTL_BEAT_LINKS_MAX, or NULL */
	struct ctl_beat_link *losses;
	uint32_t n_losses;
	struct sched_traffic rate;
	struct sched_nic_speed speed;
	struct sched_sum_delay sums; /* for a server: whether its sums take too long */
	uint64_t last_rounds;        /* number of rounds that the previous heartbeat reported */
	uint64_t tx_seq;
	/* only for a server: bytes of all jobs' partitions on each data thread, an array with one
	 * entry per thread */
	uint64_t *thread_bytes;
	/* Only for a server: its load. Each partition on the server adds its size in bytes,
	 * multiplied by the number of members of the partition's job. */
	uint64_t scaled_bytes;
	/* Only for a server: memory that the sums of its partitions take. */
	uint64_t sums_bytes;
	uint32_t restart_count;
	struct sched_member *next_dirty;
};

static inline bool sched_is_usable(const struct sched_member *m)
{
	return m->state != MEMBER_DOWN;
}
/* Return whether the member accepts new work. A server's new work is partitions, and an agent's new
 * work is jobs. */
static inline bool sched_member_is_open(const struct sched_member *m)
{
	return sched_is_usable(m) && !m->is_drained && !m->is_leaving;
}
const char *sched_role_name(enum role role);
const char *sched_member_state_name(enum member_state s);
/* Set a member's state; no other code writes the state. `why` is the reason of the change, for the
 * log. The change must be a permitted one. If the state comes from a record, `why` is NULL. In that
 * case every change is permitted, and the change is not logged. */
void sched_member_set_state(
	struct sched_core *c, struct sched_member *m, enum member_state to, const char *why);
/* Add a member with a new id. The member gets a copy of the string `name`. */
struct sched_member *sched_member_add(
	struct sched_core *c, uint32_t id, enum role role, const char *name);
/* Store the description of the process from its HELLO. */
void sched_member_describe(struct sched_core *c, struct sched_member *m, const struct ctl_hello *h);
/* Free a member; m may be NULL. */
void sched_member_free(struct sched_member *m);
/* Return the duration of silence after which the scheduler declares the member dead. */
uint64_t sched_member_dead_ns(const struct sched_core *c, const struct sched_member *m);
/* Return the end of a grace period that starts now. In the grace period, members that could not
 * connect earlier have time to connect. The period lasts twice the larger of server_dead_ms and
 * agent_dead_ms. */
uint64_t sched_grace_end_ns(const struct sched_core *c);
/* Return the length of the window in which a member must connect again after its connection
 * closed. */
uint64_t sched_member_window_ns(const struct sched_core *c, const struct sched_member *m);
#endif
