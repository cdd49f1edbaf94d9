#ifndef BPS_AGENT_CORE_LINK_H
#define BPS_AGENT_CORE_LINK_H
/* The connection to one data thread of one server: the partitions that wait to be sent on this
 * connection, the window of bytes in flight, and reconnecting. The core frees the link. Thread: the
 * core's thread.
 *
 *   DOWN --needed, time to try--> CONNECTING --connected--> UP --lost--> DOWN
 *                                      `------closed-----------+--closed--> CLOSING --down--> DOWN
 *
 * A link sends nothing in the state CLOSING (A11). The partitions keep their states until the
 * connection is down, because the server may read their memory until then. */
#include "bps-agent/core/part.h"

/* A GOT message that waits for credit. The message is stored here, because its partition may move
 * or be freed before the message is sent. */
struct agt_owed_got {
	TAILQ_ENTRY(agt_owed_got) link;
	struct wire_msg m;
};

/* Number of the last losses whose times a link keeps, and the time for which a loss counts. */
#define LINK_LOSSES_KEPT  8
#define LINK_LOSS_SPAN_NS (300 * UINT64_C(1000000000))

enum link_state { LINK_DOWN, LINK_CONNECTING, LINK_UP, LINK_CLOSING };

/* The connection to one data thread of one server. */
struct agt_link {
	TAILQ_ENTRY(agt_link) link;
	TAILQ_ENTRY(agt_link) active; /* entry in core->active while is_active is set */
	struct agt_core *core;
	uint32_t server;
	uint16_t thread;
	bool is_active; /* the link may have something to send */
	/* A GOT, HAVE or donation could not be sent for lack of credit. Nothing is sent until
	 * event_link_writable is called or a new connection is up. */
	bool is_stuck;
	/* The transport has rejected a contribution. No new contribution is sent until
	 * event_link_writable is called or a new connection is up. */
	bool is_full;
	enum link_state state;
	struct xconn *conn; /* connection; NULL in the state DOWN */
	bool was_up;        /* the latest connection has been up */
	/* timer in core->link_timers, used in the state DOWN if partitions need the link */
	struct heap_node timer;
	/* number of attempts to connect since the last connection was up */
	unsigned n_attempts;
	/* number of the latest connections, in a row, on which the server has sent no message */
	unsigned n_silent_conns;
	uint64_t down_since_ns;
	/* instance: the server's instance on the last connection. heard_ns: when that instance last
	 * sent anything. instance and heard_ns are 0 before the first connection. */
	uint64_t instance, heard_ns;
	/* Times of the last losses of a connection to `instance`. n_losses: number of all losses;
	 * loss number i is at i % LINK_LOSSES_KEPT */
	uint64_t lost_ns[LINK_LOSSES_KEPT];
	unsigned n_losses;
	size_t inflight; /* bytes of contributions in flight on this link */
	size_t n_parts;
	struct part_list parts, offered, owing;
	TAILQ_HEAD(, lockstep_share) shares;
	TAILQ_HEAD(, agt_owed_got) gots;
};

/* Return the link to the data thread `thread` of the server `server`. Create the link if there is
 * none. Return NULL when out of memory. */
struct agt_link *link_find_or_create(struct agt_core *core, uint32_t server, uint16_t thread);
/* Attach a partition that has no link. Connects if necessary. Errors: -ENOMEM. */
int link_attach_part(struct agt_link *link, struct agt_part *part);
/* Detach the partition from its link. Before the call, the partition must be neither in
 * share->ready nor in link->offered. */
void link_detach_part(struct agt_part *part);
/* Queue a message of the partition. part_send_owed(part, what) sends the message when the link is
 * up and has credit. Does nothing for a partition without a link. */
void link_queue_owed(struct agt_part *part, enum part_owe what);
void link_drop_owed(struct agt_part *part);
/* Send GOT for the result that m names, now or when there is credit. */
void link_send_got(struct agt_link *link, const struct wire_msg *m);
/* Add an UP link to core->active, because the link may have something to send. link_send_pending
 * checks whether there is anything to send. */
void link_activate(struct agt_link *link);
/* Start the reads and send the messages that are possible now. One call sends at most one
 * contribution. Returns true if another call may send more. */
bool link_send_pending(struct agt_link *link);
/* Return the time at which the instance `instance` of the server last sent anything on this link.
 * Return 0 if the last connection of the link was not to this instance. */
uint64_t link_heard_ns(struct agt_link *link, uint64_t instance);
/* Add the link's server to the list of servers to which connections were lost within
 * LINK_LOSS_SPAN_NS, with the number of losses, at most LINK_LOSSES_KEPT. If the server is in the
 * list already, its larger number stays. In a full list the link's server takes the place of the
 * one with the fewest losses, if that has fewer. Returns the new length of the list. */
uint32_t link_list_losses(const struct agt_link *link, uint64_t now_ns,
	struct ctl_beat_link list[static CTL_BEAT_LINKS_MAX], uint32_t n);
/* Close the link's connection. why: for the log. */
void link_close(struct agt_link *link, const char *why);
/* Free a link that has no connection, no partitions and no GOTs. */
void link_free(struct agt_link *link);
/* Connect. Called when the link's timer in core->link_timers is due. */
void link_retry_connect(struct agt_link *link);
#endif
