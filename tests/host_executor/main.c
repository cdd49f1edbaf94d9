/* bps-agent-host: an executor that emulates GPUs in plain memory, for tests. */
#include "bps-agent/executor/program.h"
#include "tests/host_executor/host.h"

int main(int argc, char **argv)
{
	return executor_program(&device_host, argc, argv);
}
