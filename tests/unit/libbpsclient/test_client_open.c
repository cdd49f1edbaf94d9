/* How a job is opened in the client library: its options and its environment variables. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "libbpsclient/options.h"
#include "tests/unit/client_rig.h"

/* ---- open ---- */

static void open_without_an_agent_says_where_it_looked(void **state)
{
	struct bps_options o;
	struct bps *b;

	(void)state;
	bps_options_init(&o);
	o.size = 2;
	o.rank = 0;
	o.agent_socket = "/nonexistent/agent.sock";
	assert_int_equal(bps_open(&o, &b), BPS_ENOAGENT);
	assert_string_equal(bps_last_error(),
		"cannot connect to '/nonexistent/agent.sock': No such file "
		"or directory (is bps-agent running? bpsrun starts one for a job)");
}

static void agent_that_dies_before_its_welcome_is_connected_again(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	f->n_deaths = 2;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_close(b, WAIT_MS), 0);
	fake_agent_free(f);

	f = fake_agent_new();
	f->n_deaths = 3;
	fake_agent_start(f);
	o = options_of(f, 0, 1);
	assert_int_equal(bps_open(&o, &b), BPS_ENOAGENT);
	fake_agent_free(f);
}

static void repeated_messages_of_a_restarted_agent_change_nothing(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_traffic traffic;
	struct bps_tensor *t, *u;
	struct bps *b;

	(void)state;
	f->repeats = true;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "a", BPS_F32, 100, &t), 0);
	((float *)bps_input(t))[7] = 3;
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_declare(b, "b", BPS_F32, 100, &u), 0);
	assert_int_equal(bps_wait(t, WAIT_MS), 0);
	assert_true(((const float *)bps_output(t))[7] == 3);
	assert_int_equal(bps_traffic(b, NULL), -EINVAL);
	assert_int_equal(bps_traffic(b, &traffic), 0);
	assert_true(traffic.instance == 7 && traffic.sent_bytes == 1);
	assert_int_equal(traffic.received_bytes, 2);
	/* the barrier succeeds, although the agent sent its previous answer twice */
	assert_int_equal(bps_barrier(b, WAIT_MS), 0);
	assert_int_equal(bps_close(b, WAIT_MS), 0);
	fake_agent_free(f);
}

static void open_is_refused_with_the_agents_reason(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	f->refuse_code = -BPS_EDUP;
	fake_agent_start(f);
	o = options_of(f, 0, 2);
	assert_int_equal(bps_open(&o, &b), BPS_EDUP);
	assert_error_has("no room for you");
	fake_agent_free(f);
}

static void open_that_times_out_names_the_missing_ranks(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	f->why = "ranks 1 and 3 have not attached";
	fake_agent_start(f);
	o = options_of(f, 0, 4);
	o.open_timeout_ms = 300;
	assert_int_equal(bps_open(&o, &b), BPS_ETIMEDOUT);
	assert_error_has("ranks 1 and 3 have not attached");
	assert_error_has("job 'j' of 4 workers");
	fake_agent_free(f);
}

static void expect_open(void (*set)(struct fake_agent *), int code)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_options o;
	struct bps *b;

	set(f);
	fake_agent_start(f);
	o = options_of(f, 0, 1);
	assert_int_equal(bps_open(&o, &b), code);
	fake_agent_free(f);
}

static void spoil_control(struct fake_agent *f)
{
	f->spoils_control = true;
}

static void unseal_control(struct fake_agent *f)
{
	f->is_unsealed = true;
}

static void control_page_that_is_bad_or_can_shrink_is_refused(void **state)
{
	(void)state;
	expect_open(spoil_control, BPS_EPROTO);
	expect_open(unseal_control, BPS_EPROTO);
}

static void assigned_rank_is_returned(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	o = options_of(f, -1, 1);
	assert_int_equal(bps_open(&o, &b), 0);
	assert_int_equal(bps_rank(b), 0);
	assert_int_equal(bps_size(b), 1);
	assert_int_equal(bps_local_size(b), 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

/* ---- options ---- */

static void set_all(const char *const *pairs)
{
	for (; pairs[0]; pairs += 2)
		setenv(pairs[0], pairs[1], 1);
}

static void expect_place(
	const char *const *pairs, int rank, int size, int local_rank, const char *job)
{
	struct client_options o;

	clean_env(NULL);
	set_all(pairs);
	assert_int_equal(client_options_resolve(NULL, &o), 0);
	assert_int_equal(o.rank, rank);
	assert_int_equal(o.size, size);
	assert_int_equal(o.local_rank, local_rank);
	assert_string_equal(o.job, job);
}

static const char one_worker[] =
	"{\"cluster\": {\"ps\": [\"a:1\", \"b:1\"], \"worker\": [\"a:2\"]}, "
	"\"task\": {\"type\": \"worker\", \"index\": 0}}";
static const char two_workers[] = "{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\"]}, "
				  "\"task\": {\"type\": \"worker\", \"index\": 0}}";
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static void each_launchers_variables_give_the_place(void **state)
{
	(void)state;
	expect_place(ENV("LOCAL_RANK", "3", "RANK", "0"), -1, 1, -1, "default");
	expect_place(ENV("BPS_SIZE", "5"), -1, 5, -1, "default");
	expect_place(ENV("BPS_RANK", "2", "BPS_SIZE", "5", "RANK", "1", "WORLD_SIZE", "3",
			     "LOCAL_RANK", "1", "BPS_JOB", "mine"),
		2, 5, -1, "mine");
	expect_place(ENV("RANK", "1", "WORLD_SIZE", "3", "LOCAL_RANK", "1", "TORCHELASTIC_RUN_ID",
			     "run"),
		1, 3, 1, "run");
	expect_place(ENV("RANK", "1", "WORLD_SIZE", "3", "LOCAL_WORLD_SIZE", "3",
			     "TORCHELASTIC_RUN_ID", "run", "TORCHELASTIC_RESTART_COUNT", "2",
			     "MASTER_ADDR", "h", "MASTER_PORT", "29500"),
		1, 3, -1, "run.2");
	expect_place(ENV("RANK", "1", "WORLD_SIZE", "3", "LOCAL_WORLD_SIZE", "1",
			     "TORCHELASTIC_RUN_ID", "run", "TORCHELASTIC_RESTART_COUNT", "2"),
		1, 3, -1, "run");
	expect_place(ENV("RANK", "1", "WORLD_SIZE", "3", "TORCHELASTIC_RUN_ID", "none",
			     "TORCHELASTIC_RESTART_COUNT", "0", "MASTER_ADDR", "h", "MASTER_PORT",
			     "29500"),
		1, 3, -1, "h:29500");
	expect_place(
		ENV("RANK", "1", "WORLD_SIZE", "3", "MASTER_ADDR", "h", "MASTER_PORT", "29500"), 1,
		3, -1, "default");
	expect_place(ENV("PMI_RANK", "2", "PMI_SIZE", "4", "MPI_LOCALRANKID", "0",
			     "MPI_LOCALNRANKS", "2"),
		2, 4, 0, "default");
	expect_place(ENV("MV2_COMM_WORLD_RANK", "2", "MV2_COMM_WORLD_SIZE", "4", "PMI_RANK", "2",
			     "PMI_SIZE", "4", "PMI_JOBID", "7.0"),
		2, 4, -1, "7.0");
	expect_place(ENV("BPS_SIZE", "1", "HOROVOD_SIZE", "4", "TF_CONFIG", two_workers), -1, 1, -1,
		"default");
	expect_place(
		ENV("RANK", "0", "WORLD_SIZE", "2", "TF_CONFIG", two_workers), 0, 2, -1, "default");
	expect_place(ENV("HOROVOD_SIZE", "1", "HOROVOD_RANK", "0", "TF_CONFIG", one_worker), -1, 1,
		-1, "default");
	expect_place(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_JOB_ID", "8",
			     "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4",
			     "PMIX_NAMESPACE", "ns@1"),
		3, 4, -1, "ns@1");
	expect_place(ENV("SLURM_PROCID", "6", "SLURM_NTASKS", "8", "SLURM_LOCALID", "2",
			     "SLURM_JOB_ID", "17", "SLURM_STEP_ID", "0", "RANK", "3"),
		6, 8, 2, "17.0");
	expect_place(ENV("DMLC_WORKER_ID", "1", "DMLC_NUM_WORKER", "3", "BYTEPS_LOCAL_RANK", "2",
			     "BYTEPS_LOCAL_SIZE", "4"),
		6, 12, 2, "default");
	expect_place(ENV("DMLC_WORKER_ID", "1", "DMLC_NUM_WORKER", "3", "BYTEPS_LOCAL_RANK", "2",
			     "BYTEPS_LOCAL_SIZE", "4", "BYTEPS_GLOBAL_RANK", "11"),
		11, 12, 2, "default");
}

static void given_place_leaves_only_the_job_to_the_launcher(void **state)
{
	struct bps_options given;
	struct client_options o;

	(void)state;
	set_all(ENV(
		"RANK", "7", "WORLD_SIZE", "8", "LOCAL_RANK", "7", "TORCHELASTIC_RUN_ID", "run"));
	bps_options_init(&given);
	given.rank = 1;
	given.size = 2;
	assert_int_equal(client_options_resolve(&given, &o), 0);
	assert_int_equal(o.rank, 1);
	assert_int_equal(o.size, 2);
	assert_int_equal(o.local_rank, -1);
	assert_string_equal(o.job, "run");
}

static void units_of_the_settings_are_understood(void **state)
{
	struct client_options o;

	(void)state;
	set_all(ENV("BPS_TIMEOUT", "1500ms", "BPS_OPEN_TIMEOUT", "2min", "BPS_PARTITION_BYTES",
		"4MiB", "BYTEPS_PARTITION_BYTES", "99", "BPS_DETERMINISTIC", "Yes"));
	assert_int_equal(client_options_resolve(NULL, &o), 0);
	assert_int_equal(o.timeout_ms, 1500);
	assert_int_equal(o.open_timeout_ms, 120000);
	assert_int_equal(o.part_bytes, 4u << 20);
	assert_true(o.is_deterministic);
}

static void bad_variables_are_errors_that_name_them(void **state)
{
	static const struct {
		const char *pairs[7];
		const char *text;
	} cases[] = {
		{{"BPS_SIZE", "two"}, "BPS_SIZE='two' is not a number"},
		{{"BPS_SIZE", "-2"}, "BPS_SIZE='-2' is not a number"},
		{{"BPS_SIZE", "99999999"}, "BPS_SIZE='99999999' is too large"},
		{{"BPS_RANK", "1"}, "BPS_RANK='1' is set, but BPS_SIZE is not: start the workers"},
		{{"BPS_RANK", "0"}, "BPS_RANK='0' is set, but BPS_SIZE is not"},
		{{"RANK", "3"}, "RANK='3' is set, but WORLD_SIZE is not"},
		{{"WORLD_SIZE", "4"}, "WORLD_SIZE='4' is set, but RANK is not: start the workers"},
		{{"SLURM_NTASKS", "8"}, "SLURM_NTASKS='8' is set, but SLURM_PROCID is not"},
		{{"OMPI_COMM_WORLD_RANK", "1"}, "but OMPI_COMM_WORLD_SIZE is not"},
		{{"PMI_SIZE", "2"}, "PMI_SIZE='2' is set, but PMI_RANK is not"},
		{{"HOROVOD_RANK", "0", "HOROVOD_SIZE", "2"},
			"HOROVOD_SIZE='2' is set, but bps does not read it: start the workers with "
			"bpsrun, or set BPS_RANK and BPS_SIZE for each worker"},
		{{"JSM_NAMESPACE_SIZE", "2"}, "JSM_NAMESPACE_SIZE='2' is set, but bps does not"},
		{{"FLUX_JOB_SIZE", "16"}, "FLUX_JOB_SIZE='16' is set, but bps does not read it"},
		{{"JAX_NUM_PROCESSES", "2"}, "JAX_NUM_PROCESSES='2' is set, but bps does not"},
		{{"PMIX_RANK", "0"}, "PMIX_RANK='0' is set, but no variable gives the number"},
		{{"TF_CONFIG", two_workers}, "TF_CONFIG names 2 workers, but bps does not read"},
		{{"RANK", "4", "WORLD_SIZE", "4"}, "rank 4 (RANK='4') is not below the size 4"},
		{{"WORLD_SIZE", "0", "RANK", "0"},
			"WORLD_SIZE='0' is not a valid number of workers"},
		{{"BPS_TIMEOUT", "30"}, "BPS_TIMEOUT='30' needs a unit"},
		{{"BPS_TIMEOUT", "30x"}, "unknown unit 'x'"},
		{{"BPS_DETERMINISTIC", "maybe"}, "BPS_DETERMINISTIC='maybe' is neither"},
		{{"BPS_PARTITION_BYTES", "9999999999GiB"}, "is too large"},
		{{"BPS_SIZE", "2", "BPS_ELASTIC", "1", "BPS_MAX_SIZE", "1"}, "BPS_MAX_SIZE"},
		{{"BPS_DETERMINISTIC", "1", "BPS_BACKUP", "1"}, "BPS_BACKUP"},
	};
	struct bps *b;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		clean_env(NULL);
		set_all(cases[i].pairs);
		assert_int_equal(bps_open(NULL, &b), -EINVAL);
		assert_error_has(cases[i].text);
	}
	clean_env(NULL);
}

static void options_that_were_not_initialised_are_refused(void **state)
{
	struct bps_options o = {0};
	struct bps *b;

	(void)state;
	assert_int_equal(bps_open(&o, &b), -EINVAL);
	assert_error_has("bps_options_init");
	bps_options_init(&o);
	o.size = 2;
	o.rank = 2;
	assert_int_equal(bps_open(&o, &b), -EINVAL);
	assert_int_equal(bps_close(NULL, 0), 0);
	assert_string_equal(
		bps_strerror(BPS_EBUSY), "a push_pull of this tensor is already in flight");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(open_without_an_agent_says_where_it_looked),
		T(agent_that_dies_before_its_welcome_is_connected_again),
		T(repeated_messages_of_a_restarted_agent_change_nothing),
		T(open_is_refused_with_the_agents_reason),
		T(open_that_times_out_names_the_missing_ranks),
		T(control_page_that_is_bad_or_can_shrink_is_refused),
		T(assigned_rank_is_returned),
		T(each_launchers_variables_give_the_place),
		T(given_place_leaves_only_the_job_to_the_launcher),
		T(units_of_the_settings_are_understood),
		T(bad_variables_are_errors_that_name_them),
		T(options_that_were_not_initialised_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
