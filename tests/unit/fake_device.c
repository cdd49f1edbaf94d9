/* The back-end "fake" of fake_device.h. Its queues are in host memory. The test lets a queue run,
 * one piece of work at a time. Faults can be injected. Only one thread may call the functions. */
#include "tests/unit/fake_device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/host_executor/host_impl.h"

#define HISTORY_MAX 4096

struct fake_job {
	TAILQ_ENTRY(fake_job) link;
	enum host_job_kind kind;
	char letter;
	char *dst;
	const char *src;
	uint64_t bytes, value;
	struct host_coll *coll;
};

struct fake_queue {
	struct device_queue q;
	TAILQ_ENTRY(fake_queue) link;
	TAILQ_HEAD(, fake_job) jobs;
};

struct fake_mem {
	struct device_mem m;
	char *base;
	bool is_ours;
};

struct injection {
	unsigned after, times;
	int rc;
};

struct fake_device {
	struct device d;
	int n_gpus;
	unsigned n_calls[FAKE_CALLS], n_objects;
	struct injection inject[FAKE_CALLS];
	bool was_aborted;
	TAILQ_HEAD(, fake_queue) queues;
	char history[HISTORY_MAX];
	size_t n_history;
};

static int next_n_gpus = 1;

void fake_device_set_gpus(int n)
{
	next_n_gpus = n;
}

static struct fake_device *of(const struct device *dev)
{
	return (struct fake_device *)(uintptr_t)dev;
}

void fake_device_inject(struct device *dev, enum fake_call call, unsigned n, unsigned times, int rc)
{
	of(dev)->inject[call] = (struct injection){of(dev)->n_calls[call] + n, times, rc};
}

unsigned fake_device_calls(const struct device *dev, enum fake_call call)
{
	return of(dev)->n_calls[call];
}

unsigned fake_device_objects(const struct device *dev)
{
	return of(dev)->n_objects;
}

bool fake_device_was_aborted(const struct device *dev)
{
	return of(dev)->was_aborted;
}

const char *fake_device_history(const struct device *dev)
{
	return of(dev)->history;
}

static int call(struct device *dev, enum fake_call kind)
{
	struct fake_device *f = of(dev);
	const struct injection *i = &f->inject[kind];
	unsigned n = ++f->n_calls[kind];

	if (i->rc && n >= i->after && n - i->after < i->times)
		return err_set(&dev->why, i->rc, "injected");
	return 0;
}

/* ---- device and memory ---- */

static int fake_probe(struct err_text *why)
{
	return next_n_gpus > 0 ? next_n_gpus : err_set(why, DEVICE_NODEV, "no fake GPU");
}

static int fake_open(const char *job, struct device **ret, struct err_text *why)
{
	struct fake_device *f = calloc(1, sizeof(*f));

	(void)job;
	if (!f)
		return err_set(why, DEVICE_NOMEM, "out of memory");
	f->d.ops = &device_fake;
	f->n_gpus = next_n_gpus;
	TAILQ_INIT(&f->queues);
	*ret = &f->d;
	return 0;
}

static void fake_close(struct device *dev)
{
	free(dev);
}

static int fake_gpus(struct device *dev, struct device_gpu *ret, int max)
{
	for (int i = 0; i < of(dev)->n_gpus && i < max; i++) {
		memset(&ret[i], 0, sizeof(ret[i]));
		ret[i].uuid[0] = (uint8_t)(i + 1);
		ret[i].caps = DEVICE_CAP_VMM_FD | DEVICE_CAP_MEMOP64 | DEVICE_CAP_CLIQUE;
	}
	return of(dev)->n_gpus;
}

static int fake_peer(struct device *dev, int a, int b)
{
	(void)dev;
	(void)a;
	(void)b;
	return DEVICE_LINK_NVLINK;
}

static int mem_new(struct device *dev, int gpu, char *base, uint64_t bytes, struct device_mem **ret)
{
	struct fake_mem *m = calloc(1, sizeof(*m));

	if (m && !base) {
		m->is_ours = true;
		base = calloc(1, bytes);
	}
	if (!m || !base) {
		free(m);
		return err_set(&dev->why, DEVICE_NOMEM, "out of memory");
	}
	m->m = (struct device_mem){dev, bytes, gpu};
	m->base = base;
	of(dev)->n_objects++;
	*ret = &m->m;
	return 0;
}

static int fake_alloc(struct device *dev, int gpu, uint64_t bytes, const int *also, int n_also,
	struct device_mem **ret)
{
	(void)also;
	(void)n_also;
	return mem_new(dev, gpu, NULL, bytes, ret);
}

static int fake_pin(struct device *dev, void *host, uint64_t bytes, struct device_mem **ret)
{
	int rc = call(dev, FAKE_PIN);

	return rc < 0 ? rc : mem_new(dev, DEVICE_HOST, host, bytes, ret);
}

static uint64_t fake_addr(struct device_mem *mem, int gpu)
{
	(void)gpu;
	return (uint64_t)(uintptr_t)((struct fake_mem *)mem)->base;
}

static void fake_drop(struct device_mem *mem)
{
	struct fake_mem *m = (struct fake_mem *)mem;

	if (!m)
		return;
	of(mem->dev)->n_objects--;
	if (m->is_ours)
		free(m->base);
	free(m);
}

/* ---- queues ---- */

static int fake_queue_open(struct device *dev, int gpu, int priority, struct device_queue **ret)
{
	struct fake_queue *q;
	int rc = call(dev, FAKE_QUEUE_OPEN);

	(void)priority;
	if (rc < 0)
		return rc;
	q = calloc(1, sizeof(*q));
	if (!q)
		return err_set(&dev->why, DEVICE_NOMEM, "out of memory");
	q->q = (struct device_queue){dev, gpu};
	TAILQ_INIT(&q->jobs);
	TAILQ_INSERT_TAIL(&of(dev)->queues, q, link);
	of(dev)->n_objects++;
	*ret = &q->q;
	return 0;
}

static void drop_coll(struct host_coll *c)
{
	if (c && --c->refs == 0)
		free(c);
}

static void drop_jobs(struct fake_queue *q)
{
	struct fake_job *j;

	while ((j = TAILQ_FIRST(&q->jobs))) {
		TAILQ_REMOVE(&q->jobs, j, link);
		drop_coll(j->coll);
		free(j);
	}
}

static void fake_queue_close(struct device_queue *queue)
{
	struct fake_queue *q = (struct fake_queue *)queue;

	if (!q)
		return;
	drop_jobs(q);
	TAILQ_REMOVE(&of(queue->dev)->queues, q, link);
	of(queue->dev)->n_objects--;
	free(q);
}

static int fake_queue_poll(struct device_queue *queue)
{
	int rc = call(queue->dev, FAKE_QUEUE_POLL);

	return rc < 0 ? rc : TAILQ_EMPTY(&((struct fake_queue *)queue)->jobs) ? 0 : DEVICE_AGAIN;
}

static int push(struct device_queue *queue, const struct fake_job *proto)
{
	struct fake_job *j = malloc(sizeof(*j));

	if (!j)
		return err_set(&queue->dev->why, DEVICE_NOMEM, "out of memory");
	*j = *proto;
	TAILQ_INSERT_TAIL(&((struct fake_queue *)queue)->jobs, j, link);
	return 0;
}

static char *at(struct device_mem *mem, uint64_t offset)
{
	return ((struct fake_mem *)mem)->base + offset;
}

static int fake_copy(struct device_queue *q, struct device_mem *dst, uint64_t dst_offset,
	struct device_mem *src, uint64_t src_offset, uint64_t bytes)
{
	struct fake_job j = {.kind = HOST_COPY, .bytes = bytes};
	int rc = call(q->dev, FAKE_COPY);

	if (rc < 0)
		return rc;
	if (!bytes || bytes > dst->bytes || dst_offset > dst->bytes - bytes || bytes > src->bytes ||
		src_offset > src->bytes - bytes)
		return err_set(&q->dev->why, DEVICE_ARG, "copy out of bounds");
	j.letter = dst->gpu == DEVICE_HOST ? 'U' : src->gpu == DEVICE_HOST ? 'D' : 'P';
	j.dst = at(dst, dst_offset);
	j.src = at(src, src_offset);
	return push(q, &j);
}

static int fake_post(
	struct device_queue *q, struct device_mem *page, uint64_t offset, uint64_t value)
{
	struct fake_job j = {
		.kind = HOST_POST, .letter = 'p', .dst = at(page, offset), .value = value};
	int rc = call(q->dev, FAKE_POST);

	return rc < 0 ? rc : push(q, &j);
}

/* ---- cliques ---- */

static int fake_clique_id(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES])
{
	(void)dev;
	memset(ret_id, 0, DEVICE_ID_BYTES);
	return 0;
}

static int fake_clique_open(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
	const int *gpu, const int *rank, int n_local, struct device_clique **ret)
{
	struct device_clique *c;
	int rc = call(dev, FAKE_CLIQUE_OPEN);

	(void)id;
	(void)gpu;
	(void)rank;
	if (rc < 0)
		return rc;
	c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(&dev->why, DEVICE_NOMEM, "out of memory");
	*c = (struct device_clique){dev, n_ranks, n_local};
	of(dev)->n_objects++;
	*ret = c;
	return 0;
}

static int fake_clique_poll(struct device_clique *c)
{
	return call(c->dev, FAKE_CLIQUE_POLL);
}

static int collective(struct device_clique *c, struct host_coll *proto, char letter,
	const struct device_piece *pieces)
{
	struct fake_job j = {.kind = HOST_COLL, .letter = letter};
	int rc = call(c->dev, FAKE_COLLECTIVE);

	if (rc < 0)
		return rc;
	if (c->n_local < 1)
		return err_set(&c->dev->why, DEVICE_ARG, "a collective without members");
	j.coll = malloc(sizeof(*j.coll));
	if (!j.coll)
		return err_set(&c->dev->why, DEVICE_NOMEM, "out of memory");
	*j.coll = *proto;
	j.coll->n = c->n_local;
	j.coll->refs = (unsigned)c->n_local;
	for (int i = 0; i < c->n_local; i++)
		j.coll->piece[i] = at(pieces[i].mem, pieces[i].offset);
	rc = push(pieces[0].queue, &j);
	if (rc < 0) {
		free(j.coll);
		return rc;
	}
	for (int i = 1; i < c->n_local && rc == 0; i++)
		rc = push(pieces[i].queue, &j);
	return rc;
}

static int fake_reduce_scatter(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype, enum op op)
{
	struct host_coll coll = {
		.kind = COLL_SCATTER, .dtype = dtype, .op = op, .count = count_per_rank};

	return collective(c, &coll, 's', pieces);
}

static int fake_all_gather(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype)
{
	struct host_coll coll = {.kind = COLL_GATHER, .dtype = dtype, .count = count_per_rank};

	return collective(c, &coll, 'g', pieces);
}

static int fake_reduce(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, enum op op, int root)
{
	struct host_coll coll = {
		.kind = COLL_REDUCE, .dtype = dtype, .op = op, .count = count, .root = root};

	return collective(c, &coll, 'r', pieces);
}

static int fake_broadcast(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count, enum dtype dtype, int root)
{
	struct host_coll coll = {
		.kind = COLL_BROADCAST, .dtype = dtype, .count = count, .root = root};

	return collective(c, &coll, 'b', pieces);
}

static int fake_group(struct device_clique *c)
{
	(void)c;
	return 0;
}

/* Abort a clique: waiting collectives end at once. Other queued work ends later, when the test lets
 * this work run. */
static void fake_clique_abort(struct device_clique *c)
{
	struct fake_device *f = of(c->dev);
	struct fake_queue *q;
	struct fake_job *j, *next;

	f->was_aborted = true;
	TAILQ_FOREACH (q, &f->queues, link)
		for (j = TAILQ_FIRST(&q->jobs); j; j = next) {
			next = TAILQ_NEXT(j, link);
			if (j->kind != HOST_COLL)
				continue;
			TAILQ_REMOVE(&q->jobs, j, link);
			drop_coll(j->coll);
			free(j);
		}
}

static void fake_clique_close(struct device_clique *c)
{
	if (c)
		of(c->dev)->n_objects--;
	free(c);
}

/* ---- running ---- */

static void note(struct fake_device *f, char letter)
{
	if (f->n_history + 1 < sizeof(f->history))
		f->history[f->n_history++] = letter;
}

/* Return whether the queues of all members of the collective `coll` have reached it. */
static bool have_all_come(const struct fake_device *f, const struct host_coll *coll)
{
	const struct fake_queue *q;
	int n = 0;

	TAILQ_FOREACH (q, &f->queues, link) {
		const struct fake_job *j = TAILQ_FIRST(&q->jobs);

		n += j && j->coll == coll;
	}
	return n == coll->n;
}

static bool do_collective(struct fake_device *f, const struct fake_job *job)
{
	struct host_coll *coll = job->coll;
	struct fake_queue *q;
	char letter = job->letter;

	if (!have_all_come(f, coll))
		return false;
	host_coll_perform(coll);
	TAILQ_FOREACH (q, &f->queues, link) {
		struct fake_job *j = TAILQ_FIRST(&q->jobs);

		if (!j || j->coll != coll)
			continue;
		TAILQ_REMOVE(&q->jobs, j, link);
		free(j);
	}
	free(coll);
	note(f, letter);
	return true;
}

static bool do_next(struct fake_device *f, struct fake_queue *q)
{
	struct fake_job *j = TAILQ_FIRST(&q->jobs);

	if (!j)
		return false;
	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the analyzer does not follow the unlinking */
	if (j->kind == HOST_COLL)
		return do_collective(f, j);
	if (j->kind == HOST_COPY)
		memcpy(j->dst, j->src, j->bytes);
	else
		atomic_store_explicit(
			(_Atomic uint64_t *)(void *)j->dst, j->value, memory_order_release);
	note(f, j->letter);
	TAILQ_REMOVE(&q->jobs, j, link);
	free(j);
	return true;
}

unsigned fake_device_queues(const struct device *dev)
{
	const struct fake_queue *q;
	unsigned n = 0;

	TAILQ_FOREACH (q, &of(dev)->queues, link)
		n++;
	return n;
}

bool fake_device_step(struct device *dev, unsigned i)
{
	struct fake_queue *q = TAILQ_FIRST(&of(dev)->queues);

	while (q && i-- > 0)
		q = TAILQ_NEXT(q, link);
	return q && do_next(of(dev), q);
}

void fake_device_run(struct device *dev)
{
	bool any;

	do {
		any = false;
		for (unsigned i = 0, n = fake_device_queues(dev); i < n; i++)
			any |= fake_device_step(dev, i);
	} while (any);
}

const struct device_ops device_fake = {
	.name = "fake",
	.probe = fake_probe,
	.open = fake_open,
	.close = fake_close,
	.gpus = fake_gpus,
	.peer = fake_peer,
	.alloc = fake_alloc,
	.pin = fake_pin,
	.addr = fake_addr,
	.drop = fake_drop,
	.queue_open = fake_queue_open,
	.queue_close = fake_queue_close,
	.queue_poll = fake_queue_poll,
	.copy = fake_copy,
	.post = fake_post,
	.clique_id = fake_clique_id,
	.clique_open = fake_clique_open,
	.clique_poll = fake_clique_poll,
	.reduce_scatter = fake_reduce_scatter,
	.all_gather = fake_all_gather,
	.reduce = fake_reduce,
	.broadcast = fake_broadcast,
	.group_begin = fake_group,
	.group_end = fake_group,
	.clique_abort = fake_clique_abort,
	.clique_close = fake_clique_close,
};
