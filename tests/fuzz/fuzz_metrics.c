/* Metrics. Whatever value a label has, each sample must stay one line of the Prometheus text
 * format. The label's value must be readable from this line, except that '?' replaces characters
 * that cannot be printed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>

#include "common/daemon/metrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Return the character that the metrics text shows for the byte c of a label value. */
static char shown(char c)
{
	return (c >= ' ' && c < 0x7f) || c == '\n' ? c : '?';
}

/* Read a quoted value, and abort if it is not `value`. Returns the text behind it. */
static const char *unquote(const char *p, const char *value)
{
	if (*p++ != '"')
		abort();
	for (; *value; value++) {
		char c = *p++;

		if (c == '\n' || c == '"')
			abort();
		if (c == '\\')
			c = *p++ == 'n' ? '\n' : p[-1];
		if (c != shown(*value))
			abort();
	}
	if (*p++ != '"')
		abort();
	return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static const char head[] = "bps_x{peer=", tail[] = "} 1\n";
	struct evbuffer *out = evbuffer_new();
	char *value = malloc(n_bytes + 1);
	const char *p;

	if (!out || !value)
		abort();
	memcpy(value, data, n_bytes);
	value[n_bytes] = '\0';
	metric_append_value(out, "bps_x", 1, "peer", value, NULL);
	evbuffer_add(out, "", 1);
	p = (const char *)evbuffer_pullup(out, -1);
	if (strncmp(p, head, sizeof(head) - 1))
		abort();
	if (strcmp(unquote(p + sizeof(head) - 1, value), tail))
		abort();
	free(value);
	evbuffer_free(out);
	return 0;
}
