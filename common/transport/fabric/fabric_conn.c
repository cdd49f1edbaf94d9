#include "common/transport/fabric/fabric_impl.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "common/base/log.h"

static const char *state_name(enum conn_state s)
{
	static const char *const names[] = {
		"free", "connecting", "accepting", "up", "doomed", "closing"};

	return names[s];
}

static bool state_may_follow(enum conn_state from, enum conn_state to)
{
	static const uint8_t next[] = {
		[CONN_FREE] = 1 << CONN_CONNECTING | 1 << CONN_ACCEPTING,
		[CONN_CONNECTING] = 1 << CONN_UP | 1 << CONN_DOOMED | 1 << CONN_CLOSING,
		[CONN_ACCEPTING] = 1 << CONN_UP | 1 << CONN_DOOMED | 1 << CONN_CLOSING,
		[CONN_UP] = 1 << CONN_DOOMED | 1 << CONN_CLOSING,
		[CONN_DOOMED] = 1 << CONN_CLOSING,
		[CONN_CLOSING] = 1 << CONN_FREE,
	};

	return next[from] >> to & 1;
}

static void set_state(struct fabric_conn *c, enum conn_state to, const char *why)
{
	assert(state_may_follow(c->state, to));
	log_debug("connection peer=%u slot=%u %s -> %s: %s", c->pub.peer_id, c->slot,
		state_name(c->state), state_name(to), why);
	c->state = to;
}

/* A slot for a new connection, cleared but for what outlives a connection. */
static struct fabric_conn *conn_get(struct fabric_xport *x)
{
	struct fabric_conn *c = NULL;
	uint64_t last_cookie;
	uint16_t slot;

	for (slot = 0; slot < FABRIC_CONNS_MAX; slot++)
		if (!x->conns[slot] || x->conns[slot]->state == CONN_FREE)
			break;
	if (slot == FABRIC_CONNS_MAX)
		return NULL;
	if (!x->conns[slot])
		x->conns[slot] = calloc(1, sizeof(*c));
	c = x->conns[slot];
	if (!c)
		return NULL;
	last_cookie = c->last_cookie;
	memset(c, 0, sizeof(*c));
	c->last_cookie = last_cookie;
	c->pub.x = &x->pub;
	c->slot = slot;
	TAILQ_INIT(&c->ops);
	TAILQ_INIT(&c->queue);
	c->read_window.limit = READ_WINDOW_FIRST;
	return c;
}

/* Endpoints, and what was only kept until they stood. */
static void close_channels(struct fabric_conn *c)
{
	for (unsigned i = 0; i < N_CHANNELS; i++) {
		if (c->eps[i])
			fi_close(&c->eps[i]->fid);
		c->eps[i] = NULL;
	}
	c->ep = NULL;
	fi_freeinfo(c->info);
	c->info = NULL;
	OPENSSL_cleanse(c->key, sizeof(c->key));
}

static void conn_put(struct fabric_conn *c)
{
	for (unsigned i = 0; i < FABRIC_SEGS_MAX / FABRIC_SEG_CHUNK; i++) {
		free(c->peer_segs[i]);
		c->peer_segs[i] = NULL;
	}
	c->last_cookie = c->rx_cookie;
	c->rx_cookie = 0;
	set_state(c, CONN_FREE, "gone");
}

/* Give up a slot whose connection did not begin. */
static void conn_discard(struct fabric_conn *c)
{
	close_channels(c);
	c->rx_cookie = 0;
}

/* The endpoint of a channel, ready to receive. On failure it may be there, half made. */
static int open_ep(struct fabric_conn *c, enum channel channel, struct fi_info *info)
{
	struct fabric_xport *x = xport_of(c);
	struct fid_ep **ep = &c->eps[channel];
	int rc = io_grow_rx(x, (x->n_conns + 1) * x->f->cfg.credits);

	if (!rc)
		rc = fi_endpoint(x->domain, info, ep, NULL);
	if (!rc)
		rc = fi_ep_bind(*ep, &x->eq->fid, 0);
	if (!rc)
		rc = fi_ep_bind(*ep, &x->cq->fid, FI_TRANSMIT | FI_RECV);
	if (!rc)
		rc = fi_ep_bind(*ep, &x->srx->fid, 0);
	if (!rc)
		rc = fi_enable(*ep);
	return rc;
}

static void conn_begin(struct fabric_conn *c, enum conn_state state, const char *why)
{
	struct fabric_xport *x = xport_of(c);
	uint64_t now_ns = clock_now_ns();

	c->rx_allow = x->f->cfg.credits;
	c->silence.rx_ns = now_ns;
	c->deadline_ns = now_ns + x->f->cfg.connect_timeout_ms * NS_PER_MS;
	conn_deadline(x, c->deadline_ns);
	atomic_store_explicit(&x->count.connections, ++x->n_conns, memory_order_relaxed);
	set_state(c, state, why);
}

static int parse_addr(const char *addr, uint16_t port, void **ret_sa, size_t *ret_len)
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

static uint64_t channel_nonce(const struct fabric_conn *c, enum channel channel)
{
	return ticket_channel_nonce(c->nonce, channel);
}

static void take_nonces(struct fabric_conn *c)
{
	struct fabric *f = xport_of(c)->f;
	uint64_t n = atomic_fetch_add(&f->nonces, N_CHANNELS) + 1;

	c->nonce = n << 32 | (uint64_t)f->tag << 16 | c->slot;
	c->rx_cookie = ticket_cookie(c->nonce, c->key);
}

static int connect_channel(struct fabric_conn *c, enum channel channel)
{
	struct fabric *f = xport_of(c)->f;
	struct ticket t = {.thread = c->peer_thread,
		.channel = (uint16_t)channel,
		.peer_id = atomic_load(&f->my_id),
		.credits = (uint16_t)f->cfg.credits,
		.instance = f->cfg.my_instance,
		.nonce = channel_nonce(c, channel)};
	uint8_t sealed[TICKET_BYTES];
	int rc = open_ep(c, channel, c->info);

	if (rc)
		return rc;
	ticket_seal(&t, c->key, sealed);
	return fi_connect(c->eps[channel], c->info->dest_addr, sealed, sizeof(sealed));
}

int conn_connect(struct xport *xp, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct fabric_conn *c;
	int rc;

	if (x->is_spoiled)
		return -EAGAIN;
	c = conn_get(x);
	if (!c) {
		log_rated(LOG_WARN, "data thread %u has its %u connections, cannot connect to %s",
			x->thread, FABRIC_CONNS_MAX, addr);
		return -EMFILE;
	}
	c->info = fi_dupinfo(x->f->info);
	if (!c->info)
		return -ENOMEM;
	free(c->info->dest_addr);
	c->info->dest_addr = NULL;
	rc = parse_addr(addr, port, &c->info->dest_addr, &c->info->dest_addrlen);
	if (rc)
		goto fail;
	c->pub.user = user;
	c->pub.peer_id = peer_id;
	c->pub.peer_instance = peer_instance;
	c->is_told = true;
	c->peer_thread = thread;
	memcpy(c->key, key, sizeof(c->key));
	take_nonces(c);
	rc = connect_channel(c, CHANNEL_OF_CONNECTING);
	if (rc)
		goto fail;
	c->ep = c->eps[CHANNEL_OF_CONNECTING];
	conn_begin(c, CONN_CONNECTING, addr);
	*ret_conn = &c->pub;
	return 0;
fail:
	conn_discard(c);
	return rc;
}

/* Accept a channel whose ticket was good. Takes ev->info. */
static int accept_channel(struct fabric_conn *c, struct cm_event *ev)
{
	struct fabric *f = xport_of(c)->f;
	struct proof p = {.instance = f->cfg.my_instance,
		.peer_id = atomic_load(&f->my_id),
		.credits = (uint16_t)f->cfg.credits,
		.cookie = c->rx_cookie};
	enum channel channel = ev->ticket.channel;
	uint8_t sealed[PROOF_BYTES];
	int rc = open_ep(c, channel, ev->info);

	if (rc && !c->eps[channel]) {
		cm_reject(f, ev->info, REFUSED_BUSY);
		return rc;
	}
	/* From here the endpoint owns the request. */
	proof_seal(&p, ev->ticket.nonce, ev->key, sealed);
	if (!rc)
		rc = fi_accept(c->eps[channel], sealed, sizeof(sealed));
	fi_freeinfo(ev->info);
	return rc;
}

static void accept_second(struct fabric_xport *x, struct cm_event *ev)
{
	struct fabric_conn *c = NULL;
	int rc;

	for (unsigned i = 0; i < FABRIC_CONNS_MAX && !c; i++) {
		struct fabric_conn *k = x->conns[i];

		if (k && k->state == CONN_ACCEPTING && !k->eps[CHANNEL_OF_ACCEPTING] &&
			k->pub.peer_id == ev->ticket.peer_id &&
			k->pub.peer_instance == ev->ticket.instance &&
			channel_nonce(k, CHANNEL_OF_ACCEPTING) == ev->ticket.nonce)
			c = k;
	}
	if (!c) {
		cm_reject(x->f, ev->info, REFUSED_TICKET);
		return;
	}
	rc = accept_channel(c, ev);
	c->ep = c->eps[CHANNEL_OF_ACCEPTING];
	if (rc)
		conn_doom(c, "cannot accept the second channel: %s", fi_strerror(-rc));
}

void conn_accept(struct fabric_xport *x, struct cm_event *ev)
{
	struct fabric_conn *c;
	int rc;

	if (ev->ticket.channel == CHANNEL_OF_ACCEPTING) {
		accept_second(x, ev);
		return;
	}
	c = conn_get(x);
	if (!c) {
		log_rated(LOG_WARN, "data thread %u has its %u connections, refused peer=%u",
			x->thread, FABRIC_CONNS_MAX, ev->ticket.peer_id);
		cm_reject(x->f, ev->info, "FULL");
		return;
	}
	c->pub.peer_id = ev->ticket.peer_id;
	c->pub.peer_instance = ev->ticket.instance;
	c->credits = ev->ticket.credits;
	c->rx_cookie = (ticket_random64() & ~UINT64_C(0xffff)) | c->slot;
	c->tx_cookie = ticket_cookie(ev->ticket.nonce, ev->key);
	c->nonce = ev->ticket.nonce;
	rc = accept_channel(c, ev);
	if (!rc) {
		conn_begin(c, CONN_ACCEPTING, "ticket is good");
		return;
	}
	conn_discard(c);
	log_rated(LOG_WARN, "cannot accept peer=%u: %s", ev->ticket.peer_id, fi_strerror(-rc));
}

static void mark_all_segs(struct fabric_conn *c)
{
	const struct fabric_xport *x = xport_of(c);

	for (unsigned i = 0; i < FABRIC_SEGS_MAX; i++) {
		if (!x->segs[i].mem)
			continue;
		c->dirty[i / 64] |= UINT64_C(1) << (i % 64);
		c->n_dirty++;
	}
}

void conn_up(struct fabric_conn *c)
{
	struct fabric_xport *x = xport_of(c);

	set_state(c, CONN_UP, "handshake done");
	c->is_told = true;
	c->silence.rx_ns = x->now_ns;
	if (x->f->cfg.ping_ms)
		conn_deadline(x, x->now_ns + x->f->cfg.ping_ms * NS_PER_MS);
	mark_all_segs(c);
	io_touch(c);
	x->pub.ev->up(x->pub.ctx, &c->pub, c->pub.peer_id, c->pub.peer_instance);
}

/* The connecting side heard the accept of a channel. */
static void on_accepted(struct fabric_conn *c, enum channel channel, const struct cm_event *ev)
{
	struct wire_msg hello = {.type = WIRE_PING};
	struct proof p;
	int rc;

	rc = proof_open(ev->data, ev->data_bytes, channel_nonce(c, channel), c->key, &p);
	if (!rc && (p.instance != c->pub.peer_instance || p.peer_id != c->pub.peer_id ||
			   (channel == CHANNEL_OF_ACCEPTING && p.cookie != c->tx_cookie)))
		rc = BPS_EAUTH;
	if (rc) {
		net_count(&xport_of(c)->count.protocol_errors, 1);
		conn_doom(c, "the peer could not prove who it is: %s", err_str(rc));
		return;
	}
	if (channel == CHANNEL_OF_CONNECTING) {
		c->tx_cookie = p.cookie;
		c->credits = p.credits;
		rc = connect_channel(c, CHANNEL_OF_ACCEPTING);
		if (rc)
			conn_doom(c, "cannot open the second channel: %s", fi_strerror(-rc));
		return;
	}
	fi_freeinfo(c->info);
	c->info = NULL;
	OPENSSL_cleanse(c->key, sizeof(c->key));
	c->is_linked = true;
	/* Before anything of the owner's: it is what makes the accepting side come up. */
	io_put(c, &hello, 1);
	conn_up(c);
}

static void on_connected(struct fabric_conn *c, enum channel channel, const struct cm_event *ev)
{
	if (c->state == CONN_CONNECTING) {
		on_accepted(c, channel, ev);
		return;
	}
	/* The accepting side comes up with the first message, which may overtake this. */
	if (channel != CHANNEL_OF_ACCEPTING || c->is_linked)
		return;
	c->is_linked = true;
	if (c->state == CONN_UP)
		io_touch(c);
}

static void on_refused(struct fabric_conn *c, const struct cm_event *ev)
{
	const char *why = ticket_refusal(ev->data, ev->data_bytes);

	if (c->state == CONN_UP || c->state == CONN_ACCEPTING)
		conn_doom(c, "connection lost: %s", fi_strerror(ev->err));
	else if (why)
		conn_doom(c, "%s", why);
	else
		conn_doom(c, "cannot connect: %s", fi_strerror(ev->err));
}

void conn_cm_event(struct fabric_xport *x, const struct cm_event *ev)
{
	enum channel channel = 0;
	struct fabric_conn *c = NULL;

	/* By address only. That of a closed endpoint may serve a new one; then the proof or a
	 * reconnect puts a misled connection right. */
	for (unsigned i = 0; i < FABRIC_CONNS_MAX * N_CHANNELS && !c; i++) {
		struct fabric_conn *k = x->conns[i / N_CHANNELS];

		channel = i % N_CHANNELS;
		if (k && k->eps[channel] && &k->eps[channel]->fid == ev->fid)
			c = k;
	}
	if (!c)
		return;
	if (ev->kind == CM_CONNECTED)
		on_connected(c, channel, ev);
	else if (ev->err)
		on_refused(c, ev);
	else
		conn_doom(c, "closed by the peer");
}

void conn_doom(struct fabric_conn *c, const char *fmt, ...)
{
	struct fabric_xport *x = xport_of(c);
	va_list ap;

	if (c->state == CONN_DOOMED || c->state == CONN_CLOSING || c->state == CONN_FREE)
		return;
	va_start(ap, fmt);
	vsnprintf(c->why, sizeof(c->why), fmt, ap);
	va_end(ap);
	set_state(c, CONN_DOOMED, c->why);
	TAILQ_INSERT_TAIL(&x->doomed, c, doom_link);
}

static void cancel_reads(struct fabric_conn *c)
{
	const struct xport *x = c->pub.x;

	while (c->reads_used) {
		unsigned i = (unsigned)__builtin_ctz(c->reads_used);

		c->reads_used &= c->reads_used - 1;
		c->n_reads--;
		x->ev->read_done(x->ctx, c->reads[i].r, -ECANCELED);
	}
}

void conn_down(struct fabric_conn *c, const char *why)
{
	struct fabric_xport *x = xport_of(c);

	if (c->state == CONN_CLOSING || c->state == CONN_FREE)
		return; /* closed again from a callback of its close */
	if (c->state == CONN_DOOMED)
		TAILQ_REMOVE(&x->doomed, c, doom_link);
	if (c->is_busy)
		TAILQ_REMOVE(c->is_stuck ? &x->stuck : &x->busy, c, link);
	c->is_busy = c->is_stuck = false;
	set_state(c, CONN_CLOSING, why);
	if (c->n_rops)
		xport_spoil(x);
	close_channels(c); /* the fence */
	io_abandon(c);
	cancel_reads(c);
	atomic_store_explicit(&x->count.connections, --x->n_conns, memory_order_relaxed);
	if (c->is_told)
		x->pub.ev->down(x->pub.ctx, &c->pub, why);
	conn_put(c);
}

int conn_reap(struct fabric_xport *x)
{
	struct fabric_conn *c;
	char why[sizeof(c->why)];
	int n = 0;

	while ((c = TAILQ_FIRST(&x->doomed))) {
		memcpy(why, c->why, sizeof(why));
		conn_down(c, why);
		n++;
	}
	return n;
}

/* ---- time ---- */

void conn_deadline(struct fabric_xport *x, uint64_t at_ns)
{
	if (at_ns < x->next_deadline_ns)
		x->next_deadline_ns = at_ns;
}

static uint64_t tick_up(struct fabric_conn *c, const struct net_config *cfg, uint64_t now_ns)
{
	struct wire_msg ping = {.type = WIRE_PING};
	uint64_t at_ns;

	switch (net_silence_due(&c->silence, cfg->ping_ms, cfg->dead_ms, now_ns, &at_ns)) {
	case NET_DUE_NOTHING:
		break;
	case NET_DUE_PING:
		io_put(c, &ping, 1); /* without credit it is the peer's turn anyway */
		break;
	case NET_DUE_END:
		conn_doom(c, "no sign of life for %lu ms",
			(unsigned long)((now_ns - c->silence.rx_ns) / NS_PER_MS));
		break;
	}
	return at_ns;
}

static uint64_t tick_one(struct fabric_conn *c, const struct net_config *cfg, uint64_t now_ns)
{
	if (c->state == CONN_UP)
		return tick_up(c, cfg, now_ns);
	if (c->state != CONN_CONNECTING && c->state != CONN_ACCEPTING)
		return UINT64_MAX;
	if (now_ns < c->deadline_ns)
		return c->deadline_ns;
	conn_doom(c, "no connection within %u ms", cfg->connect_timeout_ms);
	return UINT64_MAX;
}

void conn_tick(struct fabric_xport *x)
{
	x->next_deadline_ns = UINT64_MAX;
	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++)
		if (x->conns[i] && x->conns[i]->state != CONN_FREE)
			conn_deadline(x, tick_one(x->conns[i], &x->f->cfg, x->now_ns));
	io_reclaim(x);
}

uint64_t fabric_next_deadline(struct xport *x)
{
	return ((struct fabric_xport *)x)->next_deadline_ns;
}

/* ---- segments ---- */

static void seg_mark(struct fabric_xport *x, uint16_t id)
{
	uint64_t bit = UINT64_C(1) << (id % 64);

	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++) {
		struct fabric_conn *c = x->conns[i];

		if (!c || c->state != CONN_UP || c->dirty[id / 64] & bit)
			continue;
		c->dirty[id / 64] |= bit;
		c->n_dirty++;
		io_touch(c);
	}
}

int seg_add(struct xport *xp, void *mem, size_t bytes, uint16_t *ret_segment)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct own_seg *s = NULL;
	uint16_t id = 0;
	int rc;

	if (!mem || !bytes)
		return -EINVAL;
	/* Going round, a number rests as long as possible before it means other memory. */
	for (unsigned i = 0; i < FABRIC_SEGS_MAX && !s; i++) {
		id = (uint16_t)((x->seg_next + i) % FABRIC_SEGS_MAX);
		if (!x->segs[id].mem)
			s = &x->segs[id];
	}
	if (!s)
		return -ENOSPC;
	rc = fabric_mr_reg(x, mem, bytes, FI_SEND | FI_READ | FI_REMOTE_READ, &s->mr);
	if (rc)
		return rc;
	s->mem = mem;
	s->bytes = bytes;
	s->desc = fi_mr_desc(s->mr);
	x->seg_next = (uint16_t)((id + 1) % FABRIC_SEGS_MAX);
	seg_mark(x, id);
	*ret_segment = id;
	return 0;
}

void seg_del(struct xport *xp, uint16_t id)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct own_seg *s;

	if (id >= FABRIC_SEGS_MAX || !x->segs[id].mem)
		return;
	s = &x->segs[id];
	fi_close(&s->mr->fid);
	*s = (struct own_seg){0};
	seg_mark(x, id);
}

static void seg_message(const struct fabric_xport *x, uint16_t id, struct wire_msg *ret)
{
	const struct own_seg *s = &x->segs[id];

	*ret = (struct wire_msg){.type = s->mem ? WIRE_SEG_ADD : WIRE_SEG_DEL, .segment = id};
	if (!s->mem)
		return;
	ret->seg.base = x->f->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)s->mem : 0;
	ret->seg.key = fi_mr_key(s->mr);
	ret->seg.bytes = s->bytes;
}

int seg_announce(struct fabric_conn *c)
{
	struct wire_msg m;

	for (unsigned w = 0; c->n_dirty && w < FABRIC_SEGS_MAX / 64; w++) {
		while (c->dirty[w]) {
			uint16_t id = (uint16_t)(w * 64 + (unsigned)__builtin_ctzll(c->dirty[w]));
			int rc;

			seg_message(xport_of(c), id, &m);
			rc = io_put(c, &m, 1);
			if (rc)
				return rc;
			c->dirty[w] &= c->dirty[w] - 1;
			c->n_dirty--;
		}
	}
	return 0;
}

void seg_note(struct fabric_conn *c, const struct wire_msg *m)
{
	struct peer_seg **chunk, *s;

	if (m->segment >= FABRIC_SEGS_MAX) {
		net_count(&xport_of(c)->count.protocol_errors, 1);
		conn_doom(c, "protocol: segment %u is beyond the table", m->segment);
		return;
	}
	chunk = &c->peer_segs[m->segment / FABRIC_SEG_CHUNK];
	if (!*chunk)
		*chunk = calloc(FABRIC_SEG_CHUNK, sizeof(**chunk));
	if (!*chunk) {
		conn_doom(c, "out of memory");
		return;
	}
	s = &(*chunk)[m->segment % FABRIC_SEG_CHUNK];
	*s = (struct peer_seg){0};
	if (m->type == WIRE_SEG_ADD)
		*s = (struct peer_seg){
			.base = m->seg.base, .key = m->seg.key, .bytes = m->seg.bytes};
}

const struct peer_seg *seg_find(const struct fabric_conn *c, uint16_t segment)
{
	const struct peer_seg *chunk, *s;

	if (segment >= FABRIC_SEGS_MAX)
		return NULL;
	chunk = c->peer_segs[segment / FABRIC_SEG_CHUNK];
	if (!chunk)
		return NULL;
	s = &chunk[segment % FABRIC_SEG_CHUNK];
	return s->bytes ? s : NULL;
}
