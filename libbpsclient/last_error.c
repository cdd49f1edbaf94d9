#include "libbpsclient/bps.h"
#include "libbpsclient/last_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libbpsclient/average.h"

struct err_text *last_error_text(void)
{
	static _Thread_local struct err_text own;

	return &own;
}

int last_error_set(int code, const char *fmt, ...)
{
	struct err_text text; /* an argument may be the previous sentence */
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text.s, sizeof(text.s), fmt, ap);
	va_end(ap);
	*last_error_text() = text;
	return code;
}

/* Remove the prefix of the companions' names: the caller knows only the tensor. */
static void name_tensors(char *text)
{
	static const char prefix[] = AVERAGE_PREFIX;

	while ((text = strstr(text, prefix)))
		memmove(text, text + sizeof(prefix) - 1, strlen(text + sizeof(prefix) - 1) + 1);
}

const char *bps_last_error(void)
{
	char *text = last_error_text()->s;

	name_tensors(text);

	/* Replace control characters: the text has names chosen by users, and a terminal would
	 * execute them. */
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == '\177')
			*c = '?';
	return text;
}

const char *bps_strerror(int code)
{
	return err_str(code);
}

const char *bps_version(void)
{
	return BPS_VERSION;
}
