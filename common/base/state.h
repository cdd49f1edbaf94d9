#ifndef BPS_COMMON_BASE_STATE_H
#define BPS_COMMON_BASE_STATE_H
/* Row of a table of states. The index of a row is the state that the row describes. */
struct state_row {
	const char *name;
	unsigned next; /* bitmap of the states that may follow this state */
};
#endif
