#include "common/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <event2/buffer.h>

static void add_text(struct evbuffer *out, const char *text)
{
	evbuffer_add(out, text, strlen(text));
}

/* Numbers as Prometheus reads them; whole numbers without exponent up to 2^53. */
static const char *format_value(double v, char buf[static 32])
{
	if (isnan(v))
		return "NaN";
	if (isinf(v))
		return v > 0 ? "+Inf" : "-Inf";
	if (fabs(v) <= 9007199254740992.0 && floor(v) == v)
		snprintf(buf, 32, "%.0f", v);
	else
		snprintf(buf, 32, "%.17g", v);
	return buf;
}

static void add_escaped(struct evbuffer *out, const char *text, const char *escaped)
{
	for (; *text; text++) {
		char pair[2] = {'\\', *text == '\n' ? 'n' : *text};

		if (strchr(escaped, *text))
			evbuffer_add(out, pair, 2);
		else
			evbuffer_add(out, *text < ' ' || *text > '~' ? "?" : text, 1);
	}
}

void metric_begin(struct evbuffer *out, const char *name, const char *type, const char *help)
{
	evbuffer_add_printf(out, "# HELP %s ", name);
	add_escaped(out, help, "\\\n");
	evbuffer_add_printf(out, "\n# TYPE %s %s\n", name, type);
}

static void add_label(struct evbuffer *out, char open, const char *name, const char *value)
{
	evbuffer_add_printf(out, "%c%s=\"", open, name);
	add_escaped(out, value, "\\\"\n");
	add_text(out, "\"");
}

/* le: the bound of a bucket, or NULL. */
static void add_sample(struct evbuffer *out, const char *name, const char *suffix, va_list labels,
	const char *le, double value)
{
	const char *label;
	char open = '{', buf[32];
	va_list ap;

	evbuffer_add_printf(out, "%s%s", name, suffix);
	va_copy(ap, labels);
	while ((label = va_arg(ap, const char *))) {
		add_label(out, open, label, va_arg(ap, const char *));
		open = ',';
	}
	va_end(ap);
	if (le) {
		add_label(out, open, "le", le);
		open = ',';
	}
	if (open == ',')
		add_text(out, "}");
	evbuffer_add_printf(out, " %s\n", format_value(value, buf));
}

void metric_value(struct evbuffer *out, const char *name, double value, ...)
{
	va_list ap;

	va_start(ap, value);
	add_sample(out, name, "", ap, NULL, value);
	va_end(ap);
}

void metric_histogram(struct evbuffer *out, const char *name, const double *bounds,
	const uint64_t *counts, size_t n_bounds, double sum, ...)
{
	uint64_t total = 0;
	char le[32];
	va_list ap;

	va_start(ap, sum);
	for (size_t i = 0; i < n_bounds; i++) {
		total += counts[i];
		snprintf(le, sizeof(le), "%g", bounds[i]);
		add_sample(out, name, "_bucket", ap, le, (double)total);
	}
	total += counts[n_bounds];
	add_sample(out, name, "_bucket", ap, "+Inf", (double)total);
	add_sample(out, name, "_sum", ap, NULL, sum);
	add_sample(out, name, "_count", ap, NULL, (double)total);
	va_end(ap);
}
