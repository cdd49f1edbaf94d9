#ifndef BPS_SERVER_CORE_VALUES_H
#define BPS_SERVER_CORE_VALUES_H
/* A partition of a value (MODE_VALUE). The server keeps the value from round to round. A
 * contribution is a delta: it is added when it arrives. The answer to a member is the value of that
 * moment, with this delta in it. A member that is further ahead than the bound allows waits for its
 * answer. Rules V1 to V3: docs/reference/values.md. Thread: the data thread that owns the core.
 *
 *   GATHER --all members have sent HOLD, one has an answer--> FETCH --the answer is here--> LIVE
 *      |                                                                                     ^
 *      `----no member has an answer: the value is zeros--------------------------------------'
 *   (a new pgen: GATHER)
 *
 * The state is that of the partition's first slot: GATHER is EMPTY or OPEN, FETCH is DONATING, and
 * LIVE is DONE. The memory of this slot's result holds the value. Answers are copies of the value
 * (snapshots). There are two: while members read one, the next one can be taken. */
#include "bps-server/core/value_state.h"

/* Make the state of a value for a new partition. Errors: -ENOMEM, BPS_EQUOTA. */
int value_new(struct srv_core *core, struct srv_part *part);
/* Forget everything about the members, because the partition gets a new pgen or is freed. Answers
 * that may still be read become retired results. */
void value_reset_for_pgen(struct srv_part *part);
/* Free the state, after value_reset_for_pgen. */
void value_free(struct srv_part *part);

/* Handle HOLD: the member states which answer it has. Returns false if no correct member sends this
 * now. */
bool value_take_hold(struct seat *seat, uint64_t round, uint64_t version);
/* The treatment of a contribution to a round. */
enum value_verdict {
	VALUE_TAKE,    /* read it and add it */
	VALUE_IGNORE,  /* it was added already; the answer follows */
	VALUE_AGAIN,   /* the value is not here yet; the member must send it again soon */
	VALUE_INVALID, /* no correct member sends this now */
};
enum value_verdict value_judge_delta(struct seat *seat, uint64_t round);
/* Count a contribution without values: the member asks for the value and adds nothing. */
void value_add_nothing(struct seat *seat);
/* Queue a delta that is in seat->buf or seat->loan. */
void value_stage_delta(struct seat *seat);
/* Handle GOT: the member has read the answer to this round, or will not read it. */
void value_take_got(struct seat *seat, uint64_t round);
/* Continue after the value has been read from the member that has its newest version. */
void value_begin_live(struct srv_core *core, struct slot *slot);
/* Handle the loss of a connection: its members read no answers any more. */
void values_peer_down(struct srv_core *core, const struct srv_peer *peer);
/* Add the deltas of one value, or take its snapshot. Returns the number of bytes touched. */
size_t values_work(struct srv_core *core);
#endif
