/* The invariants of the server's core. One walk visits all objects. */
#include "tests/invariants/invariants.h"

#include <stdio.h>

#include "bps-server/core/core_impl.h"
#include "bps-server/core/slots.h"
#include "bps-server/core/values.h"

/* Sums over all objects. They are compared with the counters and lists of the core. */
struct srv_tally {
	/* bytes that the objects use, compared with the counters of the pools */
	size_t sums_bytes, staging_bytes;
	size_t n_parts, n_work, n_holding, n_donating;
	size_t n_owing, n_results, n_parked, n_want, n_fetches;
	bool has_failed_job;
};

struct srv_checker {
	const struct srv_core *core;
	struct err_text *err;
	int rc;
	/* The partition that is checked now, for the error text. */
	const struct srv_part *part;
	int slot, seat; /* indexes of the slot and the seat that are checked now; -1: none */
	struct srv_tally n;
};

/* Report the first invariant that does not hold. Calls after the first report do nothing. */
static void expect(struct srv_checker *c, bool is_true, const char *what)
{
	char where[128] = "";

	if (is_true || c->rc)
		return;
	if (c->part)
		snprintf(where, sizeof(where), " (job=%u tensor=%u part=%u slot=%d seat=%d)",
			c->part->job->id, c->part->tensor, c->part->index, c->slot, c->seat);
	c->rc = err_set(c->err, -1, "server core: %s does not hold%s", what, where);
}

static unsigned set_count(const struct member_set *a, const struct member_set *b, unsigned n)
{
	unsigned count = 0;

	for (unsigned w = 0; w < WIRE_MEMBERS_MAX / 64; w++) {
		uint64_t bits = a->w[w] | (b ? b->w[w] : 0);

		if (!bits)
			continue;
		if (w * 64 >= n)
			return UINT32_MAX; /* the set has a bit that belongs to no member */
		count += (unsigned)__builtin_popcountll(bits);
	}
	return count;
}

/* ---- slots ---- */

static void check_staged(struct srv_checker *c, const struct slot *slot)
{
	const struct srv_part *part = slot->part;
	const struct seat *seat;
	unsigned n = 0;
	int last = -1;

	TAILQ_FOREACH (seat, &slot->staged, staged) {
		expect(c, seat->part == part && seat->state == SEAT_STAGED, "staged => STAGED");
		expect(c, seat->offer.round == slot->round, "staged => of the slot's round");
		expect(c, member_set_has(&slot->contributed, seat->member), "staged => in C");
		expect(c, !part_is_ordered(part) || seat->member > last,
			"deterministic => staged by member");
		expect(c,
			!part_is_ordered(part) ||
				(n < slot->n_in_order) == (seat->member < slot->next_in_order),
			"in order <=> before next_in_order");
		last = seat->member;
		n++;
	}
	expect(c, n == slot->n_staged, "n_staged = |staged|");
	expect(c, slot->n_in_order <= slot->n_staged, "n_in_order <= n_staged");
	expect(c, slot->is_holding == (slot->n_staged > 0), "holding <=> staged");
}

static void check_sets(struct srv_checker *c, const struct slot *slot)
{
	unsigned n = slot->part->n_seats, offered = 0;
	unsigned bit = (unsigned)(slot - slot->part->slots);

	expect(c, slot->n_contributed == set_count(&slot->contributed, NULL, n),
		"n_contributed = |C|");
	expect(c, slot->n_has == set_count(&slot->has, NULL, n), "n_has = |H|");
	expect(c, slot->n_spoken == set_count(&slot->contributed, &slot->has, n),
		"n_spoken = |C u H|");
	expect(c, set_count(&slot->contributors, NULL, n) <= n, "contributors are members");
	expect(c, set_count(&slot->contributed, &slot->part->live, n) == slot->part->n_live,
		"only members of the pgen contribute");
	expect(c, set_count(&slot->has, &slot->part->live, n) == slot->part->n_live,
		"only members of the pgen have the sum");
	for (unsigned i = 0; i < n; i++) {
		const struct seat *seat = &slot->part->seats[i];

		if (!(seat->offered >> bit & 1))
			continue;
		offered++;
		expect(c, slot->state == SLOT_DONE && seat->peer, "offered => DONE and connected");
		expect(c, member_set_has(&slot->contributed, i) && !member_set_has(&slot->has, i),
			"offered => in C\\H");
	}
	expect(c, offered == slot->n_offered, "n_offered = |offered|");
}

/* Check that contributions are counted, added and listed consistently. */
static void check_sum(struct srv_checker *c, const struct slot *slot)
{
	const struct srv_part *part = slot->part;
	uint32_t workers = 0;

	for (unsigned i = 0; i < part->n_seats; i++) {
		const struct offer *o = &part->seats[i].offer;

		if (member_set_has(&slot->contributors, i)) {
			expect(c, o->round == slot->round && o->workers,
				"a contributor has given values");
			workers += o->workers;
		} else if (member_set_has(&slot->contributed, i)) {
			/* with backup machines, the set `contributed` also has members whose
			 * contributions came after the end of the sum */
			expect(c, part->job->backup || (o->round == slot->round && !o->workers),
				"in C and no contributor => abstained");
		}
	}
	expect(c,
		set_count(&slot->contributors, NULL, part->n_seats) ==
			slot->n_folded + slot->n_staged,
		"|contributors| = folded + staged");
	expect(c,
		set_count(&slot->contributors, &slot->contributed, part->n_seats) ==
			slot->n_contributed,
		"contributors are in C");
	expect(c, workers == slot->workers, "workers = those of the contributors");
}

static void check_pass(struct srv_checker *c, const struct slot *slot)
{
	expect(c, !slot->has_pass || slot->is_queued, "pass => queued");
	expect(c, !slot->has_pass || slot->pos < slot->part->n_elems, "pass => not at the end");
	expect(c, !slot->has_pass || slot->result, "pass => result's memory");
	expect(c, slot->pass_n <= slot->n_staged && (slot->has_pass || slot->pass_n == 0),
		"pass_n <= n_staged");
	expect(c, !part_is_ordered(slot->part) || slot->pass_n <= slot->n_in_order,
		"deterministic => a pass takes only contributions in order");
}

static void check_donating(struct srv_checker *c, const struct slot *slot)
{
	unsigned n = slot->part->n_seats, n_live = slot->part->n_live;

	expect(c,
		(slot->n_spoken == n_live || slot->part->job->backup) && slot->n_has > 0 &&
			(slot->n_has < n_live || slot->part->job->backup),
		"DONATING => all members spoke, and some lack the sum");
	expect(c, slot->donor < n && (!slot->fetch || member_set_has(&slot->has, slot->donor)),
		"DONATING => the donor has the sum");
	expect(c, !slot->fetch || (slot->fetch->slot == slot && !slot->wants_fetch),
		"DONATING => its fetch is for this slot");
}

static void check_slot_state(struct srv_checker *c, const struct slot *slot)
{
	unsigned n = slot->part->n_live;

	if (slot->state == SLOT_EMPTY)
		expect(c,
			!slot->round && !slot->n_spoken && !slot->n_staged && !slot->n_folded &&
				!slot->is_queued && !slot->op_known && !slot->crc_prev_known,
			"EMPTY => nothing is left");
	else
		expect(c, slot->round > 0 && part_slot_of_round(slot->part, slot->round) == slot,
			"slot = round & 1");
	if (slot->state == SLOT_OPEN)
		expect(c, slot->n_spoken < n || slot->n_has == n || slot->part->job->has_failed,
			"OPEN => not complete");
	if (slot->state == SLOT_SUMMING)
		expect(c, slot->n_contributed + slot->part->job->backup >= n,
			"SUMMING => all contributed except members that may be late");
	expect(c, !slot->is_cutting || (slot->state == SLOT_OPEN && slot->part->job->backup),
		"cutting => OPEN, and members may be late");
	if (slot->state == SLOT_SUMMING && !slot->part->job->has_failed)
		expect(c, slot->is_queued, "SUMMING => queued");
	if (slot->state == SLOT_DONE)
		expect(c, (slot->n_spoken == n || slot->part->job->backup) && slot->result,
			"DONE => a result");
	if (slot->state == SLOT_DONATING)
		check_donating(c, slot);
	else
		expect(c, !slot->fetch && !slot->wants_fetch, "only DONATING fetches a donation");
	if ((slot->state == SLOT_OPEN && slot->n_has == 0) || slot->state == SLOT_SUMMING)
		check_sum(c, slot);
	else
		expect(c,
			!slot->n_staged && !slot->is_queued &&
				(!slot->n_folded || slot->state == SLOT_DONE),
			"contributions are kept only for a sum");
}

static void check_slot(struct srv_checker *c, const struct slot *slot)
{
	c->slot = (int)(slot - slot->part->slots);
	expect(c, slot->state <= SLOT_DONE, "a slot's state is valid");
	check_slot_state(c, slot);
	check_staged(c, slot);
	check_sets(c, slot);
	check_pass(c, slot);
	c->n.n_work += slot->is_queued;
	c->n.n_holding += slot->is_holding;
	c->n.n_donating += slot->state == SLOT_DONATING;
	c->n.sums_bytes += slot->result ? slot->result->bytes : 0;
	c->slot = -1;
}

/* ---- seats ---- */

static bool heap_holds(const struct heap *h, const struct heap_node *n)
{
	return heap_node_is_queued(n) && n->pos <= h->n && h->v[n->pos - 1] == n;
}

static void check_seat_lists(struct srv_checker *c, const struct seat *seat)
{
	bool wants = seat->state == SEAT_WANT_READ;
	bool is_staged = seat->state == SEAT_STAGED, is_reading = seat->state == SEAT_READING;

	expect(c, wants == (seat->is_parked || heap_node_is_queued(&seat->read_node)),
		"WANT_READ <=> in want or parked");
	expect(c, !seat->is_parked || !heap_node_is_queued(&seat->read_node),
		"parked => not in want");
	expect(c,
		!heap_node_is_queued(&seat->read_node) ||
			heap_holds(&seat->peer->want, &seat->read_node),
		"read_node => in its own connection's want");
	expect(c, is_staged == (seat->buf || seat->loan.mem), "STAGED <=> bytes");
	expect(c, !seat->buf || !seat->loan.mem, "bytes are read or borrowed, not both");
	expect(c, is_reading == !!seat->fetch, "READING <=> a fetch");
	if (is_reading)
		expect(c,
			seat->fetch->seat == seat && seat->fetch->buf &&
				seat->fetch->peer == seat->peer &&
				seat->fetch->round == seat->offer.round,
			"READING => the fetch is for this seat");
	expect(c, !seat->owes || seat->peer, "owed => connected");
	expect(c,
		!heap_node_is_queued(&seat->result) ||
			(seat->peer && heap_holds(&seat->peer->results, &seat->result)),
		"a result is owed on its own connection");
	expect(c, !seat->offered || seat->peer, "offered => connected");
	expect(c, seat->peer || is_staged || seat->state == SEAT_IDLE,
		"no peer => nothing to read");
}

static void check_offer(struct srv_checker *c, const struct seat *seat, const struct slot *slot)
{
	if (seat->state != SEAT_IDLE)
		expect(c, slot->round == seat->offer.round, "an offer is of a slot's round");
	if (seat->state == SEAT_WANT_READ || seat->state == SEAT_READING)
		expect(c,
			slot->state == SLOT_OPEN && slot->n_has == 0 &&
				!member_set_has(&slot->contributed, seat->member),
			"to be read => OPEN and not in C");
	if (seat->state == SEAT_STAGED)
		expect(c, slot->state == SLOT_OPEN || slot->state == SLOT_SUMMING,
			"STAGED => OPEN or SUMMING");
}

/* Check the delta that a member offers to a value, and its answer. */
static void check_delta(struct srv_checker *c, const struct seat *seat)
{
	const struct srv_value *v = seat->part->value;
	const struct value_member *m = &v->members[seat->member];

	expect(c,
		seat->state == SEAT_IDLE || (seat->part->slots[0].state == SLOT_DONE &&
						    seat->offer.round == m->applied + 1),
		"a delta is the member's next, and the value is live");
	expect(c, m->asked <= m->applied, "asked => added");
	expect(c, !m->snapshot || m->answer_round <= m->applied,
		"an answer has the member's delta");
	expect(c, !m->snapshot || seat->peer, "an answer is of a connected member");
	expect(c, !m->is_offered || m->snapshot, "offered => an answer");
}

static void check_seat(struct srv_checker *c, const struct seat *seat)
{
	const struct slot *slot = part_slot_of_round(seat->part, seat->offer.round);

	c->seat = seat->member;
	expect(c, seat->state <= SEAT_STAGED, "a seat's state is valid");
	check_seat_lists(c, seat);
	if (seat->part->value)
		check_delta(c, seat);
	else
		check_offer(c, seat, slot);
	if (seat->peer)
		expect(c, seat->peer->conn->peer_id == seat->part->job->members[seat->member].agent,
			"a seat's peer is its agent");
	c->n.n_owing += seat->owes != 0;
	c->n.n_results += heap_node_is_queued(&seat->result);
	c->n.n_parked += seat->is_parked;
	c->n.n_want += heap_node_is_queued(&seat->read_node);
	c->n.n_fetches += seat->state == SEAT_READING;
	c->n.staging_bytes += seat->buf ? seat->buf->bytes : 0;
	c->seat = -1;
}

static void check_value(struct srv_checker *c, const struct srv_value *v)
{
	const struct slot *slot = &v->part->slots[0], *other = &v->part->slots[1];
	unsigned n_holders[2] = {0}, n_spoken = 0, n_staged = 0;
	const struct seat *seat;

	for (unsigned i = 0; i < v->part->n_seats; i++) {
		n_spoken += v->members[i].has_spoken;
		if (v->members[i].snapshot)
			n_holders[v->members[i].snapshot - 1]++;
	}
	TAILQ_FOREACH (seat, &v->staged, staged) {
		expect(c, seat->part == v->part && seat->state == SEAT_STAGED, "staged => STAGED");
		n_staged++;
	}
	expect(c, n_spoken == v->n_spoken, "n_spoken = |spoken|");
	expect(c, other->state == SLOT_EMPTY && !other->result, "a value has one slot");
	expect(c,
		slot->state == SLOT_EMPTY || slot->state == SLOT_OPEN ||
			slot->state == SLOT_DONATING || slot->state == SLOT_DONE,
		"the state of a value is valid");
	expect(c, (slot->state == SLOT_OPEN) == (n_spoken > 0 && n_spoken < v->part->n_live),
		"OPEN <=> some members have spoken");
	expect(c,
		v->is_queued || v->part->job->has_failed ||
			(!n_staged && (!v->wants_snapshot || (n_holders[0] && n_holders[1]))),
		"work => queued");
	for (unsigned k = 0; k < 2; k++) {
		expect(c, v->snapshots[k].n_holders == n_holders[k], "n_holders = |holders|");
		c->n.sums_bytes += v->snapshots[k].buf ? v->snapshots[k].buf->bytes : 0;
	}
	c->n.n_donating += slot->state == SLOT_DONATING;
	c->n.sums_bytes += slot->result ? slot->result->bytes : 0;
}

static void check_part(
	struct srv_checker *c, const struct srv_job *job, const struct srv_part *part)
{
	enum dtype dtype = part_dtype(part);
	bool has_acc = dtype_acc_bytes(dtype) != dtype_bytes(dtype);

	c->part = part;
	expect(c, part->job == job && part->n_seats <= job->n_members, "a partition is its job's");
	expect(c, part->n_live == set_count(&part->live, NULL, part->n_seats), "n_live = |live|");
	expect(c, has_acc == !!part->acc, "accumulator <=> half types");
	expect(c, part->bytes == part->n_elems * dtype_bytes(dtype), "bytes = elems * size");
	if (part->value)
		check_value(c, part->value);
	for (unsigned i = 0; i < 2; i++) {
		if (!part->value)
			check_slot(c, &part->slots[i]);
		c->n.n_fetches += part->slots[i].fetch != NULL;
	}
	for (unsigned i = 0; i < part->n_seats; i++)
		check_seat(c, &part->seats[i]);
	c->n.n_parts++;
	c->n.sums_bytes += part->acc ? part->acc->bytes : 0;
	c->part = NULL;
}

/* ---- peers, fetches, retired results ---- */

static void check_peers(struct srv_checker *c)
{
	const struct srv_core *core = c->core;
	size_t n_ready = 0, n_is_ready = 0, n_owing = 0, n_results = 0, n_want = 0;
	const struct srv_peer *peer;
	const struct seat *seat;

	TAILQ_FOREACH (peer, &core->peers, link) {
		expect(c, peer->conn->user == peer, "a peer is its connection's");
		TAILQ_FOREACH (seat, &peer->owing, owing) {
			expect(c, seat->peer == peer && seat->owes, "owing => owes");
			n_owing++;
		}
		expect(c, heap_is_valid(&peer->want), "heap order");
		expect(c, heap_is_valid(&peer->results), "heap order");
		n_want += peer->want.n;
		n_results += peer->results.n;
		n_is_ready += peer->is_ready;
		expect(c, TAILQ_EMPTY(&peer->owing) || peer->is_stuck, "owing => no credit");
		expect(c, !peer->results.n || peer->is_stuck || peer->is_full,
			"results wait => the peer has no credit or no room");
		expect(c, !peer->want.n || peer->is_ready || peer->reading_bytes,
			"reads wait => their peer is ready or reading");
	}
	TAILQ_FOREACH (peer, &core->ready, ready)
		n_ready++;
	expect(c, n_ready == n_is_ready, "is_ready <=> on the list");
	expect(c, n_owing == c->n.n_owing, "owes <=> on a list");
	expect(c, n_results == c->n.n_results, "owed results <=> in a heap");
	expect(c, n_want == c->n.n_want, "wants <=> in a heap");
}

static void check_fetches(struct srv_checker *c)
{
	const struct srv_core *core = c->core;
	const struct fetch *f;
	const struct srv_peer *peer;
	size_t n_attached = 0, fetch_bytes = 0, peer_bytes = 0;

	TAILQ_FOREACH (f, &core->fetches, link) {
		expect(c, f->buf && f->buf->bytes >= f->rd.len, "a fetch has room");
		expect(c, !f->seat || !f->slot, "a fetch is for a seat or a slot, not both");
		expect(c, !f->seat || f->seat->fetch == f, "a fetch is its seat's");
		expect(c, !f->slot || f->slot->fetch == f, "a fetch is its slot's");
		n_attached += f->seat || f->slot;
		fetch_bytes += f->rd.len;
		c->n.staging_bytes += f->buf ? f->buf->bytes : 0;
	}
	TAILQ_FOREACH (peer, &core->peers, link)
		peer_bytes += peer->reading_bytes;
	expect(c, peer_bytes == fetch_bytes, "reading_bytes = bytes of the fetches");
	expect(c, n_attached == c->n.n_fetches, "READING and DONATING <=> fetch");
}

static bool is_peer(const struct srv_core *core, const struct srv_peer *who)
{
	const struct srv_peer *peer;

	TAILQ_FOREACH (peer, &core->peers, link)
		if (peer == who)
			return true;
	return false;
}

static void check_retired(struct srv_checker *c)
{
	const struct srv_core *core = c->core;
	const struct retired_result *l;
	size_t n = 0;

	TAILQ_FOREACH (l, &core->retired, link) {
		expect(c, l->buf && l->n_readers > 0, "retired => somebody may read it");
		for (unsigned i = 0; i < l->n_readers; i++)
			expect(c, is_peer(core, l->readers[i].peer),
				"retired => its readers are connected");
		c->n.sums_bytes += l->buf ? l->buf->bytes : 0;
		n++;
	}
	expect(c, n == core->stats.retired, "stats.retired = |retired|");
}

static void check_lists(struct srv_checker *c)
{
	const struct srv_core *core = c->core;
	size_t n_work = 0, n_holding = 0, n_donating = 0, n_parked = 0;
	const struct slot *slot;
	const struct seat *seat;
	uint64_t last = 0;

	TAILQ_FOREACH (slot, &core->work, work)
		n_work++;
	TAILQ_FOREACH (slot, &core->holding, holding)
		n_holding++;
	TAILQ_FOREACH (seat, &core->parked, parked)
		n_parked++;
	TAILQ_FOREACH (slot, &core->donating, waiting) {
		expect(c, slot->donor_deadline_ns >= last, "donating is ordered by deadline");
		last = slot->donor_deadline_ns;
		n_donating++;
	}
	expect(c, n_work == c->n.n_work, "is_queued <=> on the list");
	expect(c, n_holding == c->n.n_holding, "is_holding <=> on the list");
	expect(c, n_parked == c->n.n_parked, "is_parked <=> on the list");
	expect(c, n_donating == c->n.n_donating, "DONATING <=> on the list");
	expect(c, c->n.n_parts == core->stats.parts, "stats.parts = partitions");
}

/* Check that every wait for memory can end. While there is a failed job, a wait may last longer,
 * because a failed job keeps its memory until the job ends. */
static void check_progress(struct srv_checker *c)
{
	const struct srv_core *core = c->core;

	expect(c,
		!core->is_starved || c->n.has_failed_job || !TAILQ_EMPTY(&core->fetches) ||
			!TAILQ_EMPTY(&core->work) || !TAILQ_EMPTY(&core->values),
		"starved => a read or a sum is under way");
	expect(c, TAILQ_EMPTY(&core->parked) || pool_used_bytes(core->early) > 0,
		"parked => memory of early contributions is used");
	expect(c, core->is_starved || c->n.has_failed_job || TAILQ_EMPTY(&core->ready),
		"ready => starved");
}

int srv_core_check(const struct srv_core *core, struct err_text *err)
{
	struct srv_checker c = {.core = core, .err = err, .slot = -1, .seat = -1};
	const struct srv_job *job;

	TAILQ_FOREACH (job, &core->jobs, link) {
		c.n.has_failed_job |= job->has_failed;
		for (uint32_t t = 0; t < job->n_tensors; t++)
			for (uint32_t i = 0; i < job->tensors[t].n_parts; i++)
				if (job->tensors[t].parts[i])
					check_part(&c, job, job->tensors[t].parts[i]);
	}
	check_peers(&c);
	check_fetches(&c);
	check_retired(&c);
	check_lists(&c);
	check_progress(&c);
	expect(&c, c.n.sums_bytes == pool_used_bytes(core->sums),
		"sums in use = bytes that objects use");
	expect(&c,
		c.n.staging_bytes == pool_used_bytes(core->staging) + pool_used_bytes(core->early),
		"staging in use = bytes that objects use");
	expect(&c,
		pool_used_bytes(core->sums) <= pool_limit_bytes(core->sums) &&
			pool_used_bytes(core->staging) <= pool_limit_bytes(core->staging) &&
			pool_used_bytes(core->early) <= pool_limit_bytes(core->early),
		"memory within its limits");
	return c.rc;
}
