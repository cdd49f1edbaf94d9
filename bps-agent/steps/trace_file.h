#ifndef BPS_AGENT_STEPS_TRACE_FILE_H
#define BPS_AGENT_STEPS_TRACE_FILE_H
/* Writes records of rounds as a trace for Perfetto, chrome://tracing and PyTorch's profiler: JSON
 * with the field traceEvents. The field `bps`, which comes before it, has the number of records and
 * of lost records, the job, the host and the agent. The machine is one process of the trace, with
 * these rows:
 *
 *   steps       a slice per step
 *   waits       a slice for each wait of a worker that the end of a round ended
 *   rounds      a slice per round of a tensor, and in it a slice per phase (round_phase.h)
 *
 * Slices of a row follow each other or nest. Where rounds overlap, they are in several rows: each
 * round is in the first row that is free. Times are microseconds after baseTimeNanoseconds, which
 * counts from 1970, as in the files of PyTorch's profiler. Thread: any; the functions keep no
 * state. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bps-agent/core/round_record.h"
#include "common/wire/ctlmsg.h"

struct trace_tensor {
	uint32_t id;
	char *name;
	uint64_t bytes;
};

struct trace_server {
	uint32_t id;
	char *name;
};

/* A host may have several agents. */
struct trace_machine {
	char host[CTL_NAME_MAX + 1], agent[CTL_NAME_MAX + 1];
};

/* Everything that a trace shows. */
struct trace_content {
	const char *job;
	const struct trace_machine *here;
	uint32_t pid;     /* process of the trace */
	int64_t epoch_ns; /* CLOCK_REALTIME minus CLOCK_MONOTONIC */
	struct round_record *records;
	size_t n_records;
	uint64_t n_lost; /* number of earlier records that are not kept */
	struct trace_tensor *tensors;
	size_t n_tensors;
	struct trace_server *servers;
	size_t n_servers;
	struct trace_machine *machines; /* by member number */
	size_t n_machines;
};

/* Write the trace, and flush `out`. Sorts content->records by their start. Errors: -ENOMEM; -EIO: a
 * part of the trace could not be written. */
int trace_file_write(FILE *out, struct trace_content *content);
#endif
