#ifndef BPSCLIENT_BASE_TRACE_PLAN_H
#define BPSCLIENT_BASE_TRACE_PLAN_H
/* Traces that environment variables request. BYTEPS_TRACE_ON: each worker writes the steps
 * BYTEPS_TRACE_START_STEP to BYTEPS_TRACE_END_STEP to BYTEPS_TRACE_DIR/RANK/comm.json, in
 * the first wait for a later step. HOROVOD_TIMELINE: rank 0 writes its last rounds to this file
 * when it closes the job. */
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/local/local.h"

struct trace_plan {
	char path[PATH_MAX];        /* "": no trace is requested */
	char folder[PATH_MAX - 16]; /* folder of the file, which is made; "": none */
	struct local_ask_trace ask;
	/* the trace is written when a round after this one is over, or when the job is closed */
	uint64_t due_round;
	atomic_bool is_written;
};

void trace_plan_from_env(struct trace_plan *plan, int32_t rank);
/* Make the plan's folder and the folders above it, unless they exist. */
void trace_plan_make_folder(struct trace_plan *plan);
/* Write the file as file_save does. from: a memory file with the trace; -1: there are no rounds.
 * Errors: -errno. */
int trace_file_save(const char *path, int from);
#endif
