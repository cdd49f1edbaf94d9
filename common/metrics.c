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

void metric_value(struct evbuffer *out, const char *name, double value, ...)
{
	const char *label;
	char open = '{', buf[32];
	va_list ap;

	add_text(out, name);
	va_start(ap, value);
	while ((label = va_arg(ap, const char *))) {
		add_label(out, open, label, va_arg(ap, const char *));
		open = ',';
	}
	va_end(ap);
	if (open == ',')
		add_text(out, "}");
	evbuffer_add_printf(out, " %s\n", format_value(value, buf));
}

void metric_one(
	struct evbuffer *out, const char *name, const char *type, const char *help, double value)
{
	metric_begin(out, name, type, help);
	metric_value(out, name, value, NULL);
}
