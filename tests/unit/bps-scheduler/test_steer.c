/* Operators' orders over a real control connection: permissions, refusals, and what is recorded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>

#include "bps-scheduler/steer.h"
#include "common/control/ctlchan.h"
#include "tests/unit/fake_sched.h"

#define DEADLINE_S 5

static const struct cluster_key master = {{1, 2, 3}};

/* A scheduler without members, its listener, and the connection of one operator. */
struct steer_fixture {
	struct event_base *base;
	struct ctllisten *listen;
	struct sched_core *core;
	struct steer steer;
	struct tls_conf auth;
	unsigned n_reloads;
	struct ctlchan *chan; /* the operator's connection */
	struct ctl_steer ask;
	bool with_master; /* use the master key instead of the identity's key */
	bool is_answered, is_closed;
	uint32_t code;
	char text[CTL_TEXT_MAX + 1];
	json_t *json;
};

static const struct sched_env env = {.send = fake_sched_send,
	.drop = fake_sched_drop,
	.persist = fake_sched_persist,
	.random = fake_sched_random};

static void listen_opened(void *arg, struct ctlchan *c)
{
	(void)arg;
	(void)c;
}

static void listen_frame(
	void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct steer_fixture *f = arg;
	struct err_text err = {""};
	struct ctl_msg msg;
	void *mem = NULL;

	assert_int_equal(type, CTL_STEER);
	assert_int_equal(ctl_decode(type, body, n_body, &msg, &mem, &err), 0);
	steer_receive_request(&f->steer, c, &msg.steer, 1);
	free(mem);
}

static void listen_closed(void *arg, struct ctlchan *c, const char *reason)
{
	(void)arg;
	(void)c;
	(void)reason;
}

static const struct ctlchan_ops listen_ops = {listen_opened, listen_frame, listen_closed};

static void on_opened(void *arg, struct ctlchan *c)
{
	struct steer_fixture *f = arg;
	const struct layout *l = ctl_layout(CTL_STEER);
	size_t n = codec_encoded_size(l, &f->ask);
	uint8_t buf[4096];

	assert_in_range(n, 1, sizeof(buf));
	codec_encode(l, &f->ask, buf);
	assert_int_equal(ctlchan_send(c, CTL_STEER, buf, n), 0);
}

static void on_frame(
	void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct steer_fixture *f = arg;
	struct err_text err = {""};
	struct ctl_msg msg;
	void *mem = NULL;

	(void)c;
	assert_int_equal(type, CTL_STEERED);
	assert_int_equal(ctl_decode(type, body, n_body, &msg, &mem, &err), 0);
	f->is_answered = true;
	f->code = msg.steered.code;
	snprintf(f->text, sizeof(f->text), "%s", msg.steered.text);
	json_decref(f->json);
	f->json = *msg.steered.json ? json_loads(msg.steered.json, 0, NULL) : NULL;
	free(mem);
}

static void on_closed(void *arg, struct ctlchan *c, const char *reason)
{
	struct steer_fixture *f = arg;

	(void)c;
	(void)reason;
	f->chan = NULL;
	f->is_closed = true;
}

static const struct ctlchan_ops ops = {on_opened, on_frame, on_closed};

static int reload_keys(void *ctx, unsigned *ret_closed, struct err_text *err)
{
	struct steer_fixture *f = ctx;

	(void)err;
	f->n_reloads++;
	*ret_closed = 0;
	return 1;
}

static void fixture_init(struct steer_fixture *f, bool has_key)
{
	struct ctllisten_conf conf = {.addr = {"127.0.0.1", 0}};
	struct sched_config cfg;
	struct err_text err = {""};

	*f = (struct steer_fixture){.base = event_base_new()};
	sched_config_default(&cfg);
	f->core = sched_new(&cfg, &env);
	assert_int_equal(sched_start(f->core, 1), 0);
	f->steer = (struct steer){.ctx = f,
		.core = f->core,
		.events = events_new(),
		.auth = &f->auth,
		.reload_keys = reload_keys};
	if (has_key) {
		f->auth.keys = (struct keyring){.key = {master}, .n_keys = 1};
		conf.auth = f->auth;
	}
	if (ctllisten_new(&f->listen, f->base, &conf, &listen_ops, f, &err))
		fail_msg("%s", err.s);
}

static void fixture_fini(struct steer_fixture *f)
{
	ctlchan_free(f->chan);
	ctllisten_free(f->listen);
	sched_free(f->core);
	events_free(f->steer.events);
	json_decref(f->json);
	event_base_free(f->base);
}

/* Send a request under the key of `identity`. If `identity` is NULL, send it without a key. Return
 * when the connection has ended. */
static void ask(struct steer_fixture *f, const char *identity, struct ctl_steer steer)
{
	struct addr addr = {"127.0.0.1", ctllisten_port(f->listen)};
	struct timeval bound = {DEADLINE_S, 0};
	struct err_text err = {""};
	struct sockaddr_storage sa;
	struct tls_conf auth = {.keys.n_keys = 1};
	struct tls *tls = NULL;
	socklen_t len;

	f->ask = steer;
	f->is_answered = f->is_closed = false;
	if (identity) {
		auth.keys.key[0] = master;
		if (!f->with_master)
			assert_int_equal(
				key_derive_for_host(&auth.keys.key[0], &master, identity), 0);
		assert_int_equal(tls_new_client(&tls, &auth, 0, identity, &err), 0);
	}
	assert_int_equal(addr_resolve_numeric(&addr, &sa, &len), 0);
	assert_int_equal(ctlchan_connect(&f->chan, f->base, (struct sockaddr *)&sa, len, tls, 1000,
				 &ops, f, &err),
		0);
	event_base_loopexit(f->base, &bound);
	while (!f->is_closed && !event_base_got_exit(f->base))
		event_base_loop(f->base, EVLOOP_ONCE);
	assert_true(f->is_answered);
	assert_true(f->is_closed);
	tls_free(tls);
}

#define ASK(f, identity, ...)                                                                      \
	ask(f, identity, (struct ctl_steer){.user = "u", .host = "h", __VA_ARGS__})

static size_t n_events(const struct steer_fixture *f)
{
	json_t *o = events_json(f->steer.events, 1, 0);
	size_t n = json_array_size(json_object_get(o, "events"));

	json_decref(o);
	return n;
}

static void operators_key_steers(void **state)
{
	struct steer_fixture f;

	(void)state;
	fixture_init(&f, true);
	ASK(&f, "ctl:alice", .verb = "key status");
	assert_int_equal(f.code, 0);
	assert_int_equal(json_array_size(json_object_get(f.json, "keys")), 1);
	assert_int_equal(n_events(&f), 0); /* a read-only request adds no event */
	fixture_fini(&f);
}

static void members_key_cannot_steer(void **state)
{
	static const char *const identities[] = {"server:s0", "agent:a0", "ctlx:a", "ct:a"};
	struct steer_fixture f;

	(void)state;
	fixture_init(&f, true);
	for (size_t i = 0; i < sizeof(identities) / sizeof(identities[0]); i++) {
		ASK(&f, identities[i], .verb = "job kill", .target = "x");
		assert_int_equal(f.code, -BPS_EAUTH);
		assert_non_null(strstr(f.text, identities[i]));
	}
	assert_int_equal(n_events(&f), 0);
	fixture_fini(&f);
}

static void keys_are_reloaded_for_the_master_key_only(void **state)
{
	struct steer_fixture f;

	(void)state;
	fixture_init(&f, true);
	ASK(&f, "ctl:alice", .verb = "key reload");
	assert_int_equal(f.code, -BPS_EAUTH);
	assert_int_equal(f.n_reloads, 0);
	f.with_master = true;
	ASK(&f, "ctl:alice", .verb = "key reload");
	assert_int_equal(f.code, 0);
	assert_int_equal(f.n_reloads, 1);
	fixture_fini(&f);
}

static void any_user_on_loopback_steers_a_cluster_without_a_key(void **state)
{
	struct steer_fixture f;

	(void)state;
	fixture_init(&f, false);
	ASK(&f, NULL, .verb = "key status");
	assert_int_equal(f.code, 0);
	fixture_fini(&f);
}

static void change_leaves_an_event_with_any_outcome(void **state)
{
	struct steer_fixture f;
	json_t *o;

	(void)state;
	fixture_init(&f, true);
	ASK(&f, "ctl:alice", .verb = "job kill", .target = "x", .uid = 7);
	assert_int_equal(f.code, -BPS_ENOTFOUND);
	o = events_json(f.steer.events, 1, 0);
	assert_string_equal(json_string_value(json_object_get(
				    json_array_get(json_object_get(o, "events"), 0), "text")),
		"u (uid 7) on h: job kill x: refused: there is no forming or running job 'x'");
	json_decref(o);
	fixture_fini(&f);
}

static void invalid_request_is_refused_by_name(void **state)
{
	struct ctl_steer_arg unknown = {"colour", "red"}, dirty = {"reason", "a\033[2Jb"};
	struct steer_fixture f;

	(void)state;
	fixture_init(&f, true);
	ASK(&f, "ctl:a", .verb = "dance");
	assert_int_equal(f.code, ENOTSUP);
	assert_non_null(strstr(f.text, "'dance'"));
	ASK(&f, "ctl:a", .verb = "job kill");
	assert_int_equal(f.code, EINVAL);
	ASK(&f, "ctl:a", .verb = "key status", .target = "x");
	assert_int_equal(f.code, EINVAL);
	ASK(&f, "ctl:a", .verb = "job kill", .target = "x", .args = &unknown, .n_args = 1);
	assert_int_equal(f.code, EINVAL);
	assert_non_null(strstr(f.text, "'colour'"));
	ASK(&f, "ctl:a", .verb = "job kill", .target = "x", .args = &dirty, .n_args = 1);
	assert_int_equal(f.code, EINVAL);
	assert_int_equal(n_events(&f), 0);
	fixture_fini(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operators_key_steers),
		cmocka_unit_test(members_key_cannot_steer),
		cmocka_unit_test(keys_are_reloaded_for_the_master_key_only),
		cmocka_unit_test(any_user_on_loopback_steers_a_cluster_without_a_key),
		cmocka_unit_test(change_leaves_an_event_with_any_outcome),
		cmocka_unit_test(invalid_request_is_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
