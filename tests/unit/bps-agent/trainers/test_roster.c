/* Trainers learn at a barrier how the members of their job have changed
 * (bps-agent/trainers/roster.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bps-agent/trainers/roster.h"
#include "bps-agent/trainers/trainer.h"

#define BARRIER 3
#define FORMED  10
#define BORDER  20

/* A stub, which this test never calls. The agent's own function would link all of the agent's code,
 * whose names clash with those of the library. */
void trainer_send_message(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds)
{
	(void)t;
	(void)m;
	(void)fds;
	(void)n_fds;
	fail_msg("the agent sent a message to a trainer");
}

/* Record a JOB message with machines of ranks 0, 1 and 2. The third machine was admitted at a
 * barrier. */
static void note(struct job *job, uint64_t view, int gone)
{
	struct ctl_rank ranks[3] = {{.rank = 0}, {.rank = 1}, {.rank = 2}};
	struct ctl_job_member members[3];
	struct ctl_job m = {.view = view,
		.members = members,
		.n_members = 3,
		.formed = FORMED,
		.barrier = BARRIER,
		.border = BORDER,
		.border_barrier = BARRIER};

	for (int i = 0; i < 3; i++)
		members[i] = (struct ctl_job_member){.host = "h",
			.name = "a",
			.why = "",
			.ranks = &ranks[i],
			.n_ranks = 1,
			.since = i == 2 ? BORDER : FORMED,
			.is_gone = i == gone};
	assert_int_equal(roster_update(job, &m), 0);
}

static void newcomer_that_is_lost_again_was_let_in_all_the_same(void **state)
{
	struct job job = {.roster = NULL};
	uint32_t n_new, root;

	(void)state;
	note(&job, BORDER, -1);
	roster_newcomers(&job, BARRIER, &n_new, &root);
	assert_int_equal(n_new, 1);
	assert_int_equal(root, 0);
	/* If an agent was disconnected for a moment, a single message can report two events to the
	 * agent: the new machine was admitted, and the new machine was lost (J13). */
	note(&job, BORDER + 1, 2);
	roster_newcomers(&job, BARRIER, &n_new, &root);
	assert_int_equal(n_new, 1);
	assert_int_equal(root, 0);
	roster_newcomers(&job, BARRIER + 1, &n_new, &root);
	assert_int_equal(n_new, 0);
	roster_free(&job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(newcomer_that_is_lost_again_was_let_in_all_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
