/* A libnccl.so.2 for communicators within one process, on top of the fake driver. A collective is
 * work in the streams of its ranks. The work of a rank waits for the work of the other ranks, and
 * then computes the real result. All communicators are nonblocking. Some misuses make the real NCCL
 * hang or damage data. The fake ends the process with an error line after such a misuse. Examples:
 *   - A communicator is used before it is ready, or after its end.
 *   - A stream is used while NCCL launches work on it.
 *   - Ranks call different functions.
 *   - A communicator is destroyed without being finalized.
 *
 * There is one lock. It is never held while a thread takes the driver's lock. Streams run their
 * work without holding the driver's lock. */
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "tests/gpu/fake/elem.h"
#include "tests/gpu/fake/fake.h"

/* NCCL's header declares these two functions without (void). */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

enum kind { REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST };

struct what { /* arguments of a collective that must be equal on all ranks */
	enum kind kind;
	size_t count;
	int type, op, root;
};

struct meeting { /* one collective, in which the calls of all ranks meet */
	TAILQ_ENTRY(meeting) entry;
	struct clique *clique;
	uint64_t seq;
	struct what what;
	int arrived, left;
	bool is_done;
	void *send[FAKE_GPUS_MAX], *recv[FAKE_GPUS_MAX];
};

struct clique {
	LIST_ENTRY(clique) entry;
	ncclUniqueId id;
	int n_ranks, joined, finalized;
	bool is_aborted, has_duplicate;
	ncclComm_t rank[FAKE_GPUS_MAX];
	TAILQ_HEAD(, meeting) meetings;
};

struct nccl_call { /* a rank's call of a collective: queued, or waiting for its launch */
	TAILQ_ENTRY(nccl_call) entry;
	ncclComm_t comm;
	struct what what;
	uint64_t seq;
	CUstream stream;
	bool is_launched; /* the group of calls has ended */
	CUdeviceptr addr[2];
	size_t bytes[2];
	void *send, *recv;
};

enum life { NEW, LIVE, FINALIZING, DEAD };

struct ncclComm {
	struct clique *clique;
	int rank, gpu, polls_left;
	enum life life;
	ncclResult_t result;
	uint64_t seq;
	TAILQ_HEAD(, nccl_call) launching;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	LIST_HEAD(, clique) cliques;
	uint64_t last_id;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

/* Number of groups that the thread has begun and not ended. */
static _Thread_local int depth;
static _Thread_local struct ncclComm *opening[FAKE_GPUS_MAX];
static _Thread_local int n_opening;
static _Thread_local struct ncclComm *calling[FAKE_GPUS_MAX * 64];
static _Thread_local int n_calling;

/* Number of polls that return InProgress before an operation is complete. The delay detects
 * programs that do not poll. */
#define POLLS 3

static ncclResult_t enter(const char *name)
{
	int code = fakecuda_nccl_enter(name);

	return code < ncclNumResults ? (ncclResult_t)code : ncclUnhandledCudaError;
}

FAKE_EXPORT ncclResult_t ncclGetVersion(int *ret)
{
	const char *s = getenv("FAKE_NCCL_VERSION");

	*ret = s ? atoi(s) : 22809;
	return ncclSuccess;
}

FAKE_EXPORT const char *ncclGetErrorString(ncclResult_t r)
{
	static const char *const texts[] = {"no error", "unhandled cuda error",
		"unhandled system error", "internal error", "invalid argument", "invalid usage",
		"remote process exited", "in progress"};

	return (unsigned)r < sizeof(texts) / sizeof(texts[0]) ? texts[r] : "unknown";
}

FAKE_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
	return comm ? "last error of a communicator" : "last error";
}

FAKE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *ret)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	memset(ret, 0, sizeof(*ret));
	pthread_mutex_lock(&all.lock);
	all.last_id++;
	memcpy(ret->internal, &all.last_id, sizeof(all.last_id));
	pthread_mutex_unlock(&all.lock);
	return ncclSuccess;
}

static struct clique *clique_of(const ncclUniqueId *id, int n_ranks)
{
	struct clique *c;

	LIST_FOREACH (c, &all.cliques, entry)
		if (!memcmp(&c->id, id, sizeof(*id)))
			break;
	if (!c) {
		c = fake_alloc(sizeof(*c));
		c->id = *id;
		c->n_ranks = n_ranks;
		TAILQ_INIT(&c->meetings);
		LIST_INSERT_HEAD(&all.cliques, c, entry);
	}
	if (c->n_ranks != n_ranks)
		fakecuda_nccl_misuse("members name different numbers of ranks");
	return c;
}

/* Make a communicator. A NULL config would make a blocking communicator, which cannot be aborted.
 * The product never uses blocking communicators. */
FAKE_EXPORT ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *ret, int n_ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	ncclResult_t r = enter(__func__);
	struct ncclComm *comm;

	if (r)
		return r;
	if (!config || config->magic != 0xcafebeef || config->blocking != 0)
		fakecuda_nccl_misuse("a communicator that is not nonblocking");
	if (!depth || n_opening == FAKE_GPUS_MAX)
		fakecuda_nccl_misuse("communicators of several GPUs must be opened in one group");
	if (n_ranks < 1 || n_ranks > FAKE_GPUS_MAX || rank < 0 || rank >= n_ranks)
		return ncclInvalidArgument;
	comm = fake_alloc(sizeof(*comm));
	comm->gpu = fakecuda_current_gpu();
	comm->rank = rank;
	TAILQ_INIT(&comm->launching);
	pthread_mutex_lock(&all.lock);
	comm->clique = clique_of(&id, n_ranks);
	if (comm->clique->rank[rank])
		fakecuda_nccl_misuse("a rank joins twice");
	for (int i = 0; i < n_ranks; i++)
		if (comm->clique->rank[i] && comm->clique->rank[i]->gpu == comm->gpu)
			comm->clique->has_duplicate = true;
	comm->clique->rank[rank] = comm;
	pthread_mutex_unlock(&all.lock);
	opening[n_opening++] = comm;
	fakecuda_nccl_live(1);
	*ret = comm;
	return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclGroupStart(void)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	depth++;
	return ncclSuccess;
}

static void open_all(void)
{
	for (int i = 0; i < n_opening; i++) {
		opening[i]->polls_left = POLLS;
		opening[i]->clique->joined++;
	}
	n_opening = 0;
}

/* Launch the calls of a group. This does not put the work of the calls into the queues of their
 * streams. A later ncclCommGetAsyncError does that (start_launched). */
static void launch_all(void)
{
	struct nccl_call *call;

	for (int i = 0; i < n_calling; i++) {
		calling[i]->polls_left = POLLS;
		for (call = TAILQ_FIRST(&calling[i]->launching); call;
			call = TAILQ_NEXT(call, entry)) {
			call->is_launched = true;
			fakecuda_stream_launching(call->stream, true);
		}
	}
	n_calling = 0;
}

FAKE_EXPORT ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t r = enter(__func__);
	bool is_any;

	if (!depth)
		fakecuda_nccl_misuse("a group that was not started is ended");
	if (--depth)
		return r;
	if (r) {
		n_opening = n_calling = 0;
		return r;
	}
	pthread_mutex_lock(&all.lock);
	is_any = n_opening || n_calling;
	open_all();
	launch_all();
	pthread_mutex_unlock(&all.lock);
	return is_any ? ncclInProgress : ncclSuccess;
}

static void compute(struct meeting *m)
{
	const struct what *w = &m->what;
	size_t bytes = w->count * elem_bytes((ncclDataType_t)w->type);
	int n = m->clique->n_ranks;
	char *tmp = fake_alloc(bytes * (size_t)n);
	void *from[FAKE_GPUS_MAX];

	for (int block = 0; block < n; block++) {
		for (int i = 0; i < n; i++)
			from[i] = (char *)m->send[i] +
				  (w->kind == REDUCE_SCATTER ? bytes * (size_t)block : 0);
		if (w->kind == ALL_GATHER)
			memcpy(tmp + bytes * (size_t)block, m->send[block], bytes);
		else if (w->kind == BROADCAST)
			memcpy(tmp, m->send[w->root], bytes);
		else
			elem_reduce(tmp + bytes * (size_t)block, from, n, w->count,
				(ncclDataType_t)w->type, (ncclRedOp_t)w->op);
	}
	for (int i = 0; i < n; i++) {
		if (w->kind == ALL_GATHER)
			memcpy(m->recv[i], tmp, bytes * (size_t)n);
		else if (w->kind == REDUCE_SCATTER)
			memcpy(m->recv[i], tmp + bytes * (size_t)i, bytes);
		else if (w->kind == BROADCAST || i == w->root)
			memcpy(m->recv[i], tmp, bytes);
	}
	free(tmp);
}

static struct meeting *meeting_of(struct clique *c, const struct nccl_call *call)
{
	struct meeting *m;

	for (m = TAILQ_FIRST(&c->meetings); m; m = TAILQ_NEXT(m, entry))
		if (m->seq == call->seq)
			break;
	if (!m) {
		m = fake_alloc(sizeof(*m));
		m->clique = c;
		m->seq = call->seq;
		m->what = call->what;
		TAILQ_INSERT_TAIL(&c->meetings, m, entry);
	}
	if (memcmp(&m->what, &call->what, sizeof(m->what)) != 0)
		fakecuda_nccl_misuse("ranks call different collectives");
	return m;
}

/* Wait until the collective is done, the communicator is aborted, or a sticky error has occurred.
 * A kernel of NCCL that polls for the other ranks waits in the same way. */
static void wait_done(struct meeting *m)
{
	while (!m->is_done && !m->clique->is_aborted && !fakecuda_sticky()) {
		struct timespec t;

		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += 1000000;
		if (t.tv_nsec >= 1000000000)
			t.tv_sec++, t.tv_nsec -= 1000000000;
		pthread_cond_timedwait(&all.wake, &all.lock, &t);
	}
}

/* Do the work of one rank's call. This function runs in the stream's thread. */
static void collective(void *arg)
{
	struct nccl_call *call = arg;
	struct clique *c = call->comm->clique;
	struct meeting *m;

	pthread_mutex_lock(&all.lock);
	m = meeting_of(c, call);
	m->send[call->comm->rank] = call->send;
	m->recv[call->comm->rank] = call->recv;
	if (++m->arrived == c->n_ranks && !c->is_aborted) {
		compute(m);
		m->is_done = true;
		pthread_cond_broadcast(&all.wake);
	}
	wait_done(m);
	if (++m->left == m->arrived && (m->arrived == c->n_ranks || c->is_aborted)) {
		TAILQ_REMOVE(&c->meetings, m, entry);
		free(m);
	}
	pthread_mutex_unlock(&all.lock);
	free(call);
}

static void check_life(ncclComm_t comm)
{
	if (!comm || comm->life == DEAD)
		fakecuda_nccl_misuse("a communicator is used after its end");
}

/* Put the work of the launched calls into the queues of their streams. ncclCommGetAsyncError calls
 * this function just before it reports success for the launch. The caller holds the lock. */
static void start_launched(ncclComm_t comm)
{
	struct nccl_call *call;

	while ((call = TAILQ_FIRST(&comm->launching)) && call->is_launched) {
		TAILQ_REMOVE(&comm->launching, call, entry);
		fakecuda_stream_launching(call->stream, false);
		fakecuda_stream_call(call->stream, collective, call, call->addr, call->bytes);
	}
}

static ncclResult_t progress(ncclComm_t comm)
{
	struct clique *c = comm->clique;

	if (comm->result)
		return comm->result;
	if (c->has_duplicate)
		return comm->result = ncclInvalidUsage;
	if (comm->life == NEW && c->joined < c->n_ranks)
		return ncclInProgress;
	if (comm->polls_left) {
		comm->polls_left--;
		return ncclInProgress;
	}
	if (comm->life == FINALIZING)
		return c->finalized == c->n_ranks ? ncclSuccess : ncclInProgress;
	comm->life = LIVE;
	start_launched(comm);
	return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *ret)
{
	ncclResult_t r = enter(__func__);

	pthread_mutex_lock(&all.lock);
	check_life(comm);
	if (r)
		comm->result = r;
	*ret = progress(comm);
	pthread_mutex_unlock(&all.lock);
	return ncclSuccess;
}

static void drop_launches(ncclComm_t comm)
{
	struct nccl_call *call;

	while ((call = TAILQ_FIRST(&comm->launching))) {
		TAILQ_REMOVE(&comm->launching, call, entry);
		fakecuda_stream_launching(call->stream, false);
		free(call);
	}
}

/* Abort a communicator. The communicator stays in the array `rank` of its clique, because running
 * work still reads the communicator. */
FAKE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	ncclResult_t r = enter(__func__);

	pthread_mutex_lock(&all.lock);
	check_life(comm);
	if (comm->gpu != fakecuda_current_gpu())
		fakecuda_nccl_misuse("a communicator is aborted in another GPU's context");
	drop_launches(comm);
	comm->life = DEAD;
	comm->clique->is_aborted = true;
	pthread_cond_broadcast(&all.wake);
	pthread_mutex_unlock(&all.lock);
	fakecuda_nccl_live(-1);
	return r;
}

FAKE_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	pthread_mutex_lock(&all.lock);
	check_life(comm);
	if (comm->life != LIVE || comm->polls_left)
		fakecuda_nccl_misuse("a communicator that is not ready is finalized");
	comm->life = FINALIZING;
	comm->polls_left = POLLS;
	comm->clique->finalized++;
	pthread_mutex_unlock(&all.lock);
	return ncclInProgress;
}

FAKE_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	pthread_mutex_lock(&all.lock);
	check_life(comm);
	if (comm->life != FINALIZING || comm->clique->finalized != comm->clique->n_ranks)
		fakecuda_nccl_misuse("a communicator that is not finalized is destroyed");
	comm->life = DEAD;
	pthread_mutex_unlock(&all.lock);
	fakecuda_nccl_live(-1);
	return ncclSuccess;
}

/* Check that an in-place call uses exactly the addresses that NCCL requires. */
static void check_place(ncclComm_t comm, const struct nccl_call *k, size_t block)
{
	size_t own = (size_t)comm->rank * block;
	CUdeviceptr s = k->addr[0], r = k->addr[1];

	if (!r || s + k->bytes[0] <= r || r + k->bytes[1] <= s)
		return;
	if ((k->what.kind == REDUCE_SCATTER && r != s + own) ||
		(k->what.kind == ALL_GATHER && s != r + own) ||
		((k->what.kind == REDUCE || k->what.kind == BROADCAST) && s != r))
		fakecuda_nccl_misuse("buffers that are not in place overlap");
}

static ncclResult_t queue(ncclComm_t comm, struct what what, const void *send, size_t send_blocks,
	void *recv, size_t recv_blocks, CUstream stream)
{
	size_t block = what.count * elem_bytes((ncclDataType_t)what.type);
	struct nccl_call *k = fake_alloc(sizeof(*k));

	if (!depth)
		fakecuda_nccl_misuse("collectives of several GPUs must be called in one group");
	pthread_mutex_lock(&all.lock);
	check_life(comm);
	if (comm->life != LIVE || comm->polls_left)
		fakecuda_nccl_misuse("a communicator that is not ready is used");
	if (!block || what.op > ncclAvg || fakecuda_stream_gpu(stream) != comm->gpu)
		fakecuda_nccl_misuse("no such collective, or a stream of another GPU");
	*k = (struct nccl_call){.comm = comm, .what = what, .seq = ++comm->seq, .stream = stream};
	k->addr[0] = (CUdeviceptr)send;
	k->addr[1] = (CUdeviceptr)recv;
	k->bytes[0] = block * send_blocks;
	k->bytes[1] = block * recv_blocks;
	check_place(comm, k, block);
	k->send = fakecuda_stream_bytes(stream, k->addr[0], k->bytes[0]);
	k->recv = recv ? fakecuda_stream_bytes(stream, k->addr[1], k->bytes[1]) : NULL;
	TAILQ_INSERT_TAIL(&comm->launching, k, entry);
	if (n_calling == sizeof(calling) / sizeof(calling[0]))
		fakecuda_nccl_misuse("too large a group");
	calling[n_calling++] = comm;
	pthread_mutex_unlock(&all.lock);
	return ncclSuccess;
}

/* Return the arguments of a call. All bytes are compared, so padding between fields must be
 * zero. */
static struct what what(enum kind kind, size_t count, ncclDataType_t type, int op, int root)
{
	struct what w;

	memset(&w, 0, sizeof(w));
	w.kind = kind;
	w.count = count;
	w.type = (int)type;
	w.op = op;
	w.root = root;
	return w;
}

FAKE_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count,
	ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	check_life(comm);
	return queue(comm, what(REDUCE_SCATTER, count, type, (int)op, 0), send,
		(size_t)comm->clique->n_ranks, recv, 1, stream);
}

FAKE_EXPORT ncclResult_t ncclAllGather(const void *send, void *recv, size_t count,
	ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	check_life(comm);
	return queue(comm, what(ALL_GATHER, count, type, 0, 0), send, 1, recv,
		(size_t)comm->clique->n_ranks, stream);
}

FAKE_EXPORT ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
	ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	check_life(comm);
	if (root == comm->rank && !recv)
		fakecuda_nccl_misuse("the root of a reduction has no receive buffer");
	return queue(comm, what(REDUCE, count, type, (int)op, root), send, 1, recv, 1, stream);
}

FAKE_EXPORT ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count,
	ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t r = enter(__func__);

	if (r)
		return r;
	check_life(comm);
	return queue(comm, what(BROADCAST, count, type, 0, root), send, 1, recv, 1, stream);
}
