/* The start of connections of the transport over TCP sockets: the handshake byte by byte, peers
 * that are rejected, limits on the number of connections, and options of the sockets. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include "common/wire/path_probe.h"
#include "tests/unit/tcp_peer.h"

/* ---- the handshake, as the listener sees it ---- */

static void ticket_and_message_may_come_byte_by_byte(void **state)
{
	uint8_t ticket[TICKET_BYTES], proof[PROOF_BYTES], message[256];
	const struct wire_msg m = inline_message(1, "12345678", 8);
	struct raw_conn p = {.fds = {-1, -1}};
	struct net_rig r;
	size_t n;

	(void)state;
	net_rig_open(&r);
	p.rig = &r;
	for (unsigned lane = 0; lane < N_LANES; lane++) {
		seal_channel(50, (enum channel)lane, ticket);
		p.fds[lane] = stranger(net_port(r.server.f), NULL, 0);
		for (unsigned i = 0; i < TICKET_BYTES; i++) {
			raw_send(&p, (enum tcp_lane_kind)lane, ticket + i, 1);
			RUN_MS(&r, false, 1);
		}
		raw_recv(&p, (enum tcp_lane_kind)lane, proof, sizeof(proof));
	}
	n = put_message(message, &m);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(r.server.n_messages, 0);
		raw_send(&p, LANE_MESSAGES, message + i, 1);
		RUN_MS(&r, false, 1);
	}
	RUN(&r, r.server.n_up == 1 && r.server.n_messages == 1);
	raw_close(&p);
	RUN(&r, r.server.n_down == 1);
	net_rig_close(&r);
}

static void ticket_with_an_unknown_flag_is_malformed(void **state)
{
	const size_t flags_at = 15; /* protocol-data.md */
	uint8_t b[TICKET_BYTES];
	struct ticket t;

	(void)state;
	seal_channel(9, CHANNEL_FIRST, b);
	assert_int_equal(ticket_parse(b, sizeof(b), &t), 0);
	assert_false(t.can_take_eager);
	b[flags_at] = 1;
	assert_int_equal(ticket_parse(b, sizeof(b), &t), 0);
	assert_true(t.can_take_eager);
	b[flags_at] = 2;
	assert_int_equal(ticket_parse(b, sizeof(b), &t), BPS_EPROTO);
}

static void no_byte_of_a_ticket_may_be_wrong(void **state)
{
	uint8_t b[TICKET_BYTES];
	struct net_rig r;
	struct raw_conn p = {.rig = &r, .fds = {-1, -1}};

	(void)state;
	net_rig_open(&r);
	for (unsigned i = 0; i < TICKET_BYTES; i++) {
		uint8_t word[REFUSED_BYTES];

		seal_channel(9, CHANNEL_FIRST, b);
		b[i] ^= 0x10;
		p.fds[0] = stranger(net_port(r.server.f), b, sizeof(b));
		raw_recv(&p, LANE_MESSAGES, word, sizeof(word));
		assert_string_equal((char *)word, i == 4 || i == 5 ? "VERSION" : "NO");
		assert_int_equal(word[REFUSED_WORD_BYTES], TICKET_VERSION);
		RUN(&r, is_at_end(p.fds[0]));
		close(p.fds[0]);
	}
	assert_int_equal(refused(&r.server), TICKET_BYTES);
	raw_join(&p, 9, LANE_MESSAGES); /* the refused attempts have not used up the valid ticket */
	close(p.fds[0]);
	assert_int_equal(r.server.n_up, 0);
	net_rig_close(&r);
}

/* Open the rig and send the head of a path probe. Returns the number of open descriptors before the
 * probe's connection. */
static unsigned probe_begin(
	struct net_rig *r, struct raw_conn *p, uint8_t head[static PATH_PROBE_HEAD_BYTES])
{
	unsigned n_before;

	net_rig_open(r);
	n_before = count_fds();
	p->rig = r;
	path_probe_head(head);
	p->fds[0] = stranger(net_port(r->server.f), head, PATH_PROBE_HEAD_BYTES);
	return n_before;
}

static void path_probe_gets_as_many_bytes_as_it_has_sent(void **state)
{
	static uint8_t sent[PATH_PROBE_BYTES], received[PATH_PROBE_BYTES];
	struct raw_conn p = {.fds = {-1, -1}};
	uint8_t head[PATH_PROBE_HEAD_BYTES], echo[PATH_PROBE_HEAD_BYTES];
	struct net_stats stats;
	unsigned n_before;
	struct net_rig r;

	(void)state;
	n_before = probe_begin(&r, &p, head);
	raw_recv(&p, LANE_MESSAGES, echo, sizeof(echo));
	assert_memory_equal(echo, head, sizeof(head));
	raw_send(&p, LANE_MESSAGES, sent, sizeof(sent) - 1);
	assert_int_equal(recv(p.fds[0], received, 1, MSG_DONTWAIT), -1);
	raw_send(&p, LANE_MESSAGES, sent, 1);
	memset(received, 1, sizeof(received));
	raw_recv(&p, LANE_MESSAGES, received, sizeof(received));
	assert_memory_equal(received, sent, sizeof(sent));
	assert_int_equal(recv(p.fds[0], received, 1, MSG_DONTWAIT), -1);
	raw_close(&p);
	RUN(&r, count_fds() == n_before);
	net_stats(r.server.f, &stats);
	assert_int_equal(stats.refused_tickets + stats.silent_strangers, 0);
	net_rig_close(&r);
}

/* The peer's receive buffer has no room for the answer. When the listener closes the connection,
 * its kernel must not keep the answer, and the peer must not read a part with a correct end. */
static void path_probe_whose_answer_is_not_read_is_reset(void **state)
{
	static const uint8_t sent[PATH_PROBE_BYTES];
	struct raw_conn p = {.fds = {-1, -1}};
	uint8_t head[PATH_PROBE_HEAD_BYTES], echo[PATH_PROBE_HEAD_BYTES];
	struct pollfd reset = {.events = 0};
	const int small = 4096;
	unsigned n_before;
	struct net_rig r;

	(void)state;
	n_before = probe_begin(&r, &p, head);
	reset.fd = p.fds[0];
	assert_int_equal(setsockopt(p.fds[0], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	raw_recv(&p, LANE_MESSAGES, echo, sizeof(echo));
	raw_send(&p, LANE_MESSAGES, sent, sizeof(sent));
	RUN(&r, poll(&reset, 1, 0) == 1 && reset.revents & POLLERR);
	raw_close(&p);
	assert_int_equal(count_fds(), n_before);
	net_rig_close(&r);
}

static void expect_turned_away(struct net_rig *r, const uint8_t ticket[TICKET_BYTES])
{
	struct raw_conn p = {.rig = r, .fds = {-1, -1}};
	uint8_t word[REFUSED_BYTES];

	p.fds[0] = stranger(net_port(r->server.f), ticket, TICKET_BYTES);
	raw_recv(&p, LANE_MESSAGES, word, sizeof(word));
	assert_string_equal((char *)word, "NO");
	raw_close(&p);
}

static void each_channel_comes_once_and_in_order(void **state)
{
	uint8_t b[TICKET_BYTES];
	struct net_rig r;
	struct raw_conn p = {.rig = &r, .fds = {-1, -1}};
	struct ticket t;

	(void)state;
	net_rig_open(&r);
	seal_channel(20, CHANNEL_SECOND, b);
	expect_turned_away(&r, b); /* a ticket for a connection that does not exist */
	raw_join(&p, 20, LANE_MESSAGES);
	seal_channel(20, CHANNEL_FIRST, b);
	expect_turned_away(&r, b); /* the same ticket again */
	seal_channel(22, CHANNEL_SECOND, b);
	expect_turned_away(&r, b); /* a ticket of another connection */
	raw_join(&p, 20, LANE_BULK);
	seal_channel(20, CHANNEL_SECOND, b);
	expect_turned_away(&r, b); /* the connection already has this channel */
	t = a_ticket(30);
	t.channel = TICKET_SAME_HOST;
	ticket_seal(&t, the_key, b);
	expect_turned_away(&r, b);
	t = a_ticket(31);
	t.thread = 5;
	ticket_seal(&t, the_key, b);
	expect_turned_away(&r, b);
	assert_int_equal(r.server.n_up, 0);
	raw_close(&p);
	net_rig_close(&r);
}

static void message_before_the_second_channel_is_refused(void **state)
{
	struct net_rig r;
	struct raw_conn p = {.rig = &r, .fds = {-1, -1}};
	uint8_t ping[256];

	(void)state;
	net_rig_open(&r);
	raw_join(&p, 20, LANE_MESSAGES);
	raw_send(&p, LANE_MESSAGES, ping, put_kind(ping, WIRE_PING));
	RUN(&r, is_at_end(p.fds[0]));
	assert_int_equal(protocol_errors(&r.server), 1);
	assert_int_equal(r.server.n_up + r.server.n_down, 0);
	raw_close(&p);
	net_rig_close(&r);
}

static void connection_that_does_not_go_on_is_dropped(void **state)
{
	struct net_config cfg = config_of(true);
	struct net_rig r = {.third = NULL};
	struct raw_conn p = {.rig = &r, .fds = {-1, -1}};
	struct net_stats s;

	(void)state;
	cfg.connect_timeout_ms = 60;
	net_node_open(&r.server, &cfg);
	cfg = config_of(false);
	net_node_open(&r.client, &cfg);
	raw_join(&p, 20, LANE_MESSAGES);
	raw_join(&p, 20, LANE_BULK);
	RUN(&r, is_at_end(p.fds[0]) && is_at_end(p.fds[1]));
	net_stats(r.server.f, &s);
	assert_int_equal(s.connections, 0);
	assert_int_equal(r.server.n_up + r.server.n_down, 0);
	raw_close(&p);
	net_rig_close(&r);
}

/* ---- the handshake, as the connecting side sees it ---- */

static int listen_raw(uint16_t *ret_port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	*ret_port = ntohs(sa.sin_port);
	return fd;
}

/* Accept a connection and read the connection's ticket. Returns the descriptor of the
 * connection. */
static int take_ticket(int listen_fd, struct net_node *client, struct ticket *ret)
{
	struct pollfd p = {.fd = listen_fd, .events = POLLIN};
	uint8_t b[TICKET_BYTES];
	size_t at = 0;
	int fd;

	rig_watched_fd = listen_fd;
	assert_true(RUN_ONE(client, poll(&p, 1, 0) == 1, DEADLINE_MS));
	fd = accept(listen_fd, NULL, NULL);
	assert_true(fd >= 0);
	assert_true(RUN_ONE(client, has_come(fd, b, &at, sizeof(b)), DEADLINE_MS));
	assert_int_equal(ticket_parse(b, sizeof(b), ret), 0);
	assert_int_equal(ticket_verify(b, the_key), 0);
	return fd;
}

static void seal_proof(const struct ticket *t, uint8_t ret[PROOF_BYTES])
{
	const struct proof p = {
		.instance = SERVER_INSTANCE, .peer_id = SERVER_ID, .credits = TICKET_NO_CREDITS};

	proof_seal(&p, t->nonce, the_key, ret);
}

static void refusal_and_close_are_processed_together(void **state)
{
	static const struct {
		const char *word, *why;
		uint8_t version, n_bytes;
	} words[] = {{"NO", "does not accept our ticket", 3, REFUSED_BYTES},
		{"FULL", "no room", 3, REFUSED_BYTES},
		{"BUSY", "short of resources", 3, REFUSED_BYTES},
		{"VERSION", "uses version 77 of the data protocol, but this release uses version 4",
			77, REFUSED_BYTES},
		/* a release that sends only the word */
		{"VERSION", "uses another version of the data protocol", 0, REFUSED_WORD_BYTES},
		{"", "no proof", 0, 0}};
	struct net_config cfg = config_of(false);
	uint16_t port;
	int listen_fd = listen_raw(&port);
	struct ticket t;
	struct net_node n;

	(void)state;
	cfg.connect_timeout_ms = 60000;
	net_node_open(&n, &cfg);
	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		uint8_t refusal[REFUSED_BYTES];
		int fd;

		assert_int_equal(dial(&n, port, the_key), 0);
		fd = take_ticket(listen_fd, &n, &t);
		ticket_format_refusal(words[i].word, refusal);
		refusal[REFUSED_WORD_BYTES] = words[i].version;
		if (words[i].n_bytes)
			assert_int_equal(send(fd, refusal, words[i].n_bytes, 0), words[i].n_bytes);
		close(fd); /* the listening side closes before the client polls */
		assert_true(RUN_ONE(&n, n.n_down == i + 1, DEADLINE_MS));
		assert_non_null(strstr(n.why, words[i].why));
	}
	close(listen_fd);
	net_node_close(&n);
}

static void proof_may_come_byte_by_byte(void **state)
{
	struct net_config cfg = config_of(false);
	uint8_t proof[PROOF_BYTES], hello[sizeof(struct tcp_frame) + WIRE_HDR_BYTES];
	uint16_t port;
	int listen_fd = listen_raw(&port), fds[N_LANES];
	size_t at = 0;
	struct net_node n;

	(void)state;
	net_node_open(&n, &cfg);
	assert_int_equal(dial(&n, port, the_key), 0);
	for (unsigned lane = 0; lane < N_LANES; lane++) {
		struct ticket t;

		fds[lane] = take_ticket(listen_fd, &n, &t);
		assert_int_equal(t.channel, lane);
		seal_proof(&t, proof);
		for (unsigned i = 0; i < sizeof(proof); i++) {
			assert_int_equal(n.n_up, 0);
			assert_int_equal(send(fds[lane], proof + i, 1, 0), 1);
			RUN_ONE(&n, false, 1);
		}
	}
	assert_true(RUN_ONE(&n, n.n_up == 1, DEADLINE_MS));
	assert_true(RUN_ONE(&n, has_come(fds[0], hello, &at, sizeof(hello)), DEADLINE_MS));
	close(fds[LANE_BULK]);
	assert_true(RUN_ONE(&n, n.n_down == 1, DEADLINE_MS));
	close(fds[LANE_MESSAGES]);
	close(listen_fd);
	net_node_close(&n);
}

static void peer_without_the_key_is_rejected(void **state)
{
	struct net_config cfg = config_of(false);
	uint8_t proof[PROOF_BYTES];
	uint16_t port;
	int listen_fd = listen_raw(&port);
	struct net_node n;

	(void)state;
	net_node_open(&n, &cfg);
	for (unsigned i = 0; i < PROOF_BYTES; i += 13) {
		unsigned n_down = n.n_down;
		struct ticket t;
		int fd;

		assert_int_equal(dial(&n, port, the_key), 0);
		fd = take_ticket(listen_fd, &n, &t);
		seal_proof(&t, proof);
		proof[i] ^= 1;
		assert_int_equal(send(fd, proof, sizeof(proof), 0), sizeof(proof));
		assert_true(RUN_ONE(&n, n.n_down == n_down + 1, DEADLINE_MS));
		assert_non_null(strstr(n.why, "prove"));
		close(fd);
	}
	assert_int_equal(n.n_up, 0);
	close(listen_fd);
	net_node_close(&n);
}

/* ---- strangers ---- */

static void flood_of_strangers_blocks_no_peer(void **state)
{
	uint8_t ticket[TICKET_BYTES];
	struct net_stats s;
	struct net_rig r;
	unsigned before;
	int fds[3 * TCP_PENDING_MAX];

	(void)state;
	net_rig_open(&r);
	seal_channel(5, CHANNEL_FIRST, ticket);
	before = count_fds();
	/* Send all but the last byte of a valid ticket and then nothing. */
	for (unsigned i = 0; i < 3 * TCP_PENDING_MAX; i++)
		fds[i] = stranger(net_port(r.server.f), ticket, TICKET_BYTES - 1);
	rig_connect(&r);
	assert_in_range(count_fds(), before,
		before + 3 * TCP_PENDING_MAX + TCP_PENDING_MAX + 2 * N_CHANNELS);
	/* The listener closes all of these connections at their deadline. */
	RUN(&r, (net_stats(r.server.f, &s), s.silent_strangers) == 3 * TCP_PENDING_MAX);
	assert_int_equal(count_fds(), before + 3 * TCP_PENDING_MAX + 2 * N_CHANNELS);
	assert_int_equal(r.server.n_down + r.client.n_down, 0);
	for (unsigned i = 0; i < 3 * TCP_PENDING_MAX; i++)
		close(fds[i]);
	net_rig_close(&r);
}

static void listener_recovers_from_too_many_open_files(void **state)
{
	struct rlimit before, few;
	int fillers[64], n = 0, fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct net_rig r;
	struct raw_conn p = {.rig = &r, .fds = {-1, -1}};
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	uint8_t ticket[TICKET_BYTES], proof[PROOF_BYTES];
	size_t at = 0;

	(void)state;
	net_rig_open(&r);
	p.fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = count_fds() + 8;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (n < 64 && (fillers[n] = dup(fd)) >= 0)
		n++;
	assert_in_range(n, 1, 63);
	seal_channel(5, CHANNEL_FIRST, ticket);
	sa.sin_port = htons(net_port(r.server.f));
	assert_int_equal(connect(p.fds[0], (struct sockaddr *)&sa, sizeof(sa)), 0);
	raw_send(&p, LANE_MESSAGES, ticket, sizeof(ticket));
	assert_false(RUN_MS(&r, has_come(p.fds[0], proof, &at, sizeof(proof)), 50));
	while (n)
		close(fillers[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	RUN(&r, has_come(p.fds[0], proof, &at, sizeof(proof)));
	raw_close(&p);
	close(fd);
	net_rig_close(&r);
}

static void refused_and_ended_connections_leave_no_descriptor(void **state)
{
	uint8_t wrong[TICKET_KEY_BYTES] = {1};
	struct net_stats s;
	struct net_rig r;
	unsigned before;

	(void)state;
	net_rig_open(&r);
	before = count_fds();
	for (unsigned i = 1; i <= 20; i++) {
		assert_int_equal(dial(&r.client, net_port(r.server.f), i % 2 ? the_key : wrong), 0);
		RUN(&r, r.client.n_up + r.client.n_down == i);
		if (i % 2)
			xport_close(r.client.conn, "test");
		RUN(&r, r.client.n_down == i && r.server.n_up == r.server.n_down);
	}
	RUN(&r, (net_stats(r.server.f, &s), s.connections == 0));
	assert_int_equal(count_fds(), before);
	net_rig_close(&r);
}

/* ---- many connections ---- */

static void connections_beyond_the_limit_are_refused(void **state)
{
	/* The test's process needs descriptors for both ends of each channel. */
	const rlim_t need = 2 * N_CHANNELS * TCP_CONNS_MAX + 100;
	struct err_text err;
	struct net_node second = {0};
	struct rlimit few, many;
	struct net_rig r;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &few), 0);
	many = few;
	many.rlim_cur = need;
	if (few.rlim_max < need)
		skip();
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &many), 0);
	net_rig_open(&r);
	assert_int_equal(net_xport_new(r.client.f, 1, &rig_events, &second, &second.x, &err), 0);
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++) {
		assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
		if (i % 32 == 31)
			RUN(&r, r.server.n_up == i + 1);
	}
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), -EMFILE);
	r.third = &second;
	assert_int_equal(dial(&second, net_port(r.server.f), the_key), 0);
	RUN(&r, second.n_down == 1);
	assert_non_null(strstr(second.why, "no room"));
	/* The connections that exist still work. */
	r.server.on_message = echo;
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++)
		assert_int_equal(
			send_round(&((struct tcp_xport *)r.client.x)->conns[i]->base.pub, i + 1),
			0);
	RUN(&r, r.client.n_messages == TCP_CONNS_MAX);
	assert_int_equal(r.client.n_down + r.server.n_down, 0);
	xport_free(second.x);
	net_rig_close(&r);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
}

static void version_6_of_ip_works_too(void **state)
{
	struct net_config cfg = config_of(true);
	struct net_rig r = {.third = NULL};
	struct err_text err;

	(void)state;
	cfg.bind_addr = "::1";
	net_node_begin(&r.server);
	if (net_open(&cfg, rig_key_of, &r.server, &r.server.f, &err))
		skip();
	net_node_attach(&r.server);
	cfg = config_of(false);
	cfg.bind_addr = "::1";
	net_node_open(&r.client, &cfg);
	assert_int_equal(r.client.x->ops->connect(r.client.x, "::1", net_port(r.server.f), 0,
				 SERVER_ID, SERVER_INSTANCE, the_key, NULL, &r.client.conn),
		0);
	RUN(&r, r.client.n_up == 1 && r.server.n_up == 1);
	net_rig_close(&r);
}

/* ---- options of the sockets ---- */

static void expect_congestion(const struct net_node *n, const char *name)
{
	for (unsigned i = 0; i < N_LANES; i++) {
		char now[CONGESTION_NAME_MAX + 1] = "";
		socklen_t len = sizeof(now) - 1;

		assert_int_equal(getsockopt(tcp_conn_of(n)->lanes[i].fd, IPPROTO_TCP,
					 TCP_CONGESTION, now, &len),
			0);
		assert_string_equal(now, name);
	}
}

static void sockets_of_both_ends_have_the_congestion_control_that_is_set(void **state)
{
	char system[CONGESTION_NAME_MAX + 1] = "", other[CONGESTION_NAME_MAX + 1];
	socklen_t len = sizeof(system) - 1;
	struct net_config cfg = config_of(true);
	struct net_rig r = {.third = NULL};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct err_text err;

	(void)state;
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, system, &len), 0);
	close(fd);
	cfg.congestion = strcmp(system, "reno") == 0 ? "cubic" : "reno";
	if (congestion_find(cfg.congestion, other, &err))
		skip(); /* the kernel has only reno */
	net_node_open(&r.server, &cfg);
	cfg = config_of(false);
	cfg.congestion = other;
	net_node_open(&r.client, &cfg);
	rig_connect(&r);
	expect_congestion(&r.client, other);
	expect_congestion(&r.server, other);
	net_rig_close(&r);
}

static uint64_t pace_of(const struct tcp_conn *c)
{
	uint64_t rate = 0;
	socklen_t len = sizeof(rate);

	assert_int_equal(
		getsockopt(c->lanes[LANE_BULK].fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len), 0);
	return rate;
}

/* Return the number of unsent bytes that the kernel may hold (TCP_NOTSENT_LOWAT). */
static int unsent_of(const struct tcp_conn *c)
{
	int bytes;
	socklen_t len = sizeof(bytes);

	assert_int_equal(
		getsockopt(c->lanes[LANE_BULK].fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &len),
		0);
	return bytes;
}

static void sockets_that_are_there_and_new_ones_are_paced_when_the_link_is_slow(void **state)
{
	struct net_rig r;
	struct tcp_xport *x;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	x = tcp_xport_of_conn(tcp_conn_of(&r.client));
	assert_true(pace_of(tcp_conn_of(&r.client)) == UINT64_MAX);
	assert_int_equal(unsent_of(tcp_conn_of(&r.client)), SOCKET_AHEAD_SLOW);
	x->window.is_quick = x->window.is_paced = true;
	tcp_set_windows(x);
	assert_true(pace_of(tcp_conn_of(&r.client)) == UINT64_MAX - 1);
	assert_int_equal(unsent_of(tcp_conn_of(&r.client)), SOCKET_AHEAD);
	assert_int_equal(x->base.pub.ahead_bytes, SOCKET_AHEAD);
	xport_close(r.client.conn, "once more");
	RUN(&r, r.server.n_down == 1);
	r.client.n_up = r.server.n_up = 0;
	rig_connect(&r);
	assert_true(pace_of(tcp_conn_of(&r.client)) == UINT64_MAX - 1);
	assert_int_equal(unsent_of(tcp_conn_of(&r.client)), SOCKET_AHEAD);
	assert_true(pace_of(tcp_conn_of(&r.server)) == UINT64_MAX);
	assert_int_equal(unsent_of(tcp_conn_of(&r.server)), SOCKET_AHEAD_SLOW);
	net_rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_probe_gets_as_many_bytes_as_it_has_sent),
		cmocka_unit_test(path_probe_whose_answer_is_not_read_is_reset),
		cmocka_unit_test(ticket_and_message_may_come_byte_by_byte),
		cmocka_unit_test(ticket_with_an_unknown_flag_is_malformed),
		cmocka_unit_test(no_byte_of_a_ticket_may_be_wrong),
		cmocka_unit_test(each_channel_comes_once_and_in_order),
		cmocka_unit_test(message_before_the_second_channel_is_refused),
		cmocka_unit_test(connection_that_does_not_go_on_is_dropped),
		cmocka_unit_test(refusal_and_close_are_processed_together),
		cmocka_unit_test(proof_may_come_byte_by_byte),
		cmocka_unit_test(peer_without_the_key_is_rejected),
		cmocka_unit_test(flood_of_strangers_blocks_no_peer),
		cmocka_unit_test(listener_recovers_from_too_many_open_files),
		cmocka_unit_test(refused_and_ended_connections_leave_no_descriptor),
		cmocka_unit_test(connections_beyond_the_limit_are_refused),
		cmocka_unit_test(version_6_of_ip_works_too),
		cmocka_unit_test(sockets_of_both_ends_have_the_congestion_control_that_is_set),
		cmocka_unit_test(
			sockets_that_are_there_and_new_ones_are_paced_when_the_link_is_slow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
