/* Descriptors that the service manager stores for the next process: inherit, take, put, remove.
 * notify.c sends the messages. fdstore_inherit and fdstore_take run on the main thread. The
 * functions that send messages run on any thread. */
#include "common/daemon/fdstore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/daemon/notify.h"

/* Number of the first descriptor that a manager passes (sd_listen_fds(3)). */
#define FIRST   3
#define FDS_MAX 65536

static size_t fdstore_count_inherited(void)
{
	const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
	long v;

	if (!pid || !n || atol(pid) != (long)getpid())
		return 0;
	v = atol(n);
	return v > 0 && v <= FDS_MAX ? (size_t)v : 0;
}

int fdstore_inherit(struct fdstore *ret, struct err_text *err)
{
	const char *names = getenv("LISTEN_FDNAMES");
	size_t n = fdstore_count_inherited();

	*ret = (struct fdstore){.n = 0};
	if (!n)
		return 0;
	ret->fds = calloc(n, sizeof(*ret->fds));
	if (!ret->fds)
		return err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		size_t len = names ? strcspn(names, ":") : 0;
		struct fdstore_fd *f = &ret->fds[i];

		f->fd = FIRST + (int)i;
		if (len < sizeof(f->name))
			memcpy(f->name, names ? names : "", len);
		if (names)
			names += names[len] ? len + 1 : len;
		if (fcntl(f->fd, F_SETFD, FD_CLOEXEC) < 0) {
			free(ret->fds);
			*ret = (struct fdstore){.n = 0};
			return err_set(err, -errno,
				"LISTEN_FDS names descriptor %d, which is not open: %s",
				FIRST + (int)i, strerror(errno));
		}
	}
	ret->n = n;
	return 0;
}

void fdstore_fini(struct fdstore *s)
{
	for (size_t i = 0; s && i < s->n; i++)
		if (s->fds[i].fd >= 0)
			close(s->fds[i].fd);
	if (s)
		free(s->fds);
	if (s)
		*s = (struct fdstore){.n = 0};
}

int fdstore_take(struct fdstore *s, const char *name)
{
	for (size_t i = 0; i < s->n; i++) {
		int fd = s->fds[i].fd;

		if (fd < 0 || strcmp(s->fds[i].name, name) != 0)
			continue;
		s->fds[i].fd = -1;
		return fd;
	}
	return -1;
}

struct fdstore_message {
	char s[FDSTORE_NAME_BYTES + 64];
};

static struct fdstore_message fdstore_format_message(const char *name, bool is_put)
{
	struct fdstore_message l;

	snprintf(l.s, sizeof(l.s), "%s\nFDNAME=%s",
		is_put ? "FDSTORE=1\nFDPOLL=0" : "FDSTOREREMOVE=1", name);
	return l;
}

int fdstore_put(const char *name, int fd)
{
	return notify_send(fdstore_format_message(name, true).s, fd, true);
}

int fdstore_put_or_remove(const char *name, int fd)
{
	return notify_send(fdstore_format_message(name, fd >= 0).s, fd, false);
}

int fdstore_remove(const char *name)
{
	return notify_send(fdstore_format_message(name, false).s, -1, true);
}
