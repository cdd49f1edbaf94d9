#ifndef BPS_SCHEDULER_BPSCTL_BPSCTL_H
#define BPS_SCHEDULER_BPSCTL_BPSCTL_H
/* What the words of bpsctl share: the flags, how an answer is printed, how a question is bounded.
 * main.c has the table of words; views.c those that show a document, follow.c the events, orders.c
 * those that change something, keys.c those about keys.
 *
 * One thread. A word's function returns the exit code: 0 OK, 1 WARN, 2 ERR, 3 nobody answers,
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
	struct addr scheduler_http;
	struct steer_conf steer;
	const char *reason, *config_dir;
	const char *more; /* the second argument, "" when there is none */
	bool json, watch, follow, verbose, force, wait, topology;
	uint64_t interval_us, timeout_us;
	const char *since; /* a number, or a span such as "10min"; "": not told */
};

/* ---- output.c ---- */
/* Says text on stderr; returns status. */
int print_error(const char *text, int status);
/* The same of an error of fetch.h or steer_client.h. */
int print_failure(int rc, const struct err_text *err);
/* Print a document, as text or as JSON, and free it. screen: as in screen.h. */
int print_document(
	const struct bpsctl_opts *o, json_t *root, int (*screen)(FILE *out, json_t *root));
/* A short answer: doc as JSON (taken), or text and a line end. Returns 0. */
int print_answer(const struct bpsctl_opts *o, const char *text, json_t *doc);
/* One object per line. */
void print_json_line(json_t *o);
/* What is asked from now on ends in two seconds, the resolver too; false: is not bounded. */
void limit_time(bool is_bounded);
static inline uint32_t interval_ms(const struct bpsctl_opts *o)
{
	return (uint32_t)(o->interval_us / 1000);
}

/* ---- views.c: words that show one document, once or with --watch ---- */
int cmd_status(const struct bpsctl_opts *o, const char *arg);
int cmd_top(const struct bpsctl_opts *o, const char *arg);
int cmd_servers(const struct bpsctl_opts *o, const char *arg);
int cmd_agents(const struct bpsctl_opts *o, const char *arg);
int cmd_agent(const struct bpsctl_opts *o, const char *arg);
int cmd_jobs(const struct bpsctl_opts *o, const char *arg);
int cmd_job(const struct bpsctl_opts *o, const char *arg);
int cmd_why_stuck(const struct bpsctl_opts *o, const char *arg);
int cmd_explain(const struct bpsctl_opts *o, const char *arg);
int cmd_check(const struct bpsctl_opts *o, const char *arg);
int cmd_version(const struct bpsctl_opts *o, const char *arg);

/* ---- follow.c ---- */
int cmd_events(const struct bpsctl_opts *o, const char *arg);

/* ---- orders.c: words that change something ---- */
/* As steer_call, at the port that the scheduler of this host names where --scheduler does not. */
int ask_scheduler(const struct bpsctl_opts *o, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	struct err_text *err);
int cmd_drain(const struct bpsctl_opts *o, const char *arg);
int cmd_undrain(const struct bpsctl_opts *o, const char *arg);
int cmd_job_kill(const struct bpsctl_opts *o, const char *arg);
int cmd_mute(const struct bpsctl_opts *o, const char *arg);
int cmd_unmute(const struct bpsctl_opts *o, const char *arg);

/* ---- keys.c ---- */
int cmd_key_new(const struct bpsctl_opts *o, const char *arg);
int cmd_key_derive(const struct bpsctl_opts *o, const char *arg);
int cmd_key_status(const struct bpsctl_opts *o, const char *arg);
int cmd_key_rotate(const struct bpsctl_opts *o, const char *arg);
int cmd_key_retire(const struct bpsctl_opts *o, const char *arg);
int cmd_key_revoke(const struct bpsctl_opts *o, const char *arg);
#endif
