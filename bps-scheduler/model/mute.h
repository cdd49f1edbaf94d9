#ifndef BPS_SCHEDULER_MODEL_MUTE_H
#define BPS_SCHEDULER_MODEL_MUTE_H
/* Problems that an operator knows and wants to hide for a while: muted by their code, with a reason
 * and an end. The health word and bpsctl's exit code ignore them; bps_health and the JSON still
 * report them.
 *
 * Mutes are durable, so that a restart of the scheduler does not alert again. The end is a time on
 * CLOCK_MONOTONIC, which continues over restarts of the process. The record names the boot from
 * which this clock counts. After another boot, or on another machine, the end on the wall clock
 * applies, which the record also has.
 *
 * Part of the core: its thread, no clock. */
#include <stdint.h>

#include "common/base/error.h"

struct sched_core;
struct state_mute;

#define MUTES_MAX        64
#define MUTE_CODE_MAX    39
#define MUTE_REASON_MAX  255
#define MUTE_WHO_MAX     191
#define MUTE_SPAN_MAX_MS (UINT64_C(90) * 86400 * 1000)
#define MUTE_DEFAULT_MS  (UINT64_C(4) * 3600 * 1000)

struct sched_mute {
	char code[MUTE_CODE_MAX + 1], reason[MUTE_REASON_MAX + 1], who[MUTE_WHO_MAX + 1];
	uint64_t end_ns; /* on the core's clock */
};

/* Mute a code for span_ms from now on. If the code is already muted, replace its end and reason.
 * Errors: BPS_EQUOTA too many. */
int mute_set(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who);
/* Remove a mute. Errors: BPS_ENOTFOUND it is not muted. */
int mute_clear(struct sched_core *c, const char *code);
/* Find a mute. NULL: the code is not muted. */
const struct sched_mute *mute_find(const struct sched_core *c, const char *code, uint64_t now_ns);

/* Copy all mutes that have not ended to ret, which has room for MUTES_MAX, for the record. The
 * strings belong to the core. Returns their number. */
uint32_t mute_record(const struct sched_core *c, struct state_mute *ret);
/* Replace all mutes by those of a record. Errors: -EINVAL too many. */
int mute_restore(struct sched_core *c, const struct state_mute *list, uint32_t n);
#endif
