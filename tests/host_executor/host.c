/* The back-end "host": its table of functions, its GPUs, and its memory, which consists of memfds.
 * Queues are in host_queue.c, cliques in host_clique.c. Thread: the executor's. */
#include "tests/host_executor/host.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/host_executor/host_impl.h"
#include "common/os/memfd.h"
#include "common/local/local.h"

#define GPUS_ENV     "BPS_DEVICE_HOST_GPUS"
#define GPUS_DEFAULT 8
/* allocation sizes are multiples of this number of bytes, as on today's GPUs */
#define GRAIN ((uint64_t)2 << 20)

static int fail(struct device *dev, int rc, const char *what)
{
	return err_set(&dev->why, rc, "%s: %s", what, strerror(errno));
}

static int n_gpus(void)
{
	const char *text = getenv(GPUS_ENV);
	long n = text ? strtol(text, NULL, 10) : GPUS_DEFAULT;

	return n < 0 || n > DEVICE_GPUS_MAX ? 0 : (int)n;
}

static int host_probe(struct err_text *why)
{
	int n = n_gpus();

	return n > 0 ? n : err_set(why, DEVICE_NODEV, "%s is not a number from 1 to 64", GPUS_ENV);
}

static int host_open(const char *job, struct device **ret, struct err_text *why)
{
	struct host_device *h;
	int rc = host_probe(why);

	(void)job;
	if (rc < 0)
		return rc;
	h = calloc(1, sizeof(*h));
	if (!h)
		return err_set(why, DEVICE_NOMEM, "out of memory");
	h->d.ops = &device_host;
	h->n_gpus = rc;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->moved, NULL);
	*ret = &h->d;
	return 0;
}

static void host_close(struct device *dev)
{
	struct host_device *h = (struct host_device *)dev;

	if (!h)
		return;
	pthread_cond_destroy(&h->moved);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

static int host_gpus(struct device *dev, struct device_gpu *ret, int max)
{
	const struct host_device *h = (struct host_device *)dev;
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	for (int i = 0; i < h->n_gpus && i < max; i++) {
		ret[i] = (struct device_gpu){.numa = -1,
			.caps = DEVICE_CAP_VMM_FD | DEVICE_CAP_MEMOP64 | DEVICE_CAP_CLIQUE |
				DEVICE_CAP_PLAIN,
			.bytes = bytes,
			.name = "host memory"};
		memcpy(ret[i].uuid, "bps-host-gpu", 12);
		memcpy(ret[i].uuid + 12, &i, sizeof(i));
	}
	return h->n_gpus;
}

static int host_peer(struct device *dev, int a, int b)
{
	const struct host_device *h = (struct host_device *)dev;

	if (a < 0 || b < 0 || a >= h->n_gpus || b >= h->n_gpus)
		return err_set(&dev->why, DEVICE_ARG, "GPU %d or GPU %d does not exist", a, b);
	return DEVICE_LINK_NVLINK;
}

/* ---- memory ---- */

static int mem_new(struct device *dev, int gpu, uint64_t bytes, struct host_mem **ret)
{
	struct host_mem *m;

	if (!bytes)
		return err_set(&dev->why, DEVICE_ARG, "0 bytes of memory are requested");
	m = calloc(1, sizeof(*m));
	if (!m)
		return err_set(&dev->why, DEVICE_NOMEM, "out of memory");
	m->m = (struct device_mem){dev, bytes, gpu};
	m->fd = -1;
	*ret = m;
	return 0;
}

static void host_drop(struct device_mem *mem)
{
	struct host_mem *m = (struct host_mem *)mem;

	if (!m)
		return;
	if (m->map_bytes)
		munmap(m->map, m->map_bytes);
	if (m->fd >= 0)
		close(m->fd);
	free(m);
}

static int host_alloc(struct device *dev, int gpu, uint64_t bytes, const int *also, int n_also,
	struct device_mem **ret)
{
	struct host_mem *m;
	int rc;

	(void)also;
	(void)n_also;
	if (gpu < 0 || gpu >= ((struct host_device *)dev)->n_gpus || bytes > INT64_MAX / 2)
		return err_set(&dev->why, DEVICE_ARG,
			"GPU %d does not exist, or too many bytes of memory are requested", gpu);
	rc = mem_new(dev, gpu, (bytes + GRAIN - 1) / GRAIN * GRAIN, &m);
	if (rc < 0)
		return rc;
	rc = memfd_create_sealed("bps-device", m->m.bytes, MEMFD_FIXED_SIZE | F_SEAL_SEAL, &m->fd);
	errno = -rc;
	if (rc)
		goto failed;
	m->map = mmap(NULL, m->m.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->map == MAP_FAILED)
		goto failed;
	m->map_bytes = m->m.bytes;
	m->base = m->map;
	*ret = &m->m;
	return 0;
failed:
	rc = fail(dev, DEVICE_NOMEM, "cannot allocate device memory");
	host_drop(&m->m);
	return rc;
}

static int host_share(struct device_mem *mem, struct device_desc *ret, int *fds, int max)
{
	const struct host_mem *m = (struct host_mem *)mem;

	if (m->fd < 0)
		return err_set(&mem->dev->why, DEVICE_UNSUP,
			"only memory that this process has allocated can be shared");
	if (max < 1)
		return err_set(
			&mem->dev->why, DEVICE_ARG, "no room to return the memory's descriptor");
	fds[0] = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
	if (fds[0] < 0)
		return fail(
			mem->dev, DEVICE_NOMEM, "cannot duplicate the descriptor of shared memory");
	*ret = (struct device_desc){.version = DEVICE_DESC_VERSION,
		.kind = DEVICE_DESC_HOST,
		.n_fds = 1,
		.bytes = mem->bytes,
		.chunk_bytes = mem->bytes};
	memcpy(ret->uuid, "bps-host-gpu", 12);
	memcpy(ret->uuid + 12, &mem->gpu, sizeof(mem->gpu));
	return 1;
}

static int host_import(struct device *dev, int gpu, const struct device_desc *desc, const int *fds,
	int n_fds, struct device_mem **ret)
{
	struct host_mem *m;
	struct stat st;
	int rc;

	if (desc->kind != DEVICE_DESC_HOST || n_fds != 1)
		return err_set(&dev->why, DEVICE_ARG,
			"the imported memory is not a memfd of the back-end 'host'");
	if (fstat(fds[0], &st) < 0 || (uint64_t)st.st_size < desc->chunk_bytes ||
		!local_is_sealed(fds[0]))
		return err_set(&dev->why, DEVICE_ARG,
			"the imported memory is not a sealed memfd of the described size");
	rc = mem_new(dev, gpu, desc->bytes, &m);
	if (rc < 0)
		return rc;
	m->map = mmap(NULL, desc->chunk_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	if (m->map == MAP_FAILED) {
		rc = fail(dev, DEVICE_ARG, "cannot map imported memory");
		host_drop(&m->m);
		return rc;
	}
	m->map_bytes = desc->chunk_bytes;
	m->base = (char *)m->map + desc->offset;
	*ret = &m->m;
	return 0;
}

static int host_pin(struct device *dev, void *host, uint64_t bytes, struct device_mem **ret)
{
	struct host_mem *m;
	int rc;

	if ((uintptr_t)host % 4096 || bytes % 4096)
		return err_set(&dev->why, DEVICE_ARG,
			"the host memory to be pinned does not consist of whole pages");
	rc = mem_new(dev, DEVICE_HOST, bytes, &m);
	if (rc < 0)
		return rc;
	m->base = host;
	*ret = &m->m;
	return 0;
}

static uint64_t host_addr(struct device_mem *mem, int gpu)
{
	(void)gpu;
	return (uint64_t)(uintptr_t)((struct host_mem *)mem)->base;
}

const struct device_ops device_host = {
	.name = "host",
	.probe = host_probe,
	.open = host_open,
	.close = host_close,
	.gpus = host_gpus,
	.peer = host_peer,
	.alloc = host_alloc,
	.share = host_share,
	.import = host_import,
	.pin = host_pin,
	.addr = host_addr,
	.drop = host_drop,
	.queue_open = host_queue_open,
	.queue_close = host_queue_close,
	.queue_poll = host_queue_poll,
	.copy = host_copy,
	.post = host_post,
	.clique_id = host_clique_id,
	.clique_open = host_clique_open,
	.clique_poll = host_clique_poll,
	.reduce_scatter = host_reduce_scatter,
	.all_gather = host_all_gather,
	.reduce = host_reduce,
	.broadcast = host_broadcast,
	.group_begin = host_group,
	.group_end = host_group,
	.clique_abort = host_clique_abort,
	.clique_close = host_clique_close,
};
