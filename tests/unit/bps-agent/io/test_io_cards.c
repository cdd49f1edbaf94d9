/* Tests of the choice of network cards (bps-agent/io/io_cards.c). The threads are parked and their
 * connections have no transport, so nothing is sent; the test sets the time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/io/io_impl.h"

#define S     UINT64_C(1000000000)
#define CONNS 16

static struct io_xport x;
static struct cards cards;
static struct io_conn conns[CONNS];
static unsigned n_conns;

static void set_address(struct sockaddr_storage *to, const char *text)
{
	struct sockaddr_in *v4 = (void *)to;
	struct sockaddr_in6 *v6 = (void *)to;

	memset(to, 0, sizeof(*to));
	to->ss_family = strchr(text, ':') ? AF_INET6 : AF_INET;
	assert_int_equal(
		inet_pton(to->ss_family, text,
			to->ss_family == AF_INET ? (void *)&v4->sin_addr : (void *)&v6->sin6_addr),
		1);
}

/* Begin a test with n cards. Card i has the address 10.0.i.1/24. */
static void begin(unsigned n, const uint64_t *mbps)
{
	free(x.peers);
	memset(&x, 0, sizeof(x));
	memset(conns, 0, sizeof(conns));
	n_conns = 0;
	x.now_ns = 1000 * S;
	x.cfg.cards = &cards;
	cards.n = x.n_threads = n;
	x.cfg.silent_ns = S;
	x.has_speeds = mbps;
	for (unsigned i = 0; i < n; i++) {
		char address[16];

		snprintf(address, sizeof(address), "10.0.%u.1", i);
		set_address(&cards.of[i].addr, address);
		set_address(&cards.of[i].mask, "255.255.255.0");
		cards.of[i].mbps = mbps ? mbps[i] : 0;
		x.cards[i].has_carrier = true;
		x.threads[i].x = &x;
		x.threads[i].card = i;
	}
}

/* Begin a connection to a server. Returns its card. */
static unsigned assign(uint32_t server, const char *address)
{
	struct io_conn *c = &conns[n_conns++];

	assert_in_range(n_conns, 1, CONNS);
	c->pub.peer_id = server;
	return io_cards_assign(&x, c, address)->card;
}

static void bring_up(struct io_conn *c)
{
	c->is_up = true;
	atomic_store(&c->heard_ns, x.now_ns);
	io_cards_note_up(c);
}

/* Begin n connections to a server that no card is near, and bring them up. */
static void connections(unsigned n)
{
	while (n--) {
		assign(1, "10.9.0.1");
		bring_up(&conns[n_conns - 1]);
	}
}

static unsigned count(unsigned card)
{
	assert_true(card < cards.n);
	return x.cards[card].n_conns;
}

/* End a connection, as its transport does. */
static void lose(struct io_conn *c)
{
	io_cards_note_down(c);
	c->is_down = true;
}

/* Run io_cards_balance for some seconds. A connection that must move begins again at once. */
static void balance(unsigned seconds)
{
	for (unsigned s = 0; s < 2 * seconds; s++) {
		unsigned n = n_conns;

		x.now_ns += S / 2;
		for (unsigned i = 0; i < n; i++)
			if (!conns[i].is_down)
				atomic_store(&conns[i].heard_ns, x.now_ns);
		io_cards_balance(&x);
		for (unsigned i = 0; i < n; i++)
			if (conns[i].is_moving && !conns[i].is_down) {
				lose(&conns[i]);
				connections(1);
			}
	}
}

static void connections_are_divided_by_the_speed_of_the_cards(void **state)
{
	(void)state;
	begin(2, (const uint64_t[]){300, 100});
	connections(8);
	assert_int_equal(count(0), 6);
	assert_int_equal(count(1), 2);
	begin(3, NULL);
	connections(9);
	assert_int_equal(count(0) + 10 * count(1) + 100 * count(2), 333);
}

static void card_in_the_subnet_of_the_server_is_preferred(void **state)
{
	(void)state;
	begin(3, NULL);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(assign(1, "10.0.1.77"), 1);
	assert_int_equal(assign(2, "10.0.2.77"), 2);
	assert_int_equal(assign(3, "10.9.9.9"), 0);
	assert_int_equal(assign(4, "not an address"), 0);
}

static void subnets_of_version_6_are_compared_by_their_masks(void **state)
{
	(void)state;
	begin(2, NULL);
	for (unsigned i = 0; i < 2; i++) {
		set_address(&cards.of[i].addr, i ? "fd00:2::1" : "fd00:1::1");
		set_address(&cards.of[i].mask, "ffff:ffff:ffff:ffff::");
	}
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(assign(1, "fd00:2::77"), 1);
	assert_int_equal(assign(1, "10.0.0.7"), 0);
}

static void connections_leave_a_card_without_a_carrier_and_return(void **state)
{
	(void)state;
	begin(2, NULL);
	connections(4);
	io_xport_set_carrier(&x.pub, 1, false);
	assert_true(x.balance_ns <= x.now_ns);
	balance(1);
	assert_int_equal(count(0), 4);
	assert_int_equal(count(1), 0);
	io_xport_set_carrier(&x.pub, 1, true);
	balance(29);
	assert_int_equal(count(1), 0);
	balance(1);
	assert_int_equal(count(1), 1); /* one connection a second */
	balance(1);
	assert_int_equal(count(1), 2);
	assert_int_equal(count(0), 2);
	balance(60);
	assert_int_equal(n_conns, 8); /* then nothing moves */
}

static void last_card_is_used_even_without_a_carrier(void **state)
{
	(void)state;
	begin(2, NULL);
	io_xport_set_carrier(&x.pub, 0, false);
	io_xport_set_carrier(&x.pub, 1, false);
	connections(2);
	assert_int_equal(count(0), 1);
	balance(2);
	assert_int_equal(n_conns, 2);
}

/* Let all connections of card 1 fall silent. Returns for how long the card is left out. */
static uint64_t fall_silent(void)
{
	unsigned n = n_conns;

	x.now_ns += 2 * S;
	for (unsigned i = 0; i < n; i++)
		if (!conns[i].is_down && conns[i].t->card == 0)
			atomic_store(&conns[i].heard_ns, x.now_ns);
	for (unsigned i = 0; i < n; i++)
		if (!conns[i].is_down && conns[i].t->card == 1) {
			lose(&conns[i]);
			break;
		}
	return x.cards[1].unused_until_ns - x.now_ns;
}

static void card_that_falls_silent_again_is_left_out_for_longer(void **state)
{
	(void)state;
	begin(2, NULL);
	connections(2);
	assert_int_equal(fall_silent(), 30 * S);
	connections(1);
	assert_int_equal(count(1), 0);
	balance(32);
	assert_int_equal(count(1), 1);
	assert_int_equal(fall_silent(), 60 * S);
	for (unsigned i = 0; i < 6; i++) {
		n_conns = 0;
		x.now_ns = x.cards[1].unused_until_ns + S;
		memset(conns, 0, sizeof(conns));
		LIST_INIT(&x.conns);
		x.cards[0].n_conns = x.cards[1].n_conns = 0;
		connections(2);
		fall_silent();
	}
	assert_int_equal(x.cards[1].unused_ns, 600 * S);
}

static void card_with_another_live_connection_is_not_silent(void **state)
{
	(void)state;
	begin(2, NULL);
	connections(4);
	x.now_ns += 2 * S;
	atomic_store(&conns[1].heard_ns, x.now_ns); /* connections 1 and 3 are on card 1 */
	lose(&conns[3]);
	assert_int_equal(x.cards[1].unused_until_ns, 0);
}

static void card_that_does_not_reach_a_server_is_tried_again_after_a_minute(void **state)
{
	(void)state;
	begin(2, NULL);
	assert_int_equal(assign(1, "10.0.1.7"), 1);
	lose(&conns[0]); /* it has not been up */
	assert_int_equal(assign(1, "10.0.1.7"), 0);
	assert_int_equal(assign(2, "10.0.1.8"), 1); /* another server */
	bring_up(&conns[1]);
	balance(120);
	assert_false(conns[1].is_moving); /* a connection that works stays */
	assert_int_equal(assign(1, "10.0.1.7"), 1);
	bring_up(&conns[n_conns - 1]);
	assert_int_equal(assign(1, "10.0.1.7"), 1);
}

static void time_of_an_io_thread_may_be_ahead(void **state)
{
	(void)state;
	begin(2, NULL);
	connections(2);
	atomic_store(&conns[1].heard_ns, x.now_ns + S / 1000);
	lose(&conns[1]);
	assert_int_equal(x.cards[1].unused_until_ns, 0);
}

static void card_is_not_blamed_for_a_server_that_is_down(void **state)
{
	(void)state;
	begin(2, NULL);
	connections(2);
	assert_int_equal(fall_silent(), 30 * S);
	assign(1, "10.9.0.1"); /* over the other card */
	assert_int_equal(conns[2].t->card, 0);
	lose(&conns[2]);
	assert_int_equal(x.cards[1].unused_until_ns, 0);
}

static void connections_within_the_host_use_no_card(void **state)
{
	(void)state;
	begin(2, NULL);
	assign(1, "10.9.0.1");
	conns[0].pub.is_same_host = true;
	bring_up(&conns[0]);
	assert_int_equal(count(0), 0);
	io_xport_set_carrier(&x.pub, 0, false);
	balance(1);
	assert_false(conns[0].is_moving);
	lose(&conns[0]);
	assert_int_equal(count(0), 0);
}

static void rest_causes_no_wakeups(void **state)
{
	(void)state;
	begin(2, NULL);
	connections(4);
	balance(3);
	assert_true(x.balance_ns >= x.now_ns + 60 * S);
	begin(1, NULL);
	connections(4);
	assert_true(io_cards_due_ns(&x) == UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connections_are_divided_by_the_speed_of_the_cards),
		cmocka_unit_test(card_in_the_subnet_of_the_server_is_preferred),
		cmocka_unit_test(subnets_of_version_6_are_compared_by_their_masks),
		cmocka_unit_test(connections_leave_a_card_without_a_carrier_and_return),
		cmocka_unit_test(last_card_is_used_even_without_a_carrier),
		cmocka_unit_test(card_that_falls_silent_again_is_left_out_for_longer),
		cmocka_unit_test(card_with_another_live_connection_is_not_silent),
		cmocka_unit_test(card_that_does_not_reach_a_server_is_tried_again_after_a_minute),
		cmocka_unit_test(time_of_an_io_thread_may_be_ahead),
		cmocka_unit_test(card_is_not_blamed_for_a_server_that_is_down),
		cmocka_unit_test(connections_within_the_host_use_no_card),
		cmocka_unit_test(rest_causes_no_wakeups),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);

	free(x.peers);
	return rc;
}
