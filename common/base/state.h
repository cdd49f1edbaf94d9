#ifndef BPS_COMMON_BASE_STATE_H
#define BPS_COMMON_BASE_STATE_H
/* One row of a table of states, which is indexed by the state. */
struct state_row {
	const char *name;
	unsigned next; /* bit per state that may follow */
};
#endif
