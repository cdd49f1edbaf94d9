#ifndef BPS_COMMON_DAEMON_JSONTEXT_H
#define BPS_COMMON_DAEMON_JSONTEXT_H
/* Convert text from any source, such as a job's name, to JSON. Bytes that are not UTF-8 would make
 * the whole JSON document invalid, so the functions replace such bytes. Any thread may call the
 * functions. */
#include <jansson.h>

/* Return s as a JSON string. When s is not UTF-8, each byte beyond ASCII becomes '?'. If s is NULL,
 * returns the empty string. Returns a new reference, or NULL when out of memory. */
json_t *json_text_sanitized(const char *s);
#endif
