#ifndef BPS_SCHEDULER_BPSCTL_SCREEN_H
#define BPS_SCHEDULER_BPSCTL_SCREEN_H
/* The screens of bpsctl from its documents (fetch.h): plain text below 100 columns, names and no
 * colour. What is missing or strange in the document is shown as "-".
 * "verbose" in it asks for numbers too, not names alone. Each returns the exit code:
 * 0 OK, 1 WARN, 2 ERR. */
#include <stdio.h>

#include <jansson.h>

#define SCREEN_STUCK_S     0.5 /* a call that has waited for so long is not just in flight */
#define SCREEN_MISSING_MAX 16

/* The whole cluster; of a server or agent, screen_daemon. */
int screen_status(FILE *out, json_t *root);
/* A server's or agent's own figures. 1 when it does not reach the scheduler. */
int screen_daemon(FILE *out, json_t *root);

/* An agent's GPUs and their strategy. 1 when the strategy that is set cannot be had. */
int screen_topology(FILE *out, json_t *root);

/* One job, the culprit first. 1 when it waits or an agent did not answer; 2 when it has failed. */
int screen_job(FILE *out, json_t *root);

/* Full tables. 1 when one of them is not as it should be. */
int screen_servers(FILE *out, json_t *root);
int screen_agents(FILE *out, json_t *root);
int screen_jobs(FILE *out, json_t *root);

/* What every call that has waited for long waits for. 1 when there is one. */
int screen_stuck(FILE *out, json_t *root);

/* One line for each. Returns 0. */
int screen_events(FILE *out, json_t *root);

/* Who was asked and did not answer. */
void screen_missing(FILE *out, json_t *root);
#endif
