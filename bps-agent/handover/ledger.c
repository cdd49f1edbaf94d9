/* A ledger: records in a memfd. The service manager keeps the memfd, so the records survive a
 * restart of the agent. ledger.h describes the format. The ledger does not interpret the records.
 * Any thread may call these functions, but only one thread at a time. */
#include "bps-agent/handover/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/data/crc32c.h"

#define MAGIC 0x6c737062u /* "bpsl" */
/* RANGE: bytes of address space reserved for a ledger, which limit the ledger's size. STEP: number
 * of bytes by which the file grows. A job with 100 GB of gradients in partitions of 512 KiB needs
 * 60 MB. */
#define RANGE ((size_t)1 << 30)
#define STEP  ((size_t)64 << 10)

struct ledger_head {
	uint32_t magic, version;
	/* size of all complete records in bytes, without the head of the file */
	_Atomic uint64_t used;
	_Alignas(LEDGER_ALIGN) unsigned char records[];
};
struct ledger_entry {
	uint64_t bytes; /* size of the whole record, a multiple of LEDGER_ALIGN */
	uint32_t type, n_fixed;
	uint64_t n_live;
	uint32_t crc; /* crc of the fields above and of the fixed part */
	uint32_t unused;
	unsigned char fixed[];
};

struct ledger {
	int fd;
	struct ledger_head *head;
	size_t file_bytes;
};

static size_t round_up_to_multiple(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static uint32_t ledger_entry_crc(const struct ledger_entry *r)
{
	uint32_t crc = crc32c(0, r, offsetof(struct ledger_entry, crc));

	return crc32c(crc, r->fixed, r->n_fixed);
}

/* Return the offset of a record's live part from the start of the record. */
static size_t ledger_live_offset(size_t n_fixed)
{
	return round_up_to_multiple(sizeof(struct ledger_entry) + n_fixed, LEDGER_ALIGN);
}

/* Extend the file to at least the given size. The pages are allocated at once, because a page that
 * cannot be allocated at a later access would raise SIGBUS. */
static int ledger_grow_file(struct ledger *l, size_t bytes)
{
	size_t to = round_up_to_multiple(bytes, STEP);
	int rc;

	if (to <= l->file_bytes)
		return 0;
	if (to > RANGE)
		return -EFBIG;
	rc = posix_fallocate(l->fd, (off_t)l->file_bytes, (off_t)(to - l->file_bytes));
	if (rc)
		return -rc;
	l->file_bytes = to;
	return 0;
}

static int ledger_map_file(struct ledger *l)
{
	void *p = mmap(NULL, RANGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, l->fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	l->head = p;
	return 0;
}

int ledger_new(struct ledger **ret, struct err_text *err)
{
	struct ledger *l = calloc(1, sizeof(*l));
	int rc = -ENOMEM;

	if (!l)
		return err_set(err, rc, "out of memory");
	l->fd = memfd_create("bps-ledger", MFD_CLOEXEC);
	rc = l->fd < 0 ? -errno : ledger_grow_file(l, sizeof(*l->head));
	if (rc == 0)
		rc = ledger_map_file(l);
	if (rc < 0 || !l->head) {
		ledger_free(l);
		return err_set(err, rc, "cannot create the record for the next process: %s",
			strerror(-rc));
	}
	l->head->magic = MAGIC;
	l->head->version = LEDGER_VERSION;
	*ret = l;
	return 0;
}

/* Check the file's size and its head, before any record is used. */
static int ledger_check_head(struct ledger *l, struct err_text *err)
{
	struct ledger_head head;
	struct stat st;
	ssize_t n = pread(l->fd, &head, sizeof(head), 0);

	if (fstat(l->fd, &st) < 0 || n < 0)
		return err_set(err, -errno, "cannot read the ledger of the previous process: %s",
			strerror(errno));
	if ((size_t)n < sizeof(head) || head.magic != MAGIC || st.st_size > (off_t)RANGE)
		return err_set(
			err, BPS_EPROTO, "the stored file of the previous process is not a ledger");
	if (head.version != LEDGER_VERSION)
		return err_set(err, BPS_EVERSION,
			"the ledger of the previous process has version %u, but this release of "
			"bps-agent reads version %u",
			head.version, LEDGER_VERSION);
	l->file_bytes = (size_t)st.st_size;
	if (head.used > l->file_bytes - sizeof(head))
		return err_set(err, BPS_EPROTO, "the ledger of the previous process is truncated");
	return 0;
}

int ledger_open(int fd, struct ledger **ret, struct err_text *err)
{
	struct ledger *l = calloc(1, sizeof(*l));
	int rc;

	if (!l) {
		close(fd);
		return err_set(err, -ENOMEM, "out of memory");
	}
	l->fd = fd;
	rc = ledger_check_head(l, err);
	if (rc == 0 && (rc = ledger_map_file(l)) < 0)
		err_set(err, rc, "cannot map the ledger of the previous process: %s",
			strerror(-rc));
	if (rc < 0) {
		ledger_free(l);
		return rc;
	}
	*ret = l;
	return 0;
}

void ledger_free(struct ledger *l)
{
	if (!l)
		return;
	if (l->head)
		munmap(l->head, RANGE);
	if (l->fd >= 0)
		close(l->fd);
	free(l);
}

int ledger_fd(const struct ledger *l)
{
	return l->fd;
}

int ledger_add(struct ledger *l, uint32_t type, const void *fixed, size_t n_fixed, size_t n_live,
	void **ret_live)
{
	uint64_t used = l->head->used;
	size_t live = ledger_live_offset(n_fixed), bytes;
	struct ledger_entry *r;
	int rc;

	if (n_fixed > RANGE || n_live > RANGE)
		return -EFBIG;
	bytes = live + round_up_to_multiple(n_live, LEDGER_ALIGN);
	rc = ledger_grow_file(l, sizeof(*l->head) + used + bytes);
	if (rc < 0)
		return rc;
	r = (struct ledger_entry *)(l->head->records + used);
	*r = (struct ledger_entry){
		.bytes = bytes, .type = type, .n_fixed = (uint32_t)n_fixed, .n_live = n_live};
	if (n_fixed)
		memcpy(r->fixed, fixed, n_fixed);
	/* Clear the live part. A previous process may have ended while it wrote a record here. */
	memset((unsigned char *)r + live, 0, n_live);
	r->crc = ledger_entry_crc(r);
	/* Release: pairs with the acquire load in ledger_next, so that the next process sees the
	 * whole record. */
	atomic_store_explicit(&l->head->used, used + bytes, memory_order_release);
	if (ret_live)
		*ret_live = (unsigned char *)r + live;
	return 0;
}

int ledger_next(const struct ledger *l, size_t *at, struct ledger_record *ret, struct err_text *err)
{
	uint64_t used = atomic_load_explicit(&l->head->used, memory_order_acquire);
	struct ledger_entry *r = (struct ledger_entry *)(l->head->records + *at);
	uint64_t left;

	if (*at >= used)
		return 0;
	left = used - *at;
	if (left < sizeof(*r) || r->bytes > left || r->bytes % LEDGER_ALIGN ||
		r->n_live > r->bytes || r->n_fixed > r->bytes ||
		ledger_live_offset(r->n_fixed) + round_up_to_multiple(r->n_live, LEDGER_ALIGN) !=
			r->bytes ||
		r->crc != ledger_entry_crc(r))
		return err_set(err, BPS_EPROTO,
			"the ledger of the previous process is damaged at byte %zu of %llu", *at,
			(unsigned long long)used);
	*ret = (struct ledger_record){.type = r->type,
		.fixed = r->fixed,
		.n_fixed = r->n_fixed,
		.live = (unsigned char *)r + ledger_live_offset(r->n_fixed),
		.n_live = r->n_live};
	*at += r->bytes;
	return 1;
}
