#ifndef BPS_SERVER_CORE_VALUE_STATE_H
#define BPS_SERVER_CORE_VALUE_STATE_H
/* The state of a partition of a value at its server. See values.h for the states. */
#include "bps-server/core/core_impl.h"

/* A copy of the value that answers members. */
struct value_snapshot {
	struct buf *buf;
	uint64_t version;
	uint32_t crc;
	struct member_set odd; /* members of which an odd number of deltas was added */
	unsigned n_holders;    /* members whose answer it is; 0: the memory may be written */
};

/* The server's record of one member of a value. */
struct value_member {
	bool has_spoken;   /* the member has sent HOLD under this pgen */
	uint64_t answered; /* last round to which the member has the answer, as HOLD states */
	uint64_t applied;  /* last round whose delta is in the value */
	uint64_t asked;    /* round whose answer is not taken from a snapshot yet; 0: none */
	/* The answer that is queued for the member, or that it may read. snapshot: its number plus
	 * 1; 0: none. */
	uint8_t snapshot;
	bool is_offered; /* the answer was offered, and the member may read it */
	uint64_t answer_round;
};

struct srv_value {
	TAILQ_ENTRY(srv_value) link; /* entry in core->values, used if is_queued is true */
	bool is_queued, wants_snapshot;
	struct srv_core *core;
	struct srv_part *part;
	uint64_t version;      /* number of deltas that were added */
	uint64_t counted;      /* last round that is counted in the job's figures */
	uint64_t held_version; /* GATHER: newest version that a member has */
	unsigned n_spoken;
	struct seat_list staged; /* deltas to add */
	struct value_snapshot snapshots[2];
	struct value_member members[]; /* part->n_seats elements */
};

static inline void value_queue_work(struct srv_value *v)
{
	if (v->is_queued)
		return;
	v->is_queued = true;
	TAILQ_INSERT_TAIL(&v->core->values, v, link);
}

/* Let go of the member's answer, which it has read, or will not read. */
static inline void member_release_answer(struct srv_value *v, struct value_member *m)
{
	if (!m->snapshot)
		return;
	v->snapshots[m->snapshot - 1].n_holders--;
	m->snapshot = 0;
	m->is_offered = false;
	if (v->wants_snapshot)
		value_queue_work(v);
}
#endif
