#ifndef BPS_TOOLS_MEETING_H
#define BPS_TOOLS_MEETING_H
/* The meeting of a job's nodes. The bpsrun of the head listens. Those of the other nodes, the
 * members of the meeting, connect, prove that they have the cluster key, and get their rank and the
 * address of the scheduler. The connection stays open while a node runs, and carries no data: its
 * end is the end of the node. So a node detects that the head has ended, although its daemons and
 * workers could go on without a scheduler, and the head detects when all nodes have left.
 *
 *   connection at the head:  GREETED ──join──> JOINED ──end, or closed──> closed
 *                                └── refused, silent or superseded ─────────┘
 *
 * This is no part of the cluster's own protocol: the daemons know nothing of it. The functions run
 * on bpsrun's only thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/addr.h"
#include "common/base/key.h"
#include "libbpsclient/tools/nodes/meeting_line.h"

/* The facts that a node sends about itself. */
struct meeting_node {
	uint32_t nnodes, rank; /* rank PLACE_RANK_UNKNOWN: the head chooses it */
	uint32_t workers;      /* workers of each node; 0: they may differ */
	bool has_server;
};

/* The head's answer. */
struct meeting_answer {
	uint32_t rank;
	char scheduler[ADDR_TEXT_BYTES], http[ADDR_TEXT_BYTES];
	unsigned rendezvous_port; /* port on the head for MASTER_PORT; 0: the workers have one */
};

/* The first failure of another node. */
struct meeting_failure {
	bool has_failed;
	uint32_t rank;
	int code; /* exit code of its bpsrun; -1: the connection was lost */
	char peer[ADDR_TEXT_BYTES];
};

/* ---- meeting.c: the head ---- */

struct node_meeting;

/* Listen for the other nodes, but do not serve them yet. own: what the head says of itself. key may
 * be NULL. Owns: key and own are copied.
 * Errors: -errno; err gets the text. */
int meeting_open(struct node_meeting **ret, const struct sockaddr *at, socklen_t len,
	const struct cluster_key *key, const struct meeting_node *own, struct err_text *err);
/* Begin to answer. The rank in *answer is not used. */
void meeting_begin(struct node_meeting *m, const struct meeting_answer *answer);
/* Return a descriptor that is readable when meeting_serve has something to do. -1 if m is NULL. */
int meeting_descriptor(const struct node_meeting *m);
/* Accept connections, and handle what has arrived, without waiting. */
void meeting_serve(struct node_meeting *m);
/* Return the number of nodes that have joined, and not left, without the head. */
unsigned meeting_count_present(const struct node_meeting *m);
/* Return the number of nodes that have ever joined, with the head. */
unsigned meeting_count_joined(const struct node_meeting *m);
/* Return the number of nodes with a server that have ever joined, with the head. */
unsigned meeting_count_servers(const struct node_meeting *m);
/* Return the first failure of a node. */
const struct meeting_failure *meeting_first_failure(const struct node_meeting *m);
/* Tell the present nodes that the node `rank` has failed. */
void meeting_report_failure(struct node_meeting *m, uint32_t rank, int code);
/* Close all connections. m may be NULL. */
void meeting_close(struct node_meeting *m);

/* ---- meeting_member.c: the other nodes ---- */

/* The connection to the head. */
struct meeting_member {
	struct meeting_lines lines;
	struct meeting_failure failure; /* of the head, or one that the head has reported */
};

/* Connect to the head, and retry until deadline_ms of the monotonic clock. own_at: local address of
 * the connection; NULL: any. signal_fd: ends the wait when it is readable.
 * Errors: -EINTR: a signal; -ETIMEDOUT; -EACCES: refused. The last two were printed. */
int meeting_member_join(struct meeting_member *m, const struct addr *head,
	const struct cluster_key *key, const struct meeting_node *own, uint64_t deadline_ms,
	int signal_fd, struct meeting_answer *ret);
/* Handle what the head has sent, without waiting. */
void meeting_member_serve(struct meeting_member *m);
/* Report the end of this node, and close the connection. */
void meeting_member_leave(struct meeting_member *m, int code);
#endif
