/* Settings from flags, environment and files: read the sources in order, check the values, and
 * reread the files at run time. Types, INI files and help texts are in settings_*.c. Thread:
 * main. */
#include "common/daemon/settings.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/daemon/settings_impl.h"

struct settings_entry *settings_entry(const struct settings *s, const struct setting *row)
{
	return &s->entries[row - s->spec->rows];
}

static void *settings_row_value(void *values, const struct setting *row)
{
	return (char *)values + row->offset;
}

/* ---- sources ---- */

int settings_apply_text(struct settings *s, const struct setting *row, const char *text,
	const char *source, struct err_text *err)
{
	struct settings_entry *e = settings_entry(s, row);
	char *text_dup = strdup(text), *source_dup = strdup(source);
	struct err_text why;
	int rc;

	if (!text_dup || !source_dup) {
		rc = err_set(err, -ENOMEM, "out of memory");
		goto fail;
	}
	rc = setting_parse(row, settings_row_value(s->loaded, row), text_dup, &why);
	if (rc) {
		err_set(err, rc, "%s: %s: %s", source, row->name, why.s);
		goto fail;
	}
	free(e->text);
	free(e->source);
	e->text = text_dup;
	e->source = source_dup;
	return 0;
fail:
	free(text_dup);
	free(source_dup);
	return rc;
}

static int settings_apply_defaults(struct settings *s, struct err_text *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < s->spec->n_rows; i++)
		rc = settings_apply_text(
			s, &s->spec->rows[i], s->spec->rows[i].def, "default", err);
	return rc;
}

static const char *settings_env_name(const char *name, char buf[static SETTINGS_NAME_BYTES + 8])
{
	size_t n = 4;

	memcpy(buf, "BPS_", 4);
	for (; *name && n < SETTINGS_NAME_BYTES + 7; name++)
		buf[n++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
	buf[n] = '\0';
	return buf;
}

static int take_environment(struct settings *s, struct err_text *err)
{
	char name[SETTINGS_NAME_BYTES + 8], source[SETTINGS_NAME_BYTES + 32];
	const char *text;
	int rc = 0;

	for (size_t i = 0; !rc && i < s->spec->n_rows; i++) {
		text = getenv(settings_env_name(s->spec->rows[i].name, name));
		if (!text)
			continue;
		snprintf(source, sizeof(source), "environment %s", name);
		rc = settings_apply_text(s, &s->spec->rows[i], text, source, err);
	}
	return rc;
}

/* Log a warning for a variable whose name is close to the name of a setting, and so is probably
 * misspelt. Close means that at most a quarter of the letters of the setting's name differ. Any
 * other unknown name may belong to another program of the suite, because all programs use the
 * prefix BPS_. */
static void settings_warn_misspelt_env(const struct settings *s, const char *name, size_t n_name)
{
	struct nearest_name best = NEAREST_NONE;
	char wrong[SETTINGS_NAME_BYTES], right[SETTINGS_NAME_BYTES + 8];
	size_t n = n_name - 4;

	if (n >= sizeof(wrong))
		return;
	for (size_t i = 0; i < n; i++)
		wrong[i] = name[4 + i] == '_' ? '-' : (char)tolower((unsigned char)name[4 + i]);
	wrong[n] = '\0';
	for (size_t i = 0; i < s->spec->n_rows; i++)
		nearest_name_try(&best, wrong, s->spec->rows[i].name);
	nearest_name_try(&best, wrong, "config");
	if (best.distance == 0 || 4 * best.distance > strlen(best.name))
		return;
	log_warn("environment variable %.*s is not a setting and has no effect (did you mean "
		 "'%s'?)",
		(int)n_name, name, settings_env_name(best.name, right));
}

static void check_environment(const struct settings *s)
{
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "BPS_", 4) == 0)
			settings_warn_misspelt_env(s, *e, strcspn(*e, "="));
}

static int settings_apply_flags(struct settings *s, struct err_text *err)
{
	char source[SETTINGS_NAME_BYTES + 16];
	int rc = 0;

	for (size_t i = 0; !rc && i < s->spec->n_rows; i++) {
		if (!s->entries[i].flag)
			continue;
		snprintf(source, sizeof(source), "flag --%s", s->spec->rows[i].name);
		rc = settings_apply_text(s, &s->spec->rows[i], s->entries[i].flag, source, err);
	}
	return rc;
}

/* ---- the command line ---- */

static bool *builtin_switch(struct settings *s, const char *name, size_t n)
{
	bool *const switches[] = {&s->wants_help, &s->wants_version, &s->wants_check,
		&s->wants_print, &s->wants_failpoints};
	size_t n_switches = sizeof(switches) / sizeof(switches[0]) - !s->spec->failpoints;

	for (size_t i = 0; i < n_switches; i++)
		if (settings_same_name(name, n, settings_builtins[i]))
			return switches[i];
	return NULL;
}

/* Read a flag `--name[=value]`. next: the argument after the flag, or NULL. Returns how many
 * arguments the flag has used: 1 or 2. */
static int settings_parse_flag(
	struct settings *s, const char *arg, const char *next, struct err_text *err)
{
	const char *name = arg + 2, *eq = strchr(name, '='), *value = eq ? eq + 1 : next;
	size_t n = eq ? (size_t)(eq - name) : strlen(name);
	const struct setting *row = settings_find(s, name, n);
	bool *on = row ? NULL : builtin_switch(s, name, n);
	bool is_config = !row && settings_same_name(name, n, "config");
	char wrong[SETTINGS_NAME_BYTES], hint[SETTINGS_HINT_BYTES];

	if (!row && !on && !is_config) {
		snprintf(wrong, sizeof(wrong), "%.*s", (int)n, name);
		return err_set(err, -EINVAL, "unknown flag '--%s'%s", wrong,
			settings_name_hint(s, wrong, "--", hint));
	}
	if (on && eq)
		return err_set(err, -EINVAL, "flag --%.*s takes no value", (int)n, name);
	if (on) {
		*on = true;
		return 1;
	}
	if (row && row->type == SET_BOOL && !eq)
		value = "yes";
	else if (!value)
		return err_set(err, -EINVAL, "flag --%s needs a value", name);
	if (row)
		settings_entry(s, row)->flag = value;
	else
		s->config_path = value;
	s->is_config_required |= is_config;
	return eq || (row && row->type == SET_BOOL) ? 1 : 2;
}

static int read_command_line(struct settings *s, struct err_text *err)
{
	char *const *argv = s->argv;
	bool flags_end = false;
	int n;

	for (int i = 1; i < s->argc; i += n) {
		n = 1;
		if (flags_end || argv[i][0] != '-' || !argv[i][1]) {
			if (s->spec->args == SETTINGS_NO_ARGS)
				return err_set(err, -EINVAL,
					"unexpected argument '%s' (flags start with --)", argv[i]);
			flags_end |= s->spec->args == SETTINGS_ARGS_LAST;
			s->args[s->n_args++] = argv[i];
		} else if (strcmp(argv[i], "--") == 0) {
			flags_end = true;
		} else if (strcmp(argv[i], "-h") == 0) {
			s->wants_help = true;
		} else if (argv[i][1] != '-') {
			return err_set(
				err, -EINVAL, "unknown flag '%s' (flags start with --)", argv[i]);
		} else {
			n = settings_parse_flag(s, argv[i], argv[i + 1], err);
			if (n < 0)
				return n;
		}
	}
	return 0;
}

/* ---- load and free ---- */

/* Check the program's table with assertions, because an error in the table is a bug of the
 * program. */
static void settings_check_table(const struct settings_spec *spec)
{
	for (size_t i = 0; i < spec->n_rows; i++) {
		const struct setting *row = &spec->rows[i];

		assert(row->bytes == setting_bytes(row->type));
		assert(strlen(row->name) < SETTINGS_NAME_BYTES && row->def);
		assert((row->type == SET_ENUM) == (row->words != NULL));
		for (size_t j = 0; j < i; j++)
			assert(strcmp(row->name, spec->rows[j].name) != 0);
	}
}

static size_t bytes_of_values(const struct settings_spec *spec)
{
	size_t n = 1;

	for (size_t i = 0; i < spec->n_rows; i++)
		if (spec->rows[i].offset + spec->rows[i].bytes > n)
			n = spec->rows[i].offset + spec->rows[i].bytes;
	return n;
}

static struct settings *settings_new(const struct settings_spec *spec, int argc, char *const *argv)
{
	struct settings *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->spec = spec;
	s->argc = argc;
	s->argv = argv;
	s->loaded = calloc(1, bytes_of_values(spec));
	s->entries = calloc(spec->n_rows + 1, sizeof(*s->entries));
	s->args = calloc((size_t)argc + 1, sizeof(*s->args));
	s->config_path = getenv("BPS_CONFIG");
	s->is_config_required = s->config_path != NULL;
	if (!s->config_path)
		s->config_path = spec->config_path;
	if (s->loaded && s->entries && s->args)
		return s;
	settings_free(s);
	return NULL;
}

/* Read all sources. Returns SETTINGS_RUN, or another verdict when a value is invalid. */
static enum settings_verdict settings_apply_all_sources(struct settings *s, struct err_text *err)
{
	if (settings_apply_defaults(s, err) || settings_take_files(s, err) ||
		take_environment(s, err))
		return SETTINGS_CONFIG;
	if (settings_apply_flags(s, err))
		return SETTINGS_USAGE;
	if (s->spec->check && s->spec->check(s->loaded, err))
		return SETTINGS_CONFIG;
	return SETTINGS_RUN;
}

static enum settings_verdict settings_load_or_print(struct settings *s, struct err_text *err)
{
	enum settings_verdict verdict;

	if (read_command_line(s, err))
		return SETTINGS_USAGE;
	if (s->wants_help) {
		settings_print_help(s);
		return SETTINGS_DONE;
	}
	if (s->wants_version) {
		printf("%s %s\n", s->spec->program, BPS_VERSION);
		return SETTINGS_DONE;
	}
	if (s->wants_failpoints) {
		failpoint_print(stdout, s->spec->failpoints);
		return SETTINGS_DONE;
	}
	check_environment(s);
	verdict = settings_apply_all_sources(s, err);
	if (verdict != SETTINGS_RUN)
		return verdict;
	if (s->wants_print)
		settings_print(s, stdout);
	return s->wants_print || s->wants_check ? SETTINGS_DONE : SETTINGS_RUN;
}

enum settings_verdict settings_load(struct settings **ret_settings,
	const struct settings_spec *spec, int argc, char *const *argv, void *values,
	struct err_text *err)
{
	struct settings *s;
	enum settings_verdict verdict;

	settings_check_table(spec);
	s = settings_new(spec, argc, argv);
	if (!s) {
		err_set(err, -ENOMEM, "out of memory");
		return SETTINGS_CONFIG;
	}
	verdict = settings_load_or_print(s, err);
	if (verdict != SETTINGS_RUN) {
		settings_free(s);
		return verdict;
	}
	s->values = values;
	for (size_t i = 0; i < spec->n_rows; i++)
		memcpy(settings_row_value(values, &spec->rows[i]),
			settings_row_value(s->loaded, &spec->rows[i]), spec->rows[i].bytes);
	*ret_settings = s;
	return verdict;
}

int settings_exit_status(enum settings_verdict verdict, const struct err_text *err)
{
	if (verdict == SETTINGS_RUN || verdict == SETTINGS_DONE)
		return 0;
	log_error("%s", err->s);
	return verdict == SETTINGS_USAGE ? EX_USAGE : EX_CONFIG;
}

char *const *settings_args(const struct settings *s, size_t *ret_count)
{
	*ret_count = s->n_args;
	return s->args;
}

const char *settings_source(const struct settings *s, const char *name)
{
	const struct setting *row = settings_find(s, name, strlen(name));

	return row ? settings_entry(s, row)->source : NULL;
}

void settings_free(struct settings *s)
{
	while (s) {
		struct settings *older = s->older;

		for (size_t i = 0; s->entries && i < s->spec->n_rows; i++) {
			free(s->entries[i].text);
			free(s->entries[i].source);
			free(s->entries[i].waiting);
		}
		free(s->loaded);
		free(s->effective);
		free(s->entries);
		free(s->args);
		free(s);
		s = older;
	}
}

/* ---- reread ---- */

/* Compute the values that will be in force. Rows with is_live take the value of `fresh`, and all
 * other rows take the value of `s`. */
static void make_effective(struct settings *s, struct settings *fresh)
{
	for (size_t i = 0; i < s->spec->n_rows; i++) {
		const struct setting *row = &s->spec->rows[i];

		memcpy(settings_row_value(fresh->effective, row),
			settings_row_value(row->is_live ? fresh->loaded : s->loaded, row),
			row->bytes);
	}
}

static int settings_reread_sources(struct settings *s, struct settings *fresh, struct err_text *err)
{
	struct err_text why;
	int rc = read_command_line(fresh, err);

	if (rc)
		return rc;
	if (settings_apply_all_sources(fresh, err) != SETTINGS_RUN)
		return -EINVAL;
	make_effective(s, fresh);
	rc = s->spec->check ? s->spec->check(fresh->effective, &why) : 0;
	if (rc)
		err_set(err, rc,
			"%s (settings that change only at a restart keep their present values)",
			why.s);
	return rc;
}

int settings_reread(struct settings *s, struct settings **ret_fresh, struct err_text *err)
{
	struct settings *fresh = settings_new(s->spec, s->argc, s->argv);
	int rc = 0;

	if (fresh)
		fresh->effective = calloc(1, bytes_of_values(s->spec));
	if (!fresh || !fresh->effective)
		rc = err_set(err, -ENOMEM, "out of memory");
	else
		rc = settings_reread_sources(s, fresh, err);
	if (rc)
		settings_free(fresh);
	else
		*ret_fresh = fresh;
	return rc;
}

const void *settings_values(const struct settings *s)
{
	return s->effective ? s->effective : s->values;
}

static void text_swap_pointers(char **a, char **b)
{
	char *t = *a;

	*a = *b;
	*b = t;
}

static const char *setting_shown_text(const char *text)
{
	return *text ? text : "''";
}

static void settings_adopt_row(
	struct settings *s, struct settings *fresh, const struct setting *row)
{
	struct settings_entry *e = settings_entry(s, row), *f = settings_entry(fresh, row);

	log_info("%s: %s -> %s source='%s'", row->name, setting_shown_text(e->text),
		setting_shown_text(f->text), f->source);
	text_swap_pointers(&e->text, &f->text);
	text_swap_pointers(&e->source, &f->source);
	memcpy(settings_row_value(s->loaded, row), settings_row_value(fresh->loaded, row),
		row->bytes);
	memcpy(settings_row_value(s->values, row), settings_row_value(fresh->loaded, row),
		row->bytes);
}

/* Keep the present value of a row that needs a restart. Store the new value and its source for
 * settings_print. */
static void settings_defer_row_change(
	struct settings *s, struct settings *fresh, const struct setting *row)
{
	struct settings_entry *e = settings_entry(s, row), *f = settings_entry(fresh, row);

	log_warn("%s: the old value %s stays in force; the new value %s takes effect after a "
		 "restart: source='%s'",
		row->name, setting_shown_text(e->text), setting_shown_text(f->text), f->source);
	if (asprintf(&e->waiting, "%s (%s)", setting_shown_text(f->text), f->source) < 0)
		e->waiting = NULL;
}

unsigned settings_adopt(struct settings *s, struct settings *fresh)
{
	unsigned n_changed = 0;

	for (size_t i = 0; i < s->spec->n_rows; i++) {
		const struct setting *row = &s->spec->rows[i];
		struct settings_entry *e = &s->entries[i], *f = &fresh->entries[i];

		free(e->waiting);
		e->waiting = NULL;
		if (setting_is_same(row, settings_row_value(s->loaded, row),
			    settings_row_value(fresh->loaded, row))) {
			text_swap_pointers(&e->source, &f->source);
		} else if (row->is_live) {
			settings_adopt_row(s, fresh, row);
			n_changed++;
		} else {
			settings_defer_row_change(s, fresh, row);
		}
	}
	if (n_changed) { /* `fresh` now owns the old strings of s; settings_free(s) frees `fresh` */
		fresh->older = s->older;
		s->older = fresh;
	} else {
		settings_free(fresh);
	}
	return n_changed;
}
