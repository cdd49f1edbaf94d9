/* The options of horovodrun. Users who come from Horovod type these options. bpsrun has some of
 * them under another spelling. For each of the others, this file has what bpsrun has instead. */
#include "libbpsclient/tools/bpsrun.h"

#include <string.h>

static const struct {
	const char *names; /* separated by blanks */
	const char *instead;
} options[] = {
	{"--host", "write -H or --hosts"},
	{"-prefix-timestamp --prefix-output-with-timestamp",
		"leave it out: each line begins with the rank of its worker, and has no time"},
	{"-p --ssh-port", "write --rsh 'ssh -p PORT'"},
	{"-i --ssh-identity-file", "write --rsh 'ssh -i FILE'"},
	{"--min-np --min-num-proc --max-np --max-num-proc --slots-per-host "
	 "--host-discovery-script --elastic-timeout --reset-limit --blacklist-cooldown-range",
		"set BPS_ELASTIC=1 and BPS_MAX_SIZE for a job that may grow, see "
		"bps_checkpoint_barrier(3), and write --restart N to start lost workers again"},
	{"--network-interface --network-interfaces", "write --interface NAME"},
	{"--stall-check --no-stall-check --stall-check-warning-time-seconds "
	 "--stall-check-shutdown-time-seconds",
		"set BPS_TIMEOUT; `bpsctl why-stuck` shows what each worker waits for"},
	{"-v", "write --version"},
	{"--verbose", "write --status to see the state of the cluster at the end"},
	{"--output-filename", "write --log-dir DIR"},
	{"--config-file", "write the options on the command line"},
	{"--log-level --log-with-timestamp --log-without-timestamp --log-hide-timestamp "
	 "--no-log-hide-timestamp",
		"set `log-level` of the daemons, see bps.conf(5)"},
	{"--timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles",
		"leave it out: there is no timeline; `bpsctl job NAME` shows what slows a job"},
	{"--gloo --mpi --js --jsrun --tcp --mpi-args --binding-args --mpi-threads-disable "
	 "--no-mpi-threads-disable --gloo-timeout-seconds --thread-affinity",
		"leave it out: bps uses neither MPI nor Gloo"},
	{"--fusion-threshold-mb --cycle-time-ms --cache-capacity --disable-cache "
	 "--hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather "
	 "--no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --num-nccl-streams "
	 "--autotune --no-autotune --autotune-log-file --autotune-warmup-samples "
	 "--autotune-steps-per-sample --autotune-bayes-opt-max-samples "
	 "--autotune-gaussian-process-noise",
		"leave it out: bps needs no such setting"},
};

/* Return whether `word` begins with the option `name`, and its value follows or is in the next
 * word: "--hosts", "--hosts=a:2", "-Ha:2". */
static bool word_is_horovod_option(const char *word, const char *name, size_t n)
{
	bool is_long = name[1] == '-' || n > 2;

	if (strncmp(word, name, n) != 0)
		return false;
	return !word[n] || word[n] == '=' || !is_long;
}

char *horovod_option_translate(char *word)
{
	static const char *const pairs[][2] = {{"-np", "-n"}, {"--num-proc", "-n"},
		{"-cb", "--check-build"}, {"-hostfile", "--hostfile"}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		if (strcmp(word, pairs[i][0]) == 0)
			return (char *)(uintptr_t)pairs[i][1];
	return word;
}

bool horovod_option_explain(const char *word)
{
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		for (const char *name = options[i].names; *name;) {
			size_t n = strcspn(name, " ");

			if (word_is_horovod_option(word, name, n)) {
				output_print_message("%.*s is an option of horovodrun: %s", (int)n,
					name, options[i].instead);
				return true;
			}
			name += n + (name[n] == ' ');
		}
	return false;
}
