#ifndef BPS_SCHEDULER_MODEL_MUTE_H
#define BPS_SCHEDULER_MODEL_MUTE_H
/* Mutes: an operator hides a known problem for a while. A mute names the problem's code, a reason
 * and an end. Until the mute ends, two outputs ignore the problem: the health in the scheduler's
 * status, and the exit status of bpsctl. The metric bps_health and the JSON output still report the
 * problem.
 *
 * Mutes are durable, so that a restart of the scheduler does not alert again. The end is a time on
 * CLOCK_MONOTONIC, which continues when only the process restarts. The state log also stores the
 * boot from which that clock counts, and the end on the wall clock. After another boot, or on
 * another machine, the end on the wall clock applies.
 *
 * This file is part of the core: it runs on the core's thread and reads no clock. */
#include <stdint.h>

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
	uint64_t end_ns; /* end of the mute, on the core's clock */
};

/* For the next span_ms milliseconds, hide the problems whose code is `code`. If the code is already
 * muted, replace the end, the reason and `who` of its mute. Errors: BPS_EQUOTA if there are
 * MUTES_MAX mutes. */
int mute_set(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who);
/* Remove a mute. Errors: BPS_ENOTFOUND if the code is not muted. */
int mute_clear(struct sched_core *c, const char *code);
/* Find a mute. NULL: the code is not muted. */
const struct sched_mute *mute_find_active(
	const struct sched_core *c, const char *code, uint64_t now_ns);

/* Write the descriptions of all mutes, for a state record, to ret. ret is an array of MUTES_MAX
 * entries. The strings belong to the core. Returns the number of mutes. */
uint32_t mute_make_records(const struct sched_core *c, struct state_mute *ret);
/* Replace all mutes by those of a state record. Errors: -EINVAL if the record has more than
 * MUTES_MAX mutes. */
int mute_restore(struct sched_core *c, const struct state_mute *list, uint32_t n);
#endif
