#ifndef BPS_COMMON_TRANSPORT_FABRIC_LIBFABRIC_H
#define BPS_COMMON_TRANSPORT_FABRIC_LIBFABRIC_H
/* libfabric, opened on first use instead of at program start. Its dependencies wait up to 0.3 s for
 * devices of their vendors before main() runs, and most clusters have TCP only. */

#include "common/base/error.h"

#define LIBFABRIC_OLDEST_TEXT "1.17"

/* Open the library. Without it none of its functions (fi_getinfo, fi_strerror, ...) may be called.
 * A second call returns at once. err gets the sentence: not installed, or older than 1.17. The
 * library stays open. Threads: one at a time, before others read the environment, because it reads
 * some variables. Returns 0 or a negative errno. */
int libfabric_load(struct err_text *err);
#endif
