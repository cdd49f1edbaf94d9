#ifndef BPS_SCHEDULER_BPSCTL_BPSCTL_H
#define BPS_SCHEDULER_BPSCTL_BPSCTL_H
/* Functions that bpsctl's commands share: flags, printing, the time limit. A document is a JSON
 * object: the answer of a daemon, or what bpsctl makes from several answers. main.c has the table
 * of commands. cmd_show.c has the commands that show a document, cmd_events.c the command for
 * events, cmd_steer.c the commands that change something, cmd_key.c the commands about keys.
 * screen_*.c format documents as text.
 *
 * One thread. A command's function returns the exit code: 0 OK, 1 WARN, 2 ERR, 3 no daemon answers,
 * 64 usage. */
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/bpsctl/steer_client.h"
#include "common/base/addr.h"
#include "common/base/error.h"

#define EXIT_WARN        1
#define EXIT_ERR         2
#define EXIT_UNREACHABLE 3

struct bpsctl_opts {
	struct addr scheduler_http, agent_http;
	/* scheduler_http or agent_http is not the default */
	bool is_scheduler_given, is_agent_given;
	struct steer_conf steer;
	const char *reason, *config_dir;
	const char *more; /* second argument of the command; "" if there is none */
	bool json, watch, follow, verbose, force, wait, dry_run, topology;
	uint64_t interval_us, timeout_us;
	/* value of --since: an event number, or a time span such as "10min"; "": --since is not
	 * given */
	const char *since;
};

/* ---- output.c ---- */
/* Set whether --json was given. If so, each command prints one JSON document. */
void set_json_output(bool is_json);
/* Print an error on stderr, and with --json also as a document on stdout. Returns `status`. The
 * name print_error would replace cmocka's function in the unit tests. */
int print_error_line(const char *text, int status);
/* With --json, print the error as a document. The caller has already printed the text on stderr. */
void print_error_json(const char *text);
/* Print an error in the same way as print_error_line. rc, err: the error code and the text from a
 * function of fetch.h or steer_client.h. Returns the exit code. */
int print_failure(int rc, const struct err_text *err);
/* Print a document as text or as JSON, and free it. screen: function that writes the text
 * (screen.h). Returns the exit code. */
int print_document(
	const struct bpsctl_opts *o, json_t *root, int (*screen)(FILE *out, json_t *root));
/* Print a short answer. With --json, print the document `doc`. Otherwise, print `text` and a line
 * end. Frees `doc`. Returns 0. */
int print_answer(const struct bpsctl_opts *o, const char *text, json_t *doc);
/* Print a JSON object on one line of stdout. */
void print_json_line(json_t *o);
/* Set (true) or remove (false) the time limit. The program ends two seconds after the call that set
 * the limit, even while the resolver blocks. */
void query_time_limit_set(bool is_bounded);
static inline uint32_t opts_interval_ms(const struct bpsctl_opts *o)
{
	return (uint32_t)(o->interval_us / 1000);
}

/* ---- cmd_show.c: commands that show one document, once or with --watch ---- */
/* How to fetch the document of a command, and how to write it as text (screen.h). */
struct document_view {
	int (*fetch)(
		const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);
	int (*screen)(FILE *out, json_t *root);
};
extern const struct document_view view_status, view_servers, view_agents, view_jobs, view_job,
	view_advice, view_why_stuck, view_check;
int cmd_show_document(const struct document_view *v, const struct bpsctl_opts *o, const char *arg);
int cmd_top(const struct bpsctl_opts *o, const char *arg);
int cmd_agent(const struct bpsctl_opts *o, const char *arg);
int cmd_trace(const struct bpsctl_opts *o, const char *arg);
int cmd_explain(const struct bpsctl_opts *o, const char *arg);
int cmd_version(const struct bpsctl_opts *o, const char *arg);

/* ---- cmd_events.c ---- */
int cmd_events(const struct bpsctl_opts *o, const char *arg);

/* ---- cmd_steer.c: commands that change something ---- */
/* Call steer_call. If --scheduler is not given and the default port does not answer, get the port
 * number from the scheduler of this host over HTTP. Then try again with that port. */
int send_steer_request(const struct bpsctl_opts *o, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	bool *ret_is_answer, struct err_text *err);
int cmd_drain(const struct bpsctl_opts *o, const char *arg);
int cmd_undrain(const struct bpsctl_opts *o, const char *arg);
int cmd_job_kill(const struct bpsctl_opts *o, const char *arg);
int cmd_mute(const struct bpsctl_opts *o, const char *arg);
int cmd_unmute(const struct bpsctl_opts *o, const char *arg);

/* ---- cmd_key.c ---- */
int cmd_key_new(const struct bpsctl_opts *o, const char *arg);
int cmd_key_derive(const struct bpsctl_opts *o, const char *arg);
int cmd_key_status(const struct bpsctl_opts *o, const char *arg);
int cmd_key_rotate(const struct bpsctl_opts *o, const char *arg);
int cmd_key_retire(const struct bpsctl_opts *o, const char *arg);
int cmd_key_revoke(const struct bpsctl_opts *o, const char *arg);
#endif
