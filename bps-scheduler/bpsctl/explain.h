#ifndef BPS_SCHEDULER_BPSCTL_EXPLAIN_H
#define BPS_SCHEDULER_BPSCTL_EXPLAIN_H
/* Explanations of codes: the meaning, the effect, and the action to take. There are codes of the
 * problems in the status, and of the errors in common/base/error.h. */
#include <stdio.h>

#include <jansson.h>

#include "common/base/nearest_name.h"

/* Explain a code: "SERVER_DOWN", "BPS_ETIMEDOUT", "ETIMEDOUT", "10001" or "-10001"; case is
 * ignored. Returns a new reference; NULL: not one of our codes.
 * schema code what effect action [number]
 * For "": schema codes[each as above]. */
json_t *explain_json(const char *code);
/* Write a hint with the known code that is most similar to a wrong one, as nearest_name_hint
 * does. */
const char *explain_nearest(const char *code, char buf[static NEAREST_HINT_BYTES]);
int screen_explain(FILE *out, json_t *root);
#endif
