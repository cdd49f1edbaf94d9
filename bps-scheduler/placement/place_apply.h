#ifndef BPS_SCHEDULER_PLACEMENT_PLACE_APPLY_H
#define BPS_SCHEDULER_PLACEMENT_PLACE_APPLY_H
#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/place.h"

/* Partitions that are to be placed. */
struct place_want {
	struct place_part part;
	struct sched_tensor *t;
	uint32_t i;
};
struct place_wants {
	struct place_want *v;
	uint32_t n, room;
};
void place_want_add(struct place_wants *w, struct sched_tensor *t, uint32_t i);
/* Assign new servers to these partitions of j, under a new pgen. The partitions have no server or
 * must leave theirs. Sorts w. */
void place_apply(struct sched_core *c, struct sched_job *j, struct place_wants *w);
/* Number and place the tensors that all agents have declared since the last transaction. */
void place_fresh(struct sched_core *c);
/* Place the partitions that lost their last server, once a server is available again. */
void place_waiting(struct sched_core *c);
/* Handle a dead server: its partitions move to others, or wait for a server. */
void place_server_gone(struct sched_core *c, struct sched_member *m);
/* Handle a restarted server: it keeps its partitions under a new pgen. */
void place_server_restarted(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* Handle a changed number of data threads: the server's partitions keep their pgens and move to
 * threads that exist. */
void place_server_rethread(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* The membership of j changed: keep every partition in place, under a new pgen. */
void place_refence(struct sched_core *c, struct sched_job *j);
/* Return the number of servers that take partitions: those that are open. If none is open, drained
 * servers take partitions (*ret_any). */
uint32_t place_taking_servers(const struct sched_core *c, bool *ret_any);
/* Fill in the machines of j and its servers. ret_servers names the servers in the same order. Both
 * are allocated. */
void placement_fill(const struct sched_core *c, const struct sched_job *j, struct placement *ret,
	struct sched_member ***ret_servers);
void placement_free(struct placement *p, struct sched_member **servers);
#endif
