#include "bps-scheduler/bpsctl/cells.h"

#include <inttypes.h>
#include <string.h>

#define SEC_MAX 1e11 /* a point in time, too, has a year of four digits */

/* ---- reading ---- */

struct cell cell_text(const char *s)
{
	struct cell c;

	snprintf(c.s, sizeof(c.s), "%s", s);
	for (char *p = c.s; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	return c;
}

struct cell cell_str(json_t *o, const char *key)
{
	const char *v = json_string_value(json_object_get(o, key));

	return cell_text(v && *v ? v : "-");
}

uint64_t cell_num(json_t *o, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	return v > 0 ? (uint64_t)v : 0;
}

double cell_sec(json_t *o, const char *key)
{
	double v = json_number_value(json_object_get(o, key));

	return v < 0 ? 0 : v < SEC_MAX ? v : SEC_MAX;
}

bool cell_is(json_t *o, const char *key, const char *value)
{
	const char *v = json_string_value(json_object_get(o, key));

	return v && strcmp(v, value) == 0;
}

struct cell cell_span(double s)
{
	struct cell c;
	unsigned long t = s > 0 ? (unsigned long)s : 0;

	if (s < 100)
		snprintf(c.s, sizeof(c.s), "%.1f s", s);
	else if (t < 86400)
		snprintf(c.s, sizeof(c.s), "%02lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
	else
		snprintf(c.s, sizeof(c.s), "%lud %luh", t / 86400, t / 3600 % 24);
	return c;
}

struct cell cell_size(uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = (double)bytes;
	unsigned u = 0;
	struct cell c;

	while (v >= 1024 && u < 6) {
		v /= 1024;
		u++;
	}
	snprintf(c.s, sizeof(c.s), u && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
	return c;
}

/* ---- problems ---- */

/* Print s behind a head, wrapped at words under itself. */
void cell_wrapped(FILE *out, const char *head, const char *s)
{
	size_t indent = strlen(head), room = SCREEN_COLUMNS - indent;
	const char *lead = head;

	do {
		size_t n = strlen(s), cut;

		if (n > room) {
			for (cut = room; cut > room / 2 && s[cut] != ' '; cut--)
				;
			n = s[cut] == ' ' ? cut : room;
		}
		fprintf(out, "%*s", (int)indent, lead);
		for (size_t i = 0; i < n; i++)
			putc((unsigned char)s[i] < ' ' || s[i] == 0x7f ? '?' : s[i], out);
		putc('\n', out);
		s += n;
		s += *s == ' ';
		lead = "";
	} while (*s);
}

void cell_wrapped_key(FILE *out, const char *head, json_t *o, const char *key)
{
	const char *v = json_string_value(json_object_get(o, key));

	if (v && *v)
		cell_wrapped(out, head, v);
}

void cell_problems(FILE *out, json_t *root)
{
	json_t *p;
	size_t i;

	json_array_foreach(json_object_get(root, "problems"), i, p)
	{
		char head[64];

		snprintf(head, sizeof(head), "%c %-13.40s ",
			cell_is(p, "severity", "ERR") ? 'X' : '!', cell_str(p, "code").s);
		cell_wrapped_key(out, head, p, "what");
		cell_wrapped_key(out, "    effect:  ", p, "effect");
		cell_wrapped_key(out, "    action:  ", p, "action");
	}
	if (i)
		putc('\n', out);
}

struct cell cell_worker(json_t *w)
{
	struct cell c;

	if (json_object_get(w, "host"))
		snprintf(c.s, sizeof(c.s), "rank %" PRIu64 " (host %.63s, pid %" PRIu64 ")",
			cell_num(w, "rank"), cell_str(w, "host").s, cell_num(w, "pid"));
	else
		snprintf(c.s, sizeof(c.s), "rank %" PRIu64, cell_num(w, "rank"));
	return c;
}
