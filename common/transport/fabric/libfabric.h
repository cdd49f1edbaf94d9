#ifndef BPS_COMMON_TRANSPORT_FABRIC_LIBFABRIC_H
#define BPS_COMMON_TRANSPORT_FABRIC_LIBFABRIC_H
/* libfabric, loaded with dlopen on first use instead of at program start. libfabric depends on
 * libraries that search for their vendors' devices when they are loaded. At program start, this
 * search would take up to 0.3 s before main() runs. Most clusters use TCP only and do not need
 * libfabric. */

#include "common/base/error.h"

/* Load the library. Call this before any of its functions (fi_getinfo, fi_strerror, ...). A second
 * call returns at once; the library is never unloaded. Returns 0 or a negative errno. Errors:
 * libfabric is not installed, or fabric_gates_check rejects its version; err gets the text.
 * Thread: one at a time. During the call no other thread may change the environment, because
 * libfabric reads some variables. */
int libfabric_load(struct err_text *err);
#endif
