#ifndef BPS_TESTS_FAKE_SCHED_H
#define BPS_TESTS_FAKE_SCHED_H
/* Callbacks of a struct sched_env for tests that do not check them. They have no effect and always
 * succeed. Any thread may call them. */
#include "bps-scheduler/core/core.h"

void fake_sched_send(void *ctx, uint32_t conn, const struct ctl_msg *msg);
void fake_sched_drop(void *ctx, uint32_t conn, const char *why);
int fake_sched_persist(void *ctx, const struct state_record *rec);
void fake_sched_random(void *ctx, void *ret, size_t n_bytes);
void fake_sched_pair_key(void *ctx, const uint8_t secret[STATE_SECRET_BYTES],
	uint64_t agent_instance, uint64_t server_instance, uint8_t ret_key[CTL_KEY_BYTES]);
#endif
