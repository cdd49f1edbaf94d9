#ifndef BPS_SCHEDULER_BPSCTL_EXPLAIN_H
#define BPS_SCHEDULER_BPSCTL_EXPLAIN_H
/* Explains codes: the meaning, the effect, and the action to take. The codes are those of problems
 * in the status and those of errors in common/base/error.h. */
#include <stdio.h>

#include <jansson.h>

#include "common/base/nearest_name.h"

/* Explain a code: "SERVER_DOWN", "BPS_ETIMEDOUT", "ETIMEDOUT", "10001" or "-10001"; case is
 * ignored. Returns a document, a new reference; NULL: the code is unknown. Fields of the
 * document:
 *   schema code what effect action [number]
 * If `code` is "", the document has the explanations of all codes:
 *   schema codes[each as above] */
json_t *explain_json(const char *code);
/* Write a hint that names the known code most similar to the unknown `code`. See
 * nearest_name_hint. */
const char *explain_nearest(const char *code, char buf[static NEAREST_HINT_BYTES]);
int screen_explain(FILE *out, json_t *root);
#endif
