/* Tests that send every message to a server's core in every state, and tests of the faults that end
 * a job or close a connection. */
#include "tests/unit/srv_world.h"

/* ---- faults that end a job, and faults that close a peer's connection ---- */

static void different_results_of_the_previous_round_are_detected(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
		struct wire_msg m;

		if (k == 0)
			/* k = 0: the server still has the sum of round 1. k = 1: the server does
			 * not have this sum, and can only compare the members' CRCs. */
			contribute_all(w, 1);
		say_contrib(w, 0, 2);
		assert_int_equal(w->n_fails, 0);
		m = contrib_msg(w, 1, 2, 0);
		m.contrib.crc_prev ^= 1;
		say(w, 1, &m);
		assert_int_equal(w->n_fails, 1);
		assert_int_equal(w->fail_code, BPS_EDIVERGED);
		assert_non_null(strstr(w->fail_text, "member 1 (agent 101, host h)"));
		world_free(w);
	}
}

static void different_operations_are_found(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m = contrib_msg(w, 1, 1, 0);

	(void)state;
	say_contrib(w, 0, 1);
	m.contrib.op = OP_MAX;
	say(w, 1, &m);
	assert_int_equal(w->fail_code, BPS_EMISMATCH);
	assert_non_null(strstr(w->fail_text, "max"));
	say_contrib(w, 1, 1); /* the failed job stays failed */
	work(w);
	expect_nothing(w, 0);
	assert_int_equal(w->n_fails, 1);
	world_free(w);
}

static void invalid_message_closes_only_its_sender(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 12; k++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = k == 6 ? LARGE : SMALL);
		struct wire_msg m = contrib_msg(w, 1, 1, 0);
		bool is_harmless = false;

		if (k == 10 || k == 11) { /* the message is a DONATE, so start a donation */
			say_key(w, 1, WIRE_HAVE, 1);
			say_contrib(w, 0, 1);
			say_contrib(w, 2, 1);
			m = donate_msg(w, 1, 1);
		}
		switch (k) {
		case 0:
			m.len = 4;
			break;
		case 1:
			m.contrib.op = OP_BAND; /* the elements are floats */
			break;
		case 2:
			m.contrib.op = OP_COUNT;
			break;
		case 3:
			m.contrib.workers = UINT32_MAX;
			break;
		case 4:
			m.contrib.workers++;
			break;
		case 5: /* an offer of bytes that must be sent inline */
			m.flags = 0;
			m.segment = 1;
			break;
		case 6: /* the message of member 1 names member 0 as its sender */
			m.member = 0;
			break;
		case 7:
			m.member = 3;
			break;
		case 8:
			m = key_msg(w, 1, WIRE_RESULT, 1);
			m.len = 1;
			m.result.n_members = 3;
			break;
		case 9:
			m = key_msg(w, 1, WIRE_AGAIN, 1);
			break;
		case 10:
			m.result.n_members = 2;
			member_set_del(&m.result.contributors, 2);
			break;
		case 11:
			m.len = 4;
			break;
		default:
			is_harmless = true;
		}
		assert_false(is_harmless);
		say(w, 1, &m);
		expect_closed(w, 1);
		connect_member(w, 1);
		world_free(w);
	}
}

static void contribution_of_an_unknown_agent_closes_its_connection(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct fake_conn *c = fake_accept(&w->x, 999, 1);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	fake_deliver(c, &m);
	assert_true(c->is_closed);
	check(w);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void operation_that_the_type_lacks_closes_the_connection(void **state)
{
	static const struct {
		uint8_t dtype, op;
	} bad[] = {{DTYPE_Q8, OP_MAX}, {DTYPE_Q4, OP_PROD}, {DTYPE_SIGN, OP_MIN},
		{DTYPE_Q8, OP_BXOR}, {DTYPE_F32, OP_BAND}, {DTYPE_F32, OP_COUNT}};

	(void)state;
	for (unsigned k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		struct srv_world *w =
			world(.n_members = 2, .n_elems = 1, .dtype = 1 + bad[k].dtype);
		struct wire_msg m = contrib_msg(w, 0, 1, 0);

		m.contrib.op = bad[k].op;
		say(w, 0, &m);
		expect_closed(w, 0);
		connect_member(w, 0);
		world_free(w);
	}
}

/* ---- every message in every state ---- */

enum srv_scene {
	SCENE_EMPTY,
	SCENE_WANT_READ, /* the read waits, because no staging memory is left */
	SCENE_READING,
	SCENE_STAGED,
	SCENE_SUMMING,
	SCENE_DONE,
	SCENE_DONATING,
	SCENE_DONATION_READ,
	SCENE_ALL_HAVE,
	SCENE_PARKED,
	SCENE_FENCED,
	SCENE_COUNT
};

/* Bring a partition into the given state. Member 0 sends next, in round 4. */
static struct srv_world *make_scene(enum srv_scene scene, uint32_t n_elems)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = n_elems, .n_parts = 6,
		.staging = SEGMENT, .flags = scene == SCENE_PARKED ? JOB_DETERMINISTIC : 0);
	struct wire_msg m;

	switch (scene) {
	case SCENE_WANT_READ:
		for (unsigned p = 1; p < 6; p++) {
			m = contrib_msg(w, 1, 4, p);
			say(w, 1, &m);
		}
		say_contrib(w, 0, 4);
		break;
	case SCENE_PARKED: /* the contribution of member 2 waits for members 0 and 1 */
		for (unsigned p = 1; p < 4; p++) {
			m = contrib_msg(w, 0, 4, p);
			say(w, 0, &m);
		}
		say_contrib(w, 2, 4);
		break;
	case SCENE_READING:
		say_contrib(w, 0, 4);
		break;
	case SCENE_STAGED:
		say_contrib(w, 0, 4);
		end_reads(w);
		break;
	case SCENE_SUMMING:
	case SCENE_DONE:
	case SCENE_FENCED:
		for (unsigned i = 0; i < 3; i++)
			say_contrib(w, i, 4);
		end_reads(w);
		if (scene != SCENE_SUMMING)
			settle(w);
		if (scene == SCENE_FENCED)
			tell_plan(w, 6, SERVER, 6);
		break;
	case SCENE_DONATING:
	case SCENE_DONATION_READ:
		say_key(w, 0, WIRE_HAVE, 4);
		say_contrib(w, 1, 4);
		say_contrib(w, 2, 4);
		m = donate_msg(w, 0, 4);
		if (scene == SCENE_DONATION_READ)
			say(w, 0, &m);
		break;
	case SCENE_ALL_HAVE:
		for (unsigned i = 0; i < 3; i++)
			say_key(w, i, WIRE_HAVE, 4);
		break;
	case SCENE_EMPTY:
	case SCENE_COUNT:
		break;
	}
	return w;
}

/* Send every message of every member in every state. Invariants must hold, and only the sender's
 * connection may be closed. */
static void every_message_in_every_state_keeps_the_invariants(void **state)
{
	static const enum wire_type types[] = {WIRE_CONTRIB, WIRE_HAVE, WIRE_DONATE, WIRE_GOT,
		WIRE_RESULT, WIRE_HAVE_OK, WIRE_AGAIN};

	(void)state;
	for (unsigned scene = 0; scene < SCENE_COUNT; scene++)
		for (unsigned t = 0; t < sizeof(types) / sizeof(types[0]); t++)
			for (uint64_t r = 2; r <= 7; r++)
				for (unsigned who = 0; who < 6; who++) {
					struct srv_world *w =
						make_scene(scene, who < 3 ? LARGE : SMALL);
					unsigned i = who % 3;
					struct wire_msg m =
						types[t] == WIRE_CONTRIB ? contrib_msg(w, i, r, 0)
						: types[t] == WIRE_DONATE || types[t] == WIRE_RESULT
							? donate_msg(w, i, r)
							: key_msg(w, i, types[t], r);

					m.type = (uint8_t)types[t];
					say(w, i, &m);
					for (unsigned k = 0; k < 3; k++)
						assert_true(k == i || !w->m[k].conn->is_closed);
					if (w->m[i].conn->is_closed) {
						assert_int_equal(stats(w).protocol_errors, 1);
						connect_member(w, i);
					} else {
						say(w, i, &m);
					}
					settle(w);
					tick(w, 1000);
					world_free(w);
				}
}

/* Return the CRC that the server expects for the sum of the previous round. A wrong CRC would
 * make the server fail the job as DIVERGED, so the random exchange would end at once. */
static uint32_t expected_echo(struct srv_world *w, uint64_t r, unsigned part)
{
	const struct srv_part *p = srv_part_find(srv_job_find(w->core, JOB), 0, part);
	const struct slot *prev = p ? &p->slots[(r - 1) & 1] : NULL;
	const struct slot *slot = p ? &p->slots[r & 1] : NULL;

	if (prev && prev->state == SLOT_DONE && prev->round == r - 1)
		return prev->crc;
	return slot && slot->round == r && slot->crc_prev_known ? slot->crc_prev : 0;
}

/* Run a long random exchange. Most messages are invalid, connections are lost, and placements
 * change. */
static void random_messages_keep_the_invariants(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 24; seed++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = seed & 1 ? LARGE : SMALL,
			.n_parts = 4, .flags = seed & 2 ? JOB_DETERMINISTIC : 0, .staging = SEGMENT,
			.dtype = 1 + (seed & 4 ? DTYPE_F16 : DTYPE_F32));
		uint64_t base = 1;

		srand(seed);
		for (unsigned k = 0; k < 1500; k++) {
			unsigned i = (unsigned)rand() % 3, part = (unsigned)rand() % 4;
			uint64_t r = base + (uint64_t)(rand() % 3);
			struct fake_conn *c = w->m[i].conn;
			struct wire_msg m = key_msg(w, i, WIRE_HAVE, r);

			if (c->is_closed) {
				connect_member(w, i);
				c = w->m[i].conn;
			}
			switch (rand() % 16) {
			case 0:
				fake_down(c, "cut");
				break;
			case 1:
				tell_plan(w, 4, rand() % 3 ? SERVER : SERVER + 1, w->pgen + 1);
				break;
			case 2:
				c->credit = 0;
				break;
			case 3:
				c->credit = SIZE_MAX;
				fake_grant(c, 0);
				break;
			case 4:
				tick(w, 60);
				break;
			case 5:
				base += (uint64_t)(rand() % 8 == 0);
				break;
			case 6:
				m = donate_msg(w, i, r);
				say(w, i, &m);
				break;
			case 7:
				m.type = rand() % 2 ? WIRE_GOT : WIRE_HAVE;
				m.part = part;
				say(w, i, &m);
				break;
			case 8:
			case 9:
				srv_core_sum_slice(w->core);
				break;
			case 10:
			case 11:
				if (c->n_reads)
					end_read(w, i, (unsigned)rand() % (unsigned)c->n_reads,
						rand() % 8 ? 0 : -EIO);
				break;
			default:
				m = payload_msg(w, i, WIRE_CONTRIB, r, 1, part);
				m.contrib.workers = w->m[i].workers;
				m.crc ^= rand() % 16 == 0;
				m.contrib.crc_prev = expected_echo(w, r, part);
				say(w, i, &m);
			}
			check(w);
		}
		assert_int_equal(w->n_fails, 0);
		world_free(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(different_results_of_the_previous_round_are_detected),
		cmocka_unit_test(different_operations_are_found),
		cmocka_unit_test(invalid_message_closes_only_its_sender),
		cmocka_unit_test(contribution_of_an_unknown_agent_closes_its_connection),
		cmocka_unit_test(operation_that_the_type_lacks_closes_the_connection),
		cmocka_unit_test(every_message_in_every_state_keeps_the_invariants),
		cmocka_unit_test(random_messages_keep_the_invariants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
