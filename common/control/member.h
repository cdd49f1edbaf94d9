#ifndef BPS_COMMON_CONTROL_MEMBER_H
#define BPS_COMMON_CONTROL_MEMBER_H
/* Membership of a server or agent in the cluster. This module maintains the control connection to
 * the scheduler, handles HELLO, WELCOME and BEAT, and maintains the table of peers with their
 * addresses and keys. The owner handles the other messages.
 *
 *   (connecting) --HELLO--> --WELCOME--> member --connection lost--> (connecting)
 *                           `-REFUSE--> fatal
 *
 * The member and its callbacks run on the thread of one struct loop. Any thread may call
 * member_send and the look-ups. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/control/tls.h"
#include "common/wire/ctlmsg.h"

struct loop;
struct member;

/* State of a membership that a process passes to the process that replaces it after a restart. */
struct member_past {
	uint8_t cluster_id[16];
	uint32_t member_id, term;
	uint64_t view; /* largest view that was received */
};

struct member_config {
	enum role role;
	const char *name; /* the member's name, unique in its role */
	/* Name of this machine; servers and agents with the same host share a machine */
	const char *host;
	/* Domain and boot id of the machine, as in HELLO (common/wire/ctlmsg_member.h). NULL: not
	 * known. They must live as long as the member. */
	const char *domain;
	const uint8_t *boot_id;
	/* Address of this process's HTTP server, as in HELLO. It must live as long as the
	 * member. */
	const char *http;
	struct addr scheduler;
	struct tls_conf auth; /* credentials; if empty, only a loopback scheduler is allowed */
	/* Numeric address of the machine in the network of data connections */
	const char *data_addr;
	uint16_t data_port; /* port of the data plane's listener; 0 for an agent */
	uint16_t threads;
	/* Provider of data connections; the string must live as long as the member */
	const char *provider;
	uint64_t instance;
	uint64_t nic_mbps;
	uint64_t quota_bytes, memory_bytes;
	/* Time in milliseconds for the scheduler to answer HELLO. After this time without an
	 * answer, the member reconnects. If the field is 0, the time is 3000 ms. */
	uint32_t welcome_ms;
	/* State from the previous process of this member. With this state, the member rejects a
	 * scheduler of another cluster or with an outdated term (rule C8 of
	 * docs/reference/faults.md). NULL: no state is available. */
	const struct member_past *past;
};

/* Message that several threads may use. Each of these threads has its own reference. */
struct member_msg {
	struct ctl_msg msg;
	void *mem;
	_Atomic uint32_t refs;
};
/* Take or release a reference; releasing the last reference frees the message. unref accepts NULL.
 * Thread: any. */
struct member_msg *member_msg_ref(struct member_msg *m);
void member_msg_unref(struct member_msg *m);

struct member_ops {
	/* Called when the scheduler has accepted this member. id: the member's id. The scheduler
	 * now sends its whole state as messages. told() runs after the last of these messages. */
	void (*up)(void *ctx, uint32_t id);
	/* Called when the scheduler has sent its whole state. Objects that no message has named
	 * since up() do not exist any more. */
	void (*told)(void *ctx);
	void (*down)(void *ctx, const char *why);
	/* Called for each message except WELCOME, REFUSE and BEAT. If the message is PEERS, the
	 * member has already updated its table of peers. To use the message after this function
	 * returns, take a reference to it. */
	void (*message)(void *ctx, struct member_msg *m);
	/* Fill in the counters of the next BEAT. */
	void (*beat)(void *ctx, struct ctl_beat *ret);
	/* Called when the scheduler has refused this member for good. The process should end. */
	void (*refused)(void *ctx, int code, const char *text);
};

/* Make a member, which starts to connect and sends HELLO by itself. `cfg` is copied. `loop` and
 * `ops` must outlive the member.
 * Errors: a negative code; err gets the text. */
int member_new(struct member **ret, struct loop *loop, const struct member_config *cfg,
	const struct member_ops *ops, void *ctx, struct err_text *err);
/* Free the member, on the loop's thread or after the loop has stopped. NULL is allowed. */
void member_free(struct member *m);

/* Change the key, as ctlclient_set_auth does. Thread: the loop's. */
int member_set_auth(struct member *m, const struct tls_conf *auth, struct err_text *err);

/* Queue a message for the scheduler. If the connection ends before the message is sent, the message
 * is lost, and the owner must send it again after up(). Thread: any.
 * Errors: BPS_ENOSCHED: the connection is not up; -EAGAIN, -ENOMEM: the message is lost, and the
 * connection is reset, so that up() runs again soon. */
int member_send(struct member *m, const struct ctl_msg *msg);
/* Answer SIGHT: the scheduler asks how long ago this process last received something from
 * another member, because the scheduler itself receives nothing from it (rule C2). heard_ns: when
 * that was; 0: never, so nothing is sent. If the answer is lost, the scheduler asks again. Thread:
 * any. */
void member_answer_sight(struct member *m, const struct ctl_sight *asked, uint64_t heard_ns);

/* Return whether the scheduler has accepted this member on the current connection. Thread: any. */
bool member_is_up(const struct member *m);
/* The next three functions return the largest view that was received, the scheduler's term, and the
 * number of restarts. This number is how many times a new process has connected under this member's
 * name. Before the first WELCOME, view and term have the values in member_config.past, or 0 if
 * member_config.past is NULL. The number of restarts is 0 before the first WELCOME. Thread: any. */
uint64_t member_view(const struct member *m);
uint32_t member_term(const struct member *m);
uint32_t member_restarts(const struct member *m);
/* Copy to *ret the state that this process passes to the next process, where it becomes
 * member_config.past. Returns false if neither this process nor a previous process has received a
 * WELCOME. Thread: the loop's. */
bool member_snapshot_state(const struct member *m, struct member_past *ret);
/* Return the milliseconds since the control connection was lost, or 0 if the connection is up.
 * Thread: any. */
uint64_t member_down_ms(const struct member *m);
/* Return the milliseconds since the last message from the scheduler, or since the member was made.
 * Thread: any. */
uint64_t member_quiet_ms(const struct member *m);
/* Return the reason why the last connection or attempt to connect ended, or "" if none has ended
 * yet. The string is valid until the next connection or attempt ends. Thread: the loop's. */
const char *member_get_down_reason(const struct member *m);

struct member_peer {
	uint32_t id;
	uint8_t state; /* value of enum peer_state */
	uint64_t instance;
	uint16_t port, threads;
	char name[CTL_NAME_MAX + 1], host[CTL_NAME_MAX + 1], addr[64];
	uint8_t key[CTL_KEY_BYTES];
};
/* Look up a peer in the table. Thread: any.
 * Errors: BPS_ENOTFOUND. */
int member_find_peer(struct member *m, uint32_t id, struct member_peer *ret);
/* Call fn for each peer in the table. fn must not call functions of the member. Thread: any. */
typedef void member_peer_fn(void *ctx, const struct member_peer *p);
void member_each_peer(struct member *m, member_peer_fn *fn, void *ctx);
/* Look up a peer's key. Implements net_key_fn (common/transport/net.h). ctx: address of a variable
 * of type `struct member *_Atomic`. The variable may still be NULL. */
int member_peer_key(void *ctx, uint32_t id, uint64_t instance, void *ret_key);
#endif
