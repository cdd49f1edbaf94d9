/* The head's side of the meeting: one listening socket, and one connection for each other node. An
 * epoll descriptor stands for all of them in the loop of bpsrun. */
#include "libbpsclient/tools/nodes/meeting.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "libbpsclient/tools/nodes/place.h"
#include "libbpsclient/tools/process/output.h"

/* Connections of processes that have not proven that they have the key. Further ones replace the
 * oldest. */
#define STRANGERS_MAX 64
#define BACKLOG       1024
#define EVENTS_MAX    64
#define REFUSALS_MAX  16 /* number of refusals that are printed, because strangers cause them */

struct meeting_peer {
	struct meeting_lines lines;
	bool has_joined;
	uint32_t rank;
	char nonce[MEETING_NONCE_BYTES], name[ADDR_TEXT_BYTES];
	struct meeting_peer *next;
};

struct node_meeting {
	int listen_fd, epoll_fd;
	struct cluster_key key;
	struct meeting_node own;
	struct meeting_answer answer;
	struct meeting_failure failure;
	struct meeting_peer *peers; /* the newest first */
	/* of each rank: whether a node with it has ever joined, and whether it is present */
	bool *was_there, *is_there;
	unsigned n_servers, n_refusals;
};

static int meeting_watch(struct node_meeting *m, int fd, struct meeting_peer *p)
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};

	return epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

static int meeting_listen(struct node_meeting *m, const struct sockaddr *at, socklen_t len)
{
	const int yes = 1;

	m->listen_fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (m->listen_fd < 0 || m->epoll_fd < 0)
		return -errno;
	setsockopt(m->listen_fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(m->listen_fd, at, len) < 0 || listen(m->listen_fd, BACKLOG) < 0)
		return -errno;
	return 0;
}

int meeting_open(struct node_meeting **ret, const struct sockaddr *at, socklen_t len,
	const struct cluster_key *key, const struct meeting_node *own, struct err_text *err)
{
	struct node_meeting *m = calloc(1, sizeof(*m));
	char text[ADDR_TEXT_BYTES];
	int rc = m ? 0 : -ENOMEM;

	if (m) {
		m->listen_fd = m->epoll_fd = -1;
		m->own = *own;
		if (key)
			m->key = *key;
		m->was_there = calloc(own->nnodes, sizeof(*m->was_there));
		m->is_there = calloc(own->nnodes, sizeof(*m->is_there));
		rc = m->was_there && m->is_there ? meeting_listen(m, at, len) : -ENOMEM;
	}
	if (rc < 0) {
		meeting_close(m);
		return err_set(err, rc, "cannot listen on %s for the other nodes: %s%s",
			sockaddr_format(at, text), err_str(rc), addr_bind_hint(rc));
	}
	m->was_there[own->rank] = m->is_there[own->rank] = true;
	m->n_servers = own->has_server;
	*ret = m;
	return 0;
}

void meeting_begin(struct node_meeting *m, const struct meeting_answer *answer)
{
	m->answer = *answer;
	meeting_watch(m, m->listen_fd, NULL);
}

int meeting_descriptor(const struct node_meeting *m)
{
	return m ? m->epoll_fd : -1;
}

static void meeting_drop_peer(struct node_meeting *m, struct meeting_peer *p)
{
	struct meeting_peer **at = &m->peers;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->has_joined)
		m->is_there[p->rank] = false;
	close(p->lines.fd);
	free(p);
}

/* Record the first failure. */
static void meeting_note_failure(struct node_meeting *m, const struct meeting_peer *p, int code)
{
	if (m->failure.has_failed)
		return;
	m->failure = (struct meeting_failure){.has_failed = true, .rank = p->rank, .code = code};
	snprintf(m->failure.peer, sizeof(m->failure.peer), "%s", p->name);
}

/* ---- join ---- */

/* Return why the node cannot join, or NULL. */
static const char *join_problem(
	const struct node_meeting *m, const struct meeting_node *n, char *room, size_t n_room)
{
	if (n->nnodes != m->own.nnodes)
		snprintf(room, n_room, "the head has %u nodes (--nnodes), this node %u",
			m->own.nnodes, n->nnodes);
	else if (n->workers != m->own.workers)
		snprintf(room, n_room, "the head has %u workers on each node (-n), this node %u",
			m->own.workers, n->workers);
	else if (n->rank != PLACE_RANK_UNKNOWN && n->rank >= m->own.nnodes)
		snprintf(room, n_room, "the node rank %u is not below the number of nodes, %u",
			n->rank, m->own.nnodes);
	else if (n->rank != PLACE_RANK_UNKNOWN && m->is_there[n->rank])
		snprintf(room, n_room, "the node rank %u is taken by another node", n->rank);
	else
		return NULL;
	return room;
}

/* Choose the rank of a node that has none: prefer one that no node has had. Returns
 * PLACE_RANK_UNKNOWN if all nodes are present. */
static uint32_t choose_free_rank(const struct node_meeting *m)
{
	for (uint32_t i = 0; i < m->own.nnodes; i++)
		if (!m->was_there[i])
			return i;
	for (uint32_t i = 0; i < m->own.nnodes; i++)
		if (!m->is_there[i])
			return i;
	return PLACE_RANK_UNKNOWN;
}

static bool mac_is_right(const struct node_meeting *m, const struct meeting_peer *p,
	const char *node_nonce, const char *line, const char *mac)
{
	char want[KEY_HEX_BYTES];

	return meeting_sign_line(&m->key, p->nonce, node_nonce, line, want) == 0 &&
	       strlen(mac) == sizeof(want) - 1 && key_bytes_equal(mac, want, sizeof(want));
}

/* Refuse a node, and close its connection. */
static int peer_refuse(struct node_meeting *m, const struct meeting_peer *p, const char *text)
{
	meeting_text_send(p->lines.fd, "refused %s\n", text);
	if (m->n_refusals++ < REFUSALS_MAX)
		output_print_message("refused the node at %s: %s", p->name, text);
	return -EACCES;
}

static int peer_answer(struct node_meeting *m, struct meeting_peer *p, const char *node_nonce)
{
	char line[MEETING_LINE_BYTES - KEY_HEX_BYTES - 2], mac[KEY_HEX_BYTES];
	int rc;

	snprintf(line, sizeof(line), "node %u %s %s %u", p->rank, m->answer.scheduler,
		m->answer.http, m->answer.rendezvous_port);
	rc = meeting_sign_line(&m->key, p->nonce, node_nonce, line, mac);
	return rc < 0 ? rc : meeting_text_send(p->lines.fd, "%s %s\n", line, mac);
}

/* Handle "join". Errors: a negative code; the connection must be closed. */
static int peer_join(struct node_meeting *m, struct meeting_peer *p, char *line)
{
	char nonce[MEETING_NONCE_BYTES], room[128], *mac = strrchr(line, ' ');
	struct meeting_node n;
	const char *problem;
	unsigned server;

	if (p->has_joined || !mac ||
		sscanf(line, "join %u %u %u %u %32[0-9a-f] ", &n.nnodes, &n.workers, &n.rank,
			&server, nonce) != 5)
		return -EPROTO;
	*mac++ = 0;
	if (!mac_is_right(m, p, nonce, line, mac))
		return peer_refuse(m, p,
			"the head has another cluster key: give the same "
			"BPS_CLUSTER_KEY to all nodes");
	problem = join_problem(m, &n, room, sizeof(room));
	p->rank = n.rank == PLACE_RANK_UNKNOWN ? choose_free_rank(m) : n.rank;
	if (!problem && p->rank == PLACE_RANK_UNKNOWN)
		problem = "all nodes are there already";
	if (problem)
		return peer_refuse(m, p, problem);
	m->n_servers += server && !m->was_there[p->rank];
	m->was_there[p->rank] = m->is_there[p->rank] = p->has_joined = true;
	meeting_watch_peer(p->lines.fd);
	return peer_answer(m, p, nonce);
}

/* ---- connections ---- */

/* Close the oldest connection of a stranger if there are too many of them. */
static void drop_oldest_stranger(struct node_meeting *m)
{
	struct meeting_peer *oldest = NULL;
	unsigned n = 0;

	for (struct meeting_peer *p = m->peers; p; p = p->next)
		if (!p->has_joined) {
			oldest = p;
			n++;
		}
	if (n > STRANGERS_MAX)
		meeting_drop_peer(m, oldest);
}

static void meeting_accept(struct node_meeting *m)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	int fd = accept4(m->listen_fd, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct meeting_peer *p = fd >= 0 ? calloc(1, sizeof(*p)) : NULL;

	if (!p || meeting_make_nonce(p->nonce) < 0 || meeting_watch(m, fd, p) < 0) {
		if (fd >= 0)
			close(fd);
		free(p);
		return;
	}
	p->lines.fd = fd;
	sockaddr_format((struct sockaddr *)&sa, p->name);
	p->next = m->peers;
	m->peers = p;
	meeting_text_send(fd, "bpsrun %d %s\n", MEETING_VERSION, p->nonce);
	drop_oldest_stranger(m);
}

static int peer_handle_line(struct node_meeting *m, struct meeting_peer *p, char *line)
{
	int code;

	if (strncmp(line, "join ", 5) == 0)
		return peer_join(m, p, line);
	if (!p->has_joined || sscanf(line, "end %d", &code) != 1)
		return -EPROTO;
	if (code)
		meeting_note_failure(m, p, code);
	p->has_joined = false; /* it has left in order */
	m->is_there[p->rank] = false;
	return -ESHUTDOWN;
}

static void meeting_serve_peer(struct node_meeting *m, struct meeting_peer *p)
{
	char line[MEETING_LINE_BYTES];
	int rc;

	while ((rc = meeting_lines_read(&p->lines, line)) > 0) {
		rc = peer_handle_line(m, p, line);
		if (rc < 0)
			break;
	}
	if (rc >= 0)
		return;
	if (p->has_joined)
		meeting_note_failure(m, p, -1);
	meeting_drop_peer(m, p);
}

static bool peer_is_in_list(const struct node_meeting *m, const struct meeting_peer *wanted)
{
	for (const struct meeting_peer *p = m->peers; p; p = p->next)
		if (p == wanted)
			return true;
	return false;
}

void meeting_serve(struct node_meeting *m)
{
	struct epoll_event events[EVENTS_MAX];
	int n = epoll_wait(m->epoll_fd, events, EVENTS_MAX, 0);

	for (int i = 0; i < n; i++) {
		if (!events[i].data.ptr)
			meeting_accept(m);
		else if (peer_is_in_list(m, events[i].data.ptr))
			meeting_serve_peer(m, events[i].data.ptr);
	}
}

/* ---- state ---- */

static unsigned count_true(const bool *of, unsigned n)
{
	unsigned count = 0;

	for (unsigned i = 0; i < n; i++)
		count += of[i];
	return count;
}

unsigned meeting_count_present(const struct node_meeting *m)
{
	return count_true(m->is_there, m->own.nnodes) - 1;
}

unsigned meeting_count_joined(const struct node_meeting *m)
{
	return count_true(m->was_there, m->own.nnodes);
}

unsigned meeting_count_servers(const struct node_meeting *m)
{
	return m->n_servers;
}

const struct meeting_failure *meeting_first_failure(const struct node_meeting *m)
{
	return &m->failure;
}

void meeting_report_failure(struct node_meeting *m, uint32_t rank, int code)
{
	for (struct meeting_peer *p = m->peers; p; p = p->next)
		if (p->has_joined)
			meeting_text_send(p->lines.fd, "failed %u %d\n", rank, code);
}

void meeting_close(struct node_meeting *m)
{
	if (!m)
		return;
	while (m->peers)
		meeting_drop_peer(m, m->peers);
	if (m->listen_fd >= 0)
		close(m->listen_fd);
	if (m->epoll_fd >= 0)
		close(m->epoll_fd);
	key_wipe(&m->key);
	free(m->was_there);
	free(m->is_there);
	free(m);
}
