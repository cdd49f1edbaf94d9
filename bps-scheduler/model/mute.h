#ifndef BPS_SCHEDULER_MODEL_MUTE_H
#define BPS_SCHEDULER_MODEL_MUTE_H
/* Problems that an operator knows of and does not want to see for a while: muted by their code,
 * with a reason and an end. They leave the health word and bpsctl's exit code; bps_health and the
 * JSON keep them.
 *
 * Durable, so that a restart of the scheduler does not cry again. The end is a point on
 * CLOCK_MONOTONIC, which goes on over restarts of the process: the record names the boot of the
 * machine that this clock counts from. Only after another boot, or on another machine, where that
 * clock means nothing, the end is taken from the wall clock, which the record has too.
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
	uint64_t end_ns; /* the core's clock */
};

/* Mute a code for span_ms from now on; a code that is muted already gets the new end and reason.
 * Errors: BPS_EQUOTA too many. */
int mute_set(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who);
/* Errors: BPS_ENOTFOUND it is not muted. */
int mute_clear(struct sched_core *c, const char *code);
/* NULL: not muted. */
const struct sched_mute *mute_find(const struct sched_core *c, const char *code, uint64_t now_ns);

/* For the record: all that hold, in ret with room for MUTES_MAX; strings are the core's. Returns
 * how many. */
uint32_t mute_record(const struct sched_core *c, struct state_mute *ret);
/* From a record: these replace all. Errors: -EINVAL too many. */
int mute_restore(struct sched_core *c, const struct state_mute *list, uint32_t n);
#endif
