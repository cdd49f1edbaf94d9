#ifndef BPS_SCHEDULER_BPSCTL_EXPLAIN_H
#define BPS_SCHEDULER_BPSCTL_EXPLAIN_H
/* What a code means, does and wants done: those of problems in the status, and the errors of
 * common/base/error.h. */
#include <stdio.h>

#include <jansson.h>

#include "common/base/nearest_name.h"

/* code: "SERVER_DOWN", "BPS_ETIMEDOUT", "ETIMEDOUT", "10001", "-10001"; in any case. A new reference:
 *   schema code what effect action [number]
 * "": schema codes[each as above]. NULL: not one of ours. */
json_t *explain_json(const char *code);
/* The nearest code to a wrong one, as nearest_name_hint. */
const char *explain_nearest(const char *code, char buf[static NEAREST_HINT_BYTES]);
int screen_explain(FILE *out, json_t *root);
#endif
