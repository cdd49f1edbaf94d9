#include "tests/unit/fake_sched.h"

#include <string.h>

void fake_sched_send(void *ctx, uint32_t conn, const struct ctl_msg *msg)
{
	(void)ctx;
	(void)conn;
	(void)msg;
}

void fake_sched_drop(void *ctx, uint32_t conn, const char *why)
{
	(void)ctx;
	(void)conn;
	(void)why;
}

int fake_sched_persist(void *ctx, const struct state_record *rec)
{
	(void)ctx;
	(void)rec;
	return 0;
}

void fake_sched_random(void *ctx, void *ret, size_t n_bytes)
{
	(void)ctx;
	memset(ret, 7, n_bytes);
}

void fake_sched_pair_key(void *ctx, const uint8_t secret[STATE_SECRET_BYTES],
	uint64_t agent_instance, uint64_t server_instance, uint8_t ret_key[CTL_KEY_BYTES])
{
	(void)ctx;
	(void)secret;
	(void)agent_instance;
	(void)server_instance;
	memset(ret_key, 7, CTL_KEY_BYTES);
}
