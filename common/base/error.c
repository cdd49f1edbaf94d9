#include "common/base/error.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

const char *err_str(int code)
{
	static _Thread_local char buf[96];

	if (code >= 0)
		return "success";
	switch ((enum bps_error)code) {
#define X(name, num, text)                                                                         \
	case name:                                                                                 \
		return text;
		BPS_ERRORS(X)
#undef X
	}
	if (code == INT_MIN) { /* -INT_MIN does not fit into an int */
		snprintf(buf, sizeof(buf), "unknown error %d", code);
		return buf;
	}
	return strerror_r(-code, buf, sizeof(buf));
}

const char *err_name(int code)
{
	static const struct {
		int code;
		const char *name;
	} names[] = {
#define X(name, num, text) {name, #name},
		BPS_ERRORS(X)
#undef X
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].code == code)
			return names[i].name;
	return NULL;
}

int err_set(struct err_text *err, int code, const char *fmt, ...)
{

	if (!err)
		return code;
	format_arguments(err->s, fmt);
	return code;
}
