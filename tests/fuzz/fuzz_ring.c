/* The trainers' rings. Two trainers of one job write anything into their control pages, at any
 * time. The invariants of the agent's core must hold. Every accepted round must complete exactly
 * once and in order.
 *
 * Input: a list of steps, 16 bytes each. The first byte selects the kind of step and the trainer.
 * The other bytes contain a position and a value. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/core/core.h"
#include "common/base/error.h"
#include "common/data/dtype.h"
#include "common/local/local.h"
#include "tests/invariants/invariants.h"

#define STEP_BYTES 16
#define WORKERS    2
#define TENSORS    2
#define ENTRIES    8u
#define ELEMS      16u
#define STEPS_MAX  64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

struct ring_trainer {
	struct local_control *page;
	size_t bytes;
	uint32_t head;
	int is_gone;
};
struct ring_world {
	struct agt_core *core;
	struct xport x; /* it runs the sums of the job during the call */
	struct agt_tensor *tensors[TENSORS];
	uint64_t done[TENSORS];
	struct ring_trainer trainers[WORKERS];
	float mem[TENSORS][WORKERS + 3][ELEMS];
};

static const struct xport_ops no_ops = {.run = NULL};

static void on_done(void *ctx, void *user, uint64_t round, int status, uint32_t workers)
{
	struct ring_world *w = ctx;
	uint64_t *done = user;

	if (status || workers != WORKERS || round != ++*done)
		abort();
	for (unsigned i = 0; i < WORKERS; i++)
		local_complete_round(w->trainers[i].page, ENTRIES, (uint32_t)(done - w->done),
			round, status, workers);
}

static void on_fail(void *ctx, uint32_t job, int code, const char *text)
{
	(void)ctx;
	(void)job;
	(void)code;
	(void)text;
	abort(); /* a message from a trainer must not make the job fail */
}

static uint64_t no_jitter(void *ctx)
{
	(void)ctx;
	return 0;
}

static struct agt_mem mem_of(struct ring_world *w, unsigned t, unsigned which)
{
	return (struct agt_mem){.mem = w->mem[t][which]};
}

static void start(struct ring_world *w)
{
	struct agt_config cfg = {.window_bytes = SIZE_MAX, .retry_ns = 1000, .again_ns = 1000};
	struct agt_env env = {.ctx = w, .done = on_done, .fail = on_fail, .random = no_jitter};
	struct ctl_rank ranks[WORKERS] = {{.rank = 0}, {.rank = 1}};
	struct ctl_job_member member = {.n_ranks = WORKERS, .ranks = ranks};
	struct ctl_job msg = {.job = 1, .size = WORKERS, .members = &member, .n_members = 1};
	struct agt_job *job;

	w->x = (struct xport){.ops = &no_ops, .ev = &agt_core_events};
	if (agt_core_new(&cfg, &env, &w->x, &w->core) || agt_job_new(w->core, &msg, 0, &job))
		abort();
	w->x.ctx = w->core;
	for (unsigned t = 0; t < TENSORS; t++) {
		struct agt_mem in[WORKERS] = {mem_of(w, t, 0), mem_of(w, t, 1)};
		struct agt_mem staging = mem_of(w, t, 2),
			       out[2] = {mem_of(w, t, 3), mem_of(w, t, 4)};
		struct ctl_tensor plan = {.tensor = t,
			.shape = shape_from_dtype_and_count(DTYPE_F32, ELEMS),
			.part_elems = ELEMS / 2};

		if (agt_tensor_new(
			    job, &plan.shape, in, &staging, out, &w->done[t], &w->tensors[t]) ||
			agt_tensor_plan(w->tensors[t], &plan))
			abort();
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		w->trainers[i].bytes = local_control_bytes(ENTRIES, TENSORS);
		w->trainers[i].page = calloc(1, w->trainers[i].bytes);
		if (!w->trainers[i].page)
			abort();
		local_control_init(w->trainers[i].page, ENTRIES, TENSORS);
	}
}

/* Let the agent read one ring. */
static void serve(struct ring_world *w, unsigned i)
{
	struct ring_trainer *t = &w->trainers[i];
	struct local_sqe e;

	for (unsigned n = 0; n < 2 * ENTRIES && !t->is_gone; n++) {
		if (!local_sq_pop(t->page, ENTRIES, &t->head, &e))
			break;
		if (e.tensor >= TENSORS || e.flags & ~LOCAL_ABSTAINS ||
			!op_is_valid_for_dtype(e.op, DTYPE_F32) ||
			agt_tensor_submit(w->tensors[e.tensor], i, e.round, e.op, e.priority,
				e.flags & LOCAL_ABSTAINS) < 0)
			t->is_gone = 1; /* the agent ends the connection */
	}
	local_sq_sleep(t->page, ENTRIES, t->head);
	local_sq_awake(t->page);
}

static void step(struct ring_world *w, const uint8_t *s)
{
	struct ring_trainer *t = &w->trainers[s[0] >> 4 & 1];
	struct local_sqe e = {
		.tensor = s[1], .priority = s[2], .op = s[3], .flags = s[8], .round = s[4]};
	uint32_t at, word;

	memcpy(&at, s + 4, sizeof(at));
	memcpy(&word, s + 8, sizeof(word));
	switch (s[0] & 7) {
	case 0: /* a valid submission */
		local_sq(t->page)[t->page->sq_tail++ % ENTRIES] = e;
		break;
	case 1: /* write a word anywhere in the page */
		memcpy((char *)t->page + at % (t->bytes - sizeof(word)), &word, sizeof(word));
		break;
	case 2: /* write a whole entry */
		memcpy(&local_sq(t->page)[at % ENTRIES], s + 4, STEP_BYTES - 4);
		break;
	case 3:
		t->page->sq_tail += s[4];
		break;
	default:
		serve(w, s[0] >> 4 & 1);
		while (agt_core_run_queued_work(w->core))
			;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static struct ring_world w; /* static, since it is too large for the stack */
	struct err_text err;

	memset(&w, 0, sizeof(w));
	start(&w);
	for (size_t n = 0; n_bytes >= STEP_BYTES && n < STEPS_MAX; n++) {
		step(&w, data);
		data += STEP_BYTES;
		n_bytes -= STEP_BYTES;
		if (agt_core_check(w.core, &err))
			abort();
	}
	agt_core_free(w.core);
	for (unsigned i = 0; i < WORKERS; i++)
		free(w.trainers[i].page);
	return 0;
}
