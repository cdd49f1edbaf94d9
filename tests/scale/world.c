/* The queue of events in virtual time, and scale_measure, which sets up simulations, runs them and
 * returns the results. */
#include "tests/scale/scale.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/data/dtype.h"

#define SLAB_BYTES (4u << 20)

struct scale_slab {
	struct scale_slab *next;
	size_t used;
	_Alignas(16) uint8_t mem[SLAB_BYTES];
};

void fatal(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("sim-scale: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

void *scale_alloc(struct scale_world *w, size_t n_bytes)
{
	struct scale_slab *s = w->slabs;
	void *p;

	n_bytes = (n_bytes + 15) & ~(size_t)15;
	if (n_bytes > SLAB_BYTES)
		fatal("cannot allocate %zu bytes in one piece", n_bytes);
	if (!s || s->used + n_bytes > SLAB_BYTES) {
		s = calloc(1, sizeof(*s));
		if (!s)
			fatal("out of memory");
		s->next = w->slabs;
		w->slabs = s;
	}
	p = s->mem + s->used;
	s->used += n_bytes;
	return p;
}

/* ---- events ---- */

static bool is_before(const struct scale_event *a, const struct scale_event *b)
{
	return a->at < b->at || (a->at == b->at && a->seq < b->seq);
}

void scale_post(struct scale_world *w, uint64_t at_ns, scale_event_fn *fn, void *p, uint64_t a)
{
	struct scale_event e = {at_ns, w->seq++, fn, p, a};
	size_t i;

	if (w->n_heap == w->heap_room) {
		w->heap_room = w->heap_room ? 2 * w->heap_room : 4096;
		w->heap = realloc(w->heap, w->heap_room * sizeof(*w->heap));
		if (!w->heap)
			fatal("out of memory");
	}
	for (i = w->n_heap++; i > 0 && is_before(&e, &w->heap[(i - 1) / 4]); i = (i - 1) / 4)
		w->heap[i] = w->heap[(i - 1) / 4];
	w->heap[i] = e;
}

static size_t least_child(const struct scale_world *w, size_t i)
{
	size_t first = 4 * i + 1, best = first;

	for (size_t k = first + 1; k < first + 4 && k < w->n_heap; k++)
		if (is_before(&w->heap[k], &w->heap[best]))
			best = k;
	return best;
}

static struct scale_event next_event(struct scale_world *w)
{
	struct scale_event first = w->heap[0], e = w->heap[--w->n_heap];
	size_t i = 0;

	while (4 * i + 1 < w->n_heap) {
		size_t k = least_child(w, i);

		if (!is_before(&w->heap[k], &e))
			break;
		w->heap[i] = w->heap[k];
		i = k;
	}
	w->heap[i] = e;
	return first;
}

/* ---- a run ---- */

static void hosts_new(struct scale_world *w)
{
	const struct scale_options *o = &w->o;

	w->n_hosts = o->agents + o->servers;
	w->hosts = calloc(w->n_hosts, sizeof(*w->hosts));
	w->marks = calloc(w->n_hosts, sizeof(*w->marks));
	if (!w->hosts || !w->marks)
		fatal("out of memory");
	for (uint32_t i = 0; i < w->n_hosts; i++) {
		struct scale_host *h = &w->hosts[i];
		bool is_slow = i < o->agents ? i < o->slow_agents : i - o->agents < o->slow_servers;

		h->idx = i;
		h->tx_ns = h->rx_ns = 8 / (is_slow ? o->slow_gbps : o->rate_gbps);
		h->turn_tail = &h->turn;
	}
}

static void memory_new(struct scale_world *w)
{
	size_t bytes = 64u << 20;

	for (uint32_t i = 0; i < w->trace->n_tensors; i++)
		if (w->trace->tensors[i].bytes > bytes)
			bytes = w->trace->tensors[i].bytes;
	w->memory_bytes = bytes;
	w->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w->memory == MAP_FAILED)
		fatal("out of memory");
}

static void world_free(struct scale_world *w)
{
	cluster_stop(w);
	while (w->slabs) {
		struct scale_slab *next = w->slabs->next;

		free(w->slabs);
		w->slabs = next;
	}
	munmap(w->memory, w->memory_bytes);
	free(w->heap);
	free(w->hosts);
	free(w->marks);
}

static void mark(struct scale_world *w)
{
	for (uint32_t i = 0; i < w->n_hosts; i++)
		w->marks[i] = (struct scale_mark){w->hosts[i].tx_bytes, w->hosts[i].rx_bytes};
}

static struct scale_card_bytes busiest(const struct scale_world *w, uint32_t first, uint32_t n)
{
	struct scale_card_bytes b = {0, 0};

	for (uint32_t i = first; i < first + n; i++) {
		uint64_t tx = w->hosts[i].tx_bytes - w->marks[i].tx,
			 rx = w->hosts[i].rx_bytes - w->marks[i].rx;

		b.tx = tx > b.tx ? tx : b.tx;
		b.rx = rx > b.rx ? rx : b.rx;
	}
	return (struct scale_card_bytes){b.tx / w->o.steps, b.rx / w->o.steps};
}

/* Return the mean duration of the slowest agent's measured steps. */
static double step_s(const struct scale_world *w)
{
	uint64_t worst = 0;

	for (uint32_t i = 0; i < w->o.agents; i++) {
		const struct scale_agent *a = &w->agents[i];
		uint64_t span = a->starts[STEP_WARMUP + w->o.steps] - a->starts[STEP_WARMUP];

		worst = span > worst ? span : worst;
	}
	return (double)worst / 1e9 / w->o.steps;
}

/* Run all steps and measure those after the warm-up. */
static double run(
	const struct scale_options *o, const struct scale_trace *t, struct scale_result *ret)
{
	struct scale_world w = {.o = *o, .trace = t};
	bool is_marked = false;
	double s;

	hosts_new(&w);
	memory_new(&w);
	cluster_start(&w);
	while (w.n_done < o->agents) {
		struct scale_event e;

		if (!w.n_heap)
			fatal("no event is left at %.6f s, before all steps are done",
				(double)w.now / 1e9);
		e = next_event(&w);
		w.now = e.at;
		w.n_events++;
		e.fn(&w, e.p, e.a);
		if (!is_marked && w.agents[0].starts[STEP_WARMUP]) {
			is_marked = true;
			mark(&w);
		}
	}
	s = step_s(&w);
	ret->agent = busiest(&w, 0, o->agents);
	ret->server = busiest(&w, o->agents, o->servers);
	ret->n_parts = w.n_parts;
	ret->events += w.n_events;
	ret->unasked += w.unasked;
	ret->thrown += w.thrown;
	world_free(&w);
	return s;
}

static void options_fit(const struct scale_options *o)
{
	if (o->agents < 2 || o->agents > WIRE_MEMBERS_MAX)
		fatal("--agents must be 2 to %u", WIRE_MEMBERS_MAX);
	if (!o->servers && !o->is_colocated)
		fatal("--no-colocated needs --servers of at least 1");
	if (o->steps < 1 || o->steps > STEP_MAX - STEP_WARMUP - 1)
		fatal("--steps must be 1 to %d", STEP_MAX - STEP_WARMUP - 1);
	if (o->slow_agents > o->agents || o->slow_servers > o->servers)
		fatal("--slow-agents or --slow-servers exceeds the number of machines");
	if (!dtype_bytes(o->dtype) || o->rate_gbps <= 0 || o->quantum < 1024 || o->threads < 1 ||
		o->agent_threads < 1 || (o->read_window && o->read_window < 4096))
		fatal("--dtype, --rate, --quantum, --threads, --agent-threads or --read-window is "
		      "out of range");
}

int scale_measure(const struct scale_options *o, bool is_step_only, struct scale_result *ret)
{
	struct scale_options alone = *o;
	struct scale_trace t;
	uint64_t start = clock_now_ns();

	options_fit(o);
	if (trace_read(&t, o) < 0)
		return -1;
	*ret = (struct scale_result){.compute_s = o->compute_ms / 1e3};
	ret->optimum_s = bound_push_pull_s(o, t.bytes);
	ret->ring_s = bound_ring_s(o, t.bytes);
	ret->bound_s = bound_step_s(o, &t);
	ret->ring_step_s = bound_ring_step_s(o, &t);
	if (!is_step_only || o->compute_ms <= 0) {
		alone.gpus = 1;
		alone.compute_ms = 0;
		for (uint32_t i = 0; i < t.n_layers; i++)
			t.layers[i].forward_ns = 0;
		ret->comm_s = run(&alone, &t, ret);
		for (uint32_t i = 0; i < t.n_layers; i++)
			t.layers[i].forward_ns = o->compute_ms * 1e6 / 3 * t.layers[i].share;
	}
	ret->step_s = o->compute_ms > 0 ? run(o, &t, ret) : ret->comm_s;
	if (o->compute_ms > 0 && ret->comm_s > 0)
		ret->overlap = (ret->compute_s + ret->comm_s - ret->step_s) /
			       fmin(ret->compute_s, ret->comm_s);
	ret->efficiency = ret->compute_s / ret->step_s;
	ret->ring_efficiency = ret->ring_step_s > 0 ? ret->compute_s / ret->ring_step_s : 0;
	trace_free(&t);
	ret->wall_s = (double)(clock_now_ns() - start) / 1e9;
	return 0;
}
