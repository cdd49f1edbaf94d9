#ifndef BPS_SCHEDULER_BPSCTL_SCREEN_H
#define BPS_SCHEDULER_BPSCTL_SCREEN_H
/* The screens of bpsctl from the scheduler's JSON (bps-scheduler/status.h): plain text below 100
 * columns, names and no colour. What is missing or strange in the document is shown as "-". */
#include <stdio.h>

#include <jansson.h>

#define SCREEN_COLUMNS 98

/* The whole cluster. Returns the exit code: 0 OK, 1 WARN, 2 ERR. */
int screen_status(FILE *out, json_t *root);
/* The exit code alone. */
int screen_status_code(json_t *root);

/* One job, the culprit first. Returns 0; 1 when it waits or an agent did not answer; 2 when it
 * has failed. */
int screen_job(FILE *out, json_t *root);
int screen_job_code(json_t *root);
#endif
