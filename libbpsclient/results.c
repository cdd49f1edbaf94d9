/* Maps a tensor's two result buffers a second time, copy-on-write, so that the caller may write to
 * results. At the first write to a page, the kernel copies the page. The copy does not show later
 * changes of the agent's memory. So bps_results_last discards the copies before the caller reads
 * the next result in the same buffer. The kernel's page map of this process shows which pages were
 * copied. Thread: one thread at a time for each tensor. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libbpsclient/last_error.h"

/* Bits of a page's entry in /proc/PID/pagemap. If the kernel has copied the page, the entry has a
 * bit of PAGEMAP_EXISTS and lacks PAGEMAP_FILE. The entry of a mapped file's page has
 * PAGEMAP_FILE. */
#define PAGEMAP_EXISTS (UINT64_C(3) << 62) /* present, or swapped out */
#define PAGEMAP_FILE   (UINT64_C(1) << 61)
#define ENTRIES_MAX    1024 /* number of entries that are read at a time */

struct buffer {
	char *base;   /* start of the mapping: a page boundary */
	size_t bytes; /* length of the mapping */
	char *result;
};
struct bps_results {
	const struct bps_tensor *t;
	struct buffer buffers[2]; /* indexed by round & 1 */
};

static size_t system_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static int result_buffer_map_private(
	struct buffer *buf, const struct bps_tensor *t, const char *out, struct err_text *err)
{
	size_t lead = (uintptr_t)out % system_page_bytes();
	void *base;
	int rc;

	buf->bytes = lead + t->bytes;
	rc = session_copy_on_write(&t->b->session, out - lead, buf->bytes, &base, err);
	if (rc < 0)
		return rc;
	buf->base = base;
	buf->result = buf->base + lead;
	return 0;
}

/* Return 1 if the kernel has copied pages of the buffer, else 0. Errors: -errno if the page map
 * cannot be read. */
static int result_buffer_has_copies(const struct buffer *buf)
{
	size_t page = system_page_bytes(), n_left = (buf->bytes + page - 1) / page;
	off_t at = (off_t)((uintptr_t)buf->base / page * sizeof(uint64_t));
	uint64_t entries[ENTRIES_MAX];
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), rc = 0;

	if (fd < 0)
		return -errno;
	/* Make the first page exist, to test below whether the page map shows it. The page maps of
	 * some sandboxes do not show existing pages, and cannot be used. */
	(void)*(volatile const char *)buf->base;
	for (bool is_first = true; !rc && n_left; is_first = false) {
		size_t n = n_left < ENTRIES_MAX ? n_left : ENTRIES_MAX;
		ssize_t got = pread(fd, entries, n * sizeof(*entries), at);

		if (got != (ssize_t)(n * sizeof(*entries)))
			rc = got < 0 ? -errno : -EIO;
		else if (is_first && !(entries[0] & PAGEMAP_EXISTS))
			rc = -EIO;
		for (size_t i = 0; !rc && i < n; i++)
			rc = entries[i] & PAGEMAP_EXISTS && !(entries[i] & PAGEMAP_FILE);
		n_left -= n;
		at += got;
	}
	close(fd);
	return rc;
}

int bps_results_map(const struct bps_tensor *t, struct bps_results **ret)
{
	struct bps_results *r;
	struct err_text err;
	int rc = t ? client_check_is_open(t->b)
		   : last_error_set(-EINVAL, "results_map: the tensor is NULL");

	if (!rc && !ret)
		rc = last_error_set(-EINVAL, "results_map: ret is NULL");
	if (!rc && (t->region || t->b->is_single))
		rc = last_error_set(-EOPNOTSUPP,
			"results_map: the results of tensor '%s' are not shared with the agent, "
			"because %s",
			t->name,
			t->region ? "the tensor lies in device memory" : "the job has one worker");
	if (rc < 0)
		return rc;
	r = calloc(1, sizeof(*r));
	if (!r)
		return last_error_set(-ENOMEM, "results_map: out of memory");
	r->t = t;
	for (int i = 0; !rc && i < 2; i++)
		rc = result_buffer_map_private(&r->buffers[i], t, t->out[i], &err);
	if (rc < 0) {
		bps_results_unmap(r);
		return last_error_set(rc, "results_map: tensor '%s': %s", t->name, err.s);
	}
	*ret = r;
	return 0;
}

int bps_results_last(struct bps_results *r, void **ret)
{
	const struct buffer *buf;
	const void *out;
	int rc = r ? client_check_is_open(r->t->b)
		   : last_error_set(-EINVAL, "results_last: the results are NULL");

	if (!rc && !ret)
		rc = last_error_set(-EINVAL, "results_last: ret is NULL");
	if (rc < 0)
		return rc;
	out = bps_output(r->t);
	if (!out || (out != r->t->out[0] && out != r->t->out[1]))
		return last_error_set(-EINVAL,
			"results_last: the shared memory has no result of tensor '%s': %s",
			r->t->name,
			out ? "an average of integers is not stored there: call bps_output"
			    : "call bps_push_pull and bps_wait first");
	buf = &r->buffers[out == r->t->out[1]];
	rc = result_buffer_has_copies(buf);
	if (rc && madvise(buf->base, buf->bytes, MADV_DONTNEED) < 0)
		/* The kernel does not discard locked pages (mlockall). */
		memcpy(buf->result, out, r->t->bytes);
	*ret = buf->result;
	return rc > 0;
}

void bps_results_unmap(struct bps_results *r)
{
	for (int i = 0; r && i < 2; i++)
		if (r->buffers[i].base)
			munmap(r->buffers[i].base, r->buffers[i].bytes);
	free(r);
}
