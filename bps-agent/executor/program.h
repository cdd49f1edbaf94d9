#ifndef BPS_AGENT_EXECUTOR_PROGRAM_H
#define BPS_AGENT_EXECUTOR_PROGRAM_H
/* The main function of an executor's program. */
#include "bps-agent/executor/device/device.h"

/* Run an executor with a device back-end. argc, argv: the arguments of main. Returns the exit
 * status. */
int executor_program(const struct device_ops *ops, int argc, char **argv);
#endif
