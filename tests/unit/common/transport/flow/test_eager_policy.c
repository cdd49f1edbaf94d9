/* The policy that decides whether the bytes of an offer are sent eagerly, together with the
 * offer. */
#include "common/transport/flow/eager_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LEN 1000

/* A sender's policy and counters. `places` is the number of places in memory that successive offers
 * use in turn. */
struct policy_side {
	struct eager_policy u;
	unsigned n_offers, n_sent, places;
};

static uint64_t place(const struct policy_side *s)
{
	return (uint64_t)(s->n_offers % s->places) * LEN;
}

/* Make one offer. Request the bytes in two pieces if they were not sent with the offer, or if the
 * peer had no room for them. Return whether the bytes were sent with the offer. */
static bool offer(struct policy_side *s, bool has_room)
{
	bool is_sent = eager_policy_may_go(&s->u);
	uint64_t at = place(s);

	s->n_offers++;
	s->n_sent += is_sent;
	if (is_sent)
		eager_policy_sent(&s->u, 3, at, LEN);
	else
		eager_policy_held_back(&s->u, 3, at);
	if (is_sent && has_room)
		return true;
	eager_policy_asked(&s->u, 3, at);
	eager_policy_asked(&s->u, 3, at + LEN / 2);
	return is_sent;
}

/* Make offers until one offer is sent together with its bytes. Return the number of the earlier
 * offers, which were sent without bytes. */
static unsigned rest(struct policy_side *s, bool has_room)
{
	unsigned n = 0;

	while (!offer(s, has_room))
		n++;
	return n;
}

static void bytes_are_sent_with_every_offer_to_a_peer_with_room(void **state)
{
	struct policy_side s = {.places = 7};

	(void)state;
	for (unsigned i = 0; i < 10000; i++)
		assert_true(offer(&s, true));
}

static void requested_bytes_make_a_few_offers_go_without_bytes(void **state)
{
	struct policy_side s = {.places = 7};

	(void)state;
	assert_true(offer(&s, false));
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(rest(&s, true), EAGER_POLICY_REST_MIN);
		for (unsigned k = 1; k < EAGER_POLICY_TRIES; k++)
			assert_true(offer(&s, true));
	}
	for (unsigned i = 0; i < 1000; i++)
		assert_true(offer(&s, true));
}

static void peer_without_room_is_tried_more_and_more_rarely(void **state)
{
	struct policy_side s = {.places = 7};
	unsigned want = EAGER_POLICY_REST_MIN;

	(void)state;
	assert_true(offer(&s, false));
	assert_int_equal(rest(&s, false), want);
	for (unsigned i = 0; i < 12; i++) {
		for (unsigned k = 1; k < EAGER_POLICY_TRIES; k++)
			assert_true(offer(&s, false));
		assert_int_equal(rest(&s, false), want);
		if (want < EAGER_POLICY_REST_MAX)
			want *= 2;
	}
	assert_int_equal(want, EAGER_POLICY_REST_MAX);
	s.n_offers = s.n_sent = 0;
	for (unsigned i = 0; i < 100000; i++)
		offer(&s, false);
	assert_in_range(s.n_sent, 1, s.n_offers / 100);
}

static void room_is_found_again(void **state)
{
	struct policy_side s = {.places = 7};
	unsigned n_held = 0;

	(void)state;
	for (unsigned i = 0; i < 10000; i++)
		offer(&s, false);
	for (unsigned i = 0; i < 10000; i++)
		n_held += !offer(&s, true);
	assert_in_range(n_held, 1, 3 * EAGER_POLICY_REST_MAX);
	for (unsigned i = 0; i < 1000; i++)
		assert_true(offer(&s, true));
}

/* A request for bytes that were not sent with their offer must not change the policy, because no
 * bytes were wasted. */
static void request_for_bytes_that_were_not_sent_has_no_effect(void **state)
{
	struct policy_side s = {.places = 1};

	(void)state;
	assert_true(offer(&s, true));
	eager_policy_asked(&s.u, 4, 0);
	eager_policy_asked(&s.u, 3, LEN);
	eager_policy_asked(&s.u, 3, UINT64_MAX);
	assert_true(eager_policy_may_go(&s.u));
	/* Two offers use the same place in memory. The bytes of the first offer were sent with the
	 * offer, the bytes of the second offer were not. The request is for the second offer. */
	eager_policy_held_back(&s.u, 3, 0);
	eager_policy_asked(&s.u, 3, 0);
	assert_true(eager_policy_may_go(&s.u));
	/* Offers that are too old are not recorded any more, so a request for their bytes has no
	 * effect. */
	s.places = EAGER_POLICY_NOTED + 1;
	for (unsigned i = 0; i < 2 * s.places; i++)
		offer(&s, true);
	eager_policy_asked(&s.u, 3, place(&s));
	assert_true(eager_policy_may_go(&s.u));
	eager_policy_asked(&s.u, 3, (place(&s) + LEN) % (s.places * LEN));
	assert_false(eager_policy_may_go(&s.u));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_are_sent_with_every_offer_to_a_peer_with_room),
		cmocka_unit_test(requested_bytes_make_a_few_offers_go_without_bytes),
		cmocka_unit_test(peer_without_room_is_tried_more_and_more_rarely),
		cmocka_unit_test(room_is_found_again),
		cmocka_unit_test(request_for_bytes_that_were_not_sent_has_no_effect),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
