/* The scheduler's core at the limit of machines in one job. The test is a program of its own,
 * because it takes far longer than all other tests of the core. */
#include "tests/unit/sched_world.h"

static void machines_that_wait_count_for_the_limit_of_machines(void **state)
{
	struct sched_world w;
	char name[16];

	(void)state;
	elastic_job(&w);
	/* Repeatedly, one machine leaves and one joins. */
	for (uint32_t n = 2; n < WIRE_MEMBERS_MAX - 1; n++) {
		uint32_t conn = n == 2 ? 22 : 998 + n;

		worker(&w, conn, 1, WORKER_LOST);
		snprintf(name, sizeof(name), "m%u", n);
		agent(&w, 999 + n, name, 1000 + n);
		join(&w, 999 + n, 1, 2, n);
		w.last_job = 1;
		at_barrier(&w, 21, 0, n - 1);
		clear(&w);
	}
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "new%u", i);
		agent(&w, 5001 + i, name, 7001 + i);
	}
	worker(&w, 998 + WIRE_MEMBERS_MAX - 1, 1, WORKER_LOST);
	join(&w, 5001, CTL_NO_ID, 2, 7001);
	SAID(&w, "5001 JOINED code=0");
	join(&w, 5002, CTL_NO_ID, 2, 7002);
	w.last_job = 1;
	clear(&w);
	at_barrier(&w, 21, 0, WIRE_MEMBERS_MAX - 2);
	SAID(&w, "5001 JOINED code=0 job=1 rank=1");
	SAID(&w, "5002 JOINED code=10012");
	NOT_SAID(&w, "m1024(");
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(machines_that_wait_count_for_the_limit_of_machines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
