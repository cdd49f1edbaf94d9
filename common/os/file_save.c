/* Writes a whole file (file_save.h). */
#include "common/os/file_save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static int copy_file(int to, int from)
{
	ssize_t n;

	if (lseek(from, 0, SEEK_SET) < 0)
		return -errno;
	do
		n = sendfile(to, from, NULL, 1u << 30);
	while (n > 0 || (n < 0 && errno == EINTR));
	return n < 0 ? -errno : 0;
}

static int write_content(int to, int from, const char *bytes, size_t n)
{
	if (from >= 0)
		return copy_file(to, from);
	while (n) {
		ssize_t written = write(to, bytes, n);

		if (written < 0 && errno != EINTR)
			return -errno;
		if (written > 0) {
			bytes += written;
			n -= (size_t)written;
		}
	}
	return 0;
}

/* Write to a device or a pipe, which must not be replaced by a file. */
static int write_special_file(const char *path, int from, const void *bytes, size_t n)
{
	int to = open(path, O_WRONLY | O_CLOEXEC);
	int rc = to < 0 ? -errno : write_content(to, from, bytes, n);

	if (to >= 0)
		close(to);
	return rc;
}

int file_save(const char *path, int from, const void *bytes, size_t n)
{
	char name[PATH_MAX];
	struct stat st;
	int to, rc;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return write_special_file(path, from, bytes, n);
	if (snprintf(name, sizeof(name), "%s.%d.tmp", path, (int)gettid()) >= (int)sizeof(name))
		return -ENAMETOOLONG;
	to = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (to < 0)
		return -errno;
	rc = write_content(to, from, bytes, n);
	if (close(to) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && rename(name, path) < 0)
		rc = -errno;
	if (rc < 0)
		unlink(name);
	return rc;
}
