/* Names of settings, and the output of --help and --print-config. settings.c reads the settings
 * from their sources.
 * Thread: main. */
#include "common/daemon/settings_impl.h"

#include <stdio.h>
#include <string.h>

#define HELP_BYTES 1024
#define INDENT     "          " /* before the help of a setting */

const char *const settings_builtins[SETTINGS_N_BUILTINS] = {
	"help", "version", "check-config", "print-config", "failpoints", "config"};

/* ---- names ---- */

const char *settings_name_hint(const struct settings *s, const char *wrong, const char *prefix,
	char buf[static SETTINGS_HINT_BYTES])
{
	struct nearest_name best = NEAREST_NONE;

	for (size_t i = 0; i < s->spec->n_rows; i++)
		nearest_name_try(&best, wrong, s->spec->rows[i].name);
	for (size_t i = 0; *prefix && i < SETTINGS_N_BUILTINS; i++)
		if (s->spec->failpoints || strcmp(settings_builtins[i], "failpoints") != 0)
			nearest_name_try(&best, wrong, settings_builtins[i]);
	return nearest_name_hint(&best, prefix, buf);
}

bool settings_same_name(const char *written, size_t n_written, const char *name)
{
	if (strlen(name) != n_written)
		return false;
	for (size_t i = 0; i < n_written; i++)
		if ((written[i] == '_' ? '-' : written[i]) != name[i])
			return false;
	return true;
}

const struct setting *settings_find(const struct settings *s, const char *name, size_t n)
{
	for (size_t i = 0; i < s->spec->n_rows; i++)
		if (settings_same_name(name, n, s->spec->rows[i].name))
			return &s->spec->rows[i];
	return NULL;
}

/* ---- output ---- */

/* Return how many bytes of `text` the next line takes. */
static size_t text_wrapped_line_bytes(const char *text, size_t room)
{
	size_t n = strlen(text), at = room;

	if (n <= room)
		return n;
	while (at > room / 2 && text[at] != ' ')
		at--;
	return text[at] == ' ' ? at : room;
}

void settings_print_wrapped(FILE *out, const char *head, const char *text, size_t columns)
{
	size_t indent = strlen(head), n;

	do {
		n = text_wrapped_line_bytes(text, columns - indent);
		fprintf(out, "%*s%.*s\n", (int)indent, head, (int)n, text);
		text += n;
		text += *text == ' ';
		head = "";
	} while (*text);
}

static void help_print_wrapped(const char *head, const char *text)
{
	settings_print_wrapped(stdout, head, text, SETTINGS_HELP_COLUMNS);
}

static void print_row_help(const struct setting *row)
{
	char words[256], range[80], text[HELP_BYTES];
	bool has_range = setting_format_range(row, range, sizeof(range)), has_default = *row->def;

	printf("  --%s%s\n", row->name, setting_value_form(row, words, sizeof(words)));
	snprintf(text, sizeof(text), "%s%s%s%s%s%s%s", row->help, row->is_live ? "; live" : "",
		has_range ? "; " : "", has_range ? range : "", has_default ? " (default " : "",
		row->def, has_default ? ")" : "");
	help_print_wrapped(INDENT, text);
}

static bool settings_has_live_row(const struct settings_spec *spec)
{
	for (size_t i = 0; i < spec->n_rows; i++)
		if (spec->rows[i].is_live)
			return true;
	return false;
}

void settings_print_help(const struct settings *s)
{
	const struct settings_spec *spec = s->spec;
	char text[HELP_BYTES];

	printf("usage: %s [flags]%s%s\n", spec->program, spec->usage ? " " : "",
		spec->usage ? spec->usage : "");
	if (spec->about)
		help_print_wrapped("", spec->about);
	printf("\n");
	for (size_t i = 0; i < spec->n_rows; i++)
		print_row_help(&spec->rows[i]);
	snprintf(text, sizeof(text),
		"INI file with settings of these names%s%s%s; the files FILE.d/*.conf are read "
		"after FILE",
		spec->config_path ? " (default " : "", spec->config_path ? spec->config_path : "",
		spec->config_path ? ")" : "");
	printf("  --config=FILE\n");
	help_print_wrapped(INDENT, text);
	printf("  --check-config  check all settings and exit\n"
	       "  --print-config  print all settings with their sources and exit\n"
	       "  --version       print the version and exit\n");
	if (spec->failpoints)
		printf("  --failpoints    list the points that --faults can name, and exit\n");
	printf("  --help, -h      print this help and exit\n\n");
	help_print_wrapped("",
		"Each setting may also come from the environment (BPS_NAME) or the INI "
		"file; a flag has priority.");
	if (settings_has_live_row(spec))
		help_print_wrapped("",
			"After SIGHUP the program reads the files again; settings marked "
			"live change at once.");
}

void settings_print(const struct settings *s, FILE *out)
{
	for (size_t i = 0; i < s->spec->n_rows; i++) {
		const struct settings_entry *e = &s->entries[i];

		fprintf(out, "%s = %s ; %s", s->spec->rows[i].name, e->text, e->source);
		if (e->waiting)
			fprintf(out, "; after a restart: %s", e->waiting);
		fprintf(out, "\n");
	}
}
