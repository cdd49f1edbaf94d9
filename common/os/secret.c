#include "common/os/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int secret_check_owner_mode(
	int fd, const char *path, const char *what, mode_t forbidden, struct err_text *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return err_set(
			err, -errno, "cannot examine %s '%s': %s", what, path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(err, -EINVAL, "%s '%s' is not a regular file", what, path);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return err_set(err, -EPERM,
			"%s '%s' belongs to uid %u, not to this process's uid %u (chown the file)",
			what, path, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & forbidden)
		return err_set(err, -EPERM,
			"%s '%s' is open to group or others, mode %04o (chmod 0400 the file; if "
			"other users may have read it, replace the secret)",
			what, path, (unsigned)(st.st_mode & 07777));
	return 0;
}

/* Open the file and check its owner and mode. Returns the descriptor.
 * Errors: same as secret_read. */
static int secret_open_checked(
	const char *path, const char *what, bool is_credential, struct err_text *err)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), rc;

	if (fd < 0 && errno == ELOOP)
		return err_set(err, -ELOOP, "%s '%s' is a symbolic link: give the target's path",
			what, path);
	if (fd < 0)
		return err_set(err, -errno, "cannot open %s '%s': %s", what, path, strerror(errno));
	rc = secret_check_owner_mode(fd, path, what, is_credential ? 007 : 077, err);
	if (rc == 0)
		return fd;
	close(fd);
	return rc;
}

int secret_read(const char *path, const char *what, bool is_credential, void *ret_buf, size_t room,
	struct err_text *err)
{
	int fd = secret_open_checked(path, what, is_credential, err);
	uint8_t *buf = ret_buf;
	size_t used = 0;
	ssize_t n = 1;
	int rc;

	if (fd < 0)
		return fd;
	while (n > 0 && used < room) {
		n = read(fd, buf + used, room - used);
		if (n > 0)
			used += (size_t)n;
	}
	rc = n < 0 ? err_set(err, -errno, "cannot read %s '%s': %s", what, path, strerror(errno))
		   : (int)used;
	close(fd);
	return rc;
}

bool secret_credential(const char *name, char *ret_path, size_t room)
{
	const char *dir = getenv("CREDENTIALS_DIRECTORY");
	int n = dir && *dir ? snprintf(ret_path, room, "%s/%s", dir, name) : -1;

	return n > 0 && (size_t)n < room && (access(ret_path, F_OK) == 0 || errno != ENOENT);
}

int secret_check(const char *path, const char *what, struct err_text *err)
{
	const char *dir = getenv("CREDENTIALS_DIRECTORY");
	size_t n = dir ? strlen(dir) : 0;
	int fd = secret_open_checked(
		path, what, n && strncmp(path, dir, n) == 0 && path[n] == '/', err);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}
