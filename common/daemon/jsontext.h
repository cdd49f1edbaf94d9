#ifndef BPS_COMMON_DAEMON_JSONTEXT_H
#define BPS_COMMON_DAEMON_JSONTEXT_H
/* Convert text from any source (names of jobs, users' words) to JSON: one name that is not UTF-8
 * must not make a whole document invalid. Any thread. */
#include <jansson.h>

/* Return s as a JSON string; when it is not UTF-8, each byte beyond ASCII becomes '?'. NULL is "".
 * A new reference, NULL out of memory. */
json_t *jsontext(const char *s);
#endif
