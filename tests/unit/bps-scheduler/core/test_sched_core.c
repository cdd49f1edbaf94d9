/* The scheduler's core: each state of a member with each event, and random histories. */
#include "tests/unit/sched_world.h"

/* ---- every event in every state ---- */

/* For each state of a member, apply every event that concerns the member. No invariant may
 * break. */
static void every_member_state_takes_every_event(void **state)
{
	(void)state;
	for (int from = 0; from < 4; from++) {
		for (int event = 0; event < 6; event++) {
			struct sched_world w;
			uint32_t conn = 12;

			running_job(&w);
			if (from == 1) {
				close_conn(&w, 12);
			} else if (from == 2) {
				close_conn(&w, 12);
				pass(&w, w.cfg.server_window_ms + 10,
					(const uint32_t[]){11, 21, 22, 0});
			} else if (from == 3) {
				kill_scheduler(&w);
			}
			switch (event) {
			case 0:
				server(&w, conn = 31, "s2", 102);
				break;
			case 1:
				server(&w, conn = 32, "s2", 103);
				break;
			case 2:
				hello(&w, 33, ROLE_SERVER, "s2", "elsewhere", 104);
				break;
			case 3:
				close_conn(&w, 12);
				break;
			case 4:
				pass(&w, 20000, NULL);
				break;
			default:
				w.persist_error = -EIO;
				server(&w, 34, "s2", 105);
				w.persist_error = 0;
				pass(&w, 20000, (const uint32_t[]){11, 21, 22, 0});
				break;
			}
			pass(&w, 100, (const uint32_t[]){conn, 0});
			kill_scheduler(&w);
			world_fini(&w);
		}
	}
}

/* ---- random histories ---- */

#define RANDOM_HISTORIES 150
#define RANDOM_EVENTS    120
#define MEMBERS          6 /* three servers and three agents */

struct chaos {
	struct sched_world w;
	uint64_t seed;
	/* connection of each member; 0: the member is silent */
	uint32_t conn[MEMBERS + 1], next_conn;
	uint64_t instance[MEMBERS];
};

static uint32_t draw(struct chaos *h, uint32_t n)
{
	h->seed = h->seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(h->seed >> 33) % n;
}

static void chaos_hello(struct chaos *h, uint32_t i, bool is_new)
{
	static const char *const names[] = {"p", "q", "r", "p", "q", "r"};
	struct ctl_msg msg;

	if (is_new || !h->instance[i])
		h->instance[i] = ++h->w.random;
	msg = hello_of(i < 3 ? ROLE_SERVER : ROLE_AGENT, names[i], names[i], h->instance[i]);
	msg.hello.threads = (uint16_t)(1 + draw(h, 3));
	msg.hello.view = h->w.kept_view;
	h->conn[i] = ++h->next_conn;
	sched_conn_open(h->w.core, h->conn[i], h->w.now);
	sched_receive_message(h->w.core, h->conn[i], &msg, h->w.now);
}

static void chaos_message(struct chaos *h)
{
	static const char *const names[] = {"x", "y"};
	static const char *const tensors[] = {"t0", "t1", "t2", "t3"};
	bool is_sane = draw(h, 10) > 0;
	uint32_t i = is_sane ? 3 + draw(h, 3) : draw(h, MEMBERS);
	uint32_t job = is_sane ? h->w.last_job : draw(h, 4), rank = is_sane ? i - 3 : draw(h, 4);
	struct ctl_decl d[2] = {
		{rank, tensors[draw(h, 4)],
			shape_from_dtype_and_count(DTYPE_F32, draw(h, 20) ? 400000 : 1000), 0},
		{rank, tensors[draw(h, 4)], shape_from_dtype_and_count(DTYPE_F32, 400000),
			draw(h, 20) ? 0 : ENOMEM}};
	struct ctl_report_worker rw = {.rank = rank};
	struct ctl_msg msg = {.type = CTL_BEAT};

	switch (draw(h, 12)) {
	case 0:
	case 1:
	case 2:
		msg = (struct ctl_msg){.type = CTL_JOIN,
			.join = {draw(h, 9), 1, names[draw(h, 12) == 0],
				draw(h, 6) ? rank : CTL_NO_ID, is_sane ? 3 : 2, 0, 100 + rank, 0,
				.token = draw(h, 9) ? no_token : token}};
		break;
	case 3:
	case 4:
	case 5:
	case 6:
	case 7:
		msg = (struct ctl_msg){.type = CTL_DECLARE, .declare = {job, d, 1 + draw(h, 2)}};
		break;
	case 8:
		msg = (struct ctl_msg){.type = CTL_WORKER,
			.worker = {job, rank, (uint8_t)(draw(h, 4) ? WORKER_FINISHED : WORKER_LOST),
				.text = ""}};
		break;
	case 9:
		msg = (struct ctl_msg){.type = CTL_WHY, .why = {1, job, CTL_NO_ID, 1}};
		break;
	case 10:
		msg = (struct ctl_msg){.type = CTL_REPORT, .report = {draw(h, 9), job, "", &rw, 1}};
		break;
	default:
		if (draw(h, 10) == 0)
			msg = (struct ctl_msg){.type = CTL_FAIL, .fail = {job, 0, ""}};
		break;
	}
	sched_receive_message(h->w.core, h->conn[i], &msg, h->w.now);
}

static void chaos_pass(struct chaos *h)
{
	uint32_t i = draw(h, MEMBERS), conn = h->conn[i];
	uint64_t ms = draw(h, 4) ? 200 : 4000;

	/* The list of connections ends at its first 0. A 0 in place of this member's connection
	 * silences this member and all members after it in the list. */
	if (draw(h, 4) == 0)
		h->conn[i] = 0;
	pass(&h->w, ms, h->conn);
	h->conn[i] = conn;
	if (draw(h, 20) == 0) { /* as if the scheduler's process had been stopped for 3 s */
		h->w.now += 3000 * MS;
		sched_tick(h->w.core, h->w.now);
	}
}

static void chaos_event(struct chaos *h)
{
	uint32_t i = draw(h, MEMBERS), what = draw(h, 40);

	clear(&h->w);
	if (what == 0) {
		sched_conn_closed(h->w.core, h->conn[i], h->w.now);
	} else if (what < 5) {
		chaos_hello(h, i, what == 1);
	} else if (what == 5) {
		h->w.persist_error = draw(h, 3) ? 0 : -EIO;
	} else if (what == 6 && draw(h, 4) == 0) {
		kill_scheduler(&h->w);
		for (uint32_t k = 0; k < MEMBERS; k++)
			if (draw(h, 8))
				chaos_hello(h, k, draw(h, 8) == 0);
	} else if (what < 10) {
		chaos_pass(h);
	} else {
		chaos_message(h);
	}
}

/* Messages and faults of members never break an invariant, and every state can be restored. */
static void random_histories_break_no_invariant(void **state)
{
	struct chaos *h = calloc(1, sizeof(*h));

	(void)state;
	for (uint64_t seed = 1; seed <= RANDOM_HISTORIES; seed++) {
		world_init(&h->w);
		h->seed = seed;
		h->next_conn = 0;
		memset(h->conn, 0, sizeof(h->conn));
		memset(h->instance, 0, sizeof(h->instance));
		for (uint32_t i = 0; i < MEMBERS; i++)
			chaos_hello(h, i, true);
		for (int k = 0; k < RANDOM_EVENTS; k++) {
			chaos_event(h);
			check(&h->w);
		}
		h->w.persist_error = 0;
		kill_scheduler(&h->w);
		world_fini(&h->w);
	}
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_member_state_takes_every_event),
		cmocka_unit_test(random_histories_break_no_invariant),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
