/* The control channel over real sockets on 127.0.0.1: keys, limits for peers without a key,
 * malformed bytes, reconnection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "common/base/clock.h"
#include "common/control/ctlchan.h"
#include "common/control/ctlclient.h"

#define DEADLINE_MS 5000
#define SILENCE_MS  200

enum { SAY = 7, ECHO_BACK = 8, SAY_AND_CLOSE = 9, NOT_TRUSTED = 10 };

/* A listener and a client. When a peer sends a frame of a type other than NOT_TRUSTED, the listener
 * trusts the peer. */
struct ctlchan_fixture {
	struct event_base *base;
	struct ctllisten *listen;
	uint16_t port;
	struct ctlclient *client;
	uint32_t trust_ms;     /* the listener's trust_timeout_ms; 0: default */
	unsigned max_per_host; /* the listener's max_untrusted_per_host; 0: default */
	bool trusts_all;       /* the listener trusts each peer that has connected */

	unsigned n_opened, n_closed, n_frames; /* counters of the listener */
	struct ctlchan *last;
	char identity[TLS_IDENTITY_BYTES];
	char closed_reason[ERR_TEXT_BYTES];
	size_t last_body;
	uint64_t sum; /* sum of the values of all bytes in received bodies */

	unsigned n_up, n_down, n_failed, n_client_frames; /* counters of the client */
	size_t client_body;
	char down_reason[ERR_TEXT_BYTES];
	int told; /* pipe that has a byte when the peer has reset the connection */
};

static const struct cluster_key key_a = {{1, 2, 3}}, key_b = {{4, 5, 6}};

static void on_opened(void *arg, struct ctlchan *c)
{
	struct ctlchan_fixture *f = arg;

	f->n_opened++;
	f->last = c;
	if (f->trusts_all)
		ctlchan_set_trusted(c);
	snprintf(f->identity, sizeof(f->identity), "%s", ctlchan_identity(c));
}

static void on_frame(void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n)
{
	struct ctlchan_fixture *f = arg;

	f->n_frames++;
	f->last_body = n;
	for (size_t i = 0; i < n; i++)
		f->sum += body[i];
	if (type != NOT_TRUSTED)
		ctlchan_set_trusted(c);
	if (type == ECHO_BACK)
		assert_int_equal(ctlchan_send(c, ECHO_BACK, body, n), 0);
	if (type == SAY_AND_CLOSE) {
		assert_int_equal(ctlchan_send(c, SAY, body, n), 0);
		ctlchan_close(c, "said enough");
		assert_int_equal(ctlchan_send(c, SAY, body, n), BPS_ECLOSED);
	}
}

static void on_closed(void *arg, struct ctlchan *c, const char *reason)
{
	struct ctlchan_fixture *f = arg;

	if (c == f->last)
		f->last = NULL;
	f->n_closed++;
	snprintf(f->closed_reason, sizeof(f->closed_reason), "%s", reason);
}

static const struct ctlchan_ops listen_ops = {on_opened, on_frame, on_closed};

static void on_up(void *arg, struct ctlclient *c)
{
	struct ctlchan_fixture *f = arg;

	(void)c;
	f->n_up++;
}

static void on_client_frame(
	void *arg, struct ctlclient *c, uint16_t type, const uint8_t *body, size_t n)
{
	struct ctlchan_fixture *f = arg;

	(void)c;
	(void)type;
	(void)body;
	f->n_client_frames++;
	f->client_body = n;
}

static void on_down(void *arg, struct ctlclient *c, const char *reason, bool was_up)
{
	struct ctlchan_fixture *f = arg;

	assert_int_equal(ctlclient_send(c, 0, NULL, 0), BPS_ECLOSED);
	if (was_up)
		f->n_down++;
	else
		f->n_failed++;
	snprintf(f->down_reason, sizeof(f->down_reason), "%s", reason);
}

static const struct ctlclient_ops client_ops = {on_up, on_client_frame, on_down};

static struct ctlchan_fixture *fixture_new(void)
{
	struct ctlchan_fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->base = event_base_new();
	assert_non_null(f->base);
	return f;
}

static void fixture_free(struct ctlchan_fixture *f)
{
	ctlclient_free(f->client);
	ctllisten_free(f->listen);
	event_base_loop(f->base, EVLOOP_NONBLOCK); /* libevent closes descriptors in the loop */
	event_base_free(f->base);
	free(f);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	*(bool *)arg = true;
}

/* Run the loop until *counter is at least `want`. Fails the test at the deadline. */
static void run_until(struct ctlchan_fixture *f, const unsigned *counter, unsigned want)
{
	struct timeval tv = {.tv_sec = DEADLINE_MS / 1000};
	bool is_late = false;
	struct event *timer = evtimer_new(f->base, on_deadline, &is_late);

	evtimer_add(timer, &tv);
	while (*counter < want && !is_late)
		event_base_loop(f->base, EVLOOP_ONCE);
	event_free(timer);
	assert_true(*counter >= want);
}

static struct keyring no_key(void)
{
	return (struct keyring){.n_keys = 0};
}

static struct keyring one_key(struct cluster_key key)
{
	return (struct keyring){.key = {key}, .n_keys = 1};
}

static void start_listen(struct ctlchan_fixture *f, struct keyring keys, uint16_t port)
{
	struct ctllisten_conf conf = {
		.addr = {.host = "127.0.0.1", .port = port},
		.auth.keys = keys,
		.trust_timeout_ms = f->trust_ms,
		.max_untrusted_per_host = f->max_per_host,
	};
	struct err_text err;

	assert_int_equal(ctllisten_new(&f->listen, f->base, &conf, &listen_ops, f, &err), 0);
	f->port = ctllisten_port(f->listen);
	assert_true(f->port > 0);
}

static void start_client(
	struct ctlchan_fixture *f, const struct cluster_key *key, const char *identity)
{
	struct ctlclient_conf conf = {
		.addr = {.host = "127.0.0.1", .port = f->port},
		.identity = identity,
	};
	struct err_text err;

	if (key)
		conf.auth.keys = one_key(*key);
	assert_int_equal(ctlclient_new(&f->client, f->base, &conf, &client_ops, f, &err), 0);
}

static struct ctllisten_stats stats(const struct ctlchan_fixture *f)
{
	struct ctllisten_stats s;

	ctllisten_stats(f->listen, &s);
	return s;
}

/* Open a plain TCP connection without a key, from the address 127.0.0.(1 + `from`). The connection
 * is blocking and has a receive deadline. */
static int stranger_from(const struct ctlchan_fixture *f, unsigned from)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000000 + from)}};
	struct sockaddr_in sin = {.sin_family = AF_INET,
		.sin_port = htons(f->port),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct timeval tv = {.tv_sec = DEADLINE_MS / 1000};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	return fd;
}

static int stranger(const struct ctlchan_fixture *f)
{
	return stranger_from(f, 1);
}

/* Listen on a free port of 127.0.0.1. */
static int listen_somewhere(uint16_t *ret_port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	*ret_port = ntohs(sin.sin_port);
	return fd;
}

static void put(int fd, const void *bytes, size_t n)
{
	assert_int_equal(write(fd, bytes, n), n);
}

static void put_frame(int fd, uint16_t type, const void *body, size_t n)
{
	uint8_t head[CTLFRAME_HEAD_BYTES];

	ctlframe_write_head(head, type, n);
	put(fd, head, sizeof(head));
	put(fd, body, n);
}

/* Return whether the peer has closed fd. */
static bool is_hung_up(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, 0);

	return n == 0 || (n < 0 && errno == ECONNRESET);
}

static void echo(struct ctlchan_fixture *f, size_t n_body)
{
	unsigned want = f->n_client_frames + 1;
	uint8_t *body = calloc(1, n_body + 1);

	assert_int_equal(ctlclient_send(f->client, ECHO_BACK, body, n_body), 0);
	free(body);
	run_until(f, &f->n_client_frames, want);
	assert_int_equal(f->client_body, n_body);
}

/* --- keys ------------------------------------------------------------------------------------- */

static void right_key_works_and_the_identity_arrives(void **state)
{
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, one_key(key_a), 0);
	start_client(f, &key_a, "server:node7");
	run_until(f, &f->n_up, 1);
	run_until(f, &f->n_opened, 1);
	assert_string_equal(f->identity, "server:node7");
	echo(f, 100);
	echo(f, CTLFRAME_MAX_BYTES - 2);
	echo(f, 0);
	assert_int_equal(stats(f).trusted, 1);
	assert_int_equal(stats(f).untrusted, 0);
	fixture_free(f);
}

static void host_key_works_for_its_own_name_only(void **state)
{
	struct ctllisten_refusal refusals[CTLLISTEN_REFUSALS_KEPT];
	struct ctlchan_fixture *f = fixture_new();
	struct cluster_key host_key;

	(void)state;
	assert_int_equal(key_derive_for_host(&host_key, &key_a, "agent:node1"), 0);
	start_listen(f, one_key(key_a), 0);
	start_client(f, &host_key, "agent:node1");
	run_until(f, &f->n_opened, 1);
	assert_string_equal(f->identity, "agent:node1");
	assert_int_equal(ctllisten_refusals(f->listen, 60000, refusals), 0);
	ctlclient_free(f->client);
	start_client(f, &host_key, "server:node1");
	run_until(f, &f->n_failed, 1);
	assert_int_equal(f->n_opened, 1);
	assert_int_equal(stats(f).auth_failures, 1);
	assert_int_equal(ctllisten_refusals(f->listen, 60000, refusals), 1);
	assert_string_equal(refusals[0].identity, "server:node1");
	fixture_free(f);
}

static void current_and_previous_key_both_work(void **state)
{
	struct keyring keys = {.key = {key_a, key_b}, .n_keys = 2};
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, keys, 0);
	start_client(f, &key_b, "server:a");
	run_until(f, &f->n_up, 1);
	ctlclient_free(f->client);
	start_client(f, &key_a, "server:a");
	run_until(f, &f->n_up, 2);
	fixture_free(f);
}

static struct tls_conf auth_of(struct keyring keys)
{
	return (struct tls_conf){.keys = keys};
}

static int set_keys(struct ctlchan_fixture *f, struct keyring keys)
{
	struct tls_conf auth = auth_of(keys);
	struct err_text err;

	return ctllisten_set_auth(f->listen, &auth, &err);
}

static void connection_with_a_dropped_key_is_closed(void **state)
{
	struct keyring both = {.key = {key_b, key_a}, .n_keys = 2};
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, one_key(key_a), 0);
	start_client(f, &key_a, "server:a");
	run_until(f, &f->n_up, 1);
	assert_int_equal(set_keys(f, no_key()), -EINVAL);
	assert_int_equal(set_keys(f, both), 0);
	echo(f, 1);
	assert_int_equal(set_keys(f, one_key(key_b)), 1);
	run_until(f, &f->n_down, 1);
	run_until(f, &f->n_failed, 1);
	ctlclient_free(f->client);
	start_client(f, &key_b, "server:a");
	run_until(f, &f->n_up, 2);
	fixture_free(f);
}

static void revoked_host_key_is_refused_and_its_connections_are_closed(void **state)
{
	struct keyring ring = one_key(key_a);
	struct ctlchan_fixture *f = fixture_new();
	struct cluster_key key;

	(void)state;
	assert_int_equal(key_derive_for_host(&key, &key_a, "server:a"), 0);
	start_listen(f, ring, 0);
	start_client(f, &key, "server:a");
	run_until(f, &f->n_up, 1);
	run_until(f, &f->n_opened, 1);
	assert_int_equal(keyring_revoke(&ring, "server:b"), 0);
	assert_int_equal(set_keys(f, ring), 0);
	assert_int_equal(keyring_revoke(&ring, "server:a"), 0);
	assert_int_equal(set_keys(f, ring), 1);
	run_until(f, &f->n_closed, 1);
	run_until(f, &f->n_failed, 1);
	assert_non_null(strstr(f->down_reason, "keys do not match"));
	assert_int_equal(f->n_up, 1);
	assert_true(stats(f).auth_failures > 0);
	fixture_free(f);
}

static int client_set_key(struct ctlchan_fixture *f, struct cluster_key key)
{
	struct tls_conf auth = auth_of(one_key(key));
	struct err_text err;

	return ctlclient_set_auth(f->client, &auth, &err);
}

static void client_changes_to_the_new_key_without_a_gap(void **state)
{
	struct keyring both = {.key = {key_b, key_a}, .n_keys = 2};
	struct ctlchan_fixture *f = fixture_new();
	char print[KEY_PRINT_BYTES];

	(void)state;
	start_listen(f, both, 0);
	start_client(f, &key_a, "server:a");
	run_until(f, &f->n_up, 1);
	assert_int_equal(client_set_key(f, key_b), 0);
	assert_int_equal(f->n_down, 0);
	run_until(f, &f->n_up, 2);
	assert_int_equal(f->n_down, 1);
	assert_int_equal(f->n_failed, 0);
	run_until(f, &f->n_opened, 2);
	assert_int_equal(key_fingerprint(&key_b, print), 0);
	assert_string_equal(ctlchan_master(f->last), print);
	echo(f, 1);
	/* the client already uses this key, so the connection stays */
	assert_int_equal(client_set_key(f, key_b), 0);
	echo(f, 1);
	assert_int_equal(f->n_up, 2);
	fixture_free(f);
}

static void client_keeps_its_connection_while_the_new_key_is_refused(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	uint16_t port;

	(void)state;
	start_listen(f, one_key(key_a), 0);
	port = f->port;
	start_client(f, &key_a, "server:a");
	run_until(f, &f->n_up, 1);
	assert_int_equal(client_set_key(f, key_b), 0);
	while (stats(f).auth_failures == 0)
		event_base_loop(f->base, EVLOOP_ONCE);
	echo(f, 1);
	assert_int_equal(f->n_down, 0);
	/* The client retries until it is accepted. */
	ctllisten_free(f->listen);
	start_listen(f, one_key(key_b), port);
	run_until(f, &f->n_up, 2);
	fixture_free(f);
}

static void wrong_key_soon_after_a_good_one_costs_no_connection(void **state)
{
	struct cluster_key wrong = {"a key that nobody else has......"};
	struct keyring both = {.key = {key_b, key_a}, .n_keys = 2};
	bool is_taken = false;

	(void)state;
	/* Peers without a key connect in every turn of the loop until the client with the key is
	 * accepted. */
	for (unsigned n = 0; !is_taken; n++) {
		struct ctlchan_fixture *f = fixture_new();

		start_listen(f, both, 0);
		start_client(f, &key_a, "server:a");
		run_until(f, &f->n_up, 1);
		run_until(f, &f->n_opened, 1);
		assert_int_equal(client_set_key(f, key_b), 0);
		for (unsigned i = 0; i < n; i++)
			event_base_loop(f->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
		is_taken = f->n_up == 2;
		assert_int_equal(client_set_key(f, wrong), 0);
		while (stats(f).auth_failures == 0)
			event_base_loop(f->base, EVLOOP_ONCE);
		assert_int_equal(f->n_down, is_taken);
		echo(f, 1);
		fixture_free(f);
	}
}

static void wrong_key_is_refused_and_logged_once(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	FILE *log = tmpfile();
	int saved = dup(STDERR_FILENO);
	char text[4096] = "";
	char *first;

	(void)state;
	start_listen(f, one_key(key_a), 0);
	start_client(f, &key_b, "server:node7");
	fflush(stderr);
	dup2(fileno(log), STDERR_FILENO);
	run_until(f, &f->n_failed, 3);
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(log);
	assert_true(fread(text, 1, sizeof(text) - 1, log) > 0);
	fclose(log);
	assert_non_null(strstr(f->down_reason, "the cluster keys do not match"));
	first = strstr(text, "control channel: refused a connection: TLS with 127.0.0.1:");
	assert_non_null(first);
	assert_non_null(strstr(first, "the cluster keys do not match"));
	assert_non_null(strstr(first, "identity=server:node7"));
	assert_null(strstr(first + 40, "refused a connection"));
	assert_int_equal(f->n_opened, 0);
	assert_int_equal(f->n_up, 0);
	assert_true(stats(f).auth_failures >= 2);
	fixture_free(f);
}

static void peer_without_key_is_refused_by_a_peer_with_key(void **state)
{
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, one_key(key_a), 0);
	start_client(f, NULL, NULL);
	/* over plain TCP, on_up is called before the peer refuses the client */
	run_until(f, &f->n_up, 1);
	assert_int_equal(ctlclient_send(f->client, SAY, "hello", 5), 0);
	run_until(f, &f->n_down, 1);
	assert_int_equal(f->n_opened, 0);
	assert_non_null(strstr(f->down_reason, "it may require a cluster key, see --key-file"));
	fixture_free(f);
}

static void client_with_key_refuses_a_listener_without(void **state)
{
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, no_key(), 0);
	start_client(f, &key_a, "server:x");
	run_until(f, &f->n_failed, 1);
	assert_int_equal(f->n_up, 0);
	assert_int_equal(f->n_frames, 0);
	fixture_free(f);
}

/* A TLS 1.3 listener that has a certificate but not the cluster's key. */
struct impostor {
	SSL_CTX *ctx;
	struct evconnlistener *listener;
	struct bufferevent *bev;
	unsigned n_handshakes;
};

static void on_impostor_event(struct bufferevent *bev, short what, void *arg)
{
	struct impostor *im = arg;

	(void)bev;
	im->n_handshakes += (what & BEV_EVENT_CONNECTED) != 0;
}

static void on_impostor_accept(
	struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int sa_len, void *arg)
{
	struct impostor *im = arg;

	(void)sa;
	(void)sa_len;
	if (im->bev)
		bufferevent_free(im->bev);
	im->bev = bufferevent_openssl_socket_new(evconnlistener_get_base(l), fd, SSL_new(im->ctx),
		BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
	bufferevent_setcb(im->bev, NULL, NULL, on_impostor_event, im);
	bufferevent_enable(im->bev, EV_READ | EV_WRITE);
}

static void certify(SSL_CTX *ctx)
{
	EVP_PKEY *pkey = EVP_EC_gen("P-256");
	X509 *cert = X509_new();

	ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
	X509_gmtime_adj(X509_getm_notBefore(cert), 0);
	X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
	X509_set_pubkey(cert, pkey);
	assert_true(X509_sign(cert, pkey, EVP_sha256()) > 0);
	assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
	assert_int_equal(SSL_CTX_use_PrivateKey(ctx, pkey), 1);
	X509_free(cert);
	EVP_PKEY_free(pkey);
}

static void listener_with_a_certificate_instead_of_the_key_is_refused(void **state)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct impostor im = {.ctx = SSL_CTX_new(TLS_server_method())};
	struct ctlchan_fixture *f = fixture_new();
	socklen_t len = sizeof(sin);

	(void)state;
	certify(im.ctx);
	im.listener = evconnlistener_new_bind(f->base, on_impostor_accept, &im,
		LEV_OPT_CLOSE_ON_FREE, 8, (struct sockaddr *)&sin, sizeof(sin));
	assert_int_equal(
		getsockname(evconnlistener_get_fd(im.listener), (struct sockaddr *)&sin, &len), 0);
	f->port = ntohs(sin.sin_port);
	start_client(f, &key_a, "server:x");
	run_until(f, &f->n_failed, 1);
	assert_int_equal(f->n_up, 0);
	assert_non_null(strstr(f->down_reason, "did not use the cluster key"));
	/* The TLS handshake succeeded. Only the proof of the key was missing. */
	run_until(f, &im.n_handshakes, 1);
	ctlclient_free(f->client);
	f->client = NULL;
	bufferevent_free(im.bev);
	evconnlistener_free(im.listener);
	SSL_CTX_free(im.ctx);
	fixture_free(f);
}

/* Make a certificate that is signed with its own key. Write both to the PEM file `path`. */
static void write_certificate(const char *path, const char *cn)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	FILE *out = fopen(path, "we");
	X509_NAME *name;
	X509 *cert;

	certify(ctx);
	cert = X509_dup(SSL_CTX_get0_certificate(ctx));
	name = X509_NAME_new();
	X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)cn, -1, -1, 0);
	X509_set_subject_name(cert, name);
	X509_set_issuer_name(cert, name);
	X509_NAME_free(name);
	assert_true(X509_sign(cert, SSL_CTX_get0_privatekey(ctx), EVP_sha256()) > 0);
	assert_int_equal(fchmod(fileno(out), 0600), 0);
	assert_int_equal(PEM_write_X509(out, cert), 1);
	assert_int_equal(
		PEM_write_PrivateKey(out, SSL_CTX_get0_privatekey(ctx), NULL, NULL, 0, NULL, NULL),
		1);
	fclose(out);
	X509_free(cert);
	SSL_CTX_free(ctx);
}

/* Process that accepts one connection, refuses the peer's certificate with an alert, resets the
 * connection, and then writes a byte to `told`. */
static _Noreturn void refuse_one(int listener, const char *pem, int told)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	struct linger reset = {.l_onoff = 1};
	SSL *ssl;
	int fd;

	alarm(DEADLINE_MS / 1000);
	SSL_CTX_use_certificate_file(ctx, pem, SSL_FILETYPE_PEM);
	SSL_CTX_use_PrivateKey_file(ctx, pem, SSL_FILETYPE_PEM);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	ssl = SSL_new(ctx);
	fd = accept(listener, NULL, NULL);
	SSL_set_fd(ssl, fd);
	if (SSL_accept(ssl) > 0)
		_exit(1);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
	_exit(write(told, "", 1) != 1);
}

/* Wait until the connection is reset, then send the first frame. */
static void on_up_and_reset(void *arg, struct ctlclient *c)
{
	struct ctlchan_fixture *f = arg;
	char told;

	assert_int_equal(read(f->told, &told, 1), 1);
	f->n_up++;
	assert_int_equal(ctlclient_send(c, SAY, "", 1), 0);
}

static void alert_after_the_handshake_is_the_reason_even_if_a_write_fails_first(void **state)
{
	static const struct ctlclient_ops ops = {on_up_and_reset, on_client_frame, on_down};
	char dir[] = "/tmp/bps-certs-XXXXXX", ours[64], theirs[64];
	struct ctlchan_fixture *f = fixture_new();
	struct ctlclient_conf conf = {.addr = {.host = "127.0.0.1"}, .identity = "server:x"};
	struct err_text err;
	int listener = listen_somewhere(&conf.addr.port), pipe_fd[2], status;
	pid_t pid;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(ours, sizeof(ours), "%s/server.pem", dir);
	snprintf(theirs, sizeof(theirs), "%s/scheduler.pem", dir);
	write_certificate(ours, "server:x");
	write_certificate(theirs, "scheduler:x");
	assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
	pid = fork();
	if (!pid)
		refuse_one(listener, theirs, pipe_fd[1]);
	close(listener);
	close(pipe_fd[1]);
	f->told = pipe_fd[0];
	conf.auth = (struct tls_conf){.cert = ours, .key = ours, .ca = theirs};
	assert_int_equal(ctlclient_new(&f->client, f->base, &conf, &ops, f, &err), 0);
	run_until(f, &f->n_down, 1);
	assert_int_equal(f->n_up, 1);
	assert_non_null(strstr(f->down_reason, "the other side refuses this certificate"));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(f->told);
	fixture_free(f);
	unlink(ours);
	unlink(theirs);
	rmdir(dir);
}

static void without_key_only_loopback_is_allowed(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctllisten_conf conf = {.addr = {.host = "0.0.0.0"}};
	struct ctlclient_conf client_conf = {.addr = {.host = "192.0.2.1", .port = 9}};
	struct err_text err;

	(void)state;
	assert_int_equal(ctllisten_new(&f->listen, f->base, &conf, &listen_ops, f, &err), -EPERM);
	assert_string_equal(err.s,
		"cannot listen on 0.0.0.0:0: without a cluster key only loopback addresses are "
		"allowed (set a key file, or listen on 127.0.0.1)");
	strcpy(conf.addr.host, "*");
	assert_int_equal(ctllisten_new(&f->listen, f->base, &conf, &listen_ops, f, &err), -EPERM);
	assert_int_equal(ctlclient_new(&f->client, f->base, &client_conf, &client_ops, f, &err), 0);
	run_until(f, &f->n_failed, 1);
	assert_string_equal(f->down_reason,
		"cannot connect to 192.0.2.1:9: without a cluster key only loopback addresses "
		"are allowed (set a key file)");
	fixture_free(f);
}

static void with_key_any_address_is_allowed(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctllisten_conf conf = {.addr = {.host = "0.0.0.0"}, .auth.keys = one_key(key_a)};
	struct err_text err;

	(void)state;
	assert_int_equal(ctllisten_new(&f->listen, f->base, &conf, &listen_ops, f, &err), 0);
	fixture_free(f);
}

static void ipv6_loopback_works(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctllisten_conf conf = {.addr = {.host = "::1"}};
	struct ctlclient_conf client_conf = {.addr = {.host = "::1"}};
	struct err_text err;
	int rc = ctllisten_new(&f->listen, f->base, &conf, &listen_ops, f, &err);

	(void)state;
	if (rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT) {
		fixture_free(f);
		skip();
	}
	assert_int_equal(rc, 0);
	client_conf.addr.port = ctllisten_port(f->listen);
	assert_int_equal(ctlclient_new(&f->client, f->base, &client_conf, &client_ops, f, &err), 0);
	run_until(f, &f->n_up, 1);
	run_until(f, &f->n_opened, 1);
	assert_memory_equal(ctlchan_peer_address(f->last), "[::1]:", 6);
	fixture_free(f);
}

/* --- strangers -------------------------------------------------------------------------------- */

static void silent_connection_is_closed_after_its_time(void **state)
{
	struct keyring keys[] = {no_key(), one_key(key_a)};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct ctlchan_fixture *f = fixture_new();
		unsigned timeouts = 0;
		int fd;

		f->trust_ms = SILENCE_MS;
		start_listen(f, keys[i], 0);
		fd = stranger(f);
		while (!timeouts) {
			event_base_loop(f->base, EVLOOP_ONCE);
			timeouts = (unsigned)stats(f).trust_timeouts;
		}
		event_base_loop(f->base, EVLOOP_NONBLOCK);
		event_base_loop(f->base, EVLOOP_NONBLOCK);
		assert_true(is_hung_up(fd));
		assert_int_equal(stats(f).untrusted, 0);
		assert_int_equal(f->n_closed, f->n_opened);
		close(fd);
		fixture_free(f);
	}
}

static void frames_before_registration_do_not_extend_the_deadline(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	int fd;

	(void)state;
	f->trust_ms = SILENCE_MS;
	start_listen(f, no_key(), 0);
	fd = stranger(f);
	put_frame(fd, NOT_TRUSTED, "x", 1);
	run_until(f, &f->n_frames, 1);
	run_until(f, &f->n_closed, 1);
	assert_non_null(strstr(f->closed_reason, "did not authenticate in time"));
	close(fd);
	fixture_free(f);
}

static void seventy_silent_connections_do_not_stop_a_good_one(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	int fds[70];

	(void)state;
	start_listen(f, one_key(key_a), 0);
	for (size_t i = 0; i < 70; i++)
		fds[i] = stranger(f);
	start_client(f, &key_a, "agent:good");
	run_until(f, &f->n_up, 1);
	assert_int_equal(f->n_failed, 0);
	echo(f, 10);
	assert_true(stats(f).evicted >= 70 - 16);
	assert_true(stats(f).untrusted <= 16);
	for (size_t i = 0; i < 70; i++)
		close(fds[i]);
	fixture_free(f);
}

static void strangers_of_many_hosts_share_a_limit_and_block_no_member(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	int fds[6 * 16];

	(void)state;
	start_listen(f, one_key(key_a), 0);
	for (unsigned i = 0; i < 6 * 16; i++)
		fds[i] = stranger_from(f, 2 + i / 16);
	while (stats(f).untrusted < 64)
		event_base_loop(f->base, EVLOOP_ONCE);
	/* no connection has reached its deadline, so none was closed */
	assert_int_equal(stats(f).evicted, 0);
	start_client(f, &key_a, "agent:good");
	run_until(f, &f->n_up, 1);
	echo(f, 10);
	assert_int_equal(f->n_failed, 0);
	assert_true(stats(f).untrusted <= 64);
	assert_true(stats(f).evicted > 0);
	for (unsigned i = 0; i < 6 * 16; i++)
		close(fds[i]);
	fixture_free(f);
}

static void many_members_that_reconnect_at_once_are_accepted(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctlclient *crowd[150];
	uint16_t port;

	(void)state;
	f->max_per_host = 1000;
	start_listen(f, one_key(key_a), 0);
	port = f->port;
	for (size_t i = 0; i < 150; i++) {
		start_client(f, &key_a, "agent:a");
		crowd[i] = f->client;
	}
	f->client = NULL;
	f->trusts_all = true;
	run_until(f, &f->n_up, 150);
	ctllisten_free(f->listen);
	start_listen(f, one_key(key_a), port);
	run_until(f, &f->n_up, 300);
	assert_int_equal(stats(f).evicted, 0);
	for (size_t i = 0; i < 150; i++)
		ctlclient_free(crowd[i]);
	fixture_free(f);
}

static void handshake_of_more_than_its_limit_is_cut_off(void **state)
{
	/* Headers of two TLS records, without the records' bytes. The first announces a handshake
	 * of 4,091 bytes, which is the limit. The second announces one byte more. */
	static const uint8_t most[] = {22, 3, 1, 0x0f, 0xfb}, more[] = {22, 3, 1, 0x0f, 0xfc};
	struct ctlchan_fixture *f = fixture_new();
	int loud, quiet;

	(void)state;
	start_listen(f, one_key(key_a), 0);
	quiet = stranger(f);
	put(quiet, most, sizeof(most));
	loud = stranger(f);
	put(loud, more, sizeof(more));
	while (stats(f).auth_failures == 0)
		event_base_loop(f->base, EVLOOP_ONCE);
	event_base_loop(f->base, EVLOOP_NONBLOCK);
	event_base_loop(f->base, EVLOOP_NONBLOCK);
	assert_true(is_hung_up(loud));
	assert_int_equal(stats(f).untrusted, 1); /* the connection within the limit stays */
	start_client(f, &key_a, "server:a");
	run_until(f, &f->n_up, 1);
	close(loud);
	close(quiet);
	fixture_free(f);
}

static void many_small_frames_of_a_stranger_are_too_many(void **state)
{
	static const uint8_t body[1000];
	struct ctlchan_fixture *f = fixture_new();
	int fd;

	(void)state;
	start_listen(f, no_key(), 0);
	fd = stranger(f);
	for (unsigned i = 0; i < 5; i++)
		put_frame(fd, NOT_TRUSTED, body, sizeof(body));
	run_until(f, &f->n_closed, 1);
	assert_int_equal(f->n_frames, 4);
	close(fd);
	fixture_free(f);
}

static void oversized_frame_closes_only_its_connection(void **state)
{
	/* announces 1 MiB + 1 byte */
	static const uint8_t too_long[] = {0x01, 0x00, 0x10, 0x00, 7, 0};
	struct ctlchan_fixture *f = fixture_new();
	int fd;

	(void)state;
	start_listen(f, no_key(), 0);
	start_client(f, NULL, NULL);
	run_until(f, &f->n_up, 1);
	echo(f, 1);
	fd = stranger(f);
	put_frame(fd, SAY, "trusted", 7);
	run_until(f, &f->n_frames, 2);
	put(fd, too_long, sizeof(too_long));
	run_until(f, &f->n_closed, 1);
	assert_non_null(strstr(f->closed_reason, "sent an invalid frame"));
	assert_int_equal(stats(f).protocol_errors, 1);
	echo(f, 1);
	assert_int_equal(f->n_down, 0);
	close(fd);
	fixture_free(f);
}

static void large_frame_needs_trust(void **state)
{
	static uint8_t body[CTLFRAME_UNTRUSTED_BYTES];
	struct ctlchan_fixture *f = fixture_new();
	int fd;

	(void)state;
	start_listen(f, no_key(), 0);
	fd = stranger(f);
	put_frame(fd, NOT_TRUSTED, body, CTLFRAME_UNTRUSTED_BYTES - 2);
	run_until(f, &f->n_frames, 1);
	put_frame(fd, NOT_TRUSTED, body, CTLFRAME_UNTRUSTED_BYTES - 1);
	run_until(f, &f->n_closed, 1);
	assert_int_equal(f->n_frames, 1);
	close(fd);
	fixture_free(f);
}

static void garbage_is_refused(void **state)
{
	static const char *const garbage[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"\xff\xff\xff\xff\xff\xff\xff\xff", "\x16\x03\x01\x02garbage of a TLS hello"};
	struct keyring keys[] = {no_key(), one_key(key_a)};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct ctlchan_fixture *f = fixture_new();
		uint64_t ended = 0;

		start_listen(f, keys[i], 0);
		for (size_t j = 0; j < 3; j++) {
			int fd = stranger(f);

			put(fd, garbage[j], strlen(garbage[j]));
			shutdown(fd, SHUT_WR);
			while (ended == j) {
				struct ctllisten_stats s;

				event_base_loop(f->base, EVLOOP_ONCE);
				s = stats(f);
				ended = s.accepted - s.untrusted - s.trusted;
			}
			close(fd);
		}
		assert_int_equal(f->n_frames, 0);
		assert_int_equal(f->n_closed, f->n_opened);
		assert_int_equal(stats(f).trust_timeouts, 0);
		fixture_free(f);
	}
}

static void incomplete_frame_before_the_close_is_dropped(void **state)
{
	static const uint8_t half[] = {10, 0, 0, 0, SAY, 0, 'x'};
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, no_key(), 0);
	for (unsigned n = 1; n <= sizeof(half); n++) {
		int fd = stranger(f);

		put(fd, half, n);
		close(fd);
		run_until(f, &f->n_closed, n);
	}
	assert_int_equal(f->n_frames, 0);
	fixture_free(f);
}

/* --- frames ----------------------------------------------------------------------------------- */

static void frames_sent_byte_by_byte_decode_the_same(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	uint8_t wire[600], head[CTLFRAME_HEAD_BYTES];
	size_t n_wire = 0;
	uint64_t sum = 0;
	int fd;

	(void)state;
	for (unsigned n = 0; n < 30; n++) {
		ctlframe_write_head(head, SAY, n);
		memcpy(wire + n_wire, head, sizeof(head));
		n_wire += sizeof(head);
		for (unsigned i = 0; i < n && n_wire < sizeof(wire); i++, sum += n)
			wire[n_wire++] = (uint8_t)n;
		if (n_wire + 40 > sizeof(wire))
			break;
	}
	start_listen(f, no_key(), 0);
	fd = stranger(f);
	put(fd, wire, n_wire);
	run_until(f, &f->n_frames, 2);
	while (f->sum < sum)
		event_base_loop(f->base, EVLOOP_ONCE);
	for (size_t i = 0; i < n_wire; i++) {
		put(fd, wire + i, 1);
		event_base_loop(f->base, EVLOOP_NONBLOCK);
	}
	while (f->sum < 2 * sum)
		event_base_loop(f->base, EVLOOP_ONCE);
	assert_int_equal(f->sum, 2 * sum);
	assert_int_equal(f->n_frames % 2, 0);
	close(fd);
	fixture_free(f);
}

static void parser_asks_for_exactly_what_is_missing(void **state)
{
	uint8_t wire[CTLFRAME_HEAD_BYTES + 5] = "";
	struct ctlframe frame;
	size_t n_bytes;

	(void)state;
	ctlframe_write_head(wire, 0x1234, 5);
	memcpy(wire + CTLFRAME_HEAD_BYTES, "hello", 5);
	assert_int_equal(wire[0], 7);
	for (size_t n = 0; n < sizeof(wire); n++) {
		assert_int_equal(ctlframe_parse(wire, n, 100, &frame, &n_bytes), 0);
		assert_int_equal(
			n_bytes, n < CTLFRAME_HEAD_BYTES ? CTLFRAME_HEAD_BYTES : sizeof(wire));
	}
	assert_int_equal(ctlframe_parse(wire, sizeof(wire), 100, &frame, &n_bytes), 1);
	assert_int_equal(n_bytes, sizeof(wire));
	assert_int_equal(frame.type, 0x1234);
	assert_int_equal(frame.n_body, 5);
	assert_memory_equal(frame.body, "hello", 5);
	assert_int_equal(ctlframe_parse(wire, sizeof(wire), 7, &frame, &n_bytes), 1);
	assert_int_equal(ctlframe_parse(wire, sizeof(wire), 6, &frame, &n_bytes), BPS_EPROTO);
	wire[0] = 1;
	assert_int_equal(ctlframe_parse(wire, sizeof(wire), 100, &frame, &n_bytes), BPS_EPROTO);
}

static void last_messages_arrive_before_the_close(void **state)
{
	struct keyring keys[] = {no_key(), one_key(key_a)};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct ctlchan_fixture *f = fixture_new();
		uint8_t *body = calloc(1, CTLFRAME_MAX_BYTES - 2);

		start_listen(f, keys[i], 0);
		start_client(f, i ? &key_a : NULL, "server:x");
		run_until(f, &f->n_up, 1);
		assert_int_equal(ctlclient_send(f->client, SAY, "", 0), 0);
		assert_int_equal(
			ctlclient_send(f->client, SAY_AND_CLOSE, body, CTLFRAME_MAX_BYTES - 2), 0);
		free(body);
		run_until(f, &f->n_down, 1);
		assert_int_equal(f->n_client_frames, 1);
		assert_int_equal(f->client_body, CTLFRAME_MAX_BYTES - 2);
		run_until(f, &f->n_closed, 1);
		assert_string_equal(f->closed_reason, "said enough");
		fixture_free(f);
	}
}

static void peer_that_does_not_read_is_closed(void **state)
{
	static uint8_t body[CTLFRAME_MAX_BYTES - 2];
	struct ctlchan_fixture *f = fixture_new();
	int fd, rc = 0;

	(void)state;
	start_listen(f, no_key(), 0);
	fd = stranger(f);
	put_frame(fd, SAY, "", 0);
	run_until(f, &f->n_frames, 1);
	for (int i = 0; i < 80 && !rc; i++)
		rc = ctlchan_send(f->last, SAY, body, sizeof(body));
	assert_int_equal(rc, -ENOBUFS);
	run_until(f, &f->n_closed, 1);
	assert_non_null(strstr(f->closed_reason, "receives too slowly"));
	close(fd);
	fixture_free(f);
}

static void too_large_a_send_is_refused_without_harm(void **state)
{
	static uint8_t body[CTLFRAME_MAX_BYTES];
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, no_key(), 0);
	start_client(f, NULL, NULL);
	assert_int_equal(ctlclient_send(f->client, SAY, body, 1), BPS_ECLOSED);
	run_until(f, &f->n_up, 1);
	assert_int_equal(ctlclient_send(f->client, SAY, body, CTLFRAME_MAX_BYTES - 1), -EMSGSIZE);
	echo(f, 3);
	fixture_free(f);
}

/* --- reconnection ----------------------------------------------------------------------------- */

static void client_comes_back_after_a_listener_restart(void **state)
{
	struct keyring keys[] = {no_key(), one_key(key_a)};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct ctlchan_fixture *f = fixture_new();

		start_listen(f, keys[i], 0);
		start_client(f, i ? &key_a : NULL, "server:x");
		run_until(f, &f->n_up, 1);
		echo(f, 5);
		ctllisten_free(f->listen);
		f->listen = NULL;
		assert_string_equal(f->closed_reason, "shutting down");
		run_until(f, &f->n_down, 1);
		assert_non_null(strstr(f->down_reason, "closed the connection"));
		run_until(f, &f->n_failed, 1);
		assert_non_null(strstr(f->down_reason, "Connection refused"));
		start_listen(f, keys[i], f->port);
		run_until(f, &f->n_up, 2);
		echo(f, 5);
		assert_int_equal(f->n_down, 1);
		fixture_free(f);
	}
}

static void client_connects_to_a_name(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctlclient_conf conf = {.addr = {.host = "localhost"}};
	struct err_text err;

	(void)state;
	start_listen(f, no_key(), 0);
	conf.addr.port = f->port;
	assert_int_equal(ctlclient_new(&f->client, f->base, &conf, &client_ops, f, &err), 0);
	run_until(f, &f->n_up, 1);
	fixture_free(f);
}

static void client_tries_each_key(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctlclient_conf conf = {.addr = {.host = "127.0.0.1"},
		.identity = "server:x",
		.auth.keys = {.key = {key_a, key_b}, .n_keys = 2}};
	struct err_text err;

	(void)state;
	start_listen(f, one_key(key_b), 0);
	conf.addr.port = f->port;
	assert_int_equal(ctlclient_new(&f->client, f->base, &conf, &client_ops, f, &err), 0);
	run_until(f, &f->n_up, 1);
	assert_int_equal(f->n_failed, 1);
	fixture_free(f);
}

static void unknown_name_is_a_failed_attempt_with_the_name(void **state)
{
	struct ctlchan_fixture *f = fixture_new();
	struct ctlclient_conf conf = {.addr = {.host = "no..such", .port = 1}};
	struct err_text err;

	(void)state;
	assert_int_equal(ctlclient_new(&f->client, f->base, &conf, &client_ops, f, &err), 0);
	run_until(f, &f->n_failed, 1);
	assert_non_null(strstr(f->down_reason, "cannot resolve 'no..such'"));
	fixture_free(f);
}

static void dropped_connection_is_made_again(void **state)
{
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, one_key(key_a), 0);
	start_client(f, &key_a, "server:x");
	run_until(f, &f->n_up, 1);
	ctlclient_drop(f->client, "no heartbeat");
	run_until(f, &f->n_down, 1);
	assert_string_equal(f->down_reason, "no heartbeat");
	run_until(f, &f->n_up, 2);
	fixture_free(f);
}

/* The client reconnects within window_ms. Otherwise the scheduler would declare the member dead. */
static void client_reconnects_within_the_window(void **state)
{
	const uint32_t window_ms = 1000;
	struct ctlchan_fixture *f = fixture_new();

	(void)state;
	start_listen(f, no_key(), 0);
	start_client(f, NULL, "server:x");
	run_until(f, &f->n_up, 1);
	for (unsigned i = 1; i <= 8; i++) {
		uint64_t at = clock_now_ms();

		ctlclient_accepted(f->client, window_ms);
		ctlclient_drop(f->client, "reset");
		run_until(f, &f->n_up, i + 1);
		assert_true(clock_now_ms() - at < window_ms / 2);
	}
	fixture_free(f);
}

static void name_that_cannot_be_an_identity_is_refused(void **state)
{
	static const char *const bad[] = {"", "server:a b", "server:a#b", "server:\n"};
	struct ctlchan_fixture *f = fixture_new();
	struct ctlclient_conf conf = {
		.addr = {.host = "127.0.0.1", .port = 1}, .auth.keys.n_keys = 1};
	struct err_text err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		conf.identity = bad[i];
		assert_int_equal(
			ctlclient_new(&f->client, f->base, &conf, &client_ops, f, &err), -EINVAL);
	}
	fixture_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(right_key_works_and_the_identity_arrives),
		cmocka_unit_test(host_key_works_for_its_own_name_only),
		cmocka_unit_test(current_and_previous_key_both_work),
		cmocka_unit_test(connection_with_a_dropped_key_is_closed),
		cmocka_unit_test(revoked_host_key_is_refused_and_its_connections_are_closed),
		cmocka_unit_test(client_changes_to_the_new_key_without_a_gap),
		cmocka_unit_test(client_keeps_its_connection_while_the_new_key_is_refused),
		cmocka_unit_test(wrong_key_soon_after_a_good_one_costs_no_connection),
		cmocka_unit_test(wrong_key_is_refused_and_logged_once),
		cmocka_unit_test(peer_without_key_is_refused_by_a_peer_with_key),
		cmocka_unit_test(client_with_key_refuses_a_listener_without),
		cmocka_unit_test(listener_with_a_certificate_instead_of_the_key_is_refused),
		cmocka_unit_test(
			alert_after_the_handshake_is_the_reason_even_if_a_write_fails_first),
		cmocka_unit_test(without_key_only_loopback_is_allowed),
		cmocka_unit_test(with_key_any_address_is_allowed),
		cmocka_unit_test(ipv6_loopback_works),
		cmocka_unit_test(silent_connection_is_closed_after_its_time),
		cmocka_unit_test(frames_before_registration_do_not_extend_the_deadline),
		cmocka_unit_test(seventy_silent_connections_do_not_stop_a_good_one),
		cmocka_unit_test(strangers_of_many_hosts_share_a_limit_and_block_no_member),
		cmocka_unit_test(many_members_that_reconnect_at_once_are_accepted),
		cmocka_unit_test(handshake_of_more_than_its_limit_is_cut_off),
		cmocka_unit_test(many_small_frames_of_a_stranger_are_too_many),
		cmocka_unit_test(oversized_frame_closes_only_its_connection),
		cmocka_unit_test(large_frame_needs_trust),
		cmocka_unit_test(garbage_is_refused),
		cmocka_unit_test(incomplete_frame_before_the_close_is_dropped),
		cmocka_unit_test(frames_sent_byte_by_byte_decode_the_same),
		cmocka_unit_test(parser_asks_for_exactly_what_is_missing),
		cmocka_unit_test(last_messages_arrive_before_the_close),
		cmocka_unit_test(peer_that_does_not_read_is_closed),
		cmocka_unit_test(too_large_a_send_is_refused_without_harm),
		cmocka_unit_test(client_comes_back_after_a_listener_restart),
		cmocka_unit_test(client_connects_to_a_name),
		cmocka_unit_test(client_tries_each_key),
		cmocka_unit_test(unknown_name_is_a_failed_attempt_with_the_name),
		cmocka_unit_test(dropped_connection_is_made_again),
		cmocka_unit_test(client_reconnects_within_the_window),
		cmocka_unit_test(name_that_cannot_be_an_identity_is_refused),
	};

	alarm(60); /* deadline for waits without a time limit of their own */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
