#ifndef BPS_AGENT_EXECUTOR_ENGINE_LANE_H
#define BPS_AGENT_EXECUTOR_ENGINE_LANE_H
/* A lane is a queue of one GPU, with a ticket for each piece of work queued there. */
#include <stdbool.h>
#include <stdint.h>

struct device_queue;
struct engine;
struct engine_chunk;
struct engine_part;

/* A ticket for a queue's work, which has ended when the queue's counter has reached seq. Either
 * part or chunk is set. */
struct engine_ticket {
	uint64_t seq;
	struct engine_part *part;
	struct engine_chunk *chunk;
};
#define LANE_TICKETS 64

struct engine_lane {
	struct engine *e;
	struct device_queue *q;
	uint64_t counter; /* offset in e->counters */
	/* seq: the last ticket's; posted: the last ticket whose post is queued */
	uint64_t seq, posted;
	uint32_t head, tail; /* of tickets; both only grow */
	struct engine_ticket tickets[LANE_TICKETS];
};
enum engine_lane_kind { LANE_UP, LANE_DOWN, LANE_COLL, LANES };

int lane_open(struct engine *e, unsigned member, enum engine_lane_kind kind);
void lane_close(struct engine_lane *l);
bool lane_has_room(const struct engine_lane *l);
/* Add a ticket for the work queued so far for part or chunk. */
void lane_ticket(struct engine_lane *l, struct engine_part *part, struct engine_chunk *chunk);
/* Retire the work that has ended. True when some has. */
bool lane_poll(struct engine_lane *l);
/* Check the queue for errors: nothing has moved for a while. */
void lane_look(struct engine_lane *l);
#endif
