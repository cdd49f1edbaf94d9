/* Streams and events of the fake driver, and their queued work. A stream is a thread that runs its
 * work in order. The thread ends when the stream is destroyed and its work is done. */
#include "tests/gpu/fake/fake.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Time between two checks of a value. Another process may change the value without waking a thread
 * of this process. */
#define LOOK_NS 50000

struct fake_work *fake_work_new(enum work_kind kind)
{
	struct fake_work *w = fake_alloc(sizeof(*w));

	w->kind = kind;
	return w;
}

static void marker_unref(struct fake_marker *m)
{
	if (m && !--m->refs)
		free(m);
}

static void wait_progress(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += LOOK_NS;
	if (t.tv_nsec >= 1000000000)
		t.tv_sec++, t.tv_nsec -= 1000000000;
	pthread_cond_timedwait(&fake.progress, &fake.lock, &t);
}

/* Wait for a value. A sticky error also ends the wait. */
static void wait_value(const struct fake_work *w)
{
	_Atomic uint64_t *counter = (_Atomic uint64_t *)(void *)w->dst;

	while (!fake.sticky &&
		(int64_t)(atomic_load_explicit(counter, memory_order_acquire) - w->value) < 0)
		wait_progress();
}

static void wait_marker(const struct fake_work *w)
{
	while (!fake.sticky && !w->marker->is_reached)
		pthread_cond_wait(&fake.progress, &fake.lock);
}

static void delay(unsigned *seed)
{
	struct timespec t = {0};
	long us = fake.delay_us ? rand_r(seed) % (long)(fake.delay_us + 1) : 0;

	if (!us)
		return;
	t.tv_sec = us / 1000000;
	t.tv_nsec = us % 1000000 * 1000;
	pthread_mutex_unlock(&fake.lock);
	nanosleep(&t, NULL);
	pthread_mutex_lock(&fake.lock);
}

/* Run the work without the lock. Meanwhile fake_area_free rejects the work's areas, because their
 * in_use counts are not zero. */
static void run_unlocked(const struct fake_work *w)
{
	pthread_mutex_unlock(&fake.lock);
	switch (w->kind) {
	case WORK_COPY:
		memmove(w->dst, w->src, w->bytes);
		break;
	case WORK_SET:
		memset(w->dst, (int)w->value, w->bytes);
		break;
	case WORK_WRITE:
		atomic_store_explicit(
			(_Atomic uint64_t *)(void *)w->dst, w->value, memory_order_release);
		break;
	case WORK_CALL:
		w->fn(w->arg);
		break;
	case WORK_WAIT:
	case WORK_MARK:
	case WORK_AFTER:
		break;
	}
	pthread_mutex_lock(&fake.lock);
}

static void run(CUstream s, struct fake_work *w)
{
	static const char *const kinds[] = {
		"copy", "set", "write", "wait", "mark", "after", "call"};
	unsigned epoch = fake.epoch;
	int code = fake_fault("work");

	while (code == FAKE_HANG && fake.epoch == epoch)
		pthread_cond_wait(&fake.progress, &fake.lock);
	if (code > 0)
		fake.sticky = code;
	if (fake.sticky)
		return;
	if (w->kind == WORK_WAIT)
		wait_value(w);
	else if (w->kind == WORK_AFTER)
		wait_marker(w);
	else
		run_unlocked(w);
	fake_trace("work stream %u: %s %zu %llu", s->number, kinds[w->kind], w->bytes,
		(unsigned long long)w->value);
}

static void finish(CUstream s, struct fake_work *w)
{
	for (int i = 0; i < 2; i++)
		if (w->area[i])
			w->area[i]->in_use--;
	if (w->kind == WORK_MARK)
		w->marker->is_reached = true;
	marker_unref(w->marker);
	free(w);
	s->done++;
	pthread_cond_broadcast(&fake.progress);
}

static void *stream_main(void *arg)
{
	CUstream s = arg;
	unsigned seed = s->number;

	pthread_mutex_lock(&fake.lock);
	for (;;) {
		struct fake_work *w = STAILQ_FIRST(&s->work);

		if (w) {
			delay(&seed);
			run(s, w);
			STAILQ_REMOVE_HEAD(&s->work, entry);
			finish(s, w);
		} else if (s->is_closed) {
			break;
		} else {
			pthread_cond_wait(&s->wake, &fake.lock);
		}
	}
	LIST_REMOVE(s, entry);
	pthread_mutex_unlock(&fake.lock);
	pthread_cond_destroy(&s->wake);
	free(s);
	return NULL;
}

static CUstream stream_new(struct fake_ctx *c)
{
	CUstream s = fake_alloc(sizeof(*s));
	pthread_attr_t attr;
	pthread_t thread;

	s->ctx = c;
	s->number = (unsigned)++fake.last_id;
	STAILQ_INIT(&s->work);
	pthread_cond_init(&s->wake, NULL);
	LIST_INSERT_HEAD(&fake.streams, s, entry);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, stream_main, s))
		fake_misuse("no thread for a stream");
	pthread_attr_destroy(&attr);
	return s;
}

static CUstream find(CUstream stream)
{
	CUstream s;

	if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
		struct fake_ctx *c = fake_current();

		if (!c->default_stream)
			c->default_stream = stream_new(c);
		return c->default_stream;
	}
	LIST_FOREACH (s, &fake.streams, entry)
		if (s == stream && !s->is_closed)
			return s;
	fake_misuse("stream %p does not live", (void *)stream);
}

CUstream fake_stream(CUstream stream)
{
	CUstream s = find(stream);

	if (s->ctx != fake_current())
		fake_misuse("stream %u of GPU %d is used in the context of GPU %d", s->number,
			s->ctx->dev, fake_current()->dev);
	if (s->is_launching)
		fake_misuse("stream %u is used while NCCL launches on it", s->number);
	return s;
}

void fake_queue(CUstream s, struct fake_work *w)
{
	for (int i = 0; i < 2; i++)
		if (w->area[i])
			w->area[i]->in_use++;
	if (w->marker)
		w->marker->refs++;
	s->queued++;
	STAILQ_INSERT_TAIL(&s->work, w, entry);
	pthread_cond_signal(&s->wake);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUresult r = fake_enter(__func__, "%s", "");

	if (r)
		return r;
	fake_current();
	*least = 0;
	*greatest = -5;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *ret, unsigned flags, int priority)
{
	CUresult r = fake_enter(__func__, "%u %d", flags, priority);

	if (r)
		return r;
	if (flags > CU_STREAM_NON_BLOCKING || priority > 0 || priority < -5)
		fake_misuse("a stream with flags %u, priority %d", flags, priority);
	*ret = stream_new(fake_current());
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *ret, unsigned flags)
{
	return cuStreamCreateWithPriority(ret, flags, 0);
}

/* Destroy a stream. Its queued work still runs. */
FAKE_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
	CUresult r = fake_enter(__func__, "%p", (void *)stream);
	CUstream s;

	if (r)
		return r;
	s = find(stream);
	if (s == s->ctx->default_stream)
		fake_misuse("the default stream is destroyed");
	s->is_closed = true;
	pthread_cond_signal(&s->wake);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamQuery(CUstream stream)
{
	CUresult r = fake_enter(__func__, "%p", (void *)stream);
	CUstream s;

	if (r)
		return r;
	s = find(stream);
	if (s->ctx != fake_current())
		fake_misuse("stream %u is queried in another context", s->number);
	return fake_leave(
		s->done == s->queued && !s->is_launching ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
	CUresult r = fake_enter(__func__, "%p", (void *)stream);
	uint64_t upto;
	CUstream s;

	if (r)
		return r;
	s = fake_stream(stream);
	upto = s->queued;
	while (s->done < upto && !fake.sticky)
		pthread_cond_wait(&fake.progress, &fake.lock);
	return fake_leave((CUresult)fake.sticky);
}

static bool is_settled(const struct fake_ctx *c)
{
	CUstream s;

	LIST_FOREACH (s, &fake.streams, entry)
		if (s->ctx == c && s->done < s->settle_at)
			return false;
	return true;
}

/* Wait for all work that the context's streams have at the time of the call. */
FAKE_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
	CUresult r = fake_enter(__func__, "%s", "");
	struct fake_ctx *c;
	CUstream s;

	if (r)
		return r;
	c = fake_current();
	LIST_FOREACH (s, &fake.streams, entry)
		if (s->ctx == c)
			s->settle_at = s->queued;
	while (!is_settled(c) && !fake.sticky)
		pthread_cond_wait(&fake.progress, &fake.lock);
	return fake_leave((CUresult)fake.sticky);
}

FAKE_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *ret, unsigned flags)
{
	CUresult r = fake_enter(__func__, "%u", flags);
	CUevent e;

	if (r)
		return r;
	e = fake_alloc(sizeof(*e));
	e->ctx = fake_current();
	LIST_INSERT_HEAD(&fake.events, e, entry);
	*ret = e;
	return fake_leave(CUDA_SUCCESS);
}

static CUevent event(CUevent event)
{
	CUevent e;

	LIST_FOREACH (e, &fake.events, entry)
		if (e == event)
			return e;
	fake_misuse("event %p does not live", (void *)event);
}

FAKE_EXPORT CUresult CUDAAPI cuEventDestroy(CUevent which)
{
	CUresult r = fake_enter(__func__, "%p", (void *)which);
	CUevent e;

	if (r)
		return r;
	e = event(which);
	LIST_REMOVE(e, entry);
	marker_unref(e->marker);
	free(e);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuEventRecord(CUevent which, CUstream stream)
{
	CUresult r = fake_enter(__func__, "%p %p", (void *)which, (void *)stream);
	struct fake_work *w;
	CUstream s;
	CUevent e;

	if (r)
		return r;
	e = event(which);
	s = fake_stream(stream);
	if (e->ctx != s->ctx)
		fake_misuse("an event of GPU %d is recorded on GPU %d", e->ctx->dev, s->ctx->dev);
	w = fake_work_new(WORK_MARK);
	w->marker = fake_alloc(sizeof(*w->marker));
	marker_unref(e->marker);
	e->marker = w->marker;
	e->marker->refs = 1;
	fake_queue(s, w);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuEventQuery(CUevent which)
{
	CUresult r = fake_enter(__func__, "%p", (void *)which);
	CUevent e;

	if (r)
		return r;
	e = event(which);
	return fake_leave(
		!e->marker || e->marker->is_reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent which, unsigned flags)
{
	CUresult r = fake_enter(__func__, "%p %p %u", (void *)stream, (void *)which, flags);
	struct fake_work *w;
	CUstream s;
	CUevent e;

	if (r)
		return r;
	s = fake_stream(stream);
	e = event(which);
	if (e->marker) {
		w = fake_work_new(WORK_AFTER);
		w->marker = e->marker;
		fake_queue(s, w);
	}
	return fake_leave(CUDA_SUCCESS);
}

static CUresult value_op(CUstream stream, CUdeviceptr addr, uint64_t value, enum work_kind kind)
{
	CUstream s = fake_stream(stream);
	struct fake_work *w = fake_work_new(kind);

	if (addr % 8)
		fake_misuse("a counter at %#llx", addr);
	w->area[0] = fake_device(addr, 8, s->ctx->dev);
	w->dst = w->area[0]->at + (addr - w->area[0]->addr);
	w->value = value;
	fake_queue(s, w);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamWriteValue64(
	CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned flags)
{
	CUresult r = fake_enter(
		__func__, "%p %#llx %llu", (void *)stream, addr, (unsigned long long)value);

	if (r)
		return r;
	if (flags != CU_STREAM_WRITE_VALUE_DEFAULT)
		fake_misuse("a value is written with flags %u", flags);
	return value_op(stream, addr, value, WORK_WRITE);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamWaitValue64(
	CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned flags)
{
	CUresult r = fake_enter(
		__func__, "%p %#llx %llu", (void *)stream, addr, (unsigned long long)value);

	if (r)
		return r;
	if (flags != CU_STREAM_WAIT_VALUE_GEQ)
		fake_misuse("a value is waited for with flags %u", flags);
	return value_op(stream, addr, value, WORK_WAIT);
}

FAKE_EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *arg)
{
	CUresult r = fake_enter(__func__, "%p", (void *)stream);
	struct fake_work *w;

	if (r)
		return r;
	w = fake_work_new(WORK_CALL);
	w->fn = fn;
	w->arg = arg;
	fake_queue(fake_stream(stream), w);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT void fakecuda_stream_call(CUstream stream, void (*fn)(void *), void *arg,
	const CUdeviceptr addr[2], const size_t bytes[2])
{
	struct fake_work *w;
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	s = find(stream);
	w = fake_work_new(WORK_CALL);
	w->fn = fn;
	w->arg = arg;
	for (int i = 0; i < 2; i++)
		if (addr[i])
			w->area[i] = fake_device(addr[i], bytes[i], s->ctx->dev);
	fake_queue(s, w);
	pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT char *fakecuda_stream_bytes(CUstream stream, CUdeviceptr addr, size_t bytes)
{
	struct fake_area *a;
	char *at;

	pthread_mutex_lock(&fake.lock);
	a = fake_device(addr, bytes, find(stream)->ctx->dev);
	at = a->at + (addr - a->addr);
	pthread_mutex_unlock(&fake.lock);
	return at;
}

FAKE_EXPORT void fakecuda_stream_launching(CUstream stream, bool is_launching)
{
	pthread_mutex_lock(&fake.lock);
	find(stream)->is_launching = is_launching;
	pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT int fakecuda_stream_gpu(CUstream stream)
{
	int dev;

	pthread_mutex_lock(&fake.lock);
	dev = find(stream)->ctx->dev;
	pthread_mutex_unlock(&fake.lock);
	return dev;
}

FAKE_EXPORT int fakecuda_sticky(void)
{
	int code;

	pthread_mutex_lock(&fake.lock);
	code = fake.sticky;
	pthread_mutex_unlock(&fake.lock);
	return code;
}
