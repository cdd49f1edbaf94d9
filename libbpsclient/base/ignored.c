/* The table of environment variables of BytePS and Horovod that the library ignores, see ignored.h.
 * Variables that change neither results nor speed, such as addresses of their servers and levels of
 * logs, are not in the table. Neither are variables that only matter
 * together with another one in the table. Thread: the caller's. */
#include "libbpsclient/base/ignored.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum kind {
	SWITCH, /* has an effect unless it is empty, 0 or false */
	VALUE,  /* has an effect with every value that is not empty */
	COUNT,  /* has an effect if it is a number above 1 */
};

#define TIMEOUT                                                                                    \
	"unset it, and set BPS_TIMEOUT: a wait that takes longer fails, and names the workers "    \
	"that are missing"
#define FUSION                                                                                     \
	"tensors are cut into partitions and not fused; unset it, and set BPS_PARTITION_BYTES "    \
	"or bucket_bytes of DistributedOptimizer"
#define LEVELS  "the agent always sums within its machine first; unset it"
#define NETWORK "the agent exchanges the data; unset it, and set 'provider' or 'listen' in bps.conf"
#define START                                                                                      \
	"this process does not take its rank from horovodrun; unset it, and start the script "     \
	"with bpsrun, or set BPS_RANK and BPS_SIZE"
#define ELASTIC "unset it, and set BPS_ELASTIC, BPS_MAX_SIZE and BPS_OPEN_TIMEOUT"
#define GPUS                                                                                       \
	"the executor chooses how it sums in a machine; unset it, and set 'gpu-strategy' in "      \
	"bps.conf"
#define PLACEMENT "the scheduler places partitions by their sizes and by bandwidth; unset it"
#define BINDING   "workers are not bound; unset it, and use taskset, numactl or the batch system"

static const struct {
	const char *name;
	enum kind kind;
	const char *advice;
} ignored[] = {
	{"BYTEPS_SCHEDULING_CREDIT", SWITCH,
		"priorities are always used; unset it, and set 'peer-window' in bps.conf of the "
		"servers"},
	{"BYTEPS_PCIE_SWITCH_SIZE", VALUE, GPUS},
	{"BYTEPS_REDUCE_ROOTS", VALUE, GPUS},
	{"BYTEPS_NCCL_GROUP_SIZE", VALUE, GPUS},
	{"BYTEPS_KEY_HASH_FN", VALUE, PLACEMENT},
	{"BYTEPS_ENABLE_MIXED_MODE", SWITCH, PLACEMENT},
	{"BYTEPS_ENABLE_IPC", SWITCH,
		"an agent and a server of one host share memory; unset it, and set 'same-host' in "
		"bps.conf"},
	{"BYTEPS_TELEMETRY_ON", SWITCH, "unset it, and use the metrics of bps-agent"},
	{"BYTEPS_NUMA_ON", SWITCH, BINDING},
	{"BYTEPS_VISIBLE_CPU_CORES", VALUE, BINDING},
	{"BYTEPS_ENABLE_GDB", SWITCH,
		"unset it, and start the script with bpsrun ... -- gdb --args"},
	{"PS_RESEND", SWITCH, "messages of lost connections are always sent again; unset it"},
	{"PS_HEARTBEAT_TIMEOUT", SWITCH,
		"unset it, and set 'agent-dead' and 'server-dead' in bps.conf of the scheduler"},
	{"BYTEPS_SOCKET_PATH", VALUE, "unset it, and set BPS_AGENT_SOCKET"},
	{"BYTEPS_DEBUG_SAMPLE_TENSOR", VALUE,
		"no values are printed; unset it, and print the input and output of the tensor"},
	{"DMLC_ENABLE_RDMA", SWITCH, NETWORK},
	{"DMLC_ENABLE_UCX", SWITCH, NETWORK},
	{"HOROVOD_AUTOTUNE", SWITCH,
		"the scheduler chooses the size of partitions; unset it, and set "
		"BPS_PARTITION_BYTES "
		"to choose another"},
	{"HOROVOD_FUSION_THRESHOLD", VALUE, FUSION},
	{"HOROVOD_CYCLE_TIME", VALUE, "tensors are sent at once; unset it"},
	{"HOROVOD_CACHE_CAPACITY", VALUE, "nothing is negotiated; unset it"},
	{"HOROVOD_DISABLE_GROUP_FUSION", SWITCH,
		"groups are sent together; unset it, and pass no groups to DistributedOptimizer"},
	{"HOROVOD_HIERARCHICAL_ALLREDUCE", SWITCH, LEVELS},
	{"HOROVOD_HIERARCHICAL_ALLGATHER", SWITCH, LEVELS},
	{"HOROVOD_TORUS_ALLREDUCE", SWITCH, LEVELS},
	{"HOROVOD_STALL_CHECK_TIME_SECONDS", VALUE, TIMEOUT},
	{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", SWITCH, TIMEOUT},
	{"HOROVOD_STALL_CHECK_DISABLE", SWITCH, TIMEOUT},
	{"HOROVOD_GLOO_TIMEOUT_SECONDS", VALUE, "unset it, and set BPS_OPEN_TIMEOUT"},
	{"HOROVOD_GLOO_IFACE", VALUE, NETWORK},
	{"HOROVOD_IFACE", VALUE, NETWORK},
	{"HOROVOD_CPU_OPERATIONS", VALUE, "there is one kind of operations; unset it"},
	{"HOROVOD_GPU_OPERATIONS", VALUE, GPUS},
	{"HOROVOD_NUM_NCCL_STREAMS", VALUE, GPUS},
	{"HOROVOD_ENABLE_XLA_OPS", SWITCH,
		"operations are not compiled by XLA; unset it, and do not set jit_compile"},
	{"HOROVOD_THREAD_AFFINITY", VALUE,
		"the agent is a process of its own; unset it, and set CPUAffinity= in the unit of "
		"bps-agent"},
	{"HOROVOD_ELASTIC", SWITCH, ELASTIC},
	{"HOROVOD_ELASTIC_TIMEOUT", VALUE, ELASTIC},
	{"HOROVOD_RESET_LIMIT", VALUE, ELASTIC},
	{"HOROVOD_TIMELINE_MARK_CYCLES", SWITCH, "there are no cycles to mark; unset it"},
	{"HOROVOD_SIZE", COUNT, START},
};

static bool variable_has_effect(enum kind kind, const char *value)
{
	if (!value || !*value)
		return false;
	if (kind == COUNT)
		return strtol(value, NULL, 10) > 1;
	return kind == VALUE || (strcmp(value, "0") != 0 && strcasecmp(value, "false") != 0);
}

void ignored_variables_warn(void)
{
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
		const char *value = getenv(ignored[i].name);

		if (variable_has_effect(ignored[i].kind, value))
			fprintf(stderr, "libbpsclient: warning: %s=%.20s is ignored: %s\n",
				ignored[i].name, value, ignored[i].advice);
	}
}
