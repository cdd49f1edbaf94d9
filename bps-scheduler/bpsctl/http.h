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
	/* rc: 0, BPS_ENOSCHED (no daemon answers at the address), BPS_ETIMEDOUT, BPS_EPROTO (the
	 * answer is not JSON), -E2BIG or -ENOMEM. If rc is not 0, `err` explains the error.
	 * status: HTTP status of the answer. */
	int rc, status;
	json_t *root; /* JSON of the answer, which the caller releases; NULL if rc is not 0 */
	/* is_text: set by the caller. An answer with the status 200 is then not parsed: `text`
	 * has its n_text bytes, and a zero behind them. The caller frees `text`. */
	bool is_text;
	char *text;
	size_t n_text;
	struct err_text err;
};

/* Send all n requests and fill in their answers. Returns after timeout_ms at the latest, unless the
 * resolver takes longer. */
void http_get_all(const struct addr *addr, struct http_get *gets, size_t n, uint32_t timeout_ms);

/* Check that a process accepts connections at the address, and write what the address was resolved
 * to. Returns 0, BPS_ENOSCHED, BPS_ETIMEDOUT, or -EADDRNOTAVAIL (the name has no address). On an
 * error, writes a sentence to *err. */
int http_can_connect(const struct addr *addr, uint32_t timeout_ms, struct sockaddr_storage *ret_sa,
	socklen_t *ret_len, struct err_text *err);

/* Escape a string for a query ("a b" -> "a%20b") into buf. Returns false if the result does not
 * fit. */
bool http_escape(const char *s, char *buf, size_t n_buf);
#endif
