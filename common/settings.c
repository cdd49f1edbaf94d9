#include "common/settings.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

#include "common/log.h"

#define NAME_BYTES   64
#define SOURCE_BYTES 4200

struct entry {
	char *text;   /* as it was written */
	char *source; /* NULL until a source named it */
	const char *flag;
	int file_line; /* 0: not in the file */
};

struct settings {
	const struct settings_spec *spec;
	void *values;
	struct entry *entries; /* one per row */
	char **args;
	size_t n_args;
	const char *config_path;
	bool is_config_required, wants_help, wants_version, wants_check, wants_print;
};

struct unit {
	const char *name;
	int64_t factor;
};

static const struct unit size_units[] = {{"TiB", (int64_t)1 << 40}, {"GiB", (int64_t)1 << 30},
	{"MiB", (int64_t)1 << 20}, {"KiB", (int64_t)1 << 10}, {"B", 1}, {NULL, 0}};
static const struct unit duration_units[] = {{"h", 3600 * SETTING_S}, {"min", 60 * SETTING_S},
	{"s", SETTING_S}, {"ms", SETTING_MS}, {"us", 1}, {NULL, 0}};
static const struct unit no_units[] = {{NULL, 0}};

static const char *const builtin_names[] = {
	"help", "version", "check-config", "print-config", "config"};

#define N_BUILTINS (sizeof(builtin_names) / sizeof(builtin_names[0]))

/* --- names ------------------------------------------------------------------------------------ */

/* Levenshtein distance by the one-row form of Wagner and Fischer's algorithm (JACM 21(1), 1974). */
static size_t edit_distance(const char *a, const char *b)
{
	size_t row[NAME_BYTES + 1], n_b = strlen(b), diagonal, above;

	if (n_b > NAME_BYTES)
		return NAME_BYTES;
	for (size_t j = 0; j <= n_b; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		diagonal = row[0];
		row[0] = i + 1;
		for (size_t j = 1; j <= n_b; j++) {
			above = row[j];
			row[j] = diagonal + (a[i] != b[j - 1]);
			if (above + 1 < row[j])
				row[j] = above + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			diagonal = above;
		}
	}
	return row[n_b];
}

struct nearest {
	const char *name;
	size_t distance;
};

static void nearest_offer(struct nearest *best, const char *wrong, const char *candidate)
{
	size_t d = edit_distance(wrong, candidate);

	if (d < best->distance) {
		best->distance = d;
		best->name = candidate;
	}
}

/* " (did you mean 'x'?)", or nothing when no name is near: more than a third of it differs. */
static const char *nearest_hint(const struct nearest *best, const char *prefix, char *buf, size_t n)
{
	buf[0] = '\0';
	if (best->name && best->distance <= 1 + strlen(best->name) / 3)
		snprintf(buf, n, " (did you mean '%s%s'?)", prefix, best->name);
	return buf;
}

static const char *name_hint(
	const struct settings *s, const char *wrong, const char *prefix, char *buf, size_t n)
{
	struct nearest best = {NULL, NAME_BYTES};

	for (size_t i = 0; i < s->spec->n_rows; i++)
		nearest_offer(&best, wrong, s->spec->rows[i].name);
	for (size_t i = 0; *prefix && i < N_BUILTINS; i++)
		nearest_offer(&best, wrong, builtin_names[i]);
	return nearest_hint(&best, prefix, buf, n);
}

static bool same_name(const char *written, size_t n_written, const char *name)
{
	if (strlen(name) != n_written)
		return false;
	for (size_t i = 0; i < n_written; i++)
		if ((written[i] == '_' ? '-' : written[i]) != name[i])
			return false;
	return true;
}

static const struct setting *find_row(const struct settings *s, const char *name, size_t n)
{
	for (size_t i = 0; i < s->spec->n_rows; i++)
		if (same_name(name, n, s->spec->rows[i].name))
			return &s->spec->rows[i];
	return NULL;
}

static struct entry *entry_of(const struct settings *s, const struct setting *row)
{
	return &s->entries[row - s->spec->rows];
}

/* --- values ----------------------------------------------------------------------------------- */

static const struct unit *units_of(enum setting_type type)
{
	return type == SET_SIZE ? size_units : type == SET_DURATION ? duration_units : no_units;
}

/* The number in the largest unit that divides it. */
static void format_number(enum setting_type type, int64_t v, char *buf, size_t n)
{
	const struct unit *u = units_of(type);

	while (u->name && (v == 0 || v % u->factor != 0))
		u++;
	if (u->name)
		snprintf(buf, n, "%" PRId64 "%s", v / u->factor, u->name);
	else
		snprintf(buf, n, "%" PRId64, v);
}

static void range_of(const struct setting *row, int64_t *ret_min, int64_t *ret_max)
{
	bool is_open = row->min == row->max;

	*ret_min = is_open ? (row->type == SET_INT ? INT64_MIN : 0) : row->min;
	*ret_max = is_open ? INT64_MAX : row->max;
}

static int parse_number(enum setting_type type, const char *text, int64_t *ret)
{
	const struct unit *u = units_of(type);
	char *end;
	long long v;

	errno = 0;
	v = strtoll(text, &end, 10);
	if (end == text || isspace((unsigned char)*text) || *text == '+')
		return -EINVAL;
	if (errno)
		return -ERANGE;
	while (*end == ' ')
		end++;
	if (*end) {
		while (u->name && strcmp(u->name, end) != 0)
			u++;
		if (!u->name)
			return -EINVAL;
		if (__builtin_mul_overflow(v, u->factor, &v))
			return -ERANGE;
	} else if (type == SET_DURATION && v != 0) {
		return -EINVAL;
	}
	*ret = v;
	return 0;
}

static int number_error(const struct setting *row, const char *text, int rc, struct err_text *err)
{
	static const char *const forms[] = {
		[SET_INT] = "an integer",
		[SET_SIZE] = "a size such as 64KiB, 4MiB or 1GiB",
		[SET_DURATION] = "a duration such as 500us, 200ms, 2s or 5min",
	};
	char low[32], high[32];
	int64_t min, max;

	if (rc == -EINVAL)
		return err_set(err, rc, "'%s' is not %s", text, forms[row->type]);
	range_of(row, &min, &max);
	format_number(row->type, min, low, sizeof(low));
	format_number(row->type, max, high, sizeof(high));
	return err_set(err, rc, "'%s' is out of range (allowed: %s to %s)", text, low, high);
}

static int set_number(const struct setting *row, void *at, const char *text, struct err_text *err)
{
	int64_t v, min, max;
	int rc = parse_number(row->type, text, &v);

	range_of(row, &min, &max);
	if (!rc && (v < min || v > max))
		rc = -ERANGE;
	if (rc)
		return number_error(row, text, rc, err);
	memcpy(at, &v, sizeof(v));
	return 0;
}

static int set_bool(bool *at, const char *text, struct err_text *err)
{
	static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(words[i], text) == 0) {
			*at = i % 2 == 1;
			return 0;
		}
	}
	return err_set(err, -EINVAL, "'%s' is not yes or no", text);
}

static int set_enum(const struct setting *row, unsigned *at, const char *text, struct err_text *err)
{
	struct nearest best = {NULL, NAME_BYTES};
	char hint[128], list[256] = "";
	size_t n = 0;

	for (unsigned i = 0; row->words[i]; i++) {
		if (strcmp(row->words[i], text) == 0) {
			*at = i;
			return 0;
		}
		nearest_offer(&best, text, row->words[i]);
		if (n < sizeof(list))
			n += (size_t)snprintf(
				list + n, sizeof(list) - n, "%s%s", i ? ", " : "", row->words[i]);
	}
	return err_set(err, -EINVAL, "'%s' is not one of: %s%s", text, list,
		nearest_hint(&best, "", hint, sizeof(hint)));
}

static int check_string(const struct setting *row, const char *text, struct err_text *err)
{
	int64_t n = (int64_t)strlen(text), min, max;

	range_of(row, &min, &max);
	if (n >= min && n <= max)
		return 0;
	return err_set(err, -ERANGE,
		"'%s' has %" PRId64 " characters (allowed: %" PRId64 " to %" PRId64 ")", text, n,
		min, max);
}

static int set_addr(
	const struct setting *row, struct addr *at, const char *text, struct err_text *err)
{
	if (*text || *row->def)
		return addr_parse(at, text, row->port, err);
	memset(at, 0, sizeof(*at));
	return 0;
}

static int set_value(
	struct settings *s, const struct setting *row, char *text, struct err_text *err)
{
	void *at = (char *)s->values + row->offset;
	int rc;

	switch (row->type) {
	case SET_BOOL:
		return set_bool(at, text, err);
	case SET_INT:
	case SET_SIZE:
	case SET_DURATION:
		return set_number(row, at, text, err);
	case SET_ENUM:
		return set_enum(row, at, text, err);
	case SET_ADDR:
		return set_addr(row, at, text, err);
	case SET_STRING:
		rc = check_string(row, text, err);
		if (!rc)
			memcpy(at, &text, sizeof(text));
		return rc;
	}
	return -EINVAL;
}

/* Give row the text from source; the sentence of a refusal starts with the source. */
static int take(struct settings *s, const struct setting *row, const char *text, const char *source,
	struct err_text *err)
{
	struct entry *e = entry_of(s, row);
	char *text_dup = strdup(text), *source_dup = strdup(source);
	struct err_text why;
	int rc;

	if (!text_dup || !source_dup) {
		rc = err_set(err, -ENOMEM, "out of memory");
		goto fail;
	}
	rc = set_value(s, row, text_dup, &why);
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

/* --- sources ---------------------------------------------------------------------------------- */

static int take_defaults(struct settings *s, struct err_text *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < s->spec->n_rows; i++)
		rc = take(s, &s->spec->rows[i], s->spec->rows[i].def, "default", err);
	return rc;
}

static const char *env_name(const char *name, char buf[static NAME_BYTES + 8])
{
	size_t n = 4;

	memcpy(buf, "BPS_", 4);
	for (; *name && n < NAME_BYTES + 7; name++)
		buf[n++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
	buf[n] = '\0';
	return buf;
}

static int take_environment(struct settings *s, struct err_text *err)
{
	char name[NAME_BYTES + 8], source[NAME_BYTES + 32];
	const char *text;
	int rc = 0;

	for (size_t i = 0; !rc && i < s->spec->n_rows; i++) {
		text = getenv(env_name(s->spec->rows[i].name, name));
		if (!text)
			continue;
		snprintf(source, sizeof(source), "environment %s", name);
		rc = take(s, &s->spec->rows[i], text, source, err);
	}
	return rc;
}

struct ini_read {
	struct settings *s;
	FILE *file;
	int line;
	int rc;
	struct err_text *err;
};

/* Reads one line for libinih, which does not tell line numbers. Leading blanks are dropped, so that
 * an indented line is a line and not the continuation of the one before. */
static char *ini_read_line(char *buf, int n_bytes, void *arg)
{
	struct ini_read *r = arg;
	size_t blanks, n;

	if (r->rc || !fgets(buf, n_bytes, r->file))
		return NULL;
	r->line++;
	n = strlen(buf);
	if (n + 1 == (size_t)n_bytes && buf[n - 1] != '\n') {
		r->rc = err_set(r->err, -EINVAL, "%s:%d: the line is longer than %d characters",
			r->s->config_path, r->line, n_bytes - 2);
		return NULL;
	}
	blanks = strspn(buf, " \t");
	memmove(buf, buf + blanks, n - blanks + 1);
	return buf;
}

static int ini_take(void *arg, const char *section, const char *name, const char *text)
{
	struct ini_read *r = arg;
	const struct setting *row = find_row(r->s, name, strlen(name));
	char source[SOURCE_BYTES], hint[128];

	(void)section;
	if (r->rc)
		return 0;
	snprintf(source, sizeof(source), "%s:%d", r->s->config_path, r->line);
	if (!row) {
		r->rc = err_set(r->err, -EINVAL, "%s: unknown setting '%s'%s", source, name,
			name_hint(r->s, name, "", hint, sizeof(hint)));
		return 0;
	}
	if (entry_of(r->s, row)->file_line) {
		r->rc = err_set(r->err, -EINVAL, "%s: '%s' is already set in line %d", source,
			row->name, entry_of(r->s, row)->file_line);
		return 0;
	}
	entry_of(r->s, row)->file_line = r->line;
	r->rc = take(r->s, row, text, source, r->err);
	return r->rc == 0;
}

static int take_file(struct settings *s, struct err_text *err)
{
	struct ini_read r = {.s = s, .err = err};
	int bad_line;

	if (!s->config_path)
		return 0;
	r.file = fopen(s->config_path, "re");
	if (!r.file && errno == ENOENT && !s->is_config_required)
		return 0;
	if (!r.file)
		return err_set(
			err, -errno, "cannot open '%s': %s", s->config_path, strerror(errno));
	bad_line = ini_parse_stream(ini_read_line, &r, ini_take, &r);
	if (!r.rc && ferror(r.file))
		r.rc = err_set(err, -EIO, "cannot read '%s'", s->config_path);
	else if (!r.rc && bad_line)
		r.rc = err_set(err, -EINVAL, "%s:%d: neither 'name = value' nor '[section]'",
			s->config_path, bad_line);
	fclose(r.file);
	return r.rc;
}

static int take_flags(struct settings *s, struct err_text *err)
{
	char source[NAME_BYTES + 16];
	int rc = 0;

	for (size_t i = 0; !rc && i < s->spec->n_rows; i++) {
		if (!s->entries[i].flag)
			continue;
		snprintf(source, sizeof(source), "flag --%s", s->spec->rows[i].name);
		rc = take(s, &s->spec->rows[i], s->entries[i].flag, source, err);
	}
	return rc;
}

/* --- the command line ------------------------------------------------------------------------- */

static bool *builtin_switch(struct settings *s, const char *name, size_t n)
{
	bool *const switches[] = {
		&s->wants_help, &s->wants_version, &s->wants_check, &s->wants_print};

	for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
		if (same_name(name, n, builtin_names[i]))
			return switches[i];
	return NULL;
}

/* One `--name[=value]`; next is the argument behind it, or NULL.
 * Returns how many arguments it took, 1 or 2. */
static int read_flag(struct settings *s, const char *arg, const char *next, struct err_text *err)
{
	const char *name = arg + 2, *eq = strchr(name, '='), *value = eq ? eq + 1 : next;
	size_t n = eq ? (size_t)(eq - name) : strlen(name);
	const struct setting *row = find_row(s, name, n);
	bool *on = row ? NULL : builtin_switch(s, name, n);
	bool is_config = !row && same_name(name, n, "config");
	char wrong[NAME_BYTES], hint[128];

	if (!row && !on && !is_config) {
		snprintf(wrong, sizeof(wrong), "%.*s", (int)n, name);
		return err_set(err, -EINVAL, "unknown flag '--%s'%s", wrong,
			name_hint(s, wrong, "--", hint, sizeof(hint)));
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
		entry_of(s, row)->flag = value;
	else
		s->config_path = value;
	s->is_config_required |= is_config;
	return eq || (row && row->type == SET_BOOL) ? 1 : 2;
}

static int read_command_line(struct settings *s, int argc, char *const *argv, struct err_text *err)
{
	bool flags_end = false;
	int n;

	for (int i = 1; i < argc; i += n) {
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
			n = read_flag(s, argv[i], argv[i + 1], err);
			if (n < 0)
				return n;
		}
	}
	return 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

static const char *type_hint(const struct setting *row, char *buf, size_t n_buf)
{
	static const char *const forms[] = {
		[SET_BOOL] = "",
		[SET_INT] = "=N",
		[SET_SIZE] = "=SIZE",
		[SET_DURATION] = "=TIME",
		[SET_STRING] = "=TEXT",
		[SET_ADDR] = "=HOST:PORT",
	};
	size_t n = 0;

	if (row->type != SET_ENUM)
		return forms[row->type];
	for (size_t i = 0; row->words[i] && n < n_buf; i++)
		n += (size_t)snprintf(buf + n, n_buf - n, "%c%s", i ? '|' : '=', row->words[i]);
	return buf;
}

static void print_row_help(const struct setting *row)
{
	char words[256], low[32], high[32];
	const char *form = type_hint(row, words, sizeof(words));
	bool is_number = row->type == SET_INT || row->type == SET_SIZE || row->type == SET_DURATION;
	int64_t min, max;

	printf("  --%s%s\n          %s", row->name, form, row->help);
	if (is_number && row->min != row->max) {
		range_of(row, &min, &max);
		format_number(row->type, min, low, sizeof(low));
		format_number(row->type, max, high, sizeof(high));
		printf("; %s to %s", low, high);
	}
	if (*row->def)
		printf(" (default %s)", row->def);
	printf("\n");
}

static void print_help(const struct settings *s)
{
	const struct settings_spec *spec = s->spec;

	printf("usage: %s [flags]%s%s\n", spec->program, spec->usage ? " " : "",
		spec->usage ? spec->usage : "");
	if (spec->about)
		printf("%s\n", spec->about);
	printf("\n");
	for (size_t i = 0; i < spec->n_rows; i++)
		print_row_help(&spec->rows[i]);
	printf("  --config=FILE\n          INI file with the same names");
	if (spec->config_path)
		printf(" (default %s)", spec->config_path);
	printf("\n  --check-config  check all settings and exit\n"
	       "  --print-config  print all settings with their sources and exit\n"
	       "  --version       print the version and exit\n"
	       "  --help, -h      print this and exit\n\n"
	       "Each setting may also come from the environment (BPS_NAME) or the INI file; "
	       "a flag wins.\n");
}

static void print_config(const struct settings *s)
{
	for (size_t i = 0; i < s->spec->n_rows; i++)
		printf("%s = %s ; %s\n", s->spec->rows[i].name, s->entries[i].text,
			s->entries[i].source);
}

/* A table that contradicts itself is our own bug. */
static void check_table(const struct settings_spec *spec)
{
	static const size_t type_bytes[] = {
		[SET_BOOL] = sizeof(bool),
		[SET_INT] = sizeof(int64_t),
		[SET_SIZE] = sizeof(uint64_t),
		[SET_DURATION] = sizeof(uint64_t),
		[SET_STRING] = sizeof(const char *),
		[SET_ENUM] = sizeof(unsigned),
		[SET_ADDR] = sizeof(struct addr),
	};

	for (size_t i = 0; i < spec->n_rows; i++) {
		assert(spec->rows[i].bytes == type_bytes[spec->rows[i].type]);
		assert(strlen(spec->rows[i].name) < NAME_BYTES && spec->rows[i].def);
		assert((spec->rows[i].type == SET_ENUM) == (spec->rows[i].words != NULL));
		for (size_t j = 0; j < i; j++)
			assert(strcmp(spec->rows[i].name, spec->rows[j].name) != 0);
	}
}

static struct settings *settings_new(const struct settings_spec *spec, int argc, void *values)
{
	struct settings *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->spec = spec;
	s->values = values;
	s->entries = calloc(spec->n_rows + 1, sizeof(*s->entries));
	s->args = calloc((size_t)argc + 1, sizeof(*s->args));
	s->config_path = getenv("BPS_CONFIG");
	s->is_config_required = s->config_path != NULL;
	if (!s->config_path)
		s->config_path = spec->config_path;
	if (s->entries && s->args)
		return s;
	settings_free(s);
	return NULL;
}

static enum settings_verdict load(
	struct settings *s, int argc, char *const *argv, struct err_text *err)
{
	if (read_command_line(s, argc, argv, err))
		return SETTINGS_USAGE;
	if (s->wants_help) {
		print_help(s);
		return SETTINGS_DONE;
	}
	if (s->wants_version) {
		printf("%s %s\n", s->spec->program, BPS_VERSION);
		return SETTINGS_DONE;
	}
	if (take_defaults(s, err) || take_file(s, err) || take_environment(s, err))
		return SETTINGS_CONFIG;
	if (take_flags(s, err))
		return SETTINGS_USAGE;
	if (s->wants_print)
		print_config(s);
	return s->wants_print || s->wants_check ? SETTINGS_DONE : SETTINGS_RUN;
}

enum settings_verdict settings_load(struct settings **ret_settings,
	const struct settings_spec *spec, int argc, char *const *argv, void *values,
	struct err_text *err)
{
	struct settings *s;
	enum settings_verdict verdict;

	check_table(spec);
	s = settings_new(spec, argc, values);
	if (!s) {
		err_set(err, -ENOMEM, "out of memory");
		return SETTINGS_CONFIG;
	}
	verdict = load(s, argc, argv, err);
	if (verdict == SETTINGS_RUN)
		*ret_settings = s;
	else
		settings_free(s);
	return verdict;
}

int settings_exit_status(enum settings_verdict verdict, const struct err_text *err)
{
	if (verdict == SETTINGS_RUN || verdict == SETTINGS_DONE)
		return 0;
	log_error("%s", err->s);
	return verdict == SETTINGS_USAGE ? 64 : 78;
}

char *const *settings_args(const struct settings *s, size_t *ret_count)
{
	*ret_count = s->n_args;
	return s->args;
}

const char *settings_source(const struct settings *s, const char *name)
{
	const struct setting *row = find_row(s, name, strlen(name));

	return row ? entry_of(s, row)->source : NULL;
}

void settings_free(struct settings *s)
{
	if (!s)
		return;
	for (size_t i = 0; s->entries && i < s->spec->n_rows; i++) {
		free(s->entries[i].text);
		free(s->entries[i].source);
	}
	free(s->entries);
	free(s->args);
	free(s);
}
