/* Sums contributions. A pass adds at most REDUCE_MAX_SRC staged contributions of a slot to the
 * slot's sum, step by step. The last pass for a result also converts the sum to the type of the
 * result, divides for averages, and computes the crc while the step is in cache. A pass may be
 * interrupted after any step. All functions run on the data thread that owns the core. */
#include "bps-server/core/sums.h"

#include <assert.h>
#include <string.h>

#include "bps-server/core/reads.h"
#include "bps-server/core/slots.h"
#include "common/data/crc32c.h"

static void sums_unqueue_slot(struct srv_core *core, struct slot *slot)
{
	if (slot->is_queued)
		TAILQ_REMOVE(&core->work, slot, work);
	slot->is_queued = false;
}

void sums_queue_slot(struct srv_core *core, struct slot *slot)
{
	if (slot->is_queued)
		return;
	slot->is_queued = true;
	TAILQ_INSERT_TAIL(&core->work, slot, work);
}

bool sums_can_fold_slot(const struct slot *slot)
{
	unsigned n = part_is_ordered(slot->part) ? slot->n_in_order : slot->n_staged;

	return n > 0 && !slot->part->job->has_failed;
}

void sums_queue_foldable_slots(struct srv_core *core)
{
	struct slot *slot;

	TAILQ_FOREACH (slot, &core->holding, holding)
		if (sums_can_fold_slot(slot))
			sums_queue_slot(core, slot);
}

static void slot_remove_from_holding(struct srv_core *core, struct slot *slot)
{
	if (slot->is_holding)
		TAILQ_REMOVE(&core->holding, slot, holding);
	slot->is_holding = false;
}

/* Release the first n staged contributions, which have been added. */
static void release_staged(struct srv_core *core, struct slot *slot, unsigned n)
{
	while (n-- > 0) {
		struct seat *seat = TAILQ_FIRST(&slot->staged);

		TAILQ_REMOVE(&slot->staged, seat, staged);
		slot->n_staged--;
		seat_set_state(seat, SEAT_IDLE);
		xport_loan_end(&seat->loan);
		if (seat->buf)
			staging_release_buffer(core, seat->buf);
		seat->buf = NULL;
	}
	if (!slot->n_staged)
		slot_remove_from_holding(core, slot);
}

void sums_discard_slot_sum(struct srv_core *core, struct slot *slot)
{
	release_staged(core, slot, slot->n_staged);
	sums_unqueue_slot(core, slot);
	slot->n_folded = slot->n_in_order = slot->pass_n = 0;
	slot->next_in_order = 0;
	slot->has_pass = false;
	slot->pos = 0;
	slot->workers = 0;
	memset(&slot->contributors, 0, sizeof(slot->contributors));
}

/* Return whether any member receives the result over a network. */
static bool is_for_network(const struct srv_part *part)
{
	for (unsigned i = 0; i < part->n_seats; i++)
		if (!part->seats[i].peer || !part->seats[i].peer->conn->is_same_host)
			return true;
	return false;
}

/* If all members have the result of the partition's other slot, swap the memory of the two slots
 * before the first addition. Then most rounds use the same memory, and more of that memory is in
 * the cache. */
static void slot_swap_spent_memory(struct slot *slot)
{
	struct srv_part *part = slot->part;
	struct slot *other = &part->slots[slot == part->slots];
	struct buf *spent = other->result;

	if (other->n_has != part->n_live || !spent || !slot->result)
		return;
	assert(!other->n_offered);
	other->result = slot->result;
	slot->result = spent;
}

static bool slot_begin_sum_pass(struct srv_core *core, struct slot *slot)
{
	unsigned n = part_is_ordered(slot->part) ? slot->n_in_order : slot->n_staged;

	if (n > REDUCE_MAX_SRC)
		n = REDUCE_MAX_SRC;
	slot->is_last_pass = slot->state == SLOT_SUMMING && n == slot->n_staged;
	if (n == 0 && !slot->is_last_pass)
		return false;
	if (!slot->n_folded)
		slot_swap_spent_memory(slot);
	if (!slot_get_result_memory(core, slot))
		return false;
	slot->pass_n = n;
	slot->pos = 0;
	slot->crc = 0;
	slot->has_crc = slot->is_last_pass && is_for_network(slot->part);
	slot->has_pass = true;
	return true;
}

/* Compute one step of a pass over means (op_takes_means). The result has the same bits for any
 * division into passes. */
static void slot_sum_means_step(const struct slot *slot, void *dst, void *acc,
	const void *const *src, const float *weights, size_t n)
{
	bool is_first = slot->n_folded == 0;

	if (is_first && slot->is_last_pass && slot->pass_n) {
		reduce_means_all(dst, src, weights, slot->pass_n, n, slot->workers);
		return;
	}
	if (slot->pass_n)
		reduce_means_fold(acc, src, weights, slot->pass_n, n, is_first);
	if (slot->is_last_pass)
		reduce_finish(dst, acc, n, DTYPE_F16, OP_AVG, slot->workers);
}

static size_t slot_sum_pass_step(struct slot *slot)
{
	struct srv_part *part = slot->part;
	enum dtype dtype = part_dtype(part);
	size_t elem = dtype_bytes(dtype), acc_elem = dtype_acc_bytes(dtype);
	size_t step = dtype_elems_in_step(dtype, SRV_STEP_VALUES), left = part->n_elems - slot->pos;
	size_t n = left < step ? left : step;
	char *dst = (char *)slot->result->mem + slot->pos * elem;
	const void *src[REDUCE_MAX_SRC];
	float weights[REDUCE_MAX_SRC];
	struct seat *seat = TAILQ_FIRST(&slot->staged);
	bool is_first = slot->n_folded == 0;
	char *acc = part->acc ? (char *)part->acc->mem + slot->pos * acc_elem : dst;

	for (unsigned i = 0; i < slot->pass_n; i++, seat = TAILQ_NEXT(seat, staged)) {
		src[i] = (const char *)(seat->buf ? seat->buf->mem : seat->loan.mem) +
			 slot->pos * elem;
		weights[i] = (float)seat->offer.workers;
	}
	if (is_first && !slot->pass_n) {
		memset(dst, 0, n * elem); /* all members have abstained */
	} else if (op_takes_means(slot->op, dtype)) {
		slot_sum_means_step(slot, dst, acc, src, weights, n);
	} else if (is_first && slot->is_last_pass && slot->pass_n) {
		reduce_all(dst, src, slot->pass_n, n, dtype, slot->op, slot->workers);
	} else {
		if (slot->pass_n)
			reduce_fold(acc, src, slot->pass_n, n, dtype, slot->op, is_first);
		if (slot->is_last_pass)
			reduce_finish(dst, acc, n, dtype, slot->op, slot->workers);
	}
	if (slot->has_crc)
		slot->crc = crc32c(slot->crc, dst, n * elem);
	slot->pos += n;
	return n * elem * (slot->pass_n + 1);
}

static void slot_end_sum_pass(struct srv_core *core, struct slot *slot)
{
	unsigned n = slot->pass_n;

	slot->has_pass = false;
	slot->pass_n = 0;
	slot->n_folded += n;
	slot->n_in_order -= part_is_ordered(slot->part) ? n : 0;
	release_staged(core, slot, n);
	if (slot->is_last_pass) {
		sums_unqueue_slot(core, slot);
		core->reports->result_ready(core, slot);
	} else if (slot->state != SLOT_SUMMING) {
		sums_unqueue_slot(core, slot);
	}
}

size_t sums_work(struct srv_core *core)
{
	size_t done = 0;
	struct slot *slot;

	while (done < SRV_SLICE_BYTES && (slot = TAILQ_FIRST(&core->work))) {
		if (!slot->has_pass && !slot_begin_sum_pass(core, slot)) {
			sums_unqueue_slot(core, slot);
			continue;
		}
		done += slot_sum_pass_step(slot);
		if (slot->pos == slot->part->n_elems)
			slot_end_sum_pass(core, slot);
	}
	return done;
}
