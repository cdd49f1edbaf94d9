#ifndef BPSCLIENT_LAST_ERROR_H
#define BPSCLIENT_LAST_ERROR_H
/* The text of bps_last_error: one sentence per thread. A call that fails writes the sentence of its
 * thread. The sentence stays until the next failure in the same thread. Each thread also has the
 * fields of bps_last_failure. client_check_is_open clears the fields at the start of each call. The
 * error
 * -EINVAL clears the fields too, because -EINVAL has no worker as its cause. */
#include "common/base/error.h"
#include "common/wire/ctlmsg_cause.h"

/* Return the memory of the calling thread's error sentence, for functions that fill a struct
 * err_text. */
struct err_text *last_error_text(void);

/* Set the calling thread's error sentence to the formatted text. Returns `code`. */
int last_error_set(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Clear the fields of bps_last_failure. */
void last_error_clear(void);
/* Record the worker or machine that caused the failure. Does nothing if the cause is not known. */
void last_error_cause(const struct ctl_cause *cause);
/* Record the name of the tensor that the user's API call uses. If `name` is the name of a companion
 * (average.h), record the name of the user's tensor. Does nothing for the library's other internal
 * tensors. */
void last_error_tensor(const char *name);
#endif
