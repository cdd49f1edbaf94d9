#ifndef BPS_SCHEDULER_PLACEMENT_PLACE_APPLY_H
#define BPS_SCHEDULER_PLACEMENT_PLACE_APPLY_H
#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/place.h"

/* A partition that needs a server: partition i of t, and its placement. */
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
/* Assign servers to the partitions in w, under a new pgen. The partitions belong to j. Each
 * partition has no server, or must leave its server. Sorts w. */
void place_apply_wants(struct sched_core *c, struct sched_job *j, struct place_wants *w);
/* Give ids to the tensors that became READY in the open transaction, and place their partitions. A
 * tensor becomes READY when all agents of the job have declared it. */
void place_fresh_tensors(struct sched_core *c);
/* If a server accepts partitions, place the partitions that have no server. */
void place_waiting_parts(struct sched_core *c);
/* Handle a dead server. Its partitions move to other servers, or wait for a server. */
void place_server_gone(struct sched_core *c, struct sched_member *m);
/* Handle a restarted server. The server keeps its partitions, which get a new pgen. */
void place_server_restarted(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* Handle a change of the number of a server's data threads. The server's partitions keep their
 * pgens, but move to threads that exist. */
void place_server_rethread(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* Handle a change of j's members. Every partition stays on its server, but gets a new pgen. */
void place_renew_part_pgens(struct sched_core *c, struct sched_job *j);
/* Return the number of servers that accept partitions. Normally these are the servers that are
 * neither down, drained nor leaving. If no such server exists, all servers that are not down accept
 * partitions, and *ret_any is true. */
uint32_t place_taking_servers(const struct sched_core *c, bool *ret_any);
/* Describe in *ret all machines, and those servers that may get partitions of j. Entry i of
 * *ret_servers is the member that ret->servers[i] describes. The caller frees *ret and *ret_servers
 * with placement_free. */
void placement_fill(const struct sched_core *c, const struct sched_job *j, struct placement *ret,
	struct sched_member ***ret_servers);
void placement_free(struct placement *p, struct sched_member **servers);
#endif
