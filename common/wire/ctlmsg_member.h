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
	uint64_t instance; /* random number of this start of the process */
	const char *name;  /* member's name, unique in its role; by default the host's name */
	/* Name of the machine. An agent and a server with the same name in this field share a
	 * machine */
	const char *host;
	const char *version;
	uint32_t pid;
	/* addr: numeric address of the machine in the network of data connections. port: port at
	 * which a server listens there; 0 for an agent */
	const char *addr;
	uint16_t port;
	uint16_t threads; /* number of data threads */
	/* Speed of the network card, from a setting or the driver; 0: unknown */
	uint64_t nic_mbps;
	/* Id of the cluster, 16 bytes; empty: this process has not learnt the id yet */
	struct blob cluster_id;
	uint64_t view;         /* largest view that this process has received */
	uint64_t quota_bytes;  /* memory that a server may use for sums, in bytes; 0: unknown */
	uint64_t memory_bytes; /* memory of the machine in bytes; 0: unknown */
	/* Provider of the member's data connections: sockets, tcp or verbs; "": unknown */
	const char *provider;
	/* Id that the kernel drew for the machine's present boot, CTL_BOOT_ID_BYTES long; empty or
	 * all zero: unknown */
	struct blob boot_id;
	/* Domain of the machine's host name, which `host` lacks; "": there is none, or a setting
	 * gave the name `host` */
	const char *domain;
	/* Address at which the member's process answers HTTP on its machine, such as
	 * "127.0.0.1:7304" or "*:7304"; "": unknown */
	const char *http;
};

struct ctl_welcome {
	struct blob cluster_id;
	uint32_t term;
	uint64_t view;
	uint32_t member_id; /* id of the member, the same after each restart */
	uint32_t beat_ms;   /* interval at which the member sends a BEAT */
	/* If no message arrives for this time, the member treats the scheduler as lost */
	uint32_t dead_ms;
	/* Number of times that a member of this name has connected as a new instance */
	uint32_t restarts;
	/* Time within which a member must reconnect after it loses its connection. After this time
	 * the scheduler treats the member as dead */
	uint32_t window_ms;
	/* 1: the member has proven its identity with the master key of the cluster */
	uint8_t has_master;
};

struct ctl_refuse {
	uint32_t code; /* error code as a positive number */
	const char *text;
};

#define CTL_BEAT_JOBS_MAX 16
#define CTL_BEAT_LATE_MAX 8
/* Agent that was the last to contribute in some rounds of the past few seconds. */
struct ctl_beat_late {
	uint32_t agent;  /* agent id */
	uint32_t rounds; /* number of rounds in which this agent was the last to contribute */
	/* Median of this agent's lag in the rounds that `rounds` counts. The lag begins when half
	 * of the agents have contributed, and ends when this agent contributes */
	uint32_t lag_us;
};
struct ctl_beat_job {
	uint32_t job;
	uint64_t round;  /* number of the newest completed round, which is the job's step */
	uint64_t rounds; /* number of completed rounds, summed over all partitions */
	uint64_t bytes;  /* number of bytes of all contributions to completed rounds */
	/* Measurements of the rounds of the past few seconds. window_rounds: number of measured
	 * rounds. wait_p50_us, wait_p99_us: median and 99th percentile of the time from the first
	 * to the last contribution of a round. */
	uint32_t window_rounds;
	uint32_t wait_p50_us, wait_p99_us;
	/* Agents whose contribution was the last of a round, sorted by the number of such rounds */
	struct ctl_beat_late *late;
	uint32_t n_late;
};

#define CTL_BEAT_LINKS_MAX 16
/* Server to which an agent has lost data connections, although the server's process stays the
 * same. */
struct ctl_beat_link {
	uint32_t server; /* server id */
	/* number of losses of the connection to one data thread of the server within the last five
	 * minutes; the largest number of all its data threads */
	uint32_t losses;
};

/* State of the shared memory between this member and other members on its host. UNTOLD: the member
 * has not reported a state. NO_PLACE: the folder for the sockets does not exist. */
enum same_host_state { SAME_HOST_UNTOLD, SAME_HOST_OFF, SAME_HOST_NO_PLACE, SAME_HOST_ON };
const char *ctl_same_host_name(unsigned state);

/* Source of nic_mbps in a HELLO. */
enum nic_source { NIC_UNTOLD, NIC_SET, NIC_DRIVER };

struct ctl_beat {
	uint64_t seq;
	uint64_t echo; /* `seq` of the last BEAT that the sender of this BEAT has received */
	uint64_t view; /* view that the sender has applied */
	/* Counters since the start of the member. The scheduler shows them in the status and uses
	 * them to detect a hung process. */
	uint64_t progress; /* grows only while no data thread of the process hangs */
	uint64_t rounds;   /* number of completed rounds, summed over all partitions */
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t mem_bytes;
	uint32_t connections; /* number of open data connections */
	uint32_t trainers;
	/* Moving mean of the time from the last contribution of a round to the complete sum. Each
	 * data thread has a mean; this field is the largest of these means */
	uint32_t sum_us;
	/* Jobs for which the server sums. If there are more than CTL_BEAT_JOBS_MAX jobs, the list
	 * has only the oldest jobs */
	struct ctl_beat_job *jobs;
	uint32_t n_jobs;
	/* Fields about memory shared with daemons of the same host. Connections through this memory
	 * are not counted in `connections`, nor are their bytes in rx_bytes and tx_bytes. */
	uint8_t same_host; /* enum same_host_state */
	uint32_t same_host_connections;
	uint64_t same_host_bytes; /* number of bytes read from the memory of peers on this host */
	uint8_t nic_source;       /* enum nic_source */
	/* Measured throughput of the member's network card in Mbit/s, for a card whose speed is not
	 * known; 0: not measured yet */
	uint64_t measured_mbps;
	/* Only from an agent: servers to which it has lost data connections. If there are more than
	 * CTL_BEAT_LINKS_MAX servers, the list has those with the most losses */
	struct ctl_beat_link *links;
	uint32_t n_links;
	/* Threads of an agent that move bytes. more_threads: a number that would carry more,
	 * because they had work for busy_percent of 10 s while processors were idle; 0: enough */
	uint8_t threads, more_threads, busy_percent;
};

/* State of a server or agent. The scheduler sends the states of servers to agents, and the states
 * of agents to servers. GONE: the receiver must remove this server or agent from its peers. */
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
	struct blob key; /* key for tickets between the peer and the receiver, CTL_KEY_BYTES long */
};
struct ctl_peers {
	uint64_t view;
	/* An agent receives a list of the servers. A server receives a list of the agents. After
	 * the first message, the list contains only members that have changed. */
	struct ctl_peer *peers;
	uint32_t n_peers;
};

/* Rules C2 and C4 of docs/reference/faults.md. SIGHT: the scheduler no longer receives anything
 * from a member. If the silent member is an agent, the scheduler asks the servers whether they can
 * reach the agent; if it is a server, the scheduler asks the agents. SEEN: the answer to SIGHT. A
 * server answers if it has a data connection to this instance of the agent. An agent answers if it
 * has or had a data connection to this instance of the server. */
struct ctl_sight {
	uint32_t member; /* id of the silent member */
	uint64_t instance;
	uint32_t quiet_ms; /* in SEEN: time since the last message from the member; in SIGHT: 0 */
};

/* LEAVE of a server: the server is about to end, and asks the scheduler to move its partitions to
 * other servers first. LEAVE of an agent: the agent stops, and its next process continues to serve
 * the trainers. LEFT is the answer to LEAVE. An agent receives code 0 at once. For a server, code 0
 * means that the server's partitions have moved. A non-zero code means that the partitions will not
 * move, and that the server may end now. */
struct ctl_leave {
	/* Time after which the server ends, even without LEFT. 0: the sender is an agent */
	uint32_t bound_ms;
};
struct ctl_left {
	uint32_t code; /* 0, or an error code as a positive number */
	const char *text;
};
#endif
