#ifndef BPS_COMMON_LOCAL_CAUSE_FILE_H
#define BPS_COMMON_LOCAL_CAUSE_FILE_H
/* The file in which workers name the worker whose end made the job fail. bpsrun creates it and
 * passes its path in the environment. A worker that fails because of another one often exits first,
 * so the order of the exits does not show the cause. Each line is the rank of a worker. Thread:
 * any. */
#include <stdint.h>

#define CAUSE_FILE_ENV "BPS_CAUSE_FILE"

/* Append the rank to the file, if there is one and the job is that of BPS_JOB, which bpsrun sets
 * too. Ignores errors: bpsrun then names the worker that exited first. */
void cause_file_add(const char *job, uint32_t rank);
#endif
