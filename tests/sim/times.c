/* Checks the figures of a round in RESULT (T3): which member came last, and how long the receiving
 * member waited. Records when each first contribution to a round arrives at the server, by virtual
 * time, and compares the figures of each result with these times. */
#include "tests/sim/sim.h"

#include "bps-agent/core/round_record.h"

/* Arrivals of the contributions to a round of a partition, under the newest pgen that had any. */
struct round_arrivals {
	uint64_t pgen;
	uint64_t at_ns[AGENTS_MAX]; /* for each member; 0: no contribution has arrived in time */
	unsigned last;              /* the member whose first contribution arrived last */
	bool is_donated;
};
struct sim_times {
	struct round_arrivals rounds[TENSORS_MAX][PARTS_MAX][ROUNDS_MAX + 1];
};

/* Return the record of the message's round, or NULL if the message is not about the main job. */
static struct round_arrivals *arrivals_of_message(struct sim *s, const struct wire_msg *m)
{
	if (m->job != s->oracle.job || m->tensor >= TENSORS_MAX || m->part >= PARTS_MAX ||
		m->round > ROUNDS_MAX || m->member >= AGENTS_MAX)
		return NULL;
	if (!s->times)
		s->times = sim_alloc(s, sizeof(*s->times));
	return &s->times->rounds[m->tensor][m->part][m->round];
}

void times_server_takes(struct sim *s, const struct wire_msg *m, bool was_over)
{
	struct round_arrivals *r = arrivals_of_message(s, m);

	if (!r || m->pgen < r->pgen)
		return;
	if (m->pgen > r->pgen)
		*r = (struct round_arrivals){.pgen = m->pgen};
	r->is_donated |= m->type == WIRE_DONATE;
	if (m->type != WIRE_CONTRIB || was_over || r->at_ns[m->member])
		return;
	r->at_ns[m->member] = s->now;
	r->last = m->member;
}

static uint32_t known_us(uint64_t ns)
{
	return ns < 1000 ? 1 : (uint32_t)(ns / 1000);
}

/* Return a bit mask of the members that are not in the sum: they neither gave values nor abstained
 * in time. */
static uint32_t missing_members(
	const struct sim *s, const struct round_arrivals *r, const struct wire_msg *m)
{
	uint32_t missing = 0, abstained = 0;

	for (unsigned t = 0; t < s->o.n_tensors; t++)
		if (s->agents[0].tensors[t].is_planned && s->agents[0].tensors[t].id == m->tensor)
			abstained = oracle_abstained_members(s, t, m->round);
	for (unsigned i = 0; i < s->oracle.n_members; i++)
		if (!member_set_has(&m->result.contributors, i) &&
			!(abstained >> i & 1 && r->at_ns[i]))
			missing |= 1u << i;
	return missing;
}

/* Check the figures of a round that ended without some members. The members in the sum have waited
 * for those, until some time after the last arrival. */
static bool times_fit_cut(const struct sim *s, const struct round_arrivals *r,
	const struct wire_msg *m, uint32_t missing)
{
	uint64_t own_ns = r->at_ns[m->member];
	unsigned last = missing & (missing - 1) ? 0 : (unsigned)__builtin_ctz(missing) + 1;

	return m->result.last == last && m->result.wait_us && m->result.sum_us &&
	       (uint64_t)m->result.wait_us + m->result.sum_us <= (s->now - own_ns) / 1000 + 2;
}

static bool times_fit(const struct sim *s, const struct round_arrivals *r, const struct wire_msg *m)
{
	uint64_t last_ns = r->at_ns[r->last];
	uint32_t missing = 0;

	if (r->is_donated || m->flags & WIRE_LATE || m->result.version)
		return !m->result.last && !m->result.wait_us && !m->result.sum_us;
	if (s->o.backup && (s->o.is_shrink || s->o.is_elastic))
		return m->result.wait_us && m->result.sum_us; /* which members counted is unknown */
	if (s->o.backup)
		missing = missing_members(s, r, m);
	if (missing)
		return times_fit_cut(s, r, m, missing);
	return m->result.last == r->last + 1 &&
	       m->result.wait_us == known_us(last_ns - r->at_ns[m->member]) && m->result.sum_us &&
	       m->result.sum_us <= known_us(s->now - last_ns);
}

void times_check(struct sim *s, const struct sim_end *to, const struct wire_msg *m)
{
	const struct round_arrivals *r = NULL;

	/* A duplicate of an old plan gives a server its partitions back, under their old pgen.
	 * Arrivals from before then do not count. Real connections never duplicate plans. */
	if (s->o.has_old_plans)
		return;
	if (m->type == WIRE_RESULT && to == &to->pipe->agent)
		r = arrivals_of_message(s, m);
	if (r && r->pgen == m->pgen && !times_fit(s, r, m))
		violation(s,
			"T3: the result of tensor %u part %u round %llu for member %u: last=%u "
			"wait_us=%u sum_us=%u",
			m->tensor, m->part, (unsigned long long)m->round, m->member, m->result.last,
			m->result.wait_us, m->result.sum_us);
}

void times_check_record(void *ctx, void *tensor_user, const struct round_record *r)
{
	struct sim_agent *a = ctx;
	uint32_t ends[N_PHASES], before = 0;
	bool is_right = r->began_ns <= a->s->now && r->last_member <= AGENTS_MAX &&
			(a->s->now - r->began_ns) / 1000 == r->done_us;

	(void)tensor_user;
	round_record_phase_ends(r, ends);
	for (int p = 0; p < N_PHASES; p++) {
		is_right &= ends[p] >= before;
		before = ends[p];
	}
	if (!is_right || ends[PHASE_PULL] != r->done_us)
		violation(a->s,
			"T4: %s: the record of round %llu has wrong times: submitted=%u pushed=%u "
			"offered=%u done=%u wait=%u sum=%u",
			a->node.name, (unsigned long long)r->round, r->submitted_us, r->pushed_us,
			r->offered_us, r->done_us, r->wait_us, r->sum_us);
}
