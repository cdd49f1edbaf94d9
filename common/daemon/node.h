#ifndef BPS_COMMON_DAEMON_NODE_H
#define BPS_COMMON_DAEMON_NODE_H
/* The common parts of bps-server and bps-agent. A node combines a daemon (common/daemon/daemon.h),
 * a membership in the cluster (common/control/member.h), the network transport
 * (common/transport/net.h), and the settings of these parts. The programs create their data threads
 * themselves.
 *
 * Thread: the control loop's, which is the main thread. */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/control/member.h"
#include "common/daemon/daemon.h"
#include "common/datapath/cards.h"
#include "common/datapath/datapath.h"
#include "common/datapath/net_open.h"
#include "common/transport/flow/congestion.h"

/* Settings that bps-server and bps-agent have in common. Each program's struct of options begins
 * with this struct. */
struct node_opts {
	struct daemon_opts daemon;
	struct addr listen, scheduler;
	const char *name, *host, *congestion;
	const char *cards; /* addresses of further network cards (agent); NULL: none */
	unsigned provider; /* index into net_provider_words */
	int64_t nic_mbps;
	uint64_t spin_us, ping_us, ping_dead_us, thread_dead_us;
	unsigned same_host; /* index into node_same_host_words */
	const char *same_host_dir;
};

extern const char *const node_same_host_words[]; /* the words "auto" and "off" */

/* Rows of the settings table for a struct whose first member is struct node_opts. */
#define NODE_SETTINGS(http_default, listen_default, listen_help)                                   \
	DAEMON_SETTINGS(http_default),                                                             \
		{"listen", SET_ADDR, SETTING_AT(struct node_opts, listen), .def = listen_default,  \
			.port = 7302, .help = listen_help},                                        \
		{"scheduler", SET_ADDR, SETTING_AT(struct node_opts, scheduler),                   \
			.def = "127.0.0.1:7300", .port = 7300,                                     \
			.help = "address of bps-scheduler"},                                       \
		{"name", SET_STRING, SETTING_AT(struct node_opts, name), .def = "",                \
			.max = CTL_NAME_MAX,                                                       \
			.help = "unique name of this daemon in its role; empty: the host name"},   \
		{"host", SET_STRING, SETTING_AT(struct node_opts, host), .def = "",                \
			.max = CTL_NAME_MAX,                                                       \
			.help = "name of this machine, the same for all its daemons; empty: the "  \
				"host name"},                                                      \
		{"provider", SET_ENUM, SETTING_AT(struct node_opts, provider), .def = "auto",      \
			.words = net_provider_words,                                               \
			.help = "transport of data connections, the same on all members; "         \
				"tcp, verbs: from libfabric; auto: verbs on an active RDMA port, " \
				"else sockets"},                                                   \
		{"congestion-control", SET_STRING, SETTING_AT(struct node_opts, congestion),       \
			.def = "auto", .min = 1, .max = CONGESTION_NAME_MAX,                       \
			.help = "congestion control over TCP: auto (the system's, except BBR), "   \
				"system, or a name that the kernel supports"},                     \
		{"nic-speed", SET_INT, SETTING_AT(struct node_opts, nic_mbps), .def = "0",         \
			.max = 10000000,                                                           \
			.help = "speed of each network card in Mbit/s; 0: the speed that the "     \
				"driver reports, else the measured speed"},                        \
		{"spin", SET_DURATION, SETTING_AT(struct node_opts, spin_us), .def = "50us",       \
			.max = 10 * SETTING_MS,                                                    \
			.help = "how long an idle data thread looks for work before it sleeps"},   \
		{"ping", SET_DURATION, SETTING_AT(struct node_opts, ping_us), .def = "500ms",      \
			.min = 10 * SETTING_MS, .max = 60 * SETTING_S,                             \
			.help = "quiet data connections are pinged this often"},                   \
		{"same-host", SET_ENUM, SETTING_AT(struct node_opts, same_host), .def = "auto",    \
			.words = node_same_host_words,                                             \
			.help = "share memory with the other daemons of this host: auto or off"},  \
		{"same-host-dir", SET_STRING, SETTING_AT(struct node_opts, same_host_dir),         \
			.def = "/run/bps/server", .max = SHM_DIR_MAX,                              \
			.help = "folder of the servers' sockets, where agents look for them"},     \
		{"ping-dead", SET_DURATION, SETTING_AT(struct node_opts, ping_dead_us),            \
			.def = "2s", .min = 20 * SETTING_MS, .max = 600 * SETTING_S,               \
			.help = "a data connection is dropped after this much silence"},           \
	{                                                                                          \
		"thread-dead", SET_DURATION, SETTING_AT(struct node_opts, thread_dead_us),         \
			.def = "5s", .min = 0, .max = 3600 * SETTING_S,                            \
			.help = "the process ends when a data thread hangs for this time; 0: "     \
				"never"                                                            \
	}

/* Time after which an agent or a server repeats a data-plane message that has had no answer. An
 * agent doubles this time after each try, up to a limit. */
#define NODE_RETRY_NS UINT64_C(2000000000)

struct node {
	struct daemon daemon;
	/* Network cards. The first card has the address of the setting listen */
	struct cards cards;
	uint8_t nic_source; /* source of cards.mbps, enum nic_source */
	/* Shared memory of this host. The field dir is NULL when memory is not shared */
	struct shm_config same_host;
	unsigned n_listen_fds; /* number of same_host.listen_fds */
	enum same_host_state same_host_state;
	struct shm_counters same_host_counters;
	/* Set by node_open. The pointer is atomic, because the transport's connection-management
	 * thread reads it */
	struct member *_Atomic member;
	/* Socket that claims this node's name on this machine (name_claim.h); -1: none */
	int claim_fd;
	uint64_t instance;
	struct event *look; /* timer that checks the data threads; NULL: no check */
	uint32_t n_looks_dead, n_hung;
	const struct httpd_ops *http_ops;
	void *ctx;
	uint32_t id; /* member id; 0 until the scheduler has assigned the id */
	/* State from the previous process of this member, set before node_open; NULL: none */
	const struct member_past *past;
	char name[CTL_NAME_MAX + 1], host[CTL_NAME_MAX + 1];
	/* Domain of the host name; "": none, or the name `host` comes from a setting */
	char domain[CTL_NAME_MAX + 1];
	char http[ADDR_TEXT_BYTES];         /* address of the HTTP server */
	uint8_t boot_id[CTL_BOOT_ID_BYTES]; /* id of the machine's boot; all zero: unknown */
};

/* Open all parts of the node except the data threads. The program starts the data threads when
 * node_accept_member_id has taken the member id. n: zeroed, except n->past. role: a node with
 * ROLE_SERVER listens for agents. n_threads: number of data threads. n_more_threads: number of all
 * other threads that the process will start. If they cannot be started now, node_open fails,
 * because libraries would abort the process later. quota_bytes: memory for sums, reported to the
 * scheduler. Call node_close also after an error.
 * Errors: a negative code; err gets the text. */
int node_open(struct node *n, const char *program, enum role role, const struct node_opts *opts,
	unsigned n_threads, unsigned n_more_threads, uint64_t quota_bytes,
	const struct member_ops *ops, const struct httpd_ops *http_ops, void *ctx,
	struct err_text *err);
/* Implement `auth_changed` of struct daemon_reload_ops. ctx: a struct that begins with a struct
 * node. */
int node_auth_changed(void *ctx, struct err_text *err);
/* Close n. The program's data threads must already have ended. */
void node_close(struct node *n);

/* Take the member id that the scheduler has assigned. Returns 1 the first time, and 0 when the
 * scheduler assigns the same id again. When the scheduler assigns another id, begins to end the
 * process and returns BPS_EDUP. */
int node_accept_member_id(struct node *n, uint32_t id);
/* Implement `refused` of struct member_ops: end the process. ctx: a struct that begins with a
 * struct node. */
void on_member_refused(void *ctx, int code, const char *text);

/* Return the network of the first card. All cards have the same provider. */
static inline struct net *node_net(const struct node *n)
{
	return n->cards.of[0].net;
}

/* Return the configuration with which data threads share memory within this host; NULL: no memory
 * is shared. The configuration is complete after node_accept_member_id, and lives as long as the
 * node. */
const struct shm_config *node_same_host(const struct node *n);

/* Fill in the heartbeat's fields about shared memory and the network card. Call this function for
 * every heartbeat, because the function also starts the measurement of the card when there is
 * load. */
void node_fill_beat_report(struct node *n, struct ctl_beat *b);

/* Return half of the memory of the machine, or of its control group if that has less. It is the
 * default of some settings. */
uint64_t node_half_memory_bytes(void);

/* Return whether the scheduler can be reached. If the scheduler cannot be reached, write the line
 * that the program's daemon_line_fn must return. */
bool node_is_up_else_write_status(const struct node *n, char *ret, size_t room);

/* Health of the program's threads. */
struct node_health {
	/* Each data thread stores the time of the last iteration of its loop. beat_ns is the oldest
	 * of these times; 0: no data thread runs yet */
	uint64_t beat_ns;
	bool is_agent;
	/* True if this agent has reached neither the scheduler nor any server for too long */
	bool is_isolated;
};

/* Return whether the probe succeeds. If the probe fails, err gets the reason. */
bool node_probe_has_passed(const struct node *n, enum httpd_probe probe,
	const struct node_health *h, struct err_text *err);
/* Write the first part of /metrics, which is the same for bps-server and bps-agent. */
void node_write_metrics(const struct node *n, const struct node_health *h, struct evbuffer *out);
/* Make a new JSON object with the first part of /status, which is the same for bps-server and
 * bps-agent. */
json_t *node_status_to_json(const struct node *n, const char *role, const struct node_health *h);
#endif
