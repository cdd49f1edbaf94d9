/* Connections of the libfabric transport: open, accept and close connections, send pings, and
 * manage the segments that peers may read. Messages and reads are in fabric_io.c. Thread: the data
 * thread. */
#include "common/transport/fabric/fabric_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/crypto.h>

#include "common/base/log.h"
#include "common/transport/fabric/fabric_eager.h"
#include "common/transport/fabric/fabric_socket.h"

/* Find a free slot for a new connection, and zero its struct except last_cookie. Returns NULL when
 * no slot is free, or when out of memory. */
static struct fabric_conn *fabric_conn_take_slot(struct fabric_xport *x)
{
	struct fabric_conn *c = NULL;
	uint64_t last_cookie;
	uint32_t slot;

	for (slot = 0; slot < x->f->gates.conns_max; slot++)
		if (!x->conns[slot] || x->conns[slot]->base.state == CONN_FREE)
			break;
	if (slot == x->f->gates.conns_max)
		return NULL;
	if (!x->conns[slot])
		x->conns[slot] = calloc(1, sizeof(*c));
	c = x->conns[slot];
	if (!c)
		return NULL;
	last_cookie = c->last_cookie;
	memset(c, 0, sizeof(*c));
	c->last_cookie = last_cookie;
	c->base.pub.x = &x->base.pub;
	c->base.slot = (uint16_t)slot;
	c->granted = x->f->base.cfg.credits;
	if (x->base.n_conns >= FABRIC_CONNS_RICH && c->granted > FABRIC_CREDITS_FEW)
		c->granted = FABRIC_CREDITS_FEW;
	for (unsigned i = 0; i < N_CHANNELS; i++)
		c->fds[i] = -1;
	TAILQ_INIT(&c->ops);
	c->lowat = 1;
	peer_reads_init(&c->reads, x->f->gates.read_least_bytes);
	return c;
}

/* Close the endpoints, and free the data needed only for the handshake. */
static void close_channels(struct fabric_conn *c)
{
	for (unsigned i = 0; i < N_CHANNELS; i++) {
		if (c->eps[i])
			fi_close(&c->eps[i]->fid);
		c->eps[i] = NULL;
		c->fds[i] = -1;
	}
	c->ep = NULL;
	fi_freeinfo(c->info);
	c->info = NULL;
	OPENSSL_cleanse(c->base.key, sizeof(c->base.key));
}

static void fabric_conn_free_slot(struct fabric_conn *c)
{
	for (unsigned i = 0; i < FABRIC_SEGS_MAX / FABRIC_SEG_CHUNK; i++) {
		free(c->peer_segs[i]);
		c->peer_segs[i] = NULL;
	}
	c->last_cookie = c->rx_cookie;
	c->rx_cookie = 0;
	peer_conn_set_state(&c->base, CONN_FREE, "gone");
}

void fabric_conn_close_endpoints(struct fabric_conn *c)
{
	c->is_linked = false;
	close_channels(c);
}

/* Free the slot of a connection whose connect or accept failed at once. No callback runs. */
static void fabric_conn_discard(struct fabric_conn *c)
{
	close_channels(c);
	c->rx_cookie = 0;
}

/* Adapt the receive windows to the number of connections of all data threads. */
static void fabric_share_window(struct fabric_xport *x)
{
	uint32_t n = atomic_load_explicit(&x->f->base.n_conns, memory_order_relaxed);

	if (recv_window_shared(&x->window, n))
		fabric_socket_set_windows(x);
}

static void fabric_set_conn_count(struct fabric_xport *x, uint32_t n)
{
	x->base.n_conns = n;
	net_set_conn_count(&x->f->base, &x->shared, n);
	fabric_share_window(x);
}

/* Open the endpoint of a channel, ready to receive. The channel of eager bytes has receives of its
 * own. Other endpoints use the shared receive buffers. After a failure, c->eps[channel] may hold an
 * endpoint, which close_channels closes. */
static int fabric_conn_open_endpoint(
	struct fabric_conn *c, enum channel channel, struct fi_info *info)
{
	struct fabric_xport *x = fabric_xport_of(c);
	bool has_receives = c->is_eager && channel == CHANNEL_SECOND;
	struct fid_ep **ep = &c->eps[channel];
	/* The second channel of a connection uses the receive buffers of the first channel. */
	uint32_t more = c->base.state == CONN_FREE ? c->granted : 0;
	int rc = fabric_io_grow_rx(x, x->n_granted + more);

	info->ep_attr->rx_ctx_cnt = has_receives ? 1 : FI_SHARED_CONTEXT;
	if (!rc)
		rc = fi_endpoint(x->domain, info, ep, NULL);
	if (!rc)
		fabric_socket_tune(c, channel);
	if (!rc)
		rc = fi_ep_bind(*ep, &x->eq->fid, 0);
	if (!rc)
		rc = fi_ep_bind(*ep, &x->cq->fid, FI_TRANSMIT | FI_RECV);
	if (!rc && !has_receives)
		rc = fi_ep_bind(*ep, &x->srx->fid, 0);
	if (!rc)
		rc = fi_enable(*ep);
	return rc;
}

static void fabric_conn_begin(struct fabric_conn *c, enum conn_state state, const char *why)
{
	struct fabric_xport *x = fabric_xport_of(c);

	c->rx_allow = c->granted;
	x->n_granted += c->granted;
	fabric_set_conn_count(x, x->base.n_conns + 1);
	peer_conn_begin(&c->base, state, why);
}

static int fabric_parse_address(const char *addr, uint16_t port, void **ret_sa, size_t *ret_len)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	const void *sa = &v4;
	size_t len = sizeof(v4);

	if (inet_pton(AF_INET, addr, &v4.sin_addr) != 1) {
		if (inet_pton(AF_INET6, addr, &v6.sin6_addr) != 1)
			return -EINVAL;
		sa = &v6;
		len = sizeof(v6);
	}
	*ret_sa = malloc(len);
	if (!*ret_sa)
		return -ENOMEM;
	memcpy(*ret_sa, sa, len);
	*ret_len = len;
	return 0;
}

static int connect_channel(struct fabric_conn *c, enum channel channel)
{
	const struct net *net = &fabric_xport_of(c)->f->base;
	uint8_t sealed[TICKET_BYTES];
	int rc = fabric_conn_open_endpoint(c, channel, c->info);

	if (rc)
		return rc;
	net_seal_ticket(net, &c->base, channel, (uint16_t)c->granted, sealed);
	return fi_connect(c->eps[channel], c->info->dest_addr, sealed, sizeof(sealed));
}

int fabric_conn_connect(struct xport *xp, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct fabric_conn *c;
	int rc;

	if (x->is_spoiled)
		return -EAGAIN;
	c = fabric_conn_take_slot(x);
	if (!c) {
		log_rated(LOG_WARN,
			"data thread %u has the maximum of %u connections, so it cannot connect "
			"to %s",
			x->base.thread, x->f->gates.conns_max, addr);
		return -EMFILE;
	}
	c->info = fi_dupinfo(x->f->info);
	if (!c->info)
		return -ENOMEM;
	free(c->info->dest_addr);
	c->info->dest_addr = NULL;
	rc = fabric_parse_address(addr, port, &c->info->dest_addr, &c->info->dest_addrlen);
	if (rc)
		goto fail;
	peer_conn_set_peer(&c->base, thread, peer_id, peer_instance, key, user);
	c->base.nonce = net_new_nonce(&x->f->base, c->base.slot);
	c->rx_cookie = ticket_cookie(c->base.nonce, c->base.key);
	c->is_connecting = true;
	rc = connect_channel(c, CHANNEL_FIRST);
	if (rc)
		goto fail;
	c->ep = c->eps[CHANNEL_FIRST];
	fabric_conn_begin(c, CONN_CONNECTING, addr);
	*ret_conn = &c->base.pub;
	return 0;
fail:
	fabric_conn_discard(c);
	return rc;
}

/* Accept a channel whose ticket is valid. Takes ownership of ev->info. */
static int accept_channel(struct fabric_conn *c, struct fabric_cm_event *ev)
{
	struct fabric *f = fabric_xport_of(c)->f;
	enum channel channel = ev->ticket.channel;
	uint8_t sealed[PROOF_BYTES];
	int rc = fabric_conn_open_endpoint(c, channel, ev->info);

	if (rc && !c->eps[channel]) {
		fabric_cm_reject(f, ev->info, REFUSED_BUSY);
		return rc;
	}
	/* fi_endpoint has succeeded, so the endpoint now owns the connection request. */
	net_seal_proof(&f->base, &ev->ticket, ev->key, (uint16_t)c->granted, c->rx_cookie, sealed);
	if (!rc)
		rc = fi_accept(c->eps[channel], sealed, sizeof(sealed));
	fi_freeinfo(ev->info);
	return rc;
}

static void fabric_accept_second(struct fabric_xport *x, struct fabric_cm_event *ev)
{
	struct fabric_conn *c = NULL;
	int rc;

	for (unsigned i = 0; i < FABRIC_CONNS_MAX && !c; i++) {
		struct fabric_conn *k = x->conns[i];

		if (k && !k->eps[CHANNEL_SECOND] && peer_conn_is_second(&k->base, &ev->ticket))
			c = k;
	}
	if (!c) {
		fabric_cm_reject(x->f, ev->info, REFUSED_TICKET);
		return;
	}
	rc = accept_channel(c, ev);
	c->ep = c->eps[c->is_eager ? CHANNEL_FIRST : CHANNEL_SECOND];
	if (rc)
		peer_conn_doom(&c->base, "cannot accept the second channel: %s", fi_strerror(-rc));
}

void fabric_conn_accept(struct fabric_xport *x, struct fabric_cm_event *ev)
{
	struct fabric_conn *c;
	int rc;

	if (ev->ticket.channel == CHANNEL_SECOND) {
		fabric_accept_second(x, ev);
		return;
	}
	c = fabric_conn_take_slot(x);
	if (!c) {
		log_rated(LOG_WARN,
			"data thread %u has the maximum of %u connections, so it refused peer=%u",
			x->base.thread, x->f->gates.conns_max, ev->ticket.peer_id);
		fabric_cm_reject(x->f, ev->info, REFUSED_FULL);
		return;
	}
	c->base.pub.peer_id = ev->ticket.peer_id;
	c->base.pub.peer_instance = ev->ticket.instance;
	c->credits = ev->ticket.credits;
	c->is_eager = x->f->base.can_take_eager && ev->ticket.can_take_eager;
	c->rx_cookie = (ticket_random64() & ~UINT64_C(0xffff)) | c->base.slot;
	c->tx_cookie = ticket_cookie(ev->ticket.nonce, ev->key);
	c->base.nonce = ev->ticket.nonce;
	rc = accept_channel(c, ev);
	if (!rc) {
		fabric_conn_begin(c, CONN_ACCEPTING, "ticket is good");
		return;
	}
	fabric_conn_discard(c);
	log_rated(LOG_WARN, "cannot accept a data connection: peer=%u: %s", ev->ticket.peer_id,
		fi_strerror(-rc));
}

static void fabric_conn_mark_all_segments(struct fabric_conn *c)
{
	const struct fabric_xport *x = fabric_xport_of(c);

	for (unsigned i = 0; i < FABRIC_SEGS_MAX; i++) {
		if (!x->segs[i].mem)
			continue;
		c->dirty[i / 64] |= UINT64_C(1) << (i % 64);
		c->n_dirty++;
	}
}

void fabric_conn_up(struct fabric_conn *c)
{
	struct fabric_xport *x = fabric_xport_of(c);

	peer_conn_come_up(&c->base);
	/* The peer sends its first message when both channels are open. With provider tcp they are
	 * then open at this side, too. With verbs this side waits for the event. */
	c->is_linked |= c->is_eager;
	fabric_conn_mark_all_segments(c);
	fabric_io_touch(c);
	x->base.pub.ev->up(
		x->base.pub.ctx, &c->base.pub, c->base.pub.peer_id, c->base.pub.peer_instance);
}

/* On the connecting side: handle the peer's acceptance of a channel. */
static void on_channel_accepted(
	struct fabric_conn *c, enum channel channel, const struct fabric_cm_event *ev)
{
	struct wire_msg hello = {.type = WIRE_PING};
	struct proof p;
	int rc;

	rc = peer_conn_check_proof(&c->base, channel, ev->data, ev->data_bytes, &p);
	if (!rc && channel == CHANNEL_SECOND && p.cookie != c->tx_cookie)
		rc = BPS_EAUTH;
	if (rc) {
		net_counter_add(&fabric_xport_of(c)->shared.count.protocol_errors, 1);
		peer_conn_doom(&c->base, "the peer could not prove its identity: %s", err_str(rc));
		return;
	}
	if (channel == CHANNEL_FIRST) {
		c->tx_cookie = p.cookie;
		c->credits = p.credits;
		c->is_eager = fabric_xport_of(c)->f->base.can_take_eager && p.can_take_eager;
		rc = connect_channel(c, CHANNEL_SECOND);
		if (rc)
			peer_conn_doom(
				&c->base, "cannot open the second channel: %s", fi_strerror(-rc));
		return;
	}
	fi_freeinfo(c->info);
	c->info = NULL;
	OPENSSL_cleanse(c->base.key, sizeof(c->base.key));
	c->is_linked = true;
	/* Send this ping before any message of the owner. The accepting side goes UP when it
	 * receives the first message. */
	fabric_io_put_message(c, &hello, 1);
	fabric_conn_up(c);
}

static void on_channel_connected(
	struct fabric_conn *c, enum channel channel, const struct fabric_cm_event *ev)
{
	if (c->base.state == CONN_CONNECTING) {
		on_channel_accepted(c, channel, ev);
		return;
	}
	/* The accepting side goes UP with the first message, which may arrive before this event. */
	if (channel != CHANNEL_SECOND || c->is_linked)
		return;
	c->is_linked = true;
	if (c->base.state == CONN_UP)
		fabric_io_touch(c);
}

static void on_channel_refused(struct fabric_conn *c, const struct fabric_cm_event *ev)
{
	struct err_text why;

	if (c->base.state == CONN_UP || c->base.state == CONN_ACCEPTING)
		peer_conn_doom(&c->base, "connection lost: %s", fi_strerror(ev->err));
	else if (ticket_refusal(ev->data, ev->data_bytes, &why))
		peer_conn_doom(&c->base, "%s", why.s);
	else
		peer_conn_doom(&c->base, "cannot connect: %s", fi_strerror(ev->err));
}

void fabric_conn_cm_event(struct fabric_xport *x, const struct fabric_cm_event *ev)
{
	enum channel channel = 0;
	struct fabric_conn *c = NULL;

	/* Compare only the addresses of the endpoints. If a new endpoint has the address of a
	 * closed endpoint, an event of the closed endpoint may reach the new connection. Then the
	 * check of the proof fails or the connection ends, and the peers connect again. */
	for (unsigned i = 0; i < FABRIC_CONNS_MAX * N_CHANNELS && !c; i++) {
		struct fabric_conn *k = x->conns[i / N_CHANNELS];

		channel = i % N_CHANNELS;
		if (k && k->eps[channel] && &k->eps[channel]->fid == ev->fid)
			c = k;
	}
	if (!c)
		return;
	if (ev->kind == CM_CONNECTED)
		on_channel_connected(c, channel, ev);
	else if (ev->err)
		on_channel_refused(c, ev);
	else
		peer_conn_doom(&c->base, "closed by the peer");
}

void fabric_conn_down(struct xconn *conn, const char *why)
{
	struct fabric_conn *c = (struct fabric_conn *)conn;
	struct fabric_xport *x = fabric_xport_of(c);

	if (c->base.state == CONN_GONE || c->base.state == CONN_FREE)
		return; /* second call of this function, from a callback of the first call */
	if (c->is_busy)
		TAILQ_REMOVE(c->is_stuck ? &x->stuck : &x->busy, c, link);
	c->is_busy = c->is_stuck = false;
	peer_conn_set_state(&c->base, CONN_GONE, why);
	if (c->n_rops)
		fabric_mark_spoiled(x);
	/* After close_channels this side receives no byte, and the peer can read no byte. So this
	 * side may then overwrite the memory that it offered. */
	close_channels(c);
	fabric_io_abandon(c);
	peer_reads_cancel(&c->reads, &x->base.pub);
	x->n_granted -= c->granted;
	fabric_set_conn_count(x, x->base.n_conns - 1);
	if (c->base.is_told)
		x->base.pub.ev->down(x->base.pub.ctx, &c->base.pub, why);
	fabric_conn_free_slot(c);
}

void fabric_conn_tick(struct fabric_xport *x)
{
	const struct wire_msg ping = {.type = WIRE_PING};

	x->base.next_deadline_ns = UINT64_MAX;
	fabric_share_window(x); /* another data thread may have more connections now */
	/* A ping is not sent when there are no credits. A missing ping does no harm, because the
	 * peer then has to send credits. The credits show that the peer is alive. */
	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++)
		if (x->conns[i] && peer_conn_tick(&x->conns[i]->base))
			fabric_io_put_message(x->conns[i], &ping, 1);
	fabric_io_reclaim(x);
}

/* ---- segments ---- */

static void fabric_segment_mark_dirty(struct fabric_xport *x, uint16_t id)
{
	uint64_t bit = UINT64_C(1) << (id % 64);

	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++) {
		struct fabric_conn *c = x->conns[i];

		if (!c || c->base.state != CONN_UP || c->dirty[id / 64] & bit)
			continue;
		c->dirty[id / 64] |= bit;
		c->n_dirty++;
		fabric_io_touch(c);
	}
}

int fabric_seg_set(struct xport *xp, uint16_t id, void *mem, size_t bytes)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct fabric_seg *s;
	int rc;

	if (id >= FABRIC_SEGS_MAX || !mem || !bytes)
		return -EINVAL;
	s = &x->segs[id];
	if (s->mem)
		return -EEXIST;
	rc = fabric_region_take(x, mem, bytes, &s->region);
	if (rc)
		return rc;
	s->mem = mem;
	s->bytes = bytes;
	s->desc = fi_mr_desc(s->region->mr);
	x->seg_next = (uint16_t)((id + 1) % FABRIC_SEGS_MAX);
	fabric_segment_mark_dirty(x, id);
	return 0;
}

int fabric_seg_add(struct xport *xp, void *mem, size_t bytes, uint16_t *ret_segment)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;

	/* Assign the segment numbers in cyclic order, so that a freed number is reused for other
	 * memory as late as possible. */
	for (unsigned i = 0; i < FABRIC_SEGS_MAX; i++) {
		uint16_t id = (uint16_t)((x->seg_next + i) % FABRIC_SEGS_MAX);

		if (x->segs[id].mem)
			continue;
		*ret_segment = id;
		return fabric_seg_set(xp, id, mem, bytes);
	}
	return -ENOSPC;
}

void fabric_seg_del(struct xport *xp, uint16_t id)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct fabric_seg *s;

	if (id >= FABRIC_SEGS_MAX || !x->segs[id].mem)
		return;
	fabric_eager_end_segment(x, id);
	s = &x->segs[id];
	fabric_region_drop(x->f, s->region);
	*s = (struct fabric_seg){0};
	fabric_segment_mark_dirty(x, id);
}

static void fabric_segment_message(const struct fabric_xport *x, uint16_t id, struct wire_msg *ret)
{
	const struct fabric_seg *s = &x->segs[id];

	*ret = (struct wire_msg){.type = s->mem ? WIRE_SEG_ADD : WIRE_SEG_DEL, .segment = id};
	if (!s->mem)
		return;
	ret->seg.base = x->f->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)s->mem : 0;
	ret->seg.key = fi_mr_key(s->region->mr);
	ret->seg.bytes = s->bytes;
}

int fabric_seg_announce(struct fabric_conn *c)
{
	struct wire_msg m;

	for (unsigned w = 0; c->n_dirty && w < FABRIC_SEGS_MAX / 64; w++) {
		while (c->dirty[w]) {
			uint16_t id = (uint16_t)(w * 64 + (unsigned)__builtin_ctzll(c->dirty[w]));
			int rc;

			fabric_segment_message(fabric_xport_of(c), id, &m);
			rc = fabric_io_put_message(c, &m, 1);
			if (rc)
				return rc;
			c->dirty[w] &= c->dirty[w] - 1;
			c->n_dirty--;
		}
	}
	return 0;
}

/* Return whether a requested piece of a read of this segment has not arrived. */
static bool fabric_segment_is_being_read(const struct fabric_conn *c, uint16_t segment)
{
	for (uint32_t left = c->reads.used; left; left &= left - 1) {
		const struct peer_read *rd = &c->reads.all[__builtin_ctz(left)];

		if (rd->issued > rd->done && rd->r->segment == segment)
			return true;
	}
	return false;
}

void fabric_seg_note(struct fabric_conn *c, const struct wire_msg *m)
{
	struct fabric_peer_seg **chunk, *s;

	if (m->segment >= FABRIC_SEGS_MAX) {
		net_counter_add(&fabric_xport_of(c)->shared.count.protocol_errors, 1);
		peer_conn_doom(
			&c->base, "protocol: segment number %u is above the limit", m->segment);
		return;
	}
	chunk = &c->peer_segs[m->segment / FABRIC_SEG_CHUNK];
	if (!*chunk)
		*chunk = calloc(FABRIC_SEG_CHUNK, sizeof(**chunk));
	if (!*chunk) {
		peer_conn_doom(&c->base, "out of memory");
		return;
	}
	s = &(*chunk)[m->segment % FABRIC_SEG_CHUNK];
	if (s->bytes && fabric_segment_is_being_read(c, m->segment)) {
		/* The peer may have freed the memory. Its provider tcp then sends only a part of
		 * the answer, and this side takes what follows for the rest of the answer. */
		peer_conn_doom(
			&c->base, "the peer withdrew segment %u while it was read", m->segment);
		return;
	}
	*s = (struct fabric_peer_seg){0};
	if (m->type == WIRE_SEG_ADD)
		*s = (struct fabric_peer_seg){
			.base = m->seg.base, .key = m->seg.key, .bytes = m->seg.bytes};
}

const struct fabric_peer_seg *fabric_seg_find(const struct fabric_conn *c, uint16_t segment)
{
	const struct fabric_peer_seg *chunk, *s;

	if (segment >= FABRIC_SEGS_MAX)
		return NULL;
	chunk = c->peer_segs[segment / FABRIC_SEG_CHUNK];
	if (!chunk)
		return NULL;
	s = &chunk[segment % FABRIC_SEG_CHUNK];
	return s->bytes ? s : NULL;
}
