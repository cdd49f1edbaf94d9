#ifndef BPS_SCHEDULER_STATUS_IMPL_H
#define BPS_SCHEDULER_STATUS_IMPL_H
/* What the writers of the scheduler's JSON share: status.c, waits.c, events.c. */
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/core_impl.h"
#include "bps-scheduler/status.h"

#define STATUS_SCHEMA 1

/* A string from anywhere; what is not UTF-8 is replaced. */
json_t *status_str(const char *s);
void status_put_str(json_t *o, const char *key, const char *s);
void status_put_num(json_t *o, const char *key, uint64_t v);
void status_put_sec(json_t *o, const char *key, double v);
double status_span_s(const struct status_info *info, uint64_t since_ns);
/* Append a problem with its code and three lines. */
void status_problem(json_t *list, const char *code, bool is_error, const char *what,
	const char *effect, const char *action);

/* What calls of j wait for. p: the answers, NULL when nobody was asked. A new reference
 * (waits.c). */
json_t *status_waits(const struct status_info *info, const struct sched_core *c,
	const struct job *j, const struct sched_probe *p);
/* The problems that these waits and answers show. */
json_t *status_job_problems(const struct sched_core *c, const struct job *j,
	const struct sched_probe *p, json_t *waits);
#endif
