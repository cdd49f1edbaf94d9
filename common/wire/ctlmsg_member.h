#ifndef BPS_COMMON_WIRE_CTLMSG_MEMBER_H
#define BPS_COMMON_WIRE_CTLMSG_MEMBER_H
/* Control messages about members: who they are, that they live, who their peers are, and that a
 * server leaves. See ctlmsg.h. */
#include <stdint.h>

#include "common/wire/codec.h"

enum role { ROLE_SERVER = 1, ROLE_AGENT = 2 };

struct ctl_hello {
	uint16_t proto;    /* CTL_PROTO */
	uint8_t role;      /* enum role */
	uint64_t instance; /* random per process start */
	const char *name;  /* unique among members of this role; the host's name by default */
	const char *host;  /* the machine: an agent and a server of one host are colocated */
	const char *version;
	uint32_t pid;
	const char *addr; /* data plane: numeric address and port of the server's listener */
	uint16_t port;
	uint16_t threads;       /* data threads */
	uint64_t nic_mbps;      /* set, or its driver's; 0: not known */
	struct blob cluster_id; /* 16 bytes, empty when none is known */
	uint64_t view;          /* largest view seen */
	uint64_t quota_bytes;   /* memory that sums may take, 0: not told */
};

struct ctl_welcome {
	struct blob cluster_id;
	uint32_t term;
	uint64_t view;
	uint32_t member_id; /* of this name and role, stable across restarts */
	uint32_t beat_ms;   /* send a BEAT this often */
	uint32_t dead_ms;   /* silence after which the scheduler is taken for lost */
	uint32_t restarts;  /* how often this name has come back with another instance */
	uint32_t window_ms; /* to come back after the connection closed, before it counts as dead */
};

struct ctl_refuse {
	uint32_t code; /* positive value of the (negative) error code */
	const char *text;
};

#define CTL_BEAT_JOBS_MAX 16
#define CTL_BEAT_LATE_MAX 8
/* An agent that was last in some rounds of the last seconds. */
struct ctl_beat_late {
	uint32_t agent;  /* id */
	uint32_t rounds; /* in which it was last */
	uint32_t lag_us; /* median: behind the moment when half of the agents were there */
};
struct ctl_beat_job {
	uint32_t job;
	uint64_t round;  /* largest that is complete: the job's step */
	uint64_t rounds; /* of partitions, complete */
	uint64_t bytes;  /* of their contributions */
	/* Of the last seconds: rounds measured, and the time from first to last arrival. */
	uint32_t window_rounds;
	uint32_t wait_p50_us, wait_p99_us;
	struct ctl_beat_late *late; /* who is last most often first */
	uint32_t n_late;
};

/* May this member share memory with the others of its host? NO_PLACE: there is no folder for it. */
enum same_host_state { SAME_HOST_UNTOLD, SAME_HOST_OFF, SAME_HOST_NO_PLACE, SAME_HOST_ON };
const char *ctl_same_host_name(unsigned state);

/* Where the nic_mbps of a HELLO is from. */
enum nic_source { NIC_UNTOLD, NIC_SET, NIC_DRIVER };

struct ctl_beat {
	uint64_t seq;
	uint64_t echo; /* last seq received from the other side */
	uint64_t view; /* applied */
	/* A member's counters since its start, for the status screen and for alive-but-stuck. */
	uint64_t progress; /* grows whenever every loop of the process has turned */
	uint64_t rounds;   /* partitions completed */
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t mem_bytes;
	uint32_t connections; /* data connections up */
	uint32_t trainers;
	/* A server's, of the jobs that it sums for: the oldest CTL_BEAT_JOBS_MAX of them. */
	uint32_t sum_us; /* from the last contribution to the sum, of late */
	struct ctl_beat_job *jobs;
	uint32_t n_jobs;
	/* Shared memory with daemons of the same host, in none of the figures above. */
	uint8_t same_host; /* enum same_host_state */
	uint32_t same_host_connections;
	uint64_t same_host_bytes; /* taken */
	uint8_t nic_source;       /* enum nic_source */
	uint64_t measured_mbps;   /* that passed its card, where nothing tells; 0: not known yet */
};

/* State of a peer as its counterparts must know it; GONE removes it. */
enum peer_state { PEER_UP = 1, PEER_DOWN = 2, PEER_GONE = 3 };
struct ctl_peer {
	uint32_t id;
	uint8_t state;
	uint64_t instance;
	const char *name;
	const char *host;
	const char *addr;
	uint16_t port;
	uint16_t threads;
	struct blob key; /* CTL_KEY_BYTES: for tickets between these two instances */
};
struct ctl_peers {
	uint64_t view;
	/* Agents get servers, servers get agents; only what changed, after the first. */
	struct ctl_peer *peers;
	uint32_t n_peers;
};

/* Rule C4. SIGHT: the scheduler, which does not hear an agent, asks whether its data path lives.
 * SEEN: a server has a connection to that very instance; who has none says nothing. */
struct ctl_sight {
	uint32_t agent; /* id */
	uint64_t instance;
	uint32_t quiet_ms; /* SEEN: since the agent was heard; SIGHT: 0 */
};

/* A server is about to end; its partitions should be elsewhere before. LEFT: they are (code 0), or
 * it need not wait for that. */
struct ctl_leave {
	uint32_t bound_ms; /* it ends after that in any case */
};
struct ctl_left {
	uint32_t code; /* 0, or the positive value of the error code */
	const char *text;
};
#endif
