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
