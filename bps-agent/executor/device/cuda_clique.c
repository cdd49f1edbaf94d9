/* Cliques of the CUDA back-end. A clique has one nonblocking NCCL communicator per local GPU.
 * Thread: the executor's, which uses all communicators.
 *
 *   OPENING --all ready--> READY --launch not complete--> LAUNCHING --all ready--> READY
 *      any of them --a communicator's error--> FAILED;   any --abort--> ABORTED
 *
 * The communicators are nonblocking, because a blocking communicator cannot be aborted while it
 * opens or launches. After an error, a communicator cannot be used again, and all communicators of
 * this process must be aborted. */
#include "bps-agent/executor/device/cuda_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"

/* Limit of a communicator's channels. Each channel occupies a multiprocessor, and the trainer's
 * kernels need the other multiprocessors. The environment variable NCCL_MAX_CTAS overrides this
 * limit. */
#define MAX_CTAS 8
/* Time limit for leaving a clique. When the time is over, the clique is aborted. */
#define LEAVE_NS (2 * UINT64_C(1000000000))

_Static_assert(sizeof(ncclUniqueId) == DEVICE_ID_BYTES, "clique id");
_Static_assert((int)ncclInt8 == DTYPE_I8 && (int)ncclUint8 == DTYPE_U8 &&
		       (int)ncclInt32 == DTYPE_I32 && (int)ncclInt64 == DTYPE_I64 &&
		       (int)ncclFloat16 == DTYPE_F16 && (int)ncclFloat32 == DTYPE_F32 &&
		       (int)ncclFloat64 == DTYPE_F64 && (int)ncclBfloat16 == DTYPE_BF16,
	"the numbers of data types equal NCCL's");
_Static_assert((int)ncclSum == OP_SUM && (int)ncclProd == OP_PROD && (int)ncclMax == OP_MAX &&
		       (int)ncclMin == OP_MIN && (int)ncclAvg == OP_AVG,
	"the numbers of operations equal NCCL's");

enum clique_state { OPENING, READY, LAUNCHING, FAILED, ABORTED };

struct cuda_member {
	int gpu, rank;
	ncclComm_t comm; /* NULL: the communicator is not created yet, or was destroyed */
};

struct cuda_clique {
	struct device_clique base;
	const struct nccl *nccl;
	enum clique_state state;
	int group_depth;
	char name[72]; /* name of the communicators; NCCL may keep the pointer */
	LIST_HEAD(, cuda_queue)
	launching; /* queues on which a collective may still be launching */
	struct cuda_member member[];
};

static struct cuda_clique *cuda_clique_of_base(struct device_clique *c)
{
	return (struct cuda_clique *)c;
}

static const char *clique_state_name(enum clique_state s)
{
	static const char *const names[] = {"opening", "ready", "launching", "failed", "aborted"};

	return names[s];
}

static void clique_set_state(struct cuda_clique *c, enum clique_state to, const char *why)
{
	if (c->state == to)
		return;
	log_debug("clique of %d GPUs changes from %s to %s: %s", c->base.n_ranks,
		clique_state_name(c->state), clique_state_name(to), why);
	c->state = to;
}

/* NCCL has a single code for all errors of the driver. Find out whether the driver's error is
 * sticky. After a sticky error, the process cannot use the driver any more. Returns DEVICE_LOST if
 * the error is sticky, else 0. */
static int clique_find_sticky_error(struct cuda_clique *c, const char *what)
{
	for (int i = 0; i < c->base.n_local; i++) {
		int rc = cuda_enter_context(c->base.dev, c->member[i].gpu);

		if (!rc)
			rc = cuda_check_result(c->base.dev, cuStreamQuery(NULL), what);
		if (rc == DEVICE_LOST)
			return rc;
	}
	return 0;
}

/* Convert a result of NCCL to a device error. The arguments have been checked before, so every
 * failure means that the clique has failed. */
static int clique_check_nccl_result(struct cuda_clique *c, ncclResult_t r, const char *what)
{
	if (r == ncclSuccess || r == ncclInProgress)
		return 0;
	clique_set_state(c, FAILED, what);
	if (r == ncclUnhandledCudaError && clique_find_sticky_error(c, what) == DEVICE_LOST)
		return DEVICE_LOST;
	return cuda_refuse(c->base.dev, DEVICE_PEER, "%s: %s: %s", what, c->nccl->GetErrorString(r),
		c->nccl->GetLastError(NULL));
}

int cuda_clique_id(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES])
{
	const struct nccl *nccl;
	ncclUniqueId id;
	ncclResult_t r;
	int rc;

	if (cuda_device_of_base(dev)->is_lost)
		return DEVICE_LOST;
	rc = cuda_load_nccl_once(cuda_device_of_base(dev), &nccl);
	if (rc)
		return rc;
	r = nccl->GetUniqueId(&id);
	if (r != ncclSuccess)
		return cuda_refuse(dev, DEVICE_UNSUP, "cannot create the id of a clique: %s",
			nccl->GetErrorString(r));
	memcpy(ret_id, id.internal, DEVICE_ID_BYTES);
	return 0;
}

/* Return the least number of ranks of a clique. The number is 2, because a single GPU needs no
 * clique. Run D of tests/gpu sets an environment variable that allows 1, so that NCCL can be tested
 * on a single GPU. */
static int clique_least_ranks(void)
{
	const char *one = getenv("BPS_TEST_CLIQUE_OF_ONE");

	return one && !strcmp(one, "1") ? 1 : 2;
}

/* Check the members of a new clique. NCCL rejects two ranks on one GPU. Since version 2.30, an
 * environment variable allows two ranks on one GPU, for tests. */
static int clique_check_members(struct cuda_device *d, const struct nccl *nccl, int n_ranks,
	const int *gpu, const int *rank, int n_local)
{
	const char *multi = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
	bool may_share = nccl->version >= NCCL_VERSION(2, 30, 0) && multi && !strcmp(multi, "1");

	if (n_ranks < clique_least_ranks() || n_local < 1 || n_local > n_ranks ||
		n_local > DEVICE_GPUS_MAX)
		return cuda_refuse(&d->base, DEVICE_ARG,
			"a clique of %d ranks, of which %d are in this process, is not possible",
			n_ranks, n_local);
	for (int i = 0; i < n_local; i++) {
		if (gpu[i] < 0 || gpu[i] >= d->n_gpus || rank[i] < 0 || rank[i] >= n_ranks)
			return cuda_refuse(&d->base, DEVICE_ARG,
				"rank %d of %d on GPU %d cannot be a member of a clique", rank[i],
				n_ranks, gpu[i]);
		for (int j = 0; j < i; j++) {
			if (rank[i] == rank[j])
				return cuda_refuse(&d->base, DEVICE_ARG,
					"two members of a clique have rank %d", rank[i]);
			if (gpu[i] == gpu[j] && !may_share)
				return cuda_refuse(&d->base, DEVICE_UNSUP,
					"NCCL does not accept two members on one GPU (%d)", gpu[i]);
		}
	}
	return 0;
}

static int clique_init_communicators(struct cuda_clique *c, const uint8_t *id_bytes)
{
	struct cuda_device *d = cuda_device_of_base(c->base.dev);
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	int rc = 0, failed;

	snprintf(c->name, sizeof(c->name), "bps.%s", d->job);
	config.blocking = 0;
	config.maxCTAs = MAX_CTAS;
	config.commName = c->name;
	memcpy(id.internal, id_bytes, DEVICE_ID_BYTES);
	rc = clique_check_nccl_result(c, c->nccl->GroupStart(), "cannot open a clique");
	if (rc)
		return rc;
	for (int i = 0; i < c->base.n_local && !rc; i++) {
		struct cuda_member *m = &c->member[i];

		rc = cuda_enter_context(&d->base, m->gpu);
		if (!rc)
			rc = clique_check_nccl_result(c,
				c->nccl->CommInitRankConfig(
					&m->comm, c->base.n_ranks, id, m->rank, &config),
				"cannot open a clique");
	}
	failed = clique_check_nccl_result(c, c->nccl->GroupEnd(), "cannot open a clique");
	return rc ? rc : failed;
}

int cuda_clique_open(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
	const int *gpu, const int *rank, int n_local, struct device_clique **ret_clique)
{
	struct cuda_device *d = cuda_device_of_base(dev);
	const struct nccl *nccl;
	struct cuda_clique *c;
	int rc;

	if (d->is_lost)
		return DEVICE_LOST;
	rc = cuda_load_nccl_once(d, &nccl);
	if (!rc)
		rc = clique_check_members(d, nccl, n_ranks, gpu, rank, n_local);
	if (rc)
		return rc;
	c = calloc(1, sizeof(*c) + (size_t)n_local * sizeof(c->member[0]));
	if (!c)
		return cuda_refuse(dev, DEVICE_NOMEM, "out of memory for a clique");
	c->base = (struct device_clique){.dev = dev, .n_ranks = n_ranks, .n_local = n_local};
	c->nccl = nccl;
	for (int i = 0; i < n_local; i++)
		c->member[i] = (struct cuda_member){.gpu = gpu[i], .rank = rank[i]};
	rc = clique_init_communicators(c, id);
	if (rc) {
		cuda_clique_close(&c->base);
		return rc;
	}
	*ret_clique = &c->base;
	return 0;
}

/* Poll all communicators. Returns the first error. Without an error, returns ncclInProgress if a
 * communicator is busy, else ncclSuccess. */
static ncclResult_t clique_poll_communicators(struct cuda_clique *c)
{
	ncclResult_t worst = ncclSuccess;

	for (int i = 0; i < c->base.n_local; i++) {
		ncclResult_t state = ncclSuccess, r;

		if (!c->member[i].comm)
			continue;
		r = c->nccl->CommGetAsyncError(c->member[i].comm, &state);
		if (r != ncclSuccess)
			return r;
		if (state != ncclSuccess && state != ncclInProgress)
			return state;
		if (state == ncclInProgress)
			worst = state;
	}
	return worst;
}

/* Return the error if the clique cannot be used any more, else 0. */
static int clique_check_usable(struct cuda_clique *c)
{
	if (cuda_device_of_base(c->base.dev)->is_lost)
		return DEVICE_LOST;
	if (c->state == ABORTED)
		return cuda_refuse(c->base.dev, DEVICE_ARG, "the clique was aborted");
	return c->state == FAILED ? DEVICE_PEER : 0;
}

int cuda_clique_poll(struct device_clique *clique)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);
	ncclResult_t r;
	int rc = clique_check_usable(c);

	if (rc)
		return rc;
	r = clique_poll_communicators(c);
	if (r == ncclInProgress)
		return DEVICE_AGAIN;
	rc = clique_check_nccl_result(c, r, "a member of the clique failed");
	if (!rc)
		clique_set_state(c, READY, "all members are connected");
	return rc;
}

static void release_queues(struct cuda_clique *c)
{
	struct cuda_queue *q;

	while ((q = LIST_FIRST(&c->launching))) {
		LIST_REMOVE(q, entry);
		q->clique = NULL;
	}
}

int cuda_clique_launched(struct cuda_queue *q)
{
	struct cuda_clique *c = q->clique;
	int rc;

	if (!c)
		return 0;
	if (c->group_depth)
		return DEVICE_AGAIN;
	rc = c->state == READY ? 0 : cuda_clique_poll(&c->base);
	if (!rc)
		release_queues(c);
	return rc;
}

/* Arguments of NCCL's functions for one piece of a collective. */
struct nccl_part {
	char *at;
	struct cuda_queue *queue;
	CUstream stream;
	ncclComm_t comm;
	int rank;
};

static int clique_check_piece(struct cuda_clique *c, int i, const struct device_piece *p,
	uint64_t bytes, struct nccl_part *ret)
{
	struct cuda_member *m = &c->member[i];
	struct device *dev = c->base.dev;
	uint64_t addr = cuda_memory_address(p->mem, m->gpu);

	if (p->queue->gpu != m->gpu || !addr || p->mem->gpu == DEVICE_HOST)
		return cuda_refuse(dev, DEVICE_ARG,
			"the memory of the clique's member %d is not on the member's GPU %d",
			m->rank, m->gpu);
	if (p->offset > p->mem->bytes || bytes > p->mem->bytes - p->offset)
		return cuda_refuse(dev, DEVICE_ARG, "a collective exceeds the memory of a member");
	*ret = (struct nccl_part){
		.at = (char *)(uintptr_t)addr + p->offset,
		.queue = (struct cuda_queue *)p->queue,
		.stream = ((struct cuda_queue *)p->queue)->stream,
		.comm = m->comm,
		.rank = m->rank,
	};
	return 0;
}

/* Check all arguments before NCCL is called, because a collective that only some members start
 * would block these members forever. */
static int clique_check_collective(struct cuda_clique *c, const struct device_piece *pieces,
	uint64_t blocks, uint64_t count, enum dtype dtype, enum op op, struct nccl_part *ret)
{
	struct device *dev = c->base.dev;
	uint64_t bytes;
	int rc = clique_check_usable(c);

	if (rc)
		return rc;
	if (c->state != READY)
		return cuda_refuse(dev, DEVICE_ARG,
			"a collective cannot start while its clique is %s",
			clique_state_name(c->state));
	if (!dtype_bytes(dtype) || !op_is_valid_for_dtype(op, dtype) || op_is_bitwise(op) ||
		(op == OP_AVG && !dtype_is_float(dtype)))
		return cuda_refuse(dev, DEVICE_ARG, "a clique cannot compute %s of %s", op_name(op),
			dtype_name(dtype));
	if (!count || __builtin_mul_overflow(count, blocks, &bytes) ||
		__builtin_mul_overflow(bytes, dtype_bytes(dtype), &bytes))
		return cuda_refuse(dev, DEVICE_ARG,
			"a collective over %llu elements is empty or too large",
			(unsigned long long)count);
	for (int i = 0; i < c->base.n_local && !rc; i++)
		rc = clique_check_piece(c, i, &pieces[i], bytes, &ret[i]);
	return rc;
}

static int clique_start_nccl_group(struct cuda_clique *c)
{
	return clique_check_nccl_result(c, c->nccl->GroupStart(), "cannot begin a collective");
}

/* Begin a collective. Until its launch is complete, the queues of its pieces accept only
 * collectives of this clique. */
static int clique_start_launch(struct cuda_clique *c, const struct nccl_part *parts)
{
	int rc = 0;

	for (int i = 0; i < c->base.n_local && !rc; i++)
		if (parts[i].queue->clique != c)
			rc = cuda_clique_launched(parts[i].queue);
	if (!rc)
		rc = clique_start_nccl_group(c);
	for (int i = 0; i < c->base.n_local && !rc; i++) {
		struct cuda_queue *q = parts[i].queue;

		if (!q->clique)
			LIST_INSERT_HEAD(&c->launching, q, entry);
		q->clique = c;
	}
	return rc;
}

static int clique_check_root(struct cuda_clique *c, int root)
{
	if (root >= 0 && root < c->base.n_ranks)
		return 0;
	return cuda_refuse(c->base.dev, DEVICE_ARG,
		"root %d of a collective is not one of the %d ranks", root, c->base.n_ranks);
}

/* Check all arguments, and start the collective. root: 0 if the collective has no root. */
static int clique_begin_collective(struct cuda_clique *c, const struct device_piece *pieces,
	uint64_t blocks, uint64_t count, enum dtype dtype, enum op op, int root,
	struct nccl_part *ret)
{
	int rc = clique_check_collective(c, pieces, blocks, count, dtype, op, ret);

	if (!rc)
		rc = clique_check_root(c, root);
	return rc ? rc : clique_start_launch(c, ret);
}

/* End a group of NCCL calls. The end of the outermost group launches the collectives. If the launch
 * is not complete yet, the state becomes LAUNCHING, and clique_poll reports the end of the
 * launch. */
static int clique_end_nccl_group(struct cuda_clique *c, int rc)
{
	ncclResult_t r = c->nccl->GroupEnd();
	int failed = clique_check_nccl_result(c, r, "cannot launch a collective");

	if (!rc && !failed && !c->group_depth && r == ncclInProgress)
		clique_set_state(c, LAUNCHING, "collective");
	return rc ? rc : failed;
}

int cuda_reduce_scatter(struct device_clique *clique, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype, enum op op)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);
	uint64_t block = count_per_rank * dtype_bytes(dtype);
	struct nccl_part p[DEVICE_GPUS_MAX];
	int rc = clique_begin_collective(
		c, pieces, (uint64_t)c->base.n_ranks, count_per_rank, dtype, op, 0, p);

	if (rc)
		return rc;
	for (int i = 0; i < c->base.n_local && !rc; i++)
		rc = clique_check_nccl_result(c,
			c->nccl->ReduceScatter(p[i].at, p[i].at + (uint64_t)p[i].rank * block,
				count_per_rank, (ncclDataType_t)dtype, (ncclRedOp_t)op, p[i].comm,
				p[i].stream),
			"cannot queue a reduce-scatter");
	return clique_end_nccl_group(c, rc);
}

int cuda_all_gather(struct device_clique *clique, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);
	uint64_t block = count_per_rank * dtype_bytes(dtype);
	struct nccl_part p[DEVICE_GPUS_MAX];
	int rc = clique_begin_collective(
		c, pieces, (uint64_t)c->base.n_ranks, count_per_rank, dtype, OP_SUM, 0, p);

	if (rc)
		return rc;
	for (int i = 0; i < c->base.n_local && !rc; i++)
		rc = clique_check_nccl_result(c,
			c->nccl->AllGather(p[i].at + (uint64_t)p[i].rank * block, p[i].at,
				count_per_rank, (ncclDataType_t)dtype, p[i].comm, p[i].stream),
			"cannot queue an all-gather");
	return clique_end_nccl_group(c, rc);
}

int cuda_reduce(struct device_clique *clique, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, enum op op, int root)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);
	struct nccl_part p[DEVICE_GPUS_MAX];
	int rc = clique_begin_collective(c, pieces, 1, count, dtype, op, root, p);

	if (rc)
		return rc;
	for (int i = 0; i < c->base.n_local && !rc; i++)
		rc = clique_check_nccl_result(c,
			c->nccl->Reduce(p[i].at, p[i].rank == root ? p[i].at : NULL, count,
				(ncclDataType_t)dtype, (ncclRedOp_t)op, root, p[i].comm,
				p[i].stream),
			"cannot queue a reduction");
	return clique_end_nccl_group(c, rc);
}

int cuda_broadcast(struct device_clique *clique, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, int root)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);
	struct nccl_part p[DEVICE_GPUS_MAX];
	int rc = clique_begin_collective(c, pieces, 1, count, dtype, OP_SUM, root, p);

	if (rc)
		return rc;
	for (int i = 0; i < c->base.n_local && !rc; i++)
		rc = clique_check_nccl_result(c,
			c->nccl->Broadcast(p[i].at, p[i].at, count, (ncclDataType_t)dtype, root,
				p[i].comm, p[i].stream),
			"cannot queue a broadcast");
	return clique_end_nccl_group(c, rc);
}

int cuda_group_begin(struct device_clique *clique)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);
	int rc = clique_check_usable(c);

	if (rc)
		return rc;
	if (c->group_depth)
		return cuda_refuse(clique->dev, DEVICE_ARG,
			"a group of collectives begins inside another group");
	rc = clique_start_nccl_group(c);
	if (!rc)
		c->group_depth = 1;
	return rc;
}

int cuda_group_end(struct device_clique *clique)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);

	if (!c->group_depth)
		return cuda_refuse(clique->dev, DEVICE_ARG,
			"a group of collectives cannot end, because none has begun");
	c->group_depth = 0;
	return clique_end_nccl_group(c, clique_check_usable(c));
}

/* End an open group first, because NCCL keeps the group per thread and not per communicator. */
void cuda_clique_abort(struct device_clique *clique)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);

	if (cuda_device_of_base(clique->dev)->is_lost)
		return;
	if (c->group_depth) {
		c->group_depth = 0;
		c->nccl->GroupEnd();
	}
	for (int i = 0; i < clique->n_local; i++) {
		struct cuda_member *m = &c->member[i];

		if (m->comm && !cuda_enter_context(clique->dev, m->gpu))
			c->nccl->CommAbort(m->comm);
		m->comm = NULL;
	}
	release_queues(c);
	clique_set_state(c, ABORTED, "abort requested");
}

static void clique_finalize_communicators(struct cuda_clique *c)
{
	for (int i = 0; i < c->base.n_local; i++)
		if (!cuda_enter_context(c->base.dev, c->member[i].gpu))
			clique_check_nccl_result(c, c->nccl->CommFinalize(c->member[i].comm),
				"cannot leave a clique");
}

/* Leave the clique: finalize and destroy the communicators. Finalizing waits until the other
 * members have read the data sent to them. This wait is short if all members leave. The wait has a
 * time limit, because another member may never leave. Returns false if the clique must be
 * aborted. */
static bool clique_try_leave(struct cuda_clique *c)
{
	const struct timespec nap = {.tv_nsec = 200000};
	uint64_t deadline_ns = clock_now_ns() + LEAVE_NS;
	ncclResult_t r;

	clique_finalize_communicators(c);
	if (c->state != READY)
		return false;
	while ((r = clique_poll_communicators(c)) == ncclInProgress && clock_now_ns() < deadline_ns)
		nanosleep(&nap, NULL);
	if (r != ncclSuccess)
		return false;
	for (int i = 0; i < c->base.n_local; i++) {
		struct cuda_member *m = &c->member[i];

		if (!cuda_enter_context(c->base.dev, m->gpu))
			c->nccl->CommDestroy(m->comm);
		m->comm = NULL;
	}
	return true;
}

void cuda_clique_close(struct device_clique *clique)
{
	struct cuda_clique *c = cuda_clique_of_base(clique);

	if (!c)
		return;
	if (cuda_device_of_base(clique->dev)->is_lost)
		goto out;
	if (c->state != READY || c->group_depth || !clique_try_leave(c))
		cuda_clique_abort(clique);
out:
	release_queues(c);
	free(c);
}
