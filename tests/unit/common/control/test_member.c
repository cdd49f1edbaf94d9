/* A member and a minimal scheduler over a real socket on 127.0.0.1. Both run on one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <event2/event.h>

#include "common/base/log.h"
#include "common/control/ctlchan.h"
#include "common/control/member.h"
#include "common/loop/loop.h"

#define DEADLINE_S 5
#define QUEUE      4

struct member_fixture {
	struct loop *loop;
	struct ctllisten *listen;
	struct member *member;
	/* n_mute: HELLOs that the scheduler does not answer */
	unsigned n_up, n_lost, n_fails, wanted_up, n_mute;
	unsigned n_named; /* number of WELCOMEs that name the server */
	unsigned n_came, n_went;
	int peer_rc; /* result of looking up the server's address */
};

#define SERVER_ID       7
#define SERVER_INSTANCE 70

/* ---- the scheduler ---- */

static void say(struct ctlchan *c, const struct ctl_msg *m)
{
	uint8_t buf[512];
	size_t n = codec_encoded_size(ctl_layout(m->type), &m->hello);

	assert_true(n > 0 && n <= sizeof(buf));
	codec_encode(ctl_layout(m->type), &m->hello, buf);
	assert_int_equal(ctlchan_send(c, m->type, buf, n), 0);
}

static void on_opened(void *arg, struct ctlchan *c)
{
	(void)arg;
	(void)c;
}

static void on_frame(void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n)
{
	static const uint8_t cluster[16] = {1};
	struct ctl_msg welcome = {.type = CTL_WELCOME,
		.welcome = {.cluster_id = {cluster, sizeof(cluster)},
			.term = 1,
			.view = 1,
			.member_id = 1,
			.beat_ms = 10,
			.dead_ms = 5000}};
	struct ctl_peer server = {.id = SERVER_ID,
		.state = PEER_UP,
		.instance = SERVER_INSTANCE,
		.name = "s",
		.host = "h",
		.addr = "127.0.0.1",
		.port = 1,
		.threads = 1};
	struct ctl_msg peers = {
		.type = CTL_PEERS, .peers = {.view = 1, .peers = &server, .n_peers = 1}};
	struct member_fixture *f = arg;

	(void)body;
	(void)n;
	f->n_fails += type == CTL_FAIL;
	if (type != CTL_HELLO || (f->n_mute && f->n_mute--))
		return;
	ctlchan_set_trusted(c);
	say(c, &welcome);
	if (f->n_named && f->n_named--)
		say(c, &peers);
	say(c, &(struct ctl_msg){.type = CTL_PEERS});
}

static void on_closed(void *arg, struct ctlchan *c, const char *reason)
{
	(void)arg;
	(void)c;
	(void)reason;
}

static const struct ctlchan_ops scheduler_ops = {on_opened, on_frame, on_closed};

/* ---- the member ---- */

static void stop_at_deadline(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	loop_quit(arg);
}

static void on_told(void *ctx)
{
	struct member_fixture *f = ctx;
	struct member_peer p;

	f->peer_rc = member_find_peer(f->member, SERVER_ID, &p);
	if (f->n_up >= f->wanted_up)
		loop_quit(f->loop);
}

static void on_down(void *ctx, const char *why)
{
	(void)ctx;
	(void)why;
}

static void on_message(void *ctx, struct member_msg *m)
{
	const struct ctl_peers *peers = &m->msg.peers;
	struct member_fixture *f = ctx;

	assert_int_equal(m->msg.type, CTL_PEERS);
	for (uint32_t i = 0; i < peers->n_peers; i++) {
		assert_int_equal(peers->peers[i].id, SERVER_ID);
		assert_int_equal(peers->peers[i].instance, SERVER_INSTANCE);
		f->n_came += peers->peers[i].state == PEER_UP;
		f->n_went += peers->peers[i].state != PEER_UP;
	}
}

static void on_beat(void *ctx, struct ctl_beat *b)
{
	(void)ctx;
	(void)b;
}

static void on_refused(void *ctx, int code, const char *text)
{
	(void)ctx;
	(void)code;
	fail_msg("refused: %s", text);
}

/* When the connection is up for the first time, queue messages until the queue overflows. */
static void on_up(void *ctx, uint32_t id)
{
	struct ctl_msg m = {.type = CTL_FAIL, .fail = {.text = "x"}};
	struct member_fixture *f = ctx;

	assert_int_equal(id, 1);
	if (f->n_up++)
		return;
	for (unsigned i = 0; i < QUEUE + 2; i++)
		f->n_lost += member_send(f->member, &m) == -EAGAIN;
}

static const struct member_ops member_ops = {.up = on_up,
	.told = on_told,
	.down = on_down,
	.message = on_message,
	.beat = on_beat,
	.refused = on_refused};

static void run(struct member_fixture *f, struct member_config *cfg)
{
	struct ctllisten_conf listen = {.addr = {.host = "127.0.0.1"}};
	struct err_text err;
	struct event *deadline;

	log_set_level(LOG_ERROR);
	assert_int_equal(loop_new(&f->loop, "test", QUEUE, &err), 0);
	assert_int_equal(
		ctllisten_new(&f->listen, loop_base(f->loop), &listen, &scheduler_ops, f, &err), 0);
	cfg->scheduler.port = ctllisten_port(f->listen);
	assert_int_equal(member_new(&f->member, f->loop, cfg, &member_ops, f, &err), 0);
	deadline = evtimer_new(loop_base(f->loop), stop_at_deadline, f->loop);
	evtimer_add(deadline, &(struct timeval){.tv_sec = DEADLINE_S});
	loop_run(f->loop);
	event_free(deadline);
	member_free(f->member);
	ctllisten_free(f->listen);
	loop_free(f->loop);
}

static const struct member_config usual = {.role = ROLE_AGENT,
	.name = "a",
	.host = "h",
	.data_addr = "",
	.instance = 1,
	.threads = 1,
	.scheduler = {.host = "127.0.0.1"}};

static void scheduler_that_does_not_answer_is_tried_again(void **state)
{
	struct member_config cfg = usual;
	struct member_fixture f = {.wanted_up = 1, .n_mute = 2};

	(void)state;
	cfg.welcome_ms = 50;
	run(&f, &cfg);
	assert_int_equal(f.n_up, 1);
	assert_int_equal(f.n_mute, 0);
}

static void full_queue_makes_the_member_send_everything_again(void **state)
{
	struct member_config cfg = usual;
	struct member_fixture f = {.wanted_up = 2};

	(void)state;
	run(&f, &cfg);
	assert_int_equal(f.n_lost, 2);
	assert_int_equal(f.n_fails, QUEUE);
	assert_int_equal(f.n_up, 2);
}

/* A peer that the scheduler no longer names does not exist. If the member did not remove the peer,
 * it would accept the peer's key forever. */
static void peer_not_named_after_a_welcome_is_removed(void **state)
{
	struct member_config cfg = usual;
	struct member_fixture f = {.wanted_up = 2, .n_named = 1};

	(void)state;
	run(&f, &cfg);
	assert_int_equal(f.n_came, 1);
	assert_int_equal(f.n_went, 1);
	assert_int_equal(f.peer_rc, BPS_ENOTFOUND);
}

static void peer_that_is_named_again_stays(void **state)
{
	struct member_config cfg = usual;
	struct member_fixture f = {.wanted_up = 2, .n_named = 2};

	(void)state;
	run(&f, &cfg);
	assert_int_equal(f.n_came, 2);
	assert_int_equal(f.n_went, 0);
	assert_int_equal(f.peer_rc, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scheduler_that_does_not_answer_is_tried_again),
		cmocka_unit_test(full_queue_makes_the_member_send_everything_again),
		cmocka_unit_test(peer_not_named_after_a_welcome_is_removed),
		cmocka_unit_test(peer_that_is_named_again_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
