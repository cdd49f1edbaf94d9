/* bps-agent-cuda: the executor for NVIDIA GPUs. */
#include "bps-agent/executor/device/cuda.h"
#include "bps-agent/executor/program.h"

int main(int argc, char **argv)
{
	return executor_program(&device_cuda, argc, argv);
}
