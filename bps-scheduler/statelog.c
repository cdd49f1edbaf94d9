/* Reads, appends to and compacts the scheduler's state log. statelog.h describes the format.
 * core/record.c creates and applies the records. Every append is synced before it returns. All
 * functions run on the core's thread. */
#include "bps-scheduler/statelog.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/data/crc32c.h"

#define LOG_NAME "state.log"
#define NEW_NAME "state.log.new"
/* limit of the memory for a decoded record, in bytes per byte of the encoded record */
#define MEMORY_PER_BYTE 64

static const char magic[8] = {'B', 'P', 'S', 'S', 'T', 'A', 'T', 'E'};

struct file_head {
	char magic[8];
	uint32_t version, zero;
};
struct record_head {
	uint32_t bytes, crc;
};

struct statelog {
	int dir_fd, lock_fd, fd;
	uint64_t bytes, bytes_at_compact, sync_ns;
	char path[PATH_MAX];
};

static int statelog_set_error(struct err_text *err, int rc, const char *what, const char *path)
{
	const char *hint =
		rc == -ENOENT ? " (create the folder above it, or choose another --state-dir)"
		: rc == -EACCES || rc == -EPERM  ? " (give it to the scheduler's user)"
		: rc == -ENOSPC || rc == -EDQUOT ? " (free some space there)"
		: rc == -ENOTDIR                 ? " (choose another --state-dir)"
		: rc == -EROFS ? " (the file system is read-only: choose another --state-dir)"
			       : "";

	return err_set(err, rc, "cannot %s '%s': %s%s", what, path, err_str(rc), hint);
}

/* ---- reading and writing ---- */

/* Write or read all n bytes at the position `at` of the file. Errors: -errno; -EIO: the file is too
 * short. */
static int statelog_transfer(int fd, bool is_write, void *data, size_t n, uint64_t at)
{
	char *p = data;

	while (n) {
		ssize_t done = is_write ? pwrite(fd, p, n, (off_t)at) : pread(fd, p, n, (off_t)at);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done < 0 ? -errno : -EIO;
		p += done;
		at += (uint64_t)done;
		n -= (size_t)done;
	}
	return 0;
}

/* Encode the record and its head into one new buffer, so that one write stores both. */
static int encode_log_record(const struct state_record *rec, char **ret_buf, size_t *ret_bytes)
{
	size_t n = codec_encoded_size(state_record_layout(), rec);
	struct record_head head;
	char *buf;

	if (!n)
		return -E2BIG;
	buf = malloc(sizeof(head) + n);
	if (!buf)
		return -ENOMEM;
	codec_encode(state_record_layout(), rec, buf + sizeof(head));
	head.bytes = htole32((uint32_t)n);
	head.crc = htole32(crc32c(0, buf + sizeof(head), n));
	memcpy(buf, &head, sizeof(head));
	*ret_buf = buf;
	*ret_bytes = sizeof(head) + n;
	return 0;
}

static int statelog_sync_timed(struct statelog *l, int fd)
{
	struct timespec a, b;
	int r;

	clock_gettime(CLOCK_MONOTONIC, &a);
	r = FAILPOINT(SCHED_LOG_FSYNC);
	if (r == 0 && fdatasync(fd) < 0)
		r = -errno;
	clock_gettime(CLOCK_MONOTONIC, &b);
	l->sync_ns = (uint64_t)((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec);
	return r;
}

int statelog_append(struct statelog *l, const struct state_record *rec)
{
	size_t n;
	char *buf;
	int r = encode_log_record(rec, &buf, &n);

	if (r < 0)
		return r;
	r = FAILPOINT(SCHED_LOG_WRITE);
	if (r == 0)
		r = statelog_transfer(l->fd, true, buf, n, l->bytes);
	if (r == 0)
		r = statelog_sync_timed(l, l->fd);
	free(buf);
	if (r == 0)
		l->bytes += n;
	else if (ftruncate(l->fd, (off_t)l->bytes) < 0)
		log_rated(LOG_WARN, "cannot remove an incomplete record from '%s': %s", l->path,
			strerror(errno));
	return r;
}

/* ---- compaction ---- */

static int write_snapshot(
	struct statelog *l, int fd, const struct state_record *rec, uint64_t *ret_bytes)
{
	struct file_head head = {.version = htole32(STATELOG_VERSION)};
	size_t n = 0;
	char *buf = NULL;
	int r = 0;

	memcpy(head.magic, magic, sizeof(magic));
	if (rec)
		r = encode_log_record(rec, &buf, &n);
	if (r == 0)
		r = statelog_transfer(fd, true, &head, sizeof(head), 0);
	if (r == 0 && rec)
		r = statelog_transfer(fd, true, buf, n, sizeof(head));
	if (r == 0)
		r = statelog_sync_timed(l, fd);
	free(buf);
	*ret_bytes = sizeof(head) + n;
	return r;
}

int statelog_compact(struct statelog *l, const struct state_record *rec)
{
	uint64_t bytes;
	int fd = openat(l->dir_fd, NEW_NAME, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int r;

	if (fd < 0)
		return -errno;
	r = write_snapshot(l, fd, rec, &bytes);
	if (r == 0)
		r = FAILPOINT(SCHED_LOG_RENAME);
	if (r == 0 && renameat(l->dir_fd, NEW_NAME, l->dir_fd, LOG_NAME) < 0)
		r = -errno;
	if (r < 0) {
		close(fd);
		unlinkat(l->dir_fd, NEW_NAME, 0);
		return r;
	}
	/* From here on the new file is the log of this process. The rename becomes durable when the
	 * folder is synced. If the machine crashes before the sync, the old log may reappear. The
	 * records of the old log give the same state as the snapshot. */
	if (fsync(l->dir_fd) < 0)
		r = -errno;
	if (l->fd >= 0)
		close(l->fd);
	l->fd = fd;
	l->bytes = l->bytes_at_compact = bytes;
	return r;
}

bool statelog_is_long(const struct statelog *l)
{
	return l->bytes > STATELOG_COMPACT_BYTES && l->bytes > 2 * l->bytes_at_compact;
}

/* ---- loading ---- */

struct log_reader {
	struct statelog *l;
	int (*fn)(void *ctx, const struct state_record *rec, struct err_text *err);
	void *ctx;
	uint64_t size;
	struct err_text *err;
};

static int set_broken_log_error(const struct log_reader *ld, uint64_t at, const char *what)
{
	return err_set(ld->err, -EBADMSG,
		"'%s' is broken at byte %llu of %llu (%s): the disk lost written data. Move the "
		"file away: running jobs then end, and the members register again. An older copy "
		"of the file cannot save the jobs",
		ld->l->path, (unsigned long long)at, (unsigned long long)ld->size, what);
}

static int load_record_body(const struct log_reader *ld, uint64_t at, const char *body, size_t n)
{
	struct state_record rec;
	struct err_text why = {""};
	void *mem;
	int r = codec_decode(
		state_record_layout(), body, n, n * MEMORY_PER_BYTE + 4096, &rec, &mem, &why);

	if (r < 0)
		return set_broken_log_error(ld, at, why.s);
	r = ld->fn(ld->ctx, &rec, &why);
	free(mem);
	if (r < 0)
		return set_broken_log_error(ld, at, why.s);
	return 0;
}

/* Load the record at offset `at`. Returns the size of the record in bytes, or 0 if the record was
 * not written completely. A record counts as incomplete if it is cut off, or if it is the last
 * record and its checksum is wrong. */
static int64_t load_record(const struct log_reader *ld, uint64_t at)
{
	struct record_head head;
	uint64_t left = ld->size - at, n;
	char *body;
	int r;

	if (left < sizeof(head))
		return 0;
	r = statelog_transfer(ld->l->fd, false, &head, sizeof(head), at);
	if (r < 0)
		return err_set(ld->err, r, "cannot read '%s': %s", ld->l->path, err_str(r));
	n = le32toh(head.bytes);
	if (n > left - sizeof(head))
		return 0;
	body = malloc(n ? n : 1);
	if (!body)
		return err_set(ld->err, -ENOMEM, "cannot read '%s': out of memory", ld->l->path);
	r = statelog_transfer(ld->l->fd, false, body, n, at + sizeof(head));
	if (r < 0)
		err_set(ld->err, r, "cannot read '%s': %s", ld->l->path, err_str(r));
	else if (!n || crc32c(0, body, n) != le32toh(head.crc))
		r = n && n < left - sizeof(head) ? set_broken_log_error(ld, at, "checksum") : 1;
	else
		r = load_record_body(ld, at, body, n);
	free(body);
	if (r)
		return r < 0 ? r : 0;
	return (int64_t)(sizeof(head) + n);
}

/* Return whether a valid record begins anywhere after `at`. If so, the damage at `at` is more than
 * an incomplete last record. */
static bool has_record_behind(const struct log_reader *ld, uint64_t at)
{
	uint64_t n = ld->size - at;
	char *tail = malloc(n);
	bool found = false;

	if (!tail || statelog_transfer(ld->l->fd, false, tail, n, at) < 0) {
		free(tail);
		return true; /* the tail cannot be checked, so do not cut the file */
	}
	for (uint64_t i = 1; !found && i + sizeof(struct record_head) < n; i++) {
		struct record_head head;
		uint64_t bytes, room = n - i - sizeof(head);

		memcpy(&head, tail + i, sizeof(head));
		bytes = le32toh(head.bytes);
		found = bytes >= STATE_ID_BYTES && bytes <= room &&
			crc32c(0, tail + i + sizeof(head), bytes) == le32toh(head.crc);
	}
	free(tail);
	return found;
}

static int load_all_records(const struct log_reader *ld)
{
	uint64_t at = sizeof(struct file_head);

	while (at < ld->size) {
		int64_t n = load_record(ld, at);

		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		at += (uint64_t)n;
	}
	if (at < ld->size) {
		if (has_record_behind(ld, at))
			return set_broken_log_error(ld, at, "length");
		log_write(LOG_AS(LOG_WARN, STATE_CUT),
			"'%s' ends in an incomplete record, whose changes no member has received: "
			"removing the %llu bytes of this record",
			ld->l->path, (unsigned long long)(ld->size - at));
		if (ftruncate(ld->l->fd, (off_t)at) < 0)
			return err_set(ld->err, -errno,
				"cannot remove the incomplete record from '%s': %s", ld->l->path,
				strerror(errno));
	}
	ld->l->bytes = ld->l->bytes_at_compact = at;
	return 0;
}

static int check_log_file_head(const struct log_reader *ld)
{
	struct file_head head;
	int r = statelog_transfer(ld->l->fd, false, &head, sizeof(head), 0);

	if (r < 0)
		return err_set(ld->err, r, "cannot read '%s': %s", ld->l->path, err_str(r));
	if (memcmp(head.magic, magic, sizeof(magic)) != 0)
		return err_set(ld->err, -EBADMSG, "'%s' is not a state log: is --state-dir right?",
			ld->l->path);
	if (le32toh(head.version) != STATELOG_VERSION)
		return err_set(ld->err, BPS_EVERSION,
			"'%s' has format %u, but this release reads format %u: install the release "
			"that wrote the file",
			ld->l->path, le32toh(head.version), STATELOG_VERSION);
	return 0;
}

static int statelog_load_file(const struct log_reader *ld)
{
	int r;

	/* An empty file is a new log without a head. A file that is not empty and is shorter than
	 * the head is damaged, because statelog_compact() syncs the head before it gives a log
	 * its name. */
	if (ld->size == 0) {
		r = statelog_compact(ld->l, NULL);
		return r < 0 ? statelog_set_error(ld->err, r, "write", ld->l->path) : 0;
	}
	if (ld->size < sizeof(struct file_head))
		return set_broken_log_error(ld, 0, "too short");
	r = check_log_file_head(ld);
	return r < 0 ? r : load_all_records(ld);
}

/* ---- open and close ---- */

static int statelog_open_files(struct statelog *l, const char *dir, struct err_text *err)
{
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return statelog_set_error(err, -errno, "make", dir);
	l->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (l->dir_fd < 0)
		return statelog_set_error(err, -errno, "open", dir);
	l->lock_fd = openat(l->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (l->lock_fd < 0)
		return statelog_set_error(err, -errno, "write in", dir);
	if (flock(l->lock_fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(err, errno == EWOULDBLOCK ? -EBUSY : -errno,
			"another bps-scheduler uses '%s': stop it, or choose another --state-dir",
			dir);
	l->fd = openat(l->dir_fd, LOG_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (l->fd < 0)
		return statelog_set_error(err, -errno, "open", l->path);
	return 0;
}

int statelog_open(struct statelog **ret, const char *dir,
	int (*fn)(void *ctx, const struct state_record *rec, struct err_text *err), void *ctx,
	struct err_text *err)
{
	struct statelog *l = calloc(1, sizeof(*l));
	struct log_reader ld = {l, fn, ctx, 0, err};
	struct stat st;
	int r;

	if (!l)
		return err_set(err, -ENOMEM, "cannot open the state log: out of memory");
	l->dir_fd = l->lock_fd = l->fd = -1;
	snprintf(l->path, sizeof(l->path), "%s/%s", dir, LOG_NAME);
	r = statelog_open_files(l, dir, err);
	if (r < 0)
		goto fail;
	if (fstat(l->fd, &st) < 0) {
		r = err_set(err, -errno, "cannot read '%s': %s", l->path, strerror(errno));
		goto fail;
	}
	ld.size = (uint64_t)st.st_size;
	r = statelog_load_file(&ld);
	if (r < 0)
		goto fail;
	*ret = l;
	return 0;
fail:
	statelog_close(l);
	return r;
}

uint64_t statelog_bytes(const struct statelog *l)
{
	return l->bytes;
}

uint64_t statelog_sync_ns(const struct statelog *l)
{
	return l->sync_ns;
}

void statelog_close(struct statelog *l)
{
	if (!l)
		return;
	if (l->fd >= 0)
		close(l->fd);
	if (l->lock_fd >= 0)
		close(l->lock_fd);
	if (l->dir_fd >= 0)
		close(l->dir_fd);
	free(l);
}
