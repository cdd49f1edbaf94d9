#ifndef BPS_AGENT_EXECUTOR_ENGINE_LANE_H
#define BPS_AGENT_EXECUTOR_ENGINE_LANE_H
/* A lane is a queue of one GPU, with a ticket for each piece of work that is queued there. */
#include <stdbool.h>
#include <stdint.h>

struct device_queue;
struct engine;
struct engine_chunk;
struct engine_part;

/* Of a queue's work: when the queue's counter has reached seq, it has ended. One of the two. */
struct engine_ticket {
	uint64_t seq;
	struct engine_part *part;
	struct engine_chunk *chunk;
};
#define LANE_TICKETS 64

struct engine_lane {
	struct engine *e;
	struct device_queue *q;
	uint64_t counter;     /* offset in e->counters */
	uint64_t seq, posted; /* last ticket's, and how far posts are queued */
	uint32_t head, tail;  /* of tickets, counting on */
	struct engine_ticket tickets[LANE_TICKETS];
};
enum engine_lane_kind { LANE_UP, LANE_DOWN, LANE_COLL, LANES };

int lane_open(struct engine *e, unsigned member, enum engine_lane_kind kind);
void lane_close(struct engine_lane *l);
bool lane_has_room(const struct engine_lane *l);
/* What was queued on it for part or chunk so far gets a ticket. */
void lane_ticket(struct engine_lane *l, struct engine_part *part, struct engine_chunk *chunk);
/* Retire what has ended. True when something has. */
bool lane_poll(struct engine_lane *l);
/* Nothing has moved for a while: is the queue in good health? */
void lane_look(struct engine_lane *l);
#endif
