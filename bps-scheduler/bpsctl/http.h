#ifndef BPS_SCHEDULER_BPSCTL_HTTP_H
#define BPS_SCHEDULER_BPSCTL_HTTP_H
/* One GET of a JSON document from a daemon, bounded in time and size. Blocking. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/addr.h"
#include "common/error.h"

/* path: with its query, already escaped. ret_status: the HTTP status; ret_root: the caller's
 * reference. Errors: BPS_ENOSCHED nobody answers there, BPS_ETIMEDOUT, BPS_EPROTO it is no JSON;
 * with a sentence. */
int http_get(const struct addr *addr, const char *path, uint32_t timeout_ms, int *ret_status,
	json_t **ret_root, struct err_text *err);

/* Escape for a query ("a b" -> "a%20b") into buf; false when it does not fit. */
bool http_escape(const char *s, char *buf, size_t n_buf);
#endif
