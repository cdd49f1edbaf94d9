#ifndef BPS_COMMON_WIRE_ROUND_PHASE_H
#define BPS_COMMON_WIRE_ROUND_PHASE_H
/* The phases of a round, which divide the time that a worker's calls wait for it. They have the
 * same names in messages, documents, metrics and traces. A round has them in this order:
 *
 *   local   from the first to the last submission of the machine's workers
 *   queue   until the first contribution is sent: copies from devices, priority, window, memory
 *   push    the contributions travel to the servers, and the offer of the sum comes back
 *   wait    the server has this machine's contribution, and waits for that of another machine
 *   sum     the server computes the sum; in a job with one machine the agent does
 *   pull    until the sum is in the output, and on the devices */

enum round_phase {
	PHASE_LOCAL,
	PHASE_QUEUE,
	PHASE_PUSH,
	PHASE_WAIT,
	PHASE_SUM,
	PHASE_PULL,
	N_PHASES
};

/* Return the name of a phase, such as "push". */
static inline const char *round_phase_name(enum round_phase phase)
{
	static const char *const names[N_PHASES] = {[PHASE_LOCAL] = "local",
		[PHASE_QUEUE] = "queue",
		[PHASE_PUSH] = "push",
		[PHASE_WAIT] = "wait",
		[PHASE_SUM] = "sum",
		[PHASE_PULL] = "pull"};

	return names[phase];
}
#endif
