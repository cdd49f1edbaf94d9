/* Prints the table of explanations (common/daemon/explanations.h), or one row of it. This file
 * queries no daemon. One thread. */
#include "bps-scheduler/bpsctl/explain.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/daemon/explanations.h"

static bool explanation_has_code(const struct explanation *r, const char *code)
{
	char *end;
	long number = strtol(code, &end, 10);

	if (*code && !*end)
		return r->number && (number == r->number || number == -r->number);
	return strcasecmp(code, r->code) == 0 ||
	       (r->number && strcasecmp(code, r->code + strlen("BPS_")) == 0);
}

const char *explain_nearest(const char *code, char buf[static NEAREST_HINT_BYTES])
{
	struct nearest_name best = NEAREST_NONE;
	char text[NEAREST_NAME_BYTES];
	size_t n = 0;

	for (; code[n] && n + 1 < sizeof(text); n++)
		text[n] = (char)toupper((unsigned char)code[n]);
	text[n] = '\0';
	for (const struct explanation *r = explanations; r->code; r++) {
		nearest_name_try(&best, text, r->code);
		if (r->number)
			nearest_name_try(&best, text, r->code + strlen("BPS_"));
	}
	return nearest_name_hint(&best, "", buf);
}

static json_t *explanation_row_json(const struct explanation *r)
{
	const char *kind = r->number ? "error" : r->reporter == BY_ADVICE ? "finding" : "problem";
	json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s}", "code", r->code, "kind", kind, "what",
		r->what, "effect", r->effect, "action", r->action);

	if (r->number)
		json_object_set_new(o, "number", json_integer(r->number));
	return o;
}

json_t *explain_json(const char *code)
{
	json_t *list = *code ? NULL : json_array();

	for (const struct explanation *r = explanations; r->code; r++) {
		if (list) {
			json_array_append_new(list, explanation_row_json(r));
		} else if (explanation_has_code(r, code)) {
			json_t *o = explanation_row_json(r);

			json_object_set_new(o, "schema", json_integer(1));
			return o;
		}
	}
	return list ? json_pack("{s:i, s:o}", "schema", 1, "codes", list) : NULL;
}

int screen_explain(FILE *out, json_t *root)
{
	json_t *o;
	size_t i;

	json_array_foreach (json_object_get(root, "codes"), i, o) {
		char head[32];

		snprintf(head, sizeof(head), "%-21.21s  ", cell_str(o, "code").s);
		cell_wrapped_key(out, head, o, "what");
	}
	if (i)
		return 0;
	fprintf(out, "%.40s", cell_str(root, "code").s);
	if (json_object_get(root, "number"))
		fprintf(out, " (%" JSON_INTEGER_FORMAT ")",
			json_integer_value(json_object_get(root, "number")));
	putc('\n', out);
	cell_wrapped_key(out, "    what:    ", root, "what");
	cell_wrapped_key(out, "    effect:  ", root, "effect");
	cell_wrapped_key(out, "    action:  ", root, "action");
	return 0;
}
