#ifndef BPSCLIENT_LAST_ERROR_H
#define BPSCLIENT_LAST_ERROR_H
/* The sentence of bps_last_error: one per thread, written by the call that fails, kept until that
 * thread's next failure. */
#include "common/base/error.h"

/* Return the calling thread's sentence, for functions that fill a struct err_text. */
struct err_text *last_error_text(void);

/* Write the calling thread's sentence. Returns code. */
int last_error_set(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
