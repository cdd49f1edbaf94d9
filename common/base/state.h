#ifndef BPS_COMMON_BASE_STATE_H
#define BPS_COMMON_BASE_STATE_H
/* Row of a table of states; the state is the index. */
struct state_row {
	const char *name;
	unsigned next; /* one bit for each state that may follow */
};
#endif
