/* Commands of bpsctl that request a change from the scheduler. steer_client.c sends the requests.
 * One thread. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/fetch.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/clock.h"
#include "common/wire/ctlmsg.h"

#define WAIT_MS 200 /* milliseconds between two checks of --wait */
/* nanoseconds after which --wait shows a smaller number of partitions */
#define PROGRESS_LINE_NS UINT64_C(2000000000)

/* Return whether the address stands for all addresses of this host. */
static bool is_any_address(const struct addr *a)
{
	struct sockaddr_storage ss;
	socklen_t len;

	return addr_resolve_numeric(a, &ss, &len) == 0 && sockaddr_is_any((struct sockaddr *)&ss);
}

/* Request from the scheduler of this host the address on which it really listens. With this
 * function, users need not give --scheduler. Returns false if --scheduler is given, or if the
 * scheduler reports no address other than the default address. */
static bool find_scheduler(const struct bpsctl_opts *o, struct addr *ret_addr)
{
	struct addr found, asked = o->steer.scheduler;
	char text[ADDR_TEXT_BYTES];
	struct err_text err;
	json_t *root = NULL;
	bool is_found;

	if (strcmp(addr_format(&asked, text), STEER_SCHEDULER) != 0 ||
		fetch_path(&o->scheduler_http, "/status", &root, &err) < 0)
		return false;
	is_found = cell_is(root, "role", "scheduler") &&
		   addr_parse(&found, cell_str(root, "listen").s, asked.port, &err) == 0 &&
		   found.port &&
		   (found.port != asked.port ||
			   (!is_any_address(&found) && strcmp(found.host, asked.host) != 0));
	json_decref(root);
	if (is_found)
		*ret_addr = found;
	return is_found;
}

/* Send the request without testing the port first, because the scheduler would count the test as a
 * connection from an unknown peer. */
int send_steer_request(const struct bpsctl_opts *o, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	bool *ret_is_answer, struct err_text *err)
{
	struct steer_conf conf = o->steer;
	int rc = steer_call(
		&conf, verb, target, args, n_args, ret_text, ret_json, ret_is_answer, err);

	if (rc == BPS_ENOSCHED && find_scheduler(o, &conf.scheduler))
		rc = steer_call(
			&conf, verb, target, args, n_args, ret_text, ret_json, ret_is_answer, err);
	return rc;
}

static int print_text_answer(const struct bpsctl_opts *o, const char *text)
{
	return print_answer(o, text, json_pack("{s:i, s:s}", "schema", 1, "text", text));
}

/* Print the error of a request. An argument that the scheduler refuses is a wrong command line.
 * Returns the exit code. */
static int print_request_error(int rc, bool is_answer, const struct err_text *err)
{
	bool is_usage = rc == -EMSGSIZE || (rc == -EINVAL && is_answer);

	return is_usage ? print_error_line(err->s, EX_USAGE) : print_failure(rc, err);
}

/* Send a request with this verb to the scheduler, and print the answer. */
static int send_request_and_print(const struct bpsctl_opts *o, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args)
{
	struct err_text text = {""}, err = {""};
	bool is_answer;
	int rc = send_steer_request(o, verb, target, args, n_args, &text, NULL, &is_answer, &err);

	return rc < 0 ? print_request_error(rc, is_answer, &err) : print_text_answer(o, text.s);
}

/* ---- drain ---- */

/* Get the number of partitions that the member `target` still has. Errors: as steer_call. */
static int get_partitions_left(
	const struct bpsctl_opts *o, const char *target, uint64_t *ret_n, struct err_text *err)
{
	struct err_text text = {""};
	json_t *json = NULL;
	int rc;

	query_time_limit_set(true);
	rc = send_steer_request(o, "drain status", target, NULL, 0, &text, &json, NULL, err);
	query_time_limit_set(false);
	if (rc == 0)
		*ret_n = cell_num(json, "partitions");
	json_decref(json);
	return rc;
}

static int print_drain_complete(const struct bpsctl_opts *o, const char *target, double took_s)
{
	char text[CTL_NAME_MAX + 64];

	snprintf(text, sizeof(text), "%.70s has no partitions any more, after %.1f s", target,
		took_s);
	return print_text_answer(o, text);
}

/* Wait until the target has no partitions, or until the time of --timeout is over. Keep waiting
 * while the scheduler is unreachable. */
static int wait_until_drained(const struct bpsctl_opts *o, const char *target)
{
	uint64_t begin = clock_now_ns(), n = 1, took_ns, shown_ns = 0, shown = UINT64_MAX;
	const struct timespec pause = {.tv_nsec = WAIT_MS * 1000000L};
	struct err_text err = {""}, late;
	int rc;

	for (;;) {
		rc = get_partitions_left(o, target, &n, &err);
		took_ns = clock_now_ns() - begin;
		if (rc == 0 && !n)
			return print_drain_complete(o, target, (double)took_ns / 1e9);
		if (rc < 0 && rc != BPS_ENOSCHED && rc != BPS_ETIMEDOUT)
			return print_failure(rc, &err);
		if (took_ns / 1000 > o->timeout_us)
			break;
		if (rc == 0 && !o->json && n < shown && took_ns >= shown_ns + PROGRESS_LINE_NS) {
			printf("%" PRIu64 " partition%s left\n", n, plural_suffix_of(n));
			fflush(stdout);
			shown = n;
			shown_ns = took_ns;
		}
		nanosleep(&pause, NULL);
	}
	if (rc < 0)
		return print_failure(rc, &err);
	err_set(&late, 0,
		"%.70s still has %" PRIu64 " partition%s after %.0f s; the scheduler goes on (see "
		"`bpsctl servers` and `bpsctl events`)",
		target, n, plural_suffix_of(n), (double)took_ns / 1e9);
	return print_error_line(late.s, EXIT_WARN);
}

int cmd_drain(const struct bpsctl_opts *o, const char *arg)
{
	const struct steer_arg reason = {"reason", o->reason};
	struct err_text text = {""}, err = {""};
	bool is_answer;
	int rc;

	if (o->dry_run && (o->wait || *o->reason))
		return print_error_line(
			"--dry-run changes nothing: use it without --wait and --reason", EX_USAGE);
	if (o->dry_run)
		return send_request_and_print(o, "drain preview", arg, NULL, 0);
	rc = send_steer_request(o, "drain", arg, &reason, 1, &text, NULL, &is_answer, &err);
	if (rc < 0)
		return print_request_error(rc, is_answer, &err);
	if (!o->wait)
		return print_text_answer(o, text.s);
	/* with --json, print only one document, the result of the wait */
	if (!o->json)
		print_text_answer(o, text.s);
	return wait_until_drained(o, arg);
}

int cmd_undrain(const struct bpsctl_opts *o, const char *arg)
{
	return send_request_and_print(o, "undrain", arg, NULL, 0);
}

int cmd_job_kill(const struct bpsctl_opts *o, const char *arg)
{
	const struct steer_arg reason = {"reason", o->reason};

	return send_request_and_print(o, "job kill", arg, &reason, 1);
}

/* Convert a code to capitals, because all codes are written in capitals. */
static void convert_to_upper(const char *s, char *ret, size_t room)
{
	size_t n = 0;

	for (; *s && n + 1 < room; s++)
		ret[n++] = (char)toupper((unsigned char)*s);
	ret[n] = '\0';
}

int cmd_mute(const struct bpsctl_opts *o, const char *arg)
{
	const struct steer_arg args[] = {{"duration", o->more}, {"reason", o->reason}};
	char code[64];

	convert_to_upper(arg, code, sizeof(code));
	return send_request_and_print(o, "mute", code, args, sizeof(args) / sizeof(args[0]));
}

int cmd_unmute(const struct bpsctl_opts *o, const char *arg)
{
	char code[64];

	convert_to_upper(arg, code, sizeof(code));
	return send_request_and_print(o, "unmute", code, NULL, 0);
}
