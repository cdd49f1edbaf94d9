#ifndef BPS_AGENT_STEPS_TRACE_H
#define BPS_AGENT_STEPS_TRACE_H
/* Makes the trace of a job (trace_file.h) without holding up the data thread: this thread copies
 * the records, and a thread of libuv's pool writes them to a memory file. */
#include <stddef.h>

#include "bps-agent/core/round_log.h"

struct job;
struct trace_machine;

/* Owns: the function takes `machines`, an array by member number, and frees it.
 * Calls done(arg, fd) on the data thread, unless it returns an error. fd: a memory file with the
 * trace, which `done` must close, or a negative error code. The caller bounds the number of traces
 * that are written at a time. Errors: -ENOMEM. Thread: the data thread. */
int trace_start(struct job *job, const struct round_choice *choice, struct trace_machine *machines,
	size_t n_machines, void (*done)(void *arg, int fd), void *arg);
#endif
