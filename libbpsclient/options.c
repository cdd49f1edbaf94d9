/* Finds a worker's options (options.h): from the caller, the environment, a launcher's variables
 * and defaults. This file opens no connection. Thread: the caller's. */
#include "libbpsclient/bps.h"
#include "libbpsclient/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/local/local.h"
#include "common/os/cgroup.h"
#include "common/wire/ctlmsg.h"
#include "libbpsclient/last_error.h"

#define TIMEOUT_DEFAULT_MS 600000u
#define SPIN_DEFAULT_US    30u
#define GRACE_DEFAULT_MS   20u
/* Largest number of backup machines. A job has at most 1,024 machines, and every round needs the
 * values of at least one machine. */
#define BACKUP_MAX  1023
#define SPIN_MAX_US 1000000u

_Static_assert(OPTIONS_JOB_BYTES == CTL_JOB_NAME_MAX + 1, "a job's name and its NUL");
_Static_assert(OPTIONS_TOKEN_BYTES == CTL_TOKEN_BYTES, "a job's token");

/* ---- values ---- */

struct option_unit {
	const char *suffix;
	uint64_t factor;
};
static const struct option_unit time_units[] = {
	{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {NULL, 0}};
static const struct option_unit size_units[] = {
	{"", 1}, {"B", 1}, {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}, {NULL, 0}};
static const struct option_unit no_units[] = {{"", 1}, {NULL, 0}};

static const char *env_get_nonempty(const char *name)
{
	const char *value = name ? getenv(name) : NULL;

	return value && *value ? value : NULL;
}

/* Read a number in [0, max], with a unit, from the environment variable. If the variable is not
 * set, *ret does not change. Errors: -EINVAL. Sets bps_last_error. */
static int env_parse_u64_with_unit(
	const char *name, const struct option_unit *units, uint64_t max, uint64_t *ret)
{
	const char *value = env_get_nonempty(name);
	unsigned long long n;
	char *end;

	if (!value)
		return 0;
	errno = 0;
	n = strtoull(value, &end, 10);
	if (value[0] < '0' || value[0] > '9' || errno)
		return last_error_set(-EINVAL, "%s='%s' is not a number", name, value);
	for (; units->suffix && strcmp(units->suffix, end) != 0; units++)
		;
	if (!units->suffix && !*end)
		return last_error_set(
			-EINVAL, "%s='%s' needs a unit (for example %ss)", name, value, value);
	if (!units->suffix)
		return last_error_set(
			-EINVAL, "%s='%s' has the unknown unit '%s'", name, value, end);
	if (n > max / units->factor)
		return last_error_set(-EINVAL, "%s='%s' is too large", name, value);
	*ret = n * units->factor;
	return 0;
}

static int env_parse_u32_with_unit(
	const char *name, const struct option_unit *units, uint32_t max, uint32_t *ret)
{
	uint64_t value = *ret;
	int rc = env_parse_u64_with_unit(name, units, max, &value);

	*ret = (uint32_t)value;
	return rc;
}

static int env_parse_rank_or_size(const char *name, int32_t *ret)
{
	uint64_t value = (uint64_t)*ret;
	int rc = env_parse_u64_with_unit(name, no_units, CTL_WORKERS_MAX, &value);

	*ret = (int32_t)value;
	return rc;
}

static int env_parse_boolean(const char *name, bool *ret)
{
	static const char *const words[] = {"0", "no", "off", "false", "1", "yes", "on", "true"};
	const char *value = env_get_nonempty(name);

	if (!value)
		return 0;
	for (unsigned i = 0; i < 8; i++)
		if (!strcasecmp(value, words[i])) {
			*ret = i >= 4;
			return 0;
		}
	return last_error_set(-EINVAL, "%s='%s' is neither yes nor no", name, value);
}

static int env_parse_agent_loss(bool *ret)
{
	const char *value = env_get_nonempty("BPS_ON_AGENT_LOSS");

	if (!value)
		return 0;
	if (strcasecmp(value, "abort") != 0 && strcasecmp(value, "shrink") != 0)
		return last_error_set(
			-EINVAL, "BPS_ON_AGENT_LOSS='%s' is neither abort nor shrink", value);
	*ret = !strcasecmp(value, "shrink");
	return 0;
}

/* ---- launchers ---- */

/* Names of the environment variables of a launcher. */
struct launcher {
	const char *rank, *size, *local_rank, *local_size;
	const char *job[2];   /* the first of these variables that is set holds the job's name */
	const char *job_step; /* the value is appended to the job's name after a dot */
	/* Host and port at which the workers meet. They make the job's name if `job` is "none". */
	const char *host, *port;
	/* Number of restarts, appended to the job's name if it is not 0. Used only if all workers
	 * are on one machine. The launchers of several machines may count differently. */
	const char *attempt;
	/* Name of a variable that holds the worker's rank. Used only if is_per_machine is true. If
	 * that variable is not set, scale_machines computes the rank. */
	const char *global_rank;
	/* True: the variable `rank` holds the index of the machine, and `size` the number of
	 * machines. Each machine has `local_size` workers. */
	bool is_per_machine;
	bool is_rank_optional; /* if the variable `rank` is not set, the agent assigns a rank */
};

/* Launchers in order of precedence. A launcher that starts the trainers directly comes before the
 * launcher in which it runs: mpirun and torchrun take precedence over the Slurm job around them. */
static const struct launcher launchers[] = {
	{.rank = "BPS_RANK",
		.size = "BPS_SIZE",
		.local_rank = "BPS_LOCAL_RANK",
		.local_size = "BPS_LOCAL_SIZE",
		.is_rank_optional = true},
	{.rank = "RANK",
		.size = "WORLD_SIZE",
		.local_rank = "LOCAL_RANK",
		.local_size = "LOCAL_WORLD_SIZE",
		.job = {"TORCHELASTIC_RUN_ID"},
		.host = "MASTER_ADDR",
		.port = "MASTER_PORT",
		.attempt = "TORCHELASTIC_RESTART_COUNT"},
	{.rank = "OMPI_COMM_WORLD_RANK",
		.size = "OMPI_COMM_WORLD_SIZE",
		.local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
		.local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
		.job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
	{.rank = "MV2_COMM_WORLD_RANK",
		.size = "MV2_COMM_WORLD_SIZE",
		.local_rank = "MV2_COMM_WORLD_LOCAL_RANK",
		.local_size = "MV2_COMM_WORLD_LOCAL_SIZE",
		.job = {"PMI_JOBID", "SLURM_JOB_ID"}},
	/* MPICH and Intel MPI */
	{.rank = "PMI_RANK",
		.size = "PMI_SIZE",
		.local_rank = "MPI_LOCALRANKID",
		.local_size = "MPI_LOCALNRANKS",
		.job = {"PMI_JOBID", "SLURM_JOB_ID"}},
	{.rank = "DMLC_WORKER_ID",
		.size = "DMLC_NUM_WORKER",
		.local_rank = "BYTEPS_LOCAL_RANK",
		.local_size = "BYTEPS_LOCAL_SIZE",
		.global_rank = "BYTEPS_GLOBAL_RANK",
		.is_per_machine = true},
	{.rank = "SLURM_PROCID",
		.size = "SLURM_NTASKS",
		.local_rank = "SLURM_LOCALID",
		.local_size = "SLURM_NTASKS_PER_NODE",
		.job = {"SLURM_JOB_ID"},
		.job_step = "SLURM_STEP_ID"},
};

static const struct launcher *find_launcher_in_env(void)
{
	const struct launcher *l;

	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		l = &launchers[i];
		if (env_get_nonempty(l->size) && (env_get_nonempty(l->rank) || l->is_rank_optional))
			return l;
	}
	return NULL;
}

static int scale_machines(const struct launcher *l, struct client_options *o)
{
	int32_t per = o->local_size > 0 ? o->local_size : 1;
	int32_t local = o->local_rank >= 0 ? o->local_rank : 0;

	if ((int64_t)o->size * per > CTL_WORKERS_MAX)
		return last_error_set(-EINVAL, "%s times %s is more than %d workers", l->size,
			l->local_size, CTL_WORKERS_MAX);
	o->size *= per;
	o->rank = o->rank < o->size ? o->rank * per + local : o->rank;
	return env_parse_rank_or_size(l->global_rank, &o->rank);
}

static void launcher_read_job_name(const struct launcher *l, struct client_options *o)
{
	const char *job = env_get_nonempty(l->job[0]) ? env_get_nonempty(l->job[0])
						      : env_get_nonempty(l->job[1]);
	const char *step = env_get_nonempty(l->job_step), *attempt = env_get_nonempty(l->attempt);
	const char *size = env_get_nonempty(l->size), *local_size = env_get_nonempty(l->local_size);

	/* "none" is torchrun's default. It names no job. */
	if (job && strcmp(job, "none") != 0)
		snprintf(o->job, sizeof(o->job), "%s%s%s", job, step ? "." : "", step ? step : "");
	else if (job && env_get_nonempty(l->host) && env_get_nonempty(l->port))
		snprintf(o->job, sizeof(o->job), "%s:%s", env_get_nonempty(l->host),
			env_get_nonempty(l->port));
	if (attempt && strcmp(attempt, "0") != 0 && size && local_size &&
		strcmp(size, local_size) == 0)
		snprintf(o->job + strlen(o->job), sizeof(o->job) - strlen(o->job), ".%s", attempt);
}

static int launcher_read_rank_and_size(const struct launcher *l, struct client_options *o)
{
	int rc;

	if ((rc = env_parse_rank_or_size(l->rank, &o->rank)) < 0 ||
		(rc = env_parse_rank_or_size(l->size, &o->size)) < 0 ||
		(rc = env_parse_rank_or_size(l->local_rank, &o->local_rank)) < 0 ||
		(rc = env_parse_rank_or_size(l->local_size, &o->local_size)) < 0)
		return rc;
	if (l->is_per_machine && (rc = scale_machines(l, o)) < 0)
		return rc;
	if (o->size < 1)
		return last_error_set(-EINVAL, "%s='%s' is not a valid number of workers", l->size,
			env_get_nonempty(l->size));
	if (o->rank >= o->size && !o->is_elastic)
		return last_error_set(-EINVAL,
			"rank %d (%s='%s') is not below the size %d (%s='%s')", o->rank, l->rank,
			env_get_nonempty(l->rank), o->size, l->size, env_get_nonempty(l->size));
	return 0;
}

/* ---- launchers whose variables are not read ---- */

static const char how_to_start[] =
	"start the workers with bpsrun, or set BPS_RANK and BPS_SIZE for each worker (BPS_SIZE=1 "
	"for a job of one worker)";

/* Return the number of addresses in a list of TF_CONFIG, for example in "worker": ["a:1", "b:1"].
 */
static unsigned count_addresses(const char *config, const char *list)
{
	const char *at = strstr(config, list), *end;
	unsigned n_quotes = 0;

	at = at ? strchr(at, '[') : NULL;
	end = at ? strchr(at, ']') : NULL;
	for (; end && at < end; at++)
		n_quotes += *at == '"';
	return n_quotes / 2;
}

static int refuse_tf_config(void)
{
	const char *config = env_get_nonempty("TF_CONFIG");
	unsigned n = config ? count_addresses(config, "\"worker\"") +
				      count_addresses(config, "\"chief\"") +
				      count_addresses(config, "\"master\"")
			    : 0;

	return n < 2 ? 0
		     : last_error_set(-EINVAL,
			       "TF_CONFIG names %u workers, but bps does not read TF_CONFIG: %s", n,
			       how_to_start);
}

/* Refuse the variables of launchers that bps does not read, and of those that it reads if only one
 * of rank and size is set. Otherwise each worker would be a job of its own. */
static int refuse_foreign(void)
{
	static const struct launcher foreign[] = {{.rank = "HOROVOD_RANK", .size = "HOROVOD_SIZE"},
		{.rank = "JSM_NAMESPACE_RANK", .size = "JSM_NAMESPACE_SIZE"},
		{.rank = "FLUX_TASK_RANK", .size = "FLUX_JOB_SIZE"},
		{.rank = "JAX_PROCESS_ID", .size = "JAX_NUM_PROCESSES"}, {.rank = "PMIX_RANK"}};
	const size_t n_known = sizeof(launchers) / sizeof(launchers[0]);

	for (size_t i = 0; i < n_known + sizeof(foreign) / sizeof(foreign[0]); i++) {
		bool is_known = i < n_known;
		const struct launcher *l = is_known ? &launchers[i] : &foreign[i - n_known];
		const char *rank = env_get_nonempty(l->rank), *size = env_get_nonempty(l->size);

		if (size && strcmp(size, "1") != 0)
			return last_error_set(-EINVAL, "%s='%s' is set, but %s%s: %s", l->size,
				size, is_known ? l->rank : "bps does not read it",
				is_known ? " is not" : "", how_to_start);
		if (rank && !size && (!l->size || l->is_rank_optional || strcmp(rank, "0") != 0))
			return last_error_set(-EINVAL, "%s='%s' is set, but %s%s: %s", l->rank,
				rank, l->size ? l->size : "no variable gives the number of workers",
				l->size ? " is not" : "", how_to_start);
	}
	return refuse_tf_config();
}

/* Take the job's name from the launcher. If is_placed is false, also take rank, size, local rank
 * and local size. If is_placed is true, the caller has given rank and size, and the launcher's
 * local rank and local size would not match them. */
static int options_read_launcher(bool is_placed, struct client_options *o)
{
	const struct launcher *l = find_launcher_in_env();

	if (!l)
		return is_placed ? 0 : refuse_foreign();
	launcher_read_job_name(l, o);
	return is_placed ? 0 : launcher_read_rank_and_size(l, o);
}

/* ---- all options ---- */

static uint32_t spin_default_us(void)
{
	/* With few cores, a worker that spins would take the core that the agent needs. */
	return cgroup_cpu_count() <= 2 ? 0 : SPIN_DEFAULT_US;
}

static int options_read_env_settings(struct client_options *o)
{
	uint32_t backup = 0;
	int rc;

	if ((rc = env_parse_u32_with_unit("BPS_TIMEOUT", time_units, UINT32_MAX, &o->timeout_ms)) <
			0 ||
		(rc = env_parse_u32_with_unit(
			 "BPS_OPEN_TIMEOUT", time_units, UINT32_MAX, &o->open_timeout_ms)) < 0 ||
		(rc = env_parse_boolean("BPS_DETERMINISTIC", &o->is_deterministic)) < 0 ||
		(rc = env_parse_agent_loss(&o->may_shrink)) < 0 ||
		(rc = env_parse_rank_or_size("BPS_MAX_SIZE", &o->max_size)) < 0 ||
		(rc = env_parse_u32_with_unit("BPS_BACKUP", no_units, BACKUP_MAX, &backup)) < 0 ||
		(rc = env_parse_u32_with_unit(
			 "BPS_BACKUP_GRACE", time_units, UINT32_MAX, &o->grace_ms)) < 0 ||
		(rc = env_parse_boolean("BYTEPS_FORCE_DISTRIBUTED", &o->is_forced)) < 0 ||
		(rc = env_parse_boolean("BPS_FORCE_DISTRIBUTED", &o->is_forced)) < 0 ||
		(rc = env_parse_u32_with_unit(
			 "BYTEPS_PARTITION_BYTES", size_units, UINT32_MAX, &o->part_bytes)) < 0 ||
		(rc = env_parse_u32_with_unit(
			 "BPS_PARTITION_BYTES", size_units, UINT32_MAX, &o->part_bytes)) < 0)
		return rc;
	o->backup = (uint16_t)backup;
	return env_parse_u32_with_unit("BPS_SPIN_US", no_units, SPIN_MAX_US, &o->spin_us);
}

static int options_copy_bounded_text(char *dst, size_t room, const char *src, const char *what)
{
	if (!src)
		return 0;
	if (!*src || strlen(src) >= room)
		return last_error_set(-EINVAL, "%s '%.40s%s' has %zu bytes: use 1 to %zu", what,
			src, strlen(src) > 40 ? "..." : "", strlen(src), room - 1);
	memcpy(dst, src, strlen(src) + 1);
	return 0;
}

static int parse_token_hex_digit(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* Read BPS_JOB_TOKEN. The token is a secret, so the error texts do not show it. */
static int options_read_job_token(struct client_options *o)
{
	const char *hex = env_get_nonempty("BPS_JOB_TOKEN");

	if (!hex)
		return 0;
	if (strlen(hex) != 2 * sizeof(o->token))
		return last_error_set(-EINVAL,
			"BPS_JOB_TOKEN has %zu characters, not %zu hex digits", strlen(hex),
			2 * sizeof(o->token));
	for (size_t i = 0; i < sizeof(o->token); i++) {
		int high = parse_token_hex_digit(hex[2 * i]),
		    low = parse_token_hex_digit(hex[2 * i + 1]);

		if (high < 0 || low < 0)
			return last_error_set(
				-EINVAL, "BPS_JOB_TOKEN has characters that are not hex digits");
		o->token[i] = (uint8_t)(high << 4 | low);
	}
	o->has_token = true;
	return 0;
}

/* Check the numbers that the caller has set. -1 means that the caller has set no value. A number
 * below -1 is an error. */
static int options_check_caller_values(const struct bps_options *opt)
{
	const struct {
		const char *name;
		int32_t value;
	} given[] = {{"rank", opt->rank}, {"size", opt->size}, {"local_rank", opt->local_rank},
		{"local_size", opt->local_size}, {"deterministic", opt->deterministic},
		{"on_agent_loss", opt->on_agent_loss}, {"backup", opt->backup},
		{"elastic", opt->elastic}, {"max_size", opt->max_size}};

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
		if (given[i].value < -1)
			return last_error_set(-EINVAL,
				"%s %d is below -1 (-1 takes the value from the environment)",
				given[i].name, given[i].value);
	return 0;
}

static void options_apply_caller_values(const struct bps_options *opt, struct client_options *o)
{
	if (opt->rank >= 0)
		o->rank = opt->rank;
	if (opt->size >= 0)
		o->size = opt->size;
	if (opt->local_rank >= 0)
		o->local_rank = opt->local_rank;
	if (opt->local_size >= 0)
		o->local_size = opt->local_size;
	if (opt->timeout_ms)
		o->timeout_ms = opt->timeout_ms;
	if (opt->open_timeout_ms)
		o->open_timeout_ms = opt->open_timeout_ms;
	if (opt->deterministic >= 0)
		o->is_deterministic = opt->deterministic != 0;
	if (opt->part_bytes)
		o->part_bytes = opt->part_bytes;
	if (opt->on_agent_loss >= 0)
		o->may_shrink = opt->on_agent_loss == BPS_LOSS_SHRINK;
	if (opt->elastic >= 0)
		o->is_elastic = opt->elastic != 0;
	if (opt->max_size >= 0)
		o->max_size = opt->max_size;
	if (opt->backup >= 0)
		o->backup = opt->backup < BACKUP_MAX ? (uint16_t)opt->backup : BACKUP_MAX;
	if (opt->backup_grace_ms)
		o->grace_ms = opt->backup_grace_ms;
}

static int options_check_rank_and_size(const struct client_options *o)
{
	if (o->size < 1 || o->size > CTL_WORKERS_MAX)
		return last_error_set(-EINVAL, "size %d is not in the range from 1 to %d", o->size,
			CTL_WORKERS_MAX);
	if (o->rank >= o->max_size)
		return last_error_set(
			-EINVAL, "rank %d is not below the size %d", o->rank, o->max_size);
	if (o->local_size > o->size)
		return last_error_set(-EINVAL, "local size %d is above the job's size %d",
			o->local_size, o->size);
	if (o->local_size >= 0 && o->local_rank >= o->local_size)
		return last_error_set(-EINVAL, "local rank %d is not below the local size %d",
			o->local_rank, o->local_size);
	return 0;
}

static int settle_elastic(struct client_options *o)
{
	if (!o->is_elastic || o->max_size <= 0)
		o->max_size = o->size;
	if (o->max_size < o->size || o->max_size > CTL_WORKERS_MAX)
		return last_error_set(-EINVAL,
			"max_size %d (BPS_MAX_SIZE) is not in the range from %d (the job's size at "
			"the start) to %d",
			o->max_size, o->size, CTL_WORKERS_MAX);
	o->may_shrink |= o->is_elastic;
	return 0;
}

static void options_fill_default_times(struct client_options *o)
{
	if (!o->backup)
		/* Without backup machines the grace is not used, but all workers must have the same
		 * value, so use 0. */
		o->grace_ms = 0;
	else if (!o->grace_ms)
		o->grace_ms = GRACE_DEFAULT_MS;
	if (!o->timeout_ms)
		o->timeout_ms = TIMEOUT_DEFAULT_MS;
	if (!o->open_timeout_ms)
		o->open_timeout_ms = o->timeout_ms;
}

int client_options_resolve(const struct bps_options *opt, struct client_options *ret)
{
	struct client_options o = {.job = "default",
		.socket = LOCAL_SOCKET,
		.rank = -1,
		.size = 1,
		.max_size = -1,
		.local_rank = -1,
		.local_size = -1,
		.timeout_ms = TIMEOUT_DEFAULT_MS,
		.spin_us = spin_default_us()};
	struct bps_options none;
	int rc;

	if (!opt) {
		bps_options_init(&none);
		opt = &none;
	}
	if (opt->abi != BPS_ABI)
		return last_error_set(-EINVAL,
			"the options have ABI %u, but the library has ABI %u (was bps_options_init "
			"called?)",
			opt->abi, BPS_ABI);
	rc = options_check_caller_values(opt);
	if (rc < 0)
		return rc;
	if (opt->elastic > 0)
		/* Set is_elastic before options_read_launcher, which requires a rank below the size
		 * unless the job is elastic. */
		o.is_elastic = true;
	if ((rc = env_parse_boolean("BPS_ELASTIC", &o.is_elastic)) < 0 ||
		(rc = options_read_launcher(opt->rank >= 0 && opt->size >= 0, &o)) < 0 ||
		(rc = options_read_env_settings(&o)) < 0 || (rc = options_read_job_token(&o)) < 0 ||
		(rc = options_copy_bounded_text(
			 o.job, sizeof(o.job), env_get_nonempty("BPS_JOB"), "BPS_JOB")) < 0 ||
		(rc = options_copy_bounded_text(o.job, sizeof(o.job), opt->job, "job name")) < 0 ||
		(rc = options_copy_bounded_text(o.socket, sizeof(o.socket),
			 env_get_nonempty("BPS_AGENT_SOCKET"), "BPS_AGENT_SOCKET")) < 0 ||
		(rc = options_copy_bounded_text(
			 o.socket, sizeof(o.socket), opt->agent_socket, "agent socket")) < 0)
		return rc;
	options_apply_caller_values(opt, &o);
	if (opt->on_agent_loss > BPS_LOSS_SHRINK)
		return last_error_set(-EINVAL,
			"on_agent_loss %d is neither 0 (abort) nor 1 (shrink)", opt->on_agent_loss);
	if ((rc = settle_elastic(&o)) < 0 || (rc = options_check_rank_and_size(&o)) < 0)
		return rc;
	if (o.backup && o.is_deterministic)
		return last_error_set(-EINVAL,
			"deterministic sums wait for every machine, but sums with backup machines "
			"do not: set only one of BPS_DETERMINISTIC and BPS_BACKUP");
	options_fill_default_times(&o);
	*ret = o;
	return 0;
}

void bps_options_init(struct bps_options *opt)
{
	if (!opt)
		return;
	*opt = (struct bps_options){.abi = BPS_ABI,
		.rank = -1,
		.size = -1,
		.local_rank = -1,
		.local_size = -1,
		.deterministic = -1,
		.on_agent_loss = -1,
		.backup = -1,
		.elastic = -1,
		.max_size = -1};
}
