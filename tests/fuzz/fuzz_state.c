/* Records of the scheduler's state log. The core of a scheduler rejects a record, or restores its
 * state from the record. After a restore, the core writes a snapshot. A new core must be able to
 * restore its state from that snapshot. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/core.h"
#include "common/base/log.h"
#include "tests/unit/fake_sched.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static struct sched_core *core_new(void)
{
	static const struct sched_env env = {.send = fake_sched_send,
		.drop = fake_sched_drop,
		.persist = fake_sched_persist,
		.random = fake_sched_random,
		.pair_key = fake_sched_pair_key};
	struct sched_config cfg;

	sched_config_default(&cfg);
	return sched_new(&cfg, &env);
}

static int restore_again(void *ctx, const struct state_record *rec)
{
	struct sched_core *c = core_new();
	struct err_text err = {""};

	(void)ctx;
	if (sched_restore(c, rec, &err) < 0)
		abort();
	sched_free(c);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct sched_core *c;
	struct state_record rec;
	struct err_text err;
	void *mem = NULL;
	uint64_t now = 1000000000;

	log_set_level(LOG_ERROR);
	if (codec_decode(state_record_layout(), data, n_bytes, 1 << 24, &rec, &mem, &err) < 0)
		return 0;
	c = core_new();
	if (sched_restore(c, &rec, &err) == 0 && sched_start(c, now) == 0) {
		sched_snapshot(c, restore_again, NULL);
		for (int i = 0; i < 50 && sched_next_deadline(c) != UINT64_MAX; i++) {
			if (sched_next_deadline(c) > now)
				now = sched_next_deadline(c);
			sched_tick(c, now);
		}
	}
	sched_free(c);
	free(mem);
	return 0;
}
