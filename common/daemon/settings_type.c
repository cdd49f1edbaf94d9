/* The types of settings: convert text to a value and back. The table `types` has one row per type.
 * The functions keep no state and may be called on any thread. */
#include "common/daemon/settings_impl.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"

struct setting_unit {
	const char *name;
	int64_t factor;
};

static const struct setting_unit size_units[] = {{"TiB", (int64_t)1 << 40},
	{"GiB", (int64_t)1 << 30}, {"MiB", (int64_t)1 << 20}, {"KiB", (int64_t)1 << 10}, {"B", 1},
	{NULL, 0}};
static const struct setting_unit duration_units[] = {{"h", 3600 * SETTING_S},
	{"min", 60 * SETTING_S}, {"s", SETTING_S}, {"ms", SETTING_MS}, {"us", 1}, {NULL, 0}};
static const struct setting_unit no_units[] = {{NULL, 0}};

/* ---- numbers ---- */

static const struct setting_unit *setting_type_units(enum setting_type type)
{
	return type == SET_SIZE ? size_units : type == SET_DURATION ? duration_units : no_units;
}

/* Write the number v in the largest unit of which v is a multiple. */
static void setting_format_number(enum setting_type type, int64_t v, char *buf, size_t n)
{
	const struct setting_unit *u = setting_type_units(type);

	while (u->name && (v == 0 || v % u->factor != 0))
		u++;
	if (u->name)
		snprintf(buf, n, "%" PRId64 "%s", v / u->factor, u->name);
	else
		snprintf(buf, n, "%" PRId64, v);
}

static void setting_get_limits(const struct setting *row, int64_t *ret_min, int64_t *ret_max)
{
	bool is_open = row->min == row->max;

	*ret_min = is_open ? (row->type == SET_INT ? INT64_MIN : 0) : row->min;
	*ret_max = is_open ? INT64_MAX : row->max;
}

static void setting_format_limits(const struct setting *row, char *buf, size_t n)
{
	char low[32], high[32];
	int64_t min, max;

	setting_get_limits(row, &min, &max);
	setting_format_number(row->type, min, low, sizeof(low));
	setting_format_number(row->type, max, high, sizeof(high));
	snprintf(buf, n, "%s to %s", low, high);
}

static int setting_read_number(enum setting_type type, const char *text, int64_t *ret)
{
	const struct setting_unit *u = setting_type_units(type);
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

static int setting_number_error(
	const struct setting *row, const char *text, int rc, struct err_text *err)
{
	static const char *const forms[] = {
		[SET_INT] = "an integer",
		[SET_SIZE] = "a size such as 64KiB, 4MiB or 1GiB",
		[SET_DURATION] = "a duration such as 500us, 200ms, 2s or 5min",
	};
	char limits[80];

	if (rc == -EINVAL)
		return err_set(err, rc, "'%s' is not %s", text, forms[row->type]);
	setting_format_limits(row, limits, sizeof(limits));
	return err_set(err, rc, "'%s' is out of range (allowed: %s)", text, limits);
}

static int setting_parse_number(
	const struct setting *row, void *at, char *text, struct err_text *err)
{
	int64_t v, min, max;
	int rc = setting_read_number(row->type, text, &v);

	setting_get_limits(row, &min, &max);
	if (!rc && (v < min || v > max))
		rc = -ERANGE;
	if (rc)
		return setting_number_error(row, text, rc, err);
	memcpy(at, &v, sizeof(v));
	return 0;
}

/* ---- other types ---- */

static int setting_parse_bool(const struct setting *row, void *at, char *text, struct err_text *err)
{
	static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

	(void)row;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(words[i], text) == 0) {
			*(bool *)at = i % 2 == 1;
			return 0;
		}
	}
	return err_set(err, -EINVAL, "'%s' is not yes or no", text);
}

static int setting_parse_enum(const struct setting *row, void *at, char *text, struct err_text *err)
{
	struct nearest_name best = NEAREST_NONE;
	char hint[SETTINGS_HINT_BYTES], list[256] = "";
	size_t n = 0;

	for (unsigned i = 0; row->words[i]; i++) {
		if (strcmp(row->words[i], text) == 0) {
			*(unsigned *)at = i;
			return 0;
		}
		nearest_name_try(&best, text, row->words[i]);
		if (n < sizeof(list))
			n += (size_t)snprintf(
				list + n, sizeof(list) - n, "%s%s", i ? ", " : "", row->words[i]);
	}
	return err_set(err, -EINVAL, "'%s' is not one of: %s%s", text, list,
		nearest_name_hint(&best, "", hint));
}

static int setting_parse_string(
	const struct setting *row, void *at, char *text, struct err_text *err)
{
	int64_t n = (int64_t)strlen(text), min, max;

	setting_get_limits(row, &min, &max);
	if (n < min || n > max)
		return err_set(err, -ERANGE,
			"'%s' has %" PRId64 " characters (allowed: %" PRId64 " to %" PRId64 ")",
			text, n, min, max);
	memcpy(at, &text, sizeof(text));
	return 0;
}

static int setting_parse_faults(
	const struct setting *row, void *at, char *text, struct err_text *err)
{
	int rc = failpoint_check(text, err);

	return rc < 0 ? rc : setting_parse_string(row, at, text, err);
}

static bool is_same_string(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
}

static int setting_parse_addr(const struct setting *row, void *at, char *text, struct err_text *err)
{
	if (*text || *row->def)
		return addr_parse(at, text, row->port, err);
	memset(at, 0, sizeof(struct addr));
	return 0;
}

static bool is_same_addr(const void *a, const void *b)
{
	const struct addr *x = a, *y = b;

	return x->port == y->port && strcmp(x->host, y->host) == 0;
}

/* ---- the table ---- */

struct setting_type_row {
	size_t bytes;
	/* Text after the flag's name in the help; NULL: the allowed words of the setting */
	const char *form;
	int (*parse)(const struct setting *row, void *at, char *text, struct err_text *err);
	/* Compares two values; NULL: the bytes are compared */
	bool (*is_same)(const void *a, const void *b);
	bool has_limits;
};

static const struct setting_type_row types[] = {
	[SET_BOOL] = {sizeof(bool), "", setting_parse_bool, NULL, false},
	[SET_INT] = {sizeof(int64_t), "=N", setting_parse_number, NULL, true},
	[SET_SIZE] = {sizeof(uint64_t), "=SIZE", setting_parse_number, NULL, true},
	[SET_DURATION] = {sizeof(uint64_t), "=TIME", setting_parse_number, NULL, true},
	[SET_STRING] = {sizeof(const char *), "=TEXT", setting_parse_string, is_same_string, false},
	[SET_FAULTS] = {sizeof(const char *), "=TEXT", setting_parse_faults, is_same_string, false},
	[SET_ENUM] = {sizeof(unsigned), NULL, setting_parse_enum, NULL, false},
	[SET_ADDR] = {sizeof(struct addr), "=HOST:PORT", setting_parse_addr, is_same_addr, false},
};

int setting_parse(const struct setting *row, void *at, char *text, struct err_text *err)
{
	return types[row->type].parse(row, at, text, err);
}

bool setting_is_same(const struct setting *row, const void *a, const void *b)
{
	const struct setting_type_row *t = &types[row->type];

	return t->is_same ? t->is_same(a, b) : memcmp(a, b, t->bytes) == 0;
}

size_t setting_bytes(enum setting_type type)
{
	return types[type].bytes;
}

const char *setting_value_form(const struct setting *row, char *buf, size_t n_buf)
{
	size_t n = 0;

	if (types[row->type].form)
		return types[row->type].form;
	for (size_t i = 0; row->words[i] && n < n_buf; i++)
		n += (size_t)snprintf(buf + n, n_buf - n, "%c%s", i ? '|' : '=', row->words[i]);
	return buf;
}

bool setting_format_range(const struct setting *row, char *buf, size_t n_buf)
{
	if (!types[row->type].has_limits || row->min == row->max)
		return false;
	setting_format_limits(row, buf, n_buf);
	return true;
}
