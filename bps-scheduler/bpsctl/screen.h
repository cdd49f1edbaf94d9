#ifndef BPS_SCHEDULER_BPSCTL_SCREEN_H
#define BPS_SCHEDULER_BPSCTL_SCREEN_H
/* Prints bpsctl's documents (fetch.h) as plain text of less than 100 columns. The text has names
 * instead of ids, and no colours. A value that is missing or invalid in the document is shown as
 * "-". If "verbose" is true in the document, the text also has the ids. Each function returns the
 * exit code: 0 OK, 1 WARN, 2 ERR. */
#include <stdio.h>

#include <jansson.h>

/* Time in seconds. A call that has waited for at least this time is reported, because shorter waits
 * are normal. */
#define SCREEN_STUCK_S     0.5
#define SCREEN_MISSING_MAX 16

/* Show the whole cluster. If the document is that of a server or agent, show it with
 * screen_daemon. */
int screen_status(FILE *out, json_t *root);
/* Show the figures of one server or agent. Returns 1 if the daemon is not connected to the
 * scheduler. */
int screen_daemon(FILE *out, json_t *root);

/* Show an agent's GPUs and their strategy. Returns 1 if the configured strategy is not possible. */
int screen_topology(FILE *out, json_t *root);

/* Show a job, beginning with the cause of a delay. Returns 1 if the job waits or an agent did not
 * answer, 2 if the job has failed. */
int screen_job(FILE *out, json_t *root);

/* Show what would make the steps of a job shorter. Returns 1 if that is not known. */
int screen_advice(FILE *out, json_t *root);

/* Show full tables. Returns 1 if an entry has a problem. */
int screen_servers(FILE *out, json_t *root);
int screen_agents(FILE *out, json_t *root);
int screen_jobs(FILE *out, json_t *root);

/* For each call that has waited for longer than SCREEN_STUCK_S, show what it waits for. Returns 1
 * if there is such a call. */
int screen_stuck(FILE *out, json_t *root);

/* Show each event on one line. Returns 0. */
int screen_events(FILE *out, json_t *root);

/* Show the names of the members and jobs that did not answer. */
void screen_missing(FILE *out, json_t *root);
#endif
