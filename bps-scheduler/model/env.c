/* Allocates memory for the core, reports the core's events to users, and schedules the core's next
 * deadline. If memory runs out, the process ends. No data is lost, because all essential state is
 * durable and the data path does not need the scheduler. All tables are bounded. */
#include "bps-scheduler/model/env.h"

#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/model.h"
#include "common/base/log.h"

void *sched_alloc(size_t n, size_t bytes)
{
	void *p = calloc(n ? n : 1, bytes);

	if (!p) {
		log_error("out of memory: ending this process; its state is durable");
		abort();
	}
	return p;
}

void *sched_grow_array(void *p, uint32_t *room, uint32_t need, size_t bytes)
{
	uint32_t n = *room ? *room : 8;

	if (need <= *room)
		return p;
	while (n < need)
		n *= 2;
	p = realloc(p, n * bytes);
	if (!p) {
		log_error("out of memory: ending this process; its state is durable");
		abort();
	}
	memset((char *)p + *room * bytes, 0, (n - *room) * bytes);
	*room = n;
	return p;
}

char *sched_dup_string(const char *s)
{
	size_t n = strlen(s) + 1;
	char *d = sched_alloc(n, 1);

	memcpy(d, s, n);
	return d;
}

void sched_report_event(struct sched_core *c, enum sched_event_kind kind, const char *fmt, ...)
{
	char text[SCHED_EVENT_BYTES];
	struct sched_event e = {kind, c->tx_view ? c->tx_view : c->view, text};

	if (!c->env.event)
		return;
	format_arguments(text, fmt);
	c->env.event(c->env.ctx, &e);
}

void sched_arm_deadline(struct sched_core *c, uint64_t at_ns)
{
	if (at_ns < c->due_ns)
		c->due_ns = at_ns;
}
