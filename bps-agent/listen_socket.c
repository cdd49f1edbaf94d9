/* The socket to which trainers connect: opens it, or takes it from the service manager. Thread: the
 * control thread, at the start and at the end of the process. */
#include "bps-agent/listen_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/log.h"

/* Name under which the service manager stores the listening socket for the next process. */
#define LISTEN_NAME "listen"

/* Remove the socket file at the path if no process serves the socket any more, so that bind can
 * succeed. Errors: a negative code if the path is in use, or if the path names a file that is not
 * a socket. On an error, writes the text to *err. */
static int remove_stale_socket(const struct sockaddr_un *sun, struct err_text *err)
{
	struct ucred cred = {0};
	socklen_t n = sizeof(cred);
	struct stat st;
	bool is_served;
	int fd;

	if (lstat(sun->sun_path, &st) < 0)
		return 0; /* there is no file, or bind will fail too and report the reason */
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, -EEXIST,
			"'%s' exists and is not a socket: remove it, or choose another --socket",
			sun->sun_path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	is_served = fd >= 0 && (connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0 ||
				       errno == EAGAIN);
	if (is_served)
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n);
	if (fd >= 0)
		close(fd);
	if (is_served)
		return err_set(err, -EADDRINUSE,
			"another bps-agent already serves '%s' (pid %d): stop it, or choose "
			"another --socket",
			sun->sun_path, (int)cred.pid);
	unlink(sun->sun_path);
	return 0;
}

static int set_socket_group(const char *path, const char *group, struct err_text *err)
{
	struct group *gr = *group ? getgrnam(group) : NULL;

	if (*group && !gr)
		return err_set(err, -EINVAL,
			"no such group '%s': create it, or choose another --socket-group", group);
	if (gr && chown(path, (uid_t)-1, gr->gr_gid) < 0)
		return err_set(err, -errno, "cannot change the group of socket '%s' to %s: %s",
			path, group, strerror(errno));
	if (chmod(path, 0660) < 0)
		return err_set(err, -errno, "cannot set the mode of socket '%s' to 0660: %s", path,
			strerror(errno));
	return 0;
}

/* Take the listening socket that the previous process stored with the service manager, if the
 * socket's path is still the configured path. */
static bool take_kept_socket(struct listen_socket *s, const char *path, struct fdstore *inherited)
{
	struct sockaddr_un at = {0};
	socklen_t len = sizeof(at);
	int fd = fdstore_take(inherited, LISTEN_NAME);

	if (fd < 0)
		return false;
	if (getsockname(fd, (struct sockaddr *)&at, &len) < 0 || strcmp(at.sun_path, path) != 0 ||
		access(at.sun_path, F_OK) < 0) {
		fdstore_remove(LISTEN_NAME);
		close(fd);
		return false;
	}
	*s = (struct listen_socket){fd, true};
	return true;
}

/* Take the listening socket that systemd's socket activation has passed. The socket may have any
 * name except LISTEN_NAME, which is the name of the stored socket (take_kept_socket). */
static bool take_activation(struct listen_socket *s, struct fdstore *inherited)
{
	for (size_t i = 0; i < inherited->n && s->fd < 0; i++) {
		struct fdstore_fd *f = &inherited->fds[i];
		int listens = 0;
		socklen_t len = sizeof(listens);

		if (f->fd < 0 || strcmp(f->name, LISTEN_NAME) == 0 ||
			getsockopt(f->fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0 ||
			!listens)
			continue;
		s->fd = f->fd;
		f->fd = -1;
	}
	return s->fd >= 0;
}

static int listen_socket_bind(struct listen_socket *s, const char *path, struct err_text *err)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int fd, rc;

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s", path);
	rc = remove_stale_socket(&sun, err);
	if (rc < 0)
		return rc;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0 || listen(fd, 64) < 0) {
		rc = err_set(err, -errno, "cannot listen on '%s': %s%s", path, strerror(errno),
			errno == ENOENT   ? " (create its directory, or choose another --socket)"
			: errno == EACCES ? " (give its directory to the agent's user, or choose "
					    "another --socket)"
					  : "");
		if (fd >= 0)
			close(fd);
		return rc;
	}
	*s = (struct listen_socket){fd, true};
	return 0;
}

int listen_socket_open(struct listen_socket *s, const char *path, const char *group,
	struct fdstore *inherited, bool can_hand_over, struct err_text *err)
{
	int rc;

	*s = (struct listen_socket){.fd = -1};
	if (take_activation(s, inherited) || take_kept_socket(s, path, inherited)) {
		if (fcntl(s->fd, F_SETFL, O_NONBLOCK) < 0)
			return err_set(err, -errno,
				"cannot use the listening socket that the service manager has "
				"passed: %s",
				strerror(errno));
		return 0;
	}
	rc = listen_socket_bind(s, path, err);
	if (rc < 0)
		return rc;
	if (can_hand_over && fdstore_put(LISTEN_NAME, s->fd) < 0)
		log_warn("the service manager does not keep the listening socket: trainers that "
			 "connect during a restart will be refused");
	return set_socket_group(path, group, err);
}

void listen_socket_close(const struct listen_socket *s, const char *path, bool can_hand_over)
{
	if (s->fd >= 0)
		close(s->fd);
	if (s->has_file && !can_hand_over)
		unlink(path);
}
