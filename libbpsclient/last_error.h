#ifndef BPSCLIENT_LAST_ERROR_H
#define BPSCLIENT_LAST_ERROR_H
/* The sentence of bps_last_error: one per thread, written by the call that fails, kept until that
 * thread's next failure. Beside it are the fields of bps_last_failure. The check of the handle at
 * the start of a call clears them, and so does -EINVAL, for which no worker is to blame. */
#include "common/base/error.h"
#include "common/wire/ctlmsg_cause.h"

/* Return the calling thread's sentence, for functions that fill a struct err_text. */
struct err_text *last_error_text(void);

/* Write the calling thread's sentence. Returns code. */
int last_error_set(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Clear the fields. */
void last_error_clear(void);
/* Set the worker or machine that caused the failure. Does nothing if the cause is not known. */
void last_error_cause(const struct ctl_cause *cause);
/* Set the tensor of the call. Names of the library's own tensors are left out. */
void last_error_tensor(const char *name);
#endif
