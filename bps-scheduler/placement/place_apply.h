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
/* Give these partitions of j, which have no server or are to leave theirs, other servers, under a
 * new pgen. Sorts w. */
void place_apply(struct sched_core *c, struct sched_job *j, struct place_wants *w);
/* Number and place the tensors that all agents have declared since the last transaction. */
void place_fresh(struct sched_core *c);
/* Place the partitions that lost their last server, once there is one again. */
void place_waiting(struct sched_core *c);
/* A server is dead: its partitions go to others, or wait for one. */
void place_server_gone(struct sched_core *c, struct sched_member *m);
/* A server has a new instance: it keeps its partitions under a new pgen. */
void place_server_restarted(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* A server has another number of data threads: its partitions keep their pgens, on threads that
 * there are. */
void place_server_rethread(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* The membership of j changed: keep every partition in place, under a new pgen. */
void place_refence(struct sched_core *c, struct sched_job *j);
/* Servers that take partitions: those that are open; when none is, a drained one is better than
 * none (*ret_any). Returns how many. */
uint32_t place_taking_servers(const struct sched_core *c, bool *ret_any);
/* The machines of j and its servers, which ret_servers names in the same order; both allocated. */
void placement_fill(const struct sched_core *c, const struct sched_job *j, struct placement *ret,
	struct sched_member ***ret_servers);
void placement_free(struct placement *p, struct sched_member **servers);
#endif
