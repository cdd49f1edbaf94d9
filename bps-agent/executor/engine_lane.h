#ifndef BPS_AGENT_EXECUTOR_ENGINE_LANE_H
#define BPS_AGENT_EXECUTOR_ENGINE_LANE_H
/* A lane is a work queue of one GPU, with a list of tickets. A ticket stands for work that is
 * queued on the lane. */
#include <stdbool.h>
#include <stdint.h>

struct device_queue;
struct engine;
struct engine_chunk;
struct engine_part;

/* A ticket. Its work has ended when the lane's counter has reached seq. The work belongs to a
 * partition or to a chunk: one of the two pointers is NULL. */
struct engine_ticket {
	uint64_t seq;
	struct engine_part *part;
	struct engine_chunk *chunk;
};
#define LANE_TICKETS 64

struct engine_lane {
	struct engine *e;
	struct device_queue *q;
	uint64_t counter; /* offset of the lane's counter in e->counters */
	/* seq: value of `seq` in the ticket that was added last. posted: value that the counter
	 * will have after all queued writes. */
	uint64_t seq, posted;
	/* Number of tickets removed (head) and added (tail) so far. The next ticket to add goes to
	 * tickets[tail % LANE_TICKETS]. The oldest ticket is in tickets[head % LANE_TICKETS]. */
	uint32_t head, tail;
	struct engine_ticket tickets[LANE_TICKETS];
};
enum engine_lane_kind { LANE_UP, LANE_DOWN, LANE_COLL, LANES };

int engine_lane_open(struct engine *e, unsigned member, enum engine_lane_kind kind);
void engine_lane_close(struct engine_lane *l);
bool engine_lane_has_room(const struct engine_lane *l);
/* Add a ticket for the work that was just queued for the partition `part` or the chunk `chunk`. One
 * of the two pointers is NULL. */
void engine_lane_add_ticket(
	struct engine_lane *l, struct engine_part *part, struct engine_chunk *chunk);
/* Remove the tickets whose work has ended, and report each to its partition or chunk. Returns
 * whether any ticket was removed. */
bool engine_lane_poll(struct engine_lane *l);
/* Check the queue for errors of the device. Called when no work has ended for a while. */
void engine_lane_check_queue(struct engine_lane *l);
#endif
