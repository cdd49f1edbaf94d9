/* The sentence and the fields of a thread's last failure (last_error.h). The library's calls write
 * the sentence and the fields; bps_last_error and bps_last_failure return them. Thread: any; each
 * thread has its own sentence and fields. */
#include "libbpsclient/bps.h"
#include "libbpsclient/last_error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/wire/ctlmsg.h"
#include "libbpsclient/average.h"
#include "libbpsclient/client.h"

struct err_text *last_error_text(void)
{
	static _Thread_local struct err_text own;

	return &own;
}

static struct bps_failure *last_failure_of_thread(void)
{
	static _Thread_local struct bps_failure own = {.rank = -1};

	return &own;
}

void last_error_clear(void)
{
	struct bps_failure *own = last_failure_of_thread();

	own->rank = -1;
	own->host[0] = own->tensor[0] = '\0';
}

void last_error_cause(const struct ctl_cause *cause)
{
	struct bps_failure *own = last_failure_of_thread();

	if (!ctl_has_cause(cause))
		return;
	own->rank = cause->rank == CTL_NO_ID ? -1 : (int32_t)cause->rank;
	snprintf(own->host, sizeof(own->host), "%s", cause->host);
}

void last_error_tensor(const char *name)
{
	struct bps_failure *own = last_failure_of_thread();

	if (!strncmp(name, AVERAGE_PREFIX, strlen(AVERAGE_PREFIX)))
		name += strlen(AVERAGE_PREFIX);
	if (strncmp(name, CLIENT_RESERVED, strlen(CLIENT_RESERVED)) != 0)
		snprintf(own->tensor, sizeof(own->tensor), "%s", name);
}

void bps_last_failure(struct bps_failure *ret)
{
	*ret = *last_failure_of_thread();
}

int last_error_set(int code, const char *fmt, ...)
{
	/* Write to a copy, because an argument may point to the sentence that is replaced */
	struct err_text text;

	format_arguments(text.s, fmt);
	*last_error_text() = text;
	if (code == -EINVAL)
		last_error_clear();
	return code;
}

/* Remove the prefix of companions' names (average.h) from the text, because the user knows only the
 * tensor's name. */
static void strip_companion_prefixes(char *text)
{
	static const char prefix[] = AVERAGE_PREFIX;

	while ((text = strstr(text, prefix)))
		memmove(text, text + sizeof(prefix) - 1, strlen(text + sizeof(prefix) - 1) + 1);
}

const char *bps_last_error(void)
{
	char *text = last_error_text()->s;

	strip_companion_prefixes(text);

	/* Replace control characters, because the text contains names that users have chosen, and a
	 * terminal would interpret the control characters. */
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
