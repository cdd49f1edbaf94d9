#ifndef BPS_COMMON_BASE_STATE_H
#define BPS_COMMON_BASE_STATE_H
/* Row of a table of states, whose index is the state. */
struct state_row {
	const char *name;
	unsigned next; /* bitmap of the states that may follow */
};
#endif
