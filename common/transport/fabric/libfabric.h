#ifndef BPS_COMMON_TRANSPORT_FABRIC_LIBFABRIC_H
#define BPS_COMMON_TRANSPORT_FABRIC_LIBFABRIC_H
/* libfabric, opened by those who use it, not with the program: what it links to waits up to 0.3 s
 * for devices of its vendors before main() runs, and most clusters have TCP only. */

#include "common/base/error.h"

#define LIBFABRIC_OLDEST_TEXT "1.17"

/* Open the library; without that none of its functions (fi_getinfo, fi_strerror, ...) may be called.
 * Again: returns at once. err gets the sentence: not installed, or older than 1.17. It stays open.
 * Threads: one at a time, before others look at the environment, of which it reads some variables.
 * Returns 0 or a negative errno. */
int libfabric_load(struct err_text *err);
#endif
