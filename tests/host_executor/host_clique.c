/* Cliques of the back-end "host": in a collective, the threads of the members' queues wait for each
 * other. The thread that arrives last performs the collective. Members in other processes are not
 * supported. Thread: the executor's, and the queues' threads in host_coll_run. */
#include <stdlib.h>
#include <string.h>

#include "tests/host_executor/host_impl.h"
#include "common/data/reduce.h"

#define BLOCK_ELEMS 4096
/* Value that this back-end writes to bytes that NCCL leaves undefined, so that tests detect a
 * caller that relies on undefined bytes. */
#define GARBAGE 0xa5

struct host_clique {
	struct device_clique c;
	/* Number of references: one for the owner, one for each collective that has not ended.
	 * The device's lock protects refs and is_aborted. */
	unsigned refs;
	bool is_aborted;
};

/* ---- arithmetic ---- */

static void reduce_block(struct host_coll *c, uint64_t first, size_t n, char *dst)
{
	double acc[BLOCK_ELEMS];
	size_t elem = dtype_bytes(c->dtype);
	const void *src[REDUCE_MAX_SRC];

	for (int i = 0; i < c->n;) {
		unsigned n_src = 0;
		bool is_first = i == 0;

		while (n_src < REDUCE_MAX_SRC && i < c->n)
			src[n_src++] = c->piece[i++] + first * elem;
		reduce_fold(acc, src, n_src, n, c->dtype, c->op, is_first);
	}
	reduce_finish(dst + first * elem, acc, n, c->dtype, c->op, (uint32_t)c->n);
}

/* Reduce elements [first, first + n) of all pieces into the same place of root's piece. */
static void reduce_range(struct host_coll *c, uint64_t first, uint64_t n, int root)
{
	for (uint64_t at = 0; at < n; at += BLOCK_ELEMS)
		reduce_block(
			c, first + at, n - at < BLOCK_ELEMS ? n - at : BLOCK_ELEMS, c->piece[root]);
}

static void scatter(struct host_coll *c)
{
	size_t block = c->count * dtype_bytes(c->dtype);

	for (int r = 0; r < c->n; r++)
		reduce_range(c, (uint64_t)r * c->count, c->count, r);
	for (int r = 0; r < c->n; r++)
		for (int i = 0; i < c->n; i++)
			if (i != r)
				memset(c->piece[r] + (size_t)i * block, GARBAGE, block);
}

static void copy_to_all(struct host_coll *c, size_t offset, size_t bytes, int root)
{
	for (int i = 0; i < c->n; i++)
		if (i != root)
			memcpy(c->piece[i] + offset, c->piece[root] + offset, bytes);
}

void host_coll_perform(struct host_coll *c)
{
	size_t bytes = c->count * dtype_bytes(c->dtype);

	switch (c->kind) {
	case COLL_SCATTER:
		scatter(c);
		break;
	case COLL_GATHER:
		for (int r = 0; r < c->n; r++)
			copy_to_all(c, (size_t)r * bytes, bytes, r);
		break;
	case COLL_REDUCE:
		reduce_range(c, 0, c->count, c->root);
		break;
	case COLL_BROADCAST:
		copy_to_all(c, 0, bytes, c->root);
		break;
	}
}

/* ---- meeting ---- */

static void clique_put(struct host_clique *c) /* called with the device's lock held */
{
	if (--c->refs == 0)
		free(c);
}

void host_coll_run(struct host_coll *coll, struct host_device *dev)
{
	bool is_mine;

	pthread_mutex_lock(&dev->lock);
	is_mine = ++coll->n_arrived == coll->n && !coll->clique->is_aborted;
	while (!is_mine && !coll->is_done && !coll->clique->is_aborted)
		pthread_cond_wait(&dev->moved, &dev->lock);
	pthread_mutex_unlock(&dev->lock);
	if (!is_mine)
		return;
	host_coll_perform(coll);
	pthread_mutex_lock(&dev->lock);
	coll->is_done = true;
	pthread_cond_broadcast(&dev->moved);
	pthread_mutex_unlock(&dev->lock);
}

void host_coll_put(struct host_coll *coll, struct host_device *dev)
{
	bool is_last;

	pthread_mutex_lock(&dev->lock);
	is_last = --coll->refs == 0;
	if (is_last)
		clique_put(coll->clique);
	pthread_mutex_unlock(&dev->lock);
	if (is_last)
		free(coll);
}

static int start(struct host_clique *c, struct host_coll *proto, const struct device_piece *pieces,
	uint64_t blocks)
{
	struct host_device *dev = (struct host_device *)c->c.dev;
	uint64_t bytes = proto->count * dtype_bytes(proto->dtype) * blocks;
	struct host_coll *coll;
	int n = c->c.n_local;

	if (n < 1)
		return err_set(&c->c.dev->why, DEVICE_ARG, "a collective has no members");
	for (int i = 0; i < n; i++)
		if (!bytes || bytes > pieces[i].mem->bytes ||
			pieces[i].offset > pieces[i].mem->bytes - bytes)
			return err_set(&c->c.dev->why, DEVICE_ARG,
				"a collective exceeds the memory of a member");
	for (int i = 0; i < n; i++)
		if (!host_queue_has_room(pieces[i].queue))
			return DEVICE_AGAIN;
	coll = malloc(sizeof(*coll));
	if (!coll)
		return err_set(&c->c.dev->why, DEVICE_NOMEM, "out of memory");
	*coll = *proto;
	coll->clique = c;
	coll->n = n;
	coll->refs = (unsigned)n;
	for (int i = 0; i < n; i++)
		coll->piece[i] = ((struct host_mem *)pieces[i].mem)->base + pieces[i].offset;
	pthread_mutex_lock(&dev->lock);
	c->refs++;
	pthread_mutex_unlock(&dev->lock);
	/* the push cannot fail: the queues have room, and no other thread pushes jobs */
	for (int i = 0; i < n; i++)
		host_queue_push(
			pieces[i].queue, &(struct host_job){.kind = HOST_COLL, .coll = coll});
	return 0;
}

int host_reduce_scatter(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype, enum op op)
{
	struct host_coll coll = {
		.kind = COLL_SCATTER, .dtype = dtype, .op = op, .count = count_per_rank};

	return start((struct host_clique *)c, &coll, pieces, (uint64_t)c->n_ranks);
}

int host_all_gather(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype)
{
	struct host_coll coll = {.kind = COLL_GATHER, .dtype = dtype, .count = count_per_rank};

	return start((struct host_clique *)c, &coll, pieces, (uint64_t)c->n_ranks);
}

int host_reduce(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, enum op op, int root)
{
	struct host_coll coll = {
		.kind = COLL_REDUCE, .dtype = dtype, .op = op, .count = count, .root = root};

	return start((struct host_clique *)c, &coll, pieces, 1);
}

int host_broadcast(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, int root)
{
	struct host_coll coll = {
		.kind = COLL_BROADCAST, .dtype = dtype, .count = count, .root = root};

	return start((struct host_clique *)c, &coll, pieces, 1);
}

int host_group(struct device_clique *c)
{
	(void)c;
	return 0;
}

/* ---- start and end ---- */

int host_clique_id(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES])
{
	(void)dev;
	memset(ret_id, 0, DEVICE_ID_BYTES);
	return 0;
}

int host_clique_open(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
	const int *gpu, const int *rank, int n_local, struct device_clique **ret)
{
	struct host_clique *c;

	(void)id;
	if (n_ranks < 2 || n_local > DEVICE_GPUS_MAX)
		return err_set(
			&dev->why, DEVICE_ARG, "a clique of %d ranks is not possible", n_ranks);
	if (n_local != n_ranks)
		return err_set(&dev->why, DEVICE_UNSUP,
			"the back-end 'host' supports no cliques over several processes");
	for (int i = 0; i < n_local; i++) {
		if (rank[i] != i)
			return err_set(&dev->why, DEVICE_ARG,
				"the members of a clique are not in the order of their ranks");
		for (int j = 0; j < i; j++)
			if (gpu[i] == gpu[j])
				return err_set(&dev->why, DEVICE_UNSUP,
					"two members of a clique are on GPU %d", gpu[i]);
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(&dev->why, DEVICE_NOMEM, "out of memory");
	c->c = (struct device_clique){dev, n_ranks, n_local};
	c->refs = 1;
	*ret = &c->c;
	return 0;
}

int host_clique_poll(struct device_clique *clique)
{
	struct host_device *dev = (struct host_device *)clique->dev;
	bool is_aborted;

	pthread_mutex_lock(&dev->lock);
	is_aborted = ((struct host_clique *)clique)->is_aborted;
	pthread_mutex_unlock(&dev->lock);
	return is_aborted ? err_set(&clique->dev->why, DEVICE_PEER, "the clique was aborted") : 0;
}

void host_clique_abort(struct device_clique *clique)
{
	struct host_device *dev = (struct host_device *)clique->dev;

	pthread_mutex_lock(&dev->lock);
	((struct host_clique *)clique)->is_aborted = true;
	pthread_cond_broadcast(&dev->moved);
	pthread_mutex_unlock(&dev->lock);
}

void host_clique_close(struct device_clique *clique)
{
	struct host_device *dev;

	if (!clique)
		return;
	dev = (struct host_device *)clique->dev;
	pthread_mutex_lock(&dev->lock);
	((struct host_clique *)clique)->is_aborted = true;
	pthread_cond_broadcast(&dev->moved);
	clique_put((struct host_clique *)clique);
	pthread_mutex_unlock(&dev->lock);
}
