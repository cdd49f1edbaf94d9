/* Words of bpsctl that have the scheduler change something. */
#include <ctype.h>
#include <stdio.h>

#include "bps-scheduler/bpsctl/bpsctl.h"

int order(const struct opts *o, const char *verb, const char *target, const struct steer_arg *args,
	size_t n_args)
{
	struct err_text text = {""}, err = {""};
	json_t *line;
	int rc = steer_call(&o->steer, verb, target, args, n_args, &text, NULL, &err);

	if (rc < 0)
		return complain_failed(rc, &err);
	if (!o->json) {
		printf("%s\n", text.s);
		return 0;
	}
	line = json_pack("{s:i, s:s}", "schema", 1, "text", text.s);
	print_line(line);
	json_decref(line);
	return 0;
}

int run_job_kill(const struct opts *o, const char *arg)
{
	const struct steer_arg reason = {"reason", o->reason};

	return order(o, "job kill", arg, &reason, 1);
}

/* Codes are in capitals; people are not. */
static void upper(const char *s, char *ret, size_t room)
{
	size_t n = 0;

	for (; *s && n + 1 < room; s++)
		ret[n++] = (char)toupper((unsigned char)*s);
	ret[n] = '\0';
}

int run_mute(const struct opts *o, const char *arg)
{
	const struct steer_arg args[] = {{"duration", o->more}, {"reason", o->reason}};
	char code[64];

	upper(arg, code, sizeof(code));
	return order(o, "mute", code, args, sizeof(args) / sizeof(args[0]));
}

int run_unmute(const struct opts *o, const char *arg)
{
	char code[64];

	upper(arg, code, sizeof(code));
	return order(o, "unmute", code, NULL, 0);
}
