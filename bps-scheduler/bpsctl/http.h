#ifndef BPS_SCHEDULER_BPSCTL_HTTP_H
#define BPS_SCHEDULER_BPSCTL_HTTP_H
/* Fetches JSON documents from a daemon over HTTP, several at once, with limits on time and size.
 * All functions block. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/base/addr.h"
#include "common/base/error.h"

#define HTTP_PATH_BYTES 512

struct http_get {
	char path[HTTP_PATH_BYTES]; /* path of the request with its query, already escaped */
	/* The answer. rc: 0, or an error that err explains: BPS_ENOSCHED (no daemon answers there),
	 * BPS_ETIMEDOUT, BPS_EPROTO (the answer is not JSON), -E2BIG, -ENOMEM. status: HTTP status.
	 * root: the JSON of the answer, which the caller must release; NULL unless rc is 0. */
	int rc, status;
	json_t *root;
	struct err_text err;
};

/* Send all n requests and fill in their answers. Returns after timeout_ms at the latest, unless the
 * resolver takes longer. */
void http_get_all(const struct addr *addr, struct http_get *gets, size_t n, uint32_t timeout_ms);

/* Check that a process accepts connections at the address. Returns 0, BPS_ENOSCHED or
 * BPS_ETIMEDOUT; in case of an error err gets a sentence. */
int http_can_connect(const struct addr *addr, uint32_t timeout_ms, struct err_text *err);

/* Escape a string for a query ("a b" -> "a%20b") into buf. Returns false if the result does not
 * fit. */
bool http_escape(const char *s, char *buf, size_t n_buf);
#endif
