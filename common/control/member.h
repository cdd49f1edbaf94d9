#ifndef BPS_COMMON_CONTROL_MEMBER_H
#define BPS_COMMON_CONTROL_MEMBER_H
/* A server's or agent's membership in the cluster: the control connection to the scheduler with
 * HELLO, WELCOME and BEAT, which reconnects by itself, and the table of peers with their addresses
 * and keys. Both daemons use the same module; the owner handles the other messages.
 *
 *   (connecting) --HELLO--> --WELCOME--> member --connection lost--> (connecting)
 *                           `-REFUSE--> fatal
 *
 * Runs on one struct loop; callbacks run there. Any thread may call member_send and the
 * look-ups. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/control/tls.h"
#include "common/wire/ctlmsg.h"

struct loop;
struct member;

/* State of a membership that a process passes to the next one. */
struct member_past {
	uint8_t cluster_id[16];
	uint32_t member_id, term;
	uint64_t view; /* largest view seen */
};

struct member_config {
	enum role role;
	const char *name; /* unique in its role */
	const char *host; /* name of this machine, for people and for colocation */
	struct addr scheduler;
	struct tls_conf auth;  /* empty: loopback only */
	const char *data_addr; /* numeric address of the data plane's listener; "" for an agent */
	uint16_t data_port;
	uint16_t threads;
	uint64_t instance;
	uint64_t nic_mbps;
	uint64_t quota_bytes, memory_bytes;
	/* Time for the scheduler to answer HELLO before a new attempt; 0: 3000. */
	uint32_t welcome_ms;
	/* State of the previous process, whose scheduler is also ours (C8). NULL: none. */
	const struct member_past *past;
};

/* Message shared by threads: every holder has a reference. */
struct member_msg {
	struct ctl_msg msg;
	void *mem;
	_Atomic uint32_t refs;
};
/* Take or release a reference. Thread: any. unref accepts NULL; the last one frees. */
struct member_msg *member_msg_ref(struct member_msg *m);
void member_msg_unref(struct member_msg *m);

struct member_ops {
	/* The scheduler has accepted us, under this id. Its whole state follows as messages, then
	 * told(). */
	void (*up)(void *ctx, uint32_t id);
	/* The state is complete: an object that was not named since up() does not exist any
	 * more. */
	void (*told)(void *ctx);
	void (*down)(void *ctx, const char *why);
	/* Called for any message except WELCOME, REFUSE and BEAT. For PEERS the table is already up
	 * to date. Lent: ref to keep. */
	void (*message)(void *ctx, struct member_msg *m);
	/* Fill in the counters of the next BEAT. */
	void (*beat)(void *ctx, struct ctl_beat *ret);
	/* The scheduler refuses us permanently: the process should end. */
	void (*refused)(void *ctx, int code, const char *text);
};

/* Start to connect; HELLO is sent automatically. cfg is copied; loop and ops must outlive the
 * member.
 * Errors: negative, with a sentence. */
int member_new(struct member **ret, struct loop *loop, const struct member_config *cfg,
	const struct member_ops *ops, void *ctx, struct err_text *err);
/* Free the member, on the loop's thread or after the loop has stopped. NULL is allowed. */
void member_free(struct member *m);

/* Change the key, like ctlclient_set_auth. On the loop's thread. */
int member_set_auth(struct member *m, const struct tls_conf *auth, struct err_text *err);

/* Send a message. It is lost when the connection is not up or ends first; the owner sends again on
 * up(). Thread: any.
 * Errors: BPS_ENOSCHED not up; -EAGAIN, -ENOMEM: the connection is reset, so that up() runs again
 * soon. */
int member_send(struct member *m, const struct ctl_msg *msg);

/* Return whether the scheduler has accepted us on the current connection. Thread: any. */
bool member_is_up(const struct member *m);
/* Return the largest view seen, the scheduler's term, and how often this name has returned with a
 * new process. All are 0 before the first WELCOME. Thread: any. */
uint64_t member_view(const struct member *m);
uint32_t member_term(const struct member *m);
uint32_t member_restarts(const struct member *m);
/* Copy the state for the next process. Returns false until any process of this member has been
 * welcomed. Thread: the loop's. */
bool member_now(const struct member *m, struct member_past *ret);
/* Return the milliseconds since the control connection was lost, 0 when it is up. Thread: any. */
uint64_t member_down_ms(const struct member *m);
/* Return the milliseconds since the last message from the scheduler, or since the member was made.
 * Thread: any. */
uint64_t member_quiet_ms(const struct member *m);
/* Return why the last connection or attempt ended; "" at first. Lent; thread: the loop's. */
const char *member_down_why(const struct member *m);

struct member_peer {
	uint32_t id;
	uint8_t state; /* enum peer_state */
	uint64_t instance;
	uint16_t port, threads;
	char name[CTL_NAME_MAX + 1], host[CTL_NAME_MAX + 1], addr[64];
	uint8_t key[CTL_KEY_BYTES];
};
/* Look up a peer. Thread: any.
 * Errors: BPS_ENOTFOUND. */
int member_peer(struct member *m, uint32_t id, struct member_peer *ret);
/* Look up a peer's key, as a net_key_fn; ctx points to the owner's `struct member *_Atomic`, which
 * may still be NULL. */
int member_peer_key(void *ctx, uint32_t id, uint64_t instance, void *ret_key);
#endif
