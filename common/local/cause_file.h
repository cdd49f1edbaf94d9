#ifndef BPS_COMMON_LOCAL_CAUSE_FILE_H
#define BPS_COMMON_LOCAL_CAUSE_FILE_H
/* The file in which workers name the worker whose end made the job fail. bpsrun creates it and
 * passes its path in the environment. A worker that fails because of another one often exits first,
 * so the order of the exits does not show the cause. The file has one line: a rank, or CTL_NO_ID
 * while the job has not failed. Thread: any. */
#include <stdint.h>

#define CAUSE_FILE_ENV  "BPS_CAUSE_FILE"
#define CAUSE_FILE_NAME "bpsrun-cause"
/* where the path of bpsrun's descriptor leads (memfd_create(2)) */
#define CAUSE_FILE_LINK "/memfd:" CAUSE_FILE_NAME

/* Write the rank `cause`, if there is a file, and if this worker has the job and the rank that
 * bpsrun gave it: otherwise, bpsrun does not know the ranks. Ignores errors: bpsrun then names the
 * worker that exited first. */
void cause_file_set(const char *job, uint32_t own_rank, uint32_t cause);
#endif
