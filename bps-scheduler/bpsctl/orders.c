/* Words of bpsctl that have the scheduler change something. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/cells.h"
#include "bps-scheduler/bpsctl/gather.h"
#include "bps-scheduler/bpsctl/http.h"

#define LOOK_MS 500

/* Where the scheduler on this host says that it listens, when nothing is at the port that is asked
 * by default: its own setting names it already, and nobody should have to say it twice. */
static struct addr control_port(const struct opts *o)
{
	struct addr found, asked = o->steer.scheduler;
	char text[ADDR_TEXT_BYTES];
	struct err_text err;
	json_t *root = NULL;

	if (strcmp(addr_format(&asked, text), STEER_SCHEDULER) != 0 ||
		http_can_connect(&asked, LOOK_MS, &err) == 0 ||
		gather_path(&o->scheduler_http, "/status", &root, &err) < 0)
		return asked;
	if (cell_is(root, "role", "scheduler") &&
		addr_parse(&found, cell_str(root, "listen").s, asked.port, &err) == 0 && found.port)
		asked = found;
	json_decref(root);
	return asked;
}

int ask_scheduler(const struct opts *o, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	struct err_text *err)
{
	struct steer_conf conf = o->steer;

	conf.scheduler = control_port(o);
	return steer_call(&conf, verb, target, args, n_args, ret_text, ret_json, err);
}

int order(const struct opts *o, const char *verb, const char *target, const struct steer_arg *args,
	size_t n_args)
{
	struct err_text text = {""}, err = {""};
	json_t *line;
	int rc = ask_scheduler(o, verb, target, args, n_args, &text, NULL, &err);

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
