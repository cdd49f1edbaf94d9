#ifndef BPS_SCHEDULER_BPSCTL_BPSCTL_H
#define BPS_SCHEDULER_BPSCTL_BPSCTL_H
/* Shared functions of bpsctl's commands: flags, printing, the time limit. main.c has the table of
 * commands. cmd_show.c has the commands that show a document, cmd_events.c the events, cmd_steer.c
 * the commands that change something, cmd_key.c those about keys. screen_*.c format the documents.
 *
 * One thread. A command's function returns the exit code: 0 OK, 1 WARN, 2 ERR, 3 no daemon
 * answers, 64 usage. */
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
	struct steer_conf steer;
	const char *reason, *config_dir;
	const char *more; /* the second argument, "" if there is none */
	bool json, watch, follow, verbose, force, wait, topology;
	uint64_t interval_us, timeout_us;
	const char *since; /* a number, or a span such as "10min"; "": not given */
};

/* ---- output.c ---- */
/* Set whether --json was given: then each result of a command is one document. */
void print_as_json(bool is_json);
/* Print text on stderr, with --json also as a document. Returns status. */
int print_error(const char *text, int status);
/* Print the document alone, for text that is on stderr already. */
void print_error_json(const char *text);
/* Print an error of fetch.h or steer_client.h like print_error. */
int print_failure(int rc, const struct err_text *err);
/* Print a document, as text or as JSON, and free it. screen: as in screen.h. */
int print_document(
	const struct bpsctl_opts *o, json_t *root, int (*screen)(FILE *out, json_t *root));
/* Print a short answer: doc as JSON (takes the reference), or text and a line end. Returns 0. */
int print_answer(const struct bpsctl_opts *o, const char *text, json_t *doc);
/* Print an object on a line of its own. */
void print_json_line(json_t *o);
/* End the program two seconds from now, even while the resolver runs. false: remove the limit. */
void limit_time(bool is_bounded);
static inline uint32_t interval_ms(const struct bpsctl_opts *o)
{
	return (uint32_t)(o->interval_us / 1000);
}

/* ---- cmd_show.c: commands that show one document, once or with --watch ---- */
/* A command's document: how to fetch it and how to format it (screen.h). */
struct document_view {
	int (*fetch)(
		const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);
	int (*screen)(FILE *out, json_t *root);
};
extern const struct document_view view_status, view_servers, view_agents, view_jobs, view_job,
	view_why_stuck, view_check;
int cmd_view(const struct document_view *v, const struct bpsctl_opts *o, const char *arg);
int cmd_top(const struct bpsctl_opts *o, const char *arg);
int cmd_agent(const struct bpsctl_opts *o, const char *arg);
int cmd_explain(const struct bpsctl_opts *o, const char *arg);
int cmd_version(const struct bpsctl_opts *o, const char *arg);

/* ---- cmd_events.c ---- */
int cmd_events(const struct bpsctl_opts *o, const char *arg);

/* ---- cmd_steer.c: commands that change something ---- */
/* Call steer_call. If --scheduler is not given, use the port that the scheduler of this host
 * names. */
int ask_scheduler(const struct bpsctl_opts *o, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	struct err_text *err);
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
