/* The program of an executor, such as bps-agent-cuda: the process that drives the GPUs of one job
 * for bps-agent. Only bps-agent starts it, with a socket as descriptor 3. See bps-agent(8). */
#include "bps-agent/executor/program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sysexits.h>

#include "bps-agent/executor/exec.h"
#include "bps-agent/executor/plan/choose.h"
#include "bps-agent/executor/plan/report.h"

/* Print the number of GPUs, or why there are none. Returns the exit status. */
static int executor_print_gpu_count(const struct device_ops *ops)
{
	struct err_text why = {""};
	int n = ops->probe(&why);

	if (n < 0) {
		fprintf(stderr, "bps-agent-%s: %s\n", ops->name, why.s);
		return EX_UNAVAILABLE;
	}
	printf("%d\n", n);
	return 0;
}

/* Print a line for each GPU, in the format of report.h. The agent reads these lines. Returns the
 * exit status. */
static int executor_print_gpus(const struct device_ops *ops)
{
	struct topo_report reports[TOPO_GPUS_MAX];
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	char line[REPORT_LINE_BYTES];
	struct err_text why = {""};
	struct device *dev = NULL;
	int n = ops->open("gpus", &dev, &why);

	if (n == 0)
		n = choose_reports(dev, reports, &why);
	if (n > 0 && ops->gpus(dev, gpus, DEVICE_GPUS_MAX) != n)
		n = err_set(&why, DEVICE_NODEV, "the number of GPUs changed during the listing");
	for (int i = 0; i < n; i++) {
		topo_report_format(&reports[i], gpus[i].caps & DEVICE_CAP_CLIQUE, line);
		puts(line);
	}
	if (dev)
		ops->close(dev);
	if (n > 0)
		return 0;
	printf("%s\n", why.s);
	return EX_UNAVAILABLE;
}

int executor_program(const struct device_ops *ops, int argc, char **argv)
{
	int type;
	socklen_t len = sizeof(type);

	if (argc == 2 && !strcmp(argv[1], "--version")) {
		printf("bps-agent-%s %s\n", ops->name, BPS_VERSION);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "--probe"))
		return executor_print_gpu_count(ops);
	if (argc == 2 && !strcmp(argv[1], "--gpus"))
		return executor_print_gpus(ops);
	if (argc > 1 || getsockopt(GPU_PIPE_FD, SOL_SOCKET, SO_TYPE, &type, &len) < 0 ||
		type != SOCK_SEQPACKET) {
		fprintf(stderr,
			"bps-agent-%s can be started by bps-agent only. By hand: --probe prints "
			"the number of GPUs, --gpus lists the GPUs, --version prints the release\n",
			ops->name);
		return EX_USAGE;
	}
	fcntl(GPU_PIPE_FD, F_SETFD, FD_CLOEXEC);
	signal(SIGPIPE, SIG_IGN);
	return exec_main(ops, GPU_PIPE_FD);
}
