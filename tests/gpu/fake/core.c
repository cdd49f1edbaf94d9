/* Initialisation, faults, trace and contexts of the fake driver. */
#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/control.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dlfcn.h>
#include <unistd.h>

#define NAMES_MAX  128
#define FAULTS_MAX 32
#define MAGIC      0xfa4ec0deu

struct fake fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.progress = PTHREAD_COND_INITIALIZER,
};

static struct {
	char name[48];
	uint64_t calls;
} names[NAMES_MAX];

static struct {
	char name[48];
	uint64_t first;
	bool is_all;
	int code;
	uint64_t seen;
} faults[FAULTS_MAX];

#define STACK_MAX 16
static _Thread_local struct fake_ctx *current;
/* The thread's stack of contexts, without the current context. A push puts the current context
 * here and makes another context current. A pop makes the top context of this stack current. */
static _Thread_local struct fake_ctx *stack[STACK_MAX];
static _Thread_local int stack_depth;

void fake_misuse(const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "fake cuda: %s\n", text);
	fflush(stderr);
	abort();
}

FAKE_EXPORT void fakecuda_nccl_misuse(const char *what)
{
	fake_misuse("NCCL: %s", what);
}

void fake_trace(const char *fmt, ...)
{
	char line[300];
	va_list ap;
	int n, m;

	if (!fake.trace_fd)
		return;
	n = snprintf(line, sizeof(line), "%d ", fake.pid);
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	n = n + m < (int)sizeof(line) - 1 ? n + m : (int)sizeof(line) - 2;
	line[n] = '\n';
	if (write(fake.trace_fd, line, (size_t)n + 1) < 0)
		fake_misuse("cannot write the trace");
}

/* Remove a suffix such as _v2: "cuMemAlloc" for "cuMemAlloc_v2". */
static void plain(const char *name, char ret[48])
{
	size_t n = strlen(name);

	if (n > 3 && name[n - 3] == '_' && name[n - 2] == 'v')
		n -= 3;
	snprintf(ret, 48, "%.*s", (int)(n < 47 ? n : 47), name);
}

static uint64_t *calls_of(const char *name)
{
	for (unsigned i = 0; i < NAMES_MAX; i++) {
		if (!names[i].name[0])
			snprintf(names[i].name, sizeof(names[i].name), "%s", name);
		if (!strcmp(names[i].name, name))
			return &names[i].calls;
	}
	fake_misuse("too many functions");
}

/* Return whether a code is sticky. After a sticky code the process has to end, according to the
 * driver's documentation. */
bool fake_is_sticky(int code)
{
	return (code >= 700 && code < 800 && code != 704 && code != 705 && code != 708 &&
		       code != 712 && code != 713) ||
	       code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_NVLINK_UNCORRECTABLE ||
	       code == CUDA_ERROR_MPS_CLIENT_TERMINATED || code == CUDA_ERROR_UNKNOWN;
}

static int parse_code(const char *s)
{
	return !strcmp(s, "hang") ? FAKE_HANG : atoi(s);
}

static void parse_faults(const char *spec)
{
	char copy[1024], *save = NULL;
	unsigned n = 0;

	memset(faults, 0, sizeof(faults));
	snprintf(copy, sizeof(copy), "%s", spec ? spec : "");
	for (char *f = strtok_r(copy, ",", &save); f; f = strtok_r(NULL, ",", &save)) {
		char *colon = strchr(f, ':'), *equals = strchr(f, '=');

		if (!colon || !equals || colon > equals || n == FAULTS_MAX)
			fake_misuse("cannot read the fault '%s'", f);
		faults[n].is_all = equals[-1] == '+';
		*colon = *equals = 0;
		snprintf(faults[n].name, sizeof(faults[n].name), "%s", f);
		faults[n].first = strtoull(colon + 1, NULL, 10);
		faults[n].code = parse_code(equals + 1);
		n++;
	}
}

int fake_fault(const char *name)
{
	int code = 0;

	for (unsigned i = 0; i < FAULTS_MAX && faults[i].name[0]; i++) {
		if (strcmp(faults[i].name, name))
			continue;
		faults[i].seen++;
		if (faults[i].seen == faults[i].first ||
			(faults[i].is_all && faults[i].seen > faults[i].first))
			code = faults[i].code;
	}
	return code;
}

FAKE_EXPORT void fakecuda_faults(const char *spec)
{
	pthread_mutex_lock(&fake.lock);
	parse_faults(spec);
	fake.sticky = 0;
	fake.epoch++;
	pthread_cond_broadcast(&fake.progress);
	pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT uint64_t fakecuda_calls(const char *name)
{
	uint64_t n;

	pthread_mutex_lock(&fake.lock);
	n = *calls_of(name);
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static int environment(const char *name, int missing)
{
	const char *s = getenv(name);

	return s && *s ? atoi(s) : missing;
}

static void choose_gpus(void)
{
	int machine = environment("FAKE_CUDA_GPUS", 1);
	const char *s = getenv("FAKE_CUDA_VISIBLE");

	if (machine < 0 || machine > FAKE_GPUS_MAX)
		fake_misuse("FAKE_CUDA_GPUS=%d", machine);
	fake.n_gpus = 0;
	for (int i = 0; !s && i < machine; i++)
		fake.gpu[fake.n_gpus++] = i;
	while (s && *s && fake.n_gpus < FAKE_GPUS_MAX) {
		char *end;
		long ordinal = strtol(s, &end, 10);

		if (end == s || ordinal < 0 || ordinal >= machine)
			break;
		fake.gpu[fake.n_gpus++] = (int)ordinal;
		s = *end == ',' ? end + 1 : end;
	}
}

static void start(void)
{
	const char *trace = getenv("FAKE_CUDA_TRACE"), *links = getenv("FAKE_CUDA_LINKS");

	fake.pid = getpid();
	if (getenv("FAKE_CUDA_FAULTS"))
		parse_faults(getenv("FAKE_CUDA_FAULTS"));
	if (trace)
		fake.trace_fd = open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fake.trace_fd < 0)
		fake_misuse("cannot open the trace '%s'", trace);
	fake.delay_us = (unsigned)environment("FAKE_CUDA_DELAY_US", 0);
	fake.links = !links || !strcmp(links, "nvlink") ? 2 : !strcmp(links, "pci");
	choose_gpus();
}

static CUresult begin(const char *name, int *ret_code)
{
	char id[48];

	plain(name, id);
	++*calls_of(id);
	*ret_code = fake_fault(id);
	if (*ret_code > 0 && fake_is_sticky(*ret_code))
		fake.sticky = *ret_code;
	return fake.sticky ? (CUresult)fake.sticky : (CUresult)(*ret_code > 0 ? *ret_code : 0);
}

static void hang(void)
{
	unsigned epoch = fake.epoch;

	while (fake.epoch == epoch)
		pthread_cond_wait(&fake.progress, &fake.lock);
}

CUresult fake_enter(const char *name, const char *fmt, ...)
{
	char args[200];
	va_list ap;
	CUresult r;
	int code;

	pthread_mutex_lock(&fake.lock);
	if (!fake.pid)
		start();
	if (fake.pid != getpid())
		fake_misuse("%s in the child of a fork", name);
	va_start(ap, fmt);
	vsnprintf(args, sizeof(args), fmt, ap);
	va_end(ap);
	fake_trace("%s %s", name, args);
	r = begin(name, &code);
	if (code == FAKE_HANG)
		hang();
	if (!r && !fake.is_init && strcmp(name, "cuInit") && strcmp(name, "cuDriverGetVersion"))
		r = CUDA_ERROR_NOT_INITIALIZED;
	if (r)
		pthread_mutex_unlock(&fake.lock);
	return r;
}

CUresult fake_leave(CUresult r)
{
	pthread_mutex_unlock(&fake.lock);
	return r;
}

FAKE_EXPORT int fakecuda_nccl_enter(const char *name)
{
	CUresult r = fake_enter(name, "%s", "");

	return r ? (int)r : (int)fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT void fakecuda_nccl_live(int difference)
{
	pthread_mutex_lock(&fake.lock);
	fake.live_communicators += (unsigned)difference;
	pthread_mutex_unlock(&fake.lock);
}

struct fake_ctx *fake_current(void)
{
	if (!current)
		fake_misuse("no context is current");
	if (current->magic != MAGIC || !current->refs)
		fake_misuse("the current context was released");
	return current;
}

FAKE_EXPORT int fakecuda_current_gpu(void)
{
	int dev;

	pthread_mutex_lock(&fake.lock);
	dev = fake_current()->dev;
	pthread_mutex_unlock(&fake.lock);
	return dev;
}

int fake_dev(CUdevice dev)
{
	if (dev < 0 || dev >= fake.n_gpus)
		fake_misuse("no device %d of %d", dev, fake.n_gpus);
	return dev;
}

FAKE_EXPORT CUresult CUDAAPI cuInit(unsigned flags)
{
	CUresult r = fake_enter(__func__, "%u", flags);

	if (r)
		return r;
	if (!fake.n_gpus)
		return fake_leave(CUDA_ERROR_NO_DEVICE);
	fake.is_init = true;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDriverGetVersion(int *ret)
{
	CUresult r = fake_enter(__func__, "%s", "");

	if (r)
		return r;
	*ret = environment("FAKE_CUDA_VERSION", 13000);
	return fake_leave(CUDA_SUCCESS);
}

static const struct {
	int code;
	const char *name;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
	{CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	{CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"},
	{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
	{CUDA_ERROR_MPS_CONNECTION_FAILED, "CUDA_ERROR_MPS_CONNECTION_FAILED"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

FAKE_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult error, const char **ret)
{
	*ret = "CUDA_ERROR_OF_THE_FAKE";
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == (int)error)
			*ret = errors[i].name;
	return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult error, const char **ret)
{
	return cuGetErrorName(error, ret);
}

/* Return the newest version of a function. The real driver returns the newest version that the
 * argument `version` allows. */
FAKE_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **ret, int version,
	cuuint64_t flags, CUdriverProcAddressQueryResult *ret_status)
{
	static const char *const suffixes[] = {"_v3", "_v2", ""};
	CUresult r = fake_enter(__func__, "%s %d %llu", symbol, version, (unsigned long long)flags);
	char name[96];

	if (r)
		return r;
	*ret = NULL;
	for (unsigned i = 0; i < 3 && !*ret; i++) {
		snprintf(name, sizeof(name), "%s%s", symbol, suffixes[i]);
		*ret = dlsym(RTLD_DEFAULT, name);
	}
	if (ret_status)
		*ret_status =
			*ret ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return fake_leave(*ret ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

FAKE_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice dev)
{
	CUresult r = fake_enter(__func__, "%d", dev);
	struct fake_ctx *c;

	if (r)
		return r;
	c = &fake.ctx[fake_dev(dev)];
	c->magic = MAGIC;
	c->dev = dev;
	c->refs++;
	*ret = (CUcontext)(void *)c;
	return fake_leave(CUDA_SUCCESS);
}

/* The real driver destroys what is left in a context. In the fake, objects that are left are a
 * misuse, since our programs must close everything. */
static void check_empty(const struct fake_ctx *c)
{
	const struct fake_area *a;
	const struct CUstream_st *s;
	const struct CUevent_st *e;

	LIST_FOREACH (a, &fake.areas, entry)
		if (a->ctx == c)
			fake_misuse("GPU %d is released with memory at %#llx", c->dev, a->addr);
	LIST_FOREACH (s, &fake.streams, entry)
		if (s->ctx == c && s != c->default_stream && !s->is_closed)
			fake_misuse("GPU %d is released with stream %u", c->dev, s->number);
	LIST_FOREACH (e, &fake.events, entry)
		if (e->ctx == c)
			fake_misuse("GPU %d is released with an event", c->dev);
}

FAKE_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
	CUresult r = fake_enter(__func__, "%d", dev);
	struct fake_ctx *c;

	if (r)
		return r;
	c = &fake.ctx[fake_dev(dev)];
	if (!c->refs)
		fake_misuse("GPU %d is released, but was not retained", dev);
	if (c->refs == 1)
		check_empty(c);
	c->refs--;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
	CUresult r = fake_enter(__func__, "%d", dev);

	if (r)
		return r;
	*flags = 0;
	*active = fake.ctx[fake_dev(dev)].refs > 0;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx)
{
	CUresult r = fake_enter(__func__, "%p", (void *)ctx);

	if (r)
		return r;
	current = (struct fake_ctx *)(void *)ctx;
	if (current)
		fake_current();
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *ret)
{
	CUresult r = fake_enter(__func__, "%s", "");

	if (r)
		return r;
	*ret = (CUcontext)(void *)current;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx)
{
	CUresult r = fake_enter(__func__, "%p", (void *)ctx);

	if (r)
		return r;
	if (stack_depth == STACK_MAX)
		fake_misuse("contexts are pushed and not popped");
	stack[stack_depth++] = current;
	current = (struct fake_ctx *)(void *)ctx;
	fake_current();
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxPopCurrent(CUcontext *ret)
{
	CUresult r = fake_enter(__func__, "%s", "");

	if (r)
		return r;
	if (!stack_depth)
		fake_misuse("a context that was not pushed is popped");
	if (ret)
		*ret = (CUcontext)(void *)current;
	current = stack[--stack_depth];
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice *ret)
{
	CUresult r = fake_enter(__func__, "%s", "");

	if (r)
		return r;
	if (!current)
		return fake_leave(CUDA_ERROR_INVALID_CONTEXT);
	*ret = fake_current()->dev;
	return fake_leave(CUDA_SUCCESS);
}

static unsigned count_contexts(void)
{
	unsigned n = 0;

	for (int i = 0; i < fake.n_gpus; i++)
		n += fake.ctx[i].refs;
	return n;
}

static void count_areas(struct fakecuda_live *ret)
{
	struct fake_area *a;
	struct fake_map *m;

	LIST_FOREACH (a, &fake.areas, entry) {
		ret->reservations += a->kind == AREA_RESERVED;
		ret->allocations += a->kind == AREA_ALLOC;
		ret->imports += a->kind == AREA_IPC;
		ret->pinned += a->kind == AREA_PINNED;
		LIST_FOREACH (m, &a->maps, entry)
			ret->mappings++;
	}
}

FAKE_EXPORT void fakecuda_live(struct fakecuda_live *ret)
{
	struct fake_handle *h;
	struct CUstream_st *s;
	struct CUevent_st *e;

	memset(ret, 0, sizeof(*ret));
	pthread_mutex_lock(&fake.lock);
	ret->contexts = count_contexts();
	ret->communicators = fake.live_communicators;
	count_areas(ret);
	LIST_FOREACH (h, &fake.handles, entry)
		ret->handles++;
	LIST_FOREACH (s, &fake.streams, entry)
		ret->streams += !s->is_closed && s != s->ctx->default_stream;
	LIST_FOREACH (e, &fake.events, entry)
		ret->events++;
	pthread_mutex_unlock(&fake.lock);
}
