#ifndef BPS_SCHEDULER_BPSCTL_SCREEN_H
#define BPS_SCHEDULER_BPSCTL_SCREEN_H
/* The screens of bpsctl, from its documents (fetch.h): plain text below 100 columns, names, no
 * colour. A value that is missing or invalid in the document is shown as "-". "verbose" in the
 * document adds numbers to the names. Each function returns the exit code: 0 OK, 1 WARN, 2 ERR. */
#include <stdio.h>

#include <jansson.h>

/* a call that has waited for longer than this is more than just in flight */
#define SCREEN_STUCK_S     0.5
#define SCREEN_MISSING_MAX 16

/* Show the whole cluster. For a server or agent, calls screen_daemon. */
int screen_status(FILE *out, json_t *root);
/* Show a server's or agent's own figures. 1: it does not reach the scheduler. */
int screen_daemon(FILE *out, json_t *root);

/* Show an agent's GPUs and their strategy. 1: the configured strategy is not possible. */
int screen_topology(FILE *out, json_t *root);

/* Show a job, the cause of a delay first. 1: it waits or an agent did not answer; 2: it has
 * failed. */
int screen_job(FILE *out, json_t *root);

/* Show full tables. 1: an entry has a problem. */
int screen_servers(FILE *out, json_t *root);
int screen_agents(FILE *out, json_t *root);
int screen_jobs(FILE *out, json_t *root);

/* Show what each call that has waited for long waits for. 1: there is such a call. */
int screen_stuck(FILE *out, json_t *root);

/* Show each event on one line. Returns 0. */
int screen_events(FILE *out, json_t *root);

/* Show the names of those that did not answer. */
void screen_missing(FILE *out, json_t *root);
#endif
