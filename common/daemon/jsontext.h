#ifndef BPS_COMMON_DAEMON_JSONTEXT_H
#define BPS_COMMON_DAEMON_JSONTEXT_H
/* Text from anywhere (names of jobs, users' words) as JSON: one name that is no UTF-8 must not
 * spoil a whole document. Any thread. */
#include <jansson.h>

/* s, with each byte beyond ASCII replaced by '?' when it is not UTF-8; NULL is "". A new reference,
 * NULL out of memory. */
json_t *jsontext(const char *s);
#endif
