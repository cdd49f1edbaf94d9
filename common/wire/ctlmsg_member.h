#ifndef BPS_COMMON_WIRE_CTLMSG_MEMBER_H
#define BPS_COMMON_WIRE_CTLMSG_MEMBER_H
/* Control messages about members: identity, heartbeat, peers, and the departure of a server. See
 * ctlmsg.h. */
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
	uint64_t nic_mbps;      /* setting, or the driver's speed; 0: unknown */
	struct blob cluster_id; /* 16 bytes, empty when none is known */
	uint64_t view;          /* largest view seen */
	uint64_t quota_bytes;   /* memory that it may take: server, for sums; 0: unknown */
	uint64_t memory_bytes;  /* memory of the machine, 0: unknown */
};

struct ctl_welcome {
	struct blob cluster_id;
	uint32_t term;
	uint64_t view;
	uint32_t member_id; /* id for this name and role, stable across restarts */
	uint32_t beat_ms;   /* send a BEAT this often */
	uint32_t dead_ms;   /* silence after which the scheduler counts as lost */
	uint32_t restarts;  /* how often this name has returned with another instance */
	uint32_t window_ms; /* time to reconnect after a loss before the member counts as dead */
	uint8_t has_master; /* 1: the member authenticated with the cluster's master key */
};

struct ctl_refuse {
	uint32_t code; /* positive value of the (negative) error code */
	const char *text;
};

#define CTL_BEAT_JOBS_MAX 16
#define CTL_BEAT_LATE_MAX 8
/* Agent that was last in some rounds of the last seconds. */
struct ctl_beat_late {
	uint32_t agent;  /* agent id */
	uint32_t rounds; /* rounds in which it was last */
	uint32_t lag_us; /* median delay after half of the agents had arrived */
};
struct ctl_beat_job {
	uint32_t job;
	uint64_t round;  /* largest that is complete: the job's step */
	uint64_t rounds; /* completed rounds of partitions */
	uint64_t bytes;  /* bytes of their contributions */
	/* Last seconds: rounds measured, and the time from first to last arrival. */
	uint32_t window_rounds;
	uint32_t wait_p50_us, wait_p99_us;
	struct ctl_beat_late *late; /* agents that are last, most often first */
	uint32_t n_late;
};

/* State of memory sharing between this member and others on its host. NO_PLACE: there is no folder
 * for it. */
enum same_host_state { SAME_HOST_UNTOLD, SAME_HOST_OFF, SAME_HOST_NO_PLACE, SAME_HOST_ON };
const char *ctl_same_host_name(unsigned state);

/* Source of the nic_mbps of a HELLO. */
enum nic_source { NIC_UNTOLD, NIC_SET, NIC_DRIVER };

struct ctl_beat {
	uint64_t seq;
	uint64_t echo; /* last seq received from the other side */
	uint64_t view; /* view applied */
	/* Counters of a member since its start, for the status screen and to detect a hung one. */
	uint64_t progress; /* grows whenever every loop of the process has turned */
	uint64_t rounds;   /* partitions completed */
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t mem_bytes;
	uint32_t connections; /* open data connections */
	uint32_t trainers;
	/* Jobs that a server sums for: the oldest CTL_BEAT_JOBS_MAX of them. */
	uint32_t sum_us; /* recent time from the last contribution to the sum */
	struct ctl_beat_job *jobs;
	uint32_t n_jobs;
	/* Shared memory with daemons of the same host, not included in the figures above. */
	uint8_t same_host; /* enum same_host_state */
	uint32_t same_host_connections;
	uint64_t same_host_bytes; /* bytes taken from a peer's memory */
	uint8_t nic_source;       /* enum nic_source */
	/* Measured throughput of its card, when no speed is known; 0: not measured yet */
	uint64_t measured_mbps;
};

/* State of a peer that its counterparts need; GONE removes it. */
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
	/* Servers, sent to agents; agents, sent to servers. After the first message only
	 * changes. */
	struct ctl_peer *peers;
	uint32_t n_peers;
};

/* Rules C2 and C4. SIGHT: the scheduler receives nothing from a member, and asks those of the other
 * role whether its data path works. SEEN: a server has a connection to that very instance of an
 * agent, or an agent has or had one to that of a server; others do not answer. */
struct ctl_sight {
	uint32_t member; /* its id */
	uint64_t instance;
	uint32_t quiet_ms; /* SEEN: time since the last message from the member; SIGHT: 0 */
};

/* LEAVE: a server is about to end, and its partitions should move away first. LEFT: they have moved
 * (code 0), or it need not wait for that. */
struct ctl_leave {
	uint32_t bound_ms; /* the server ends after this time in any case */
};
struct ctl_left {
	uint32_t code; /* 0, or the positive value of the error code */
	const char *text;
};
#endif
