#ifndef BPS_SERVER_CORE_ROUND_RULE_H
#define BPS_SERVER_CORE_ROUND_RULE_H
/* A round rule states for which members the rounds of a job wait, and how many rounds its members
 * may be apart. Each job has one rule. The rest of the core is the same for all rules: the sets of
 * members that have contributed (C) or have the result (H), reads, sums, donations and answers. A
 * new rule is a new file with one table, and a line in srv_core_apply_job, which chooses the
 * rule. */
#include "bps-server/core/core_impl.h"

/* Answer of a rule to a contribution. */
enum round_verdict {
	ROUND_ACCEPTED, /* the contribution belongs to the returned slot */
	ROUND_OVER,     /* the contribution is a duplicate: its round is over */
	ROUND_EARLY,    /* the round cannot begin yet; the member must send CONTRIB again soon */
	ROUND_INVALID,  /* no correct member sends a contribution to this round now */
};

struct round_rule {
	/* Find the slot for a member's contribution to a round, and open it if needed. The
	 * contribution also means that the member has the result of the round before. *ret_slot is
	 * set if the contribution is accepted. May complete other rounds. */
	enum round_verdict (*accept)(
		struct srv_core *core, struct seat *seat, uint64_t round, struct slot **ret_slot);
	/* Record that a member has the result of a round (HAVE); 0: the member has no result.
	 * Returns false if no correct member sends this now. May complete rounds. */
	bool (*record_result)(struct srv_core *core, struct seat *seat, uint64_t round);
	/* Return whether the round of an OPEN slot need not wait for further members. If this
	 * depends on the time, the rule adds the slot to core->cutting, and sets cut_due_ns to the
	 * time of the next call. */
	bool (*is_complete)(struct srv_core *core, struct slot *slot);
};

extern const struct round_rule rule_in_step, rule_backup;
#endif
