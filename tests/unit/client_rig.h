#ifndef BPS_TESTS_CLIENT_RIG_H
#define BPS_TESTS_CLIENT_RIG_H
/* Helpers for unit tests of the client library. They open jobs at the fake agent
 * (tests/unit/fake_agent.h), and remove a launcher's variables from the environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "libbpsclient/bps.h"
#include "tests/unit/fake_agent.h"

static inline struct bps_options options_of(struct fake_agent *f, int rank, int size)
{
	struct bps_options o;

	bps_options_init(&o);
	o.job = "j";
	o.agent_socket = f->path;
	o.rank = rank;
	o.size = size;
	o.timeout_ms = WAIT_MS;
	return o;
}

/* Open a job of one worker at the agent. */
static inline struct bps *open_one(struct fake_agent *f)
{
	struct bps_options o = options_of(f, 0, 1);
	struct bps *b = NULL;

	assert_int_equal(bps_open(&o, &b), 0);
	return b;
}

static inline struct bps_tensor *declare(struct bps *b, const char *name, uint64_t n_elems)
{
	struct bps_tensor *t = NULL;

	assert_int_equal(bps_declare(b, name, BPS_F32, n_elems, &t), 0);
	return t;
}

static inline uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

#define assert_error_has(part)                                                                     \
	do {                                                                                       \
		if (!strstr(bps_last_error(), part))                                               \
			fail_msg("'%s' is not in '%s'", part, bps_last_error());                   \
	} while (0)

static inline int clean_env(void **state)
{
	static const char *const names[] = {"BPS_JOB", "BPS_RANK", "BPS_SIZE", "BPS_LOCAL_RANK",
		"BPS_LOCAL_SIZE", "BPS_TIMEOUT", "BPS_OPEN_TIMEOUT", "BPS_AGENT_SOCKET", "RANK",
		"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
		"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID",
		"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
		"OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "DMLC_WORKER_ID", "DMLC_NUM_WORKER",
		"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "PMI_RANK", "PMI_SIZE",
		"PMI_JOBID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_RANK",
		"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
		"HOROVOD_RANK", "HOROVOD_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
		"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES",
		"PMIX_RANK", "TF_CONFIG", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE",
		"BYTEPS_GLOBAL_RANK", "BPS_PARTITION_BYTES", "BYTEPS_PARTITION_BYTES",
		"BPS_DETERMINISTIC"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	setenv("BPS_FORCE_DISTRIBUTED", "1", 1);
	return 0;
}

/* A test that starts with a clean environment. */
#define T(name) cmocka_unit_test_setup(name, clean_env)
#endif
