/* Stores an agent's file descriptors by name, as systemd does. The agent sends them to a socket, in
 * the format of sd_notify(3) with FDSTORE=1. bpsrun and bps-keep give them to the agent's next
 * process, so a job survives the death of an agent. One thread.
 *
 * The store is bounded in three ways, so that no message can prevent the start of the next process:
 * in the number of descriptors, in the length of their names, which become one variable of the
 * environment, and in the messages that one call handles. */
#include "libbpsclient/tools/process/fdstore_server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/os/fd_passing.h"
#include "common/os/limits.h"
#include "libbpsclient/tools/process/output.h"

#define NAME_BYTES 64
#define LINES_MAX  1024
#define KEPT_MAX   8192 /* FileDescriptorStoreMax= of bps-agent.service */
/* Descriptors that this process, and the next process of the agent at its start, need for
 * themselves */
#define OTHER_FDS 128
/* Sum of the lengths of all names. execve(2) refuses a variable of 128 KiB (MAX_ARG_STRLEN). */
#define NAMES_BYTES (120 * 1024)
/* Messages that one call handles. A socket's queue is shorter (net.unix.max_dgram_qlen), so one
 * call handles all messages that had arrived before it. */
#define MESSAGES_MAX 4096

struct fdstore_server {
	int sock;
	struct kept {
		int fd;
		char name[NAME_BYTES];
	} * kept;
	unsigned n, room, max;
	size_t names_bytes;
	bool is_full;      /* the message about a full store was printed */
	bool has_watchdog; /* READY=1 or WATCHDOG=1 has arrived */
};

/* Return how many descriptors may be stored. The agent's next process has each descriptor twice
 * while it moves them to their numbers (child.c). */
static unsigned fdstore_server_compute_max(void)
{
	uint64_t files = limits_open_files(), max;

	max = files > OTHER_FDS ? (files - OTHER_FDS) / 2 : 0;
	return max < KEPT_MAX ? (unsigned)max : KEPT_MAX;
}

int fdstore_server_open(const char *path, struct fdstore_server **ret)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct fdstore_server *k = calloc(1, sizeof(*k));
	int rc;

	if (!k)
		return -ENOMEM;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	k->max = fdstore_server_compute_max();
	k->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (k->sock < 0 || bind(k->sock, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		rc = -errno;
		output_print_message("cannot listen on '%s': %s", path, strerror(errno));
		fdstore_server_close(k);
		return rc;
	}
	*ret = k;
	return 0;
}

void fdstore_server_close(struct fdstore_server *k)
{
	if (!k)
		return;
	for (unsigned i = 0; i < k->n; i++)
		close(k->kept[i].fd);
	if (k->sock >= 0)
		close(k->sock);
	free(k->kept);
	free(k);
}

int fdstore_server_socket(const struct fdstore_server *k)
{
	return k ? k->sock : -1;
}

/* Make room for one more descriptor with the name `name`. Returns false if the store is full. */
static bool fdstore_server_make_room(struct fdstore_server *k, const char *name)
{
	unsigned room = 2 * k->room + 32;
	struct kept *v;

	if (k->n == k->max || k->names_bytes + strlen(name) + 1 > NAMES_BYTES)
		return false;
	if (k->n < k->room)
		return true;
	v = realloc(k->kept, room * sizeof(*v));
	if (!v)
		return false;
	k->kept = v;
	k->room = room;
	return true;
}

/* Store the descriptor `fd` under the name `name`. If there is no room, close the descriptor.
 * Owns: takes the descriptor. */
static void fdstore_server_add_fd(struct fdstore_server *k, const char *name, int fd)
{
	if (!fdstore_server_make_room(k, name)) {
		close(fd);
		if (!k->is_full)
			output_print_message(
				"no room for more than %u descriptors of the agent: if the agent "
				"is "
				"started again, jobs will end; raise the limit of open files (now "
				"%llu), or start fewer workers",
				k->n, (unsigned long long)limits_open_files());
		k->is_full = true;
		return;
	}
	k->kept[k->n].fd = fd;
	snprintf(k->kept[k->n++].name, NAME_BYTES, "%s", name);
	k->names_bytes += strlen(name) + 1;
}

static void fdstore_server_remove_fds(struct fdstore_server *k, const char *name)
{
	unsigned n = 0;

	for (unsigned i = 0; i < k->n; i++) {
		if (strcmp(k->kept[i].name, name) != 0) {
			k->kept[n++] = k->kept[i];
			continue;
		}
		close(k->kept[i].fd);
		k->names_bytes -= strlen(name) + 1;
	}
	k->n = n;
}

/* Find the line that begins with `key`, such as "FDNAME=", and copy the rest of the line to ret.
 * Returns false if no line begins with `key`, or if the rest of the line is not a valid name. */
static bool parse_notify_value(const char *lines, const char *key, char ret[NAME_BYTES])
{
	size_t n = strlen(key), len;

	while (strncmp(lines, key, n) != 0) {
		lines = strchr(lines, '\n');
		if (!lines++)
			return false;
	}
	len = strcspn(lines + n, "\n");
	if (len >= NAME_BYTES || memchr(lines + n, ':', len))
		return false;
	memcpy(ret, lines + n, len);
	ret[len] = 0;
	return true;
}

void fdstore_server_receive(struct fdstore_server *k)
{
	union fd_passing_room control;
	char lines[LINES_MAX], name[NAME_BYTES], yes[NAME_BYTES];
	int fds[FD_PASSING_MAX];

	for (unsigned left = MESSAGES_MAX; left > 0; left--) {
		struct iovec iov = {lines, sizeof(lines) - 1};
		struct msghdr mh = {.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(k->sock, &mh, MSG_CMSG_CLOEXEC);
		unsigned n_fds;

		if (n < 0)
			return;
		lines[n] = 0;
		n_fds = fd_passing_detach(&mh, fds, FD_PASSING_MAX);
		if (parse_notify_value(lines, "WATCHDOG=", yes) ||
			parse_notify_value(lines, "READY=", yes))
			k->has_watchdog |= strcmp(yes, "1") == 0;
		if (!parse_notify_value(lines, "FDNAME=", name))
			*name = 0;
		if (*name && parse_notify_value(lines, "FDSTOREREMOVE=", yes))
			fdstore_server_remove_fds(k, name);
		for (unsigned i = 0; i < n_fds; i++)
			if (*name && parse_notify_value(lines, "FDSTORE=", yes))
				fdstore_server_add_fd(k, name, fds[i]);
			else
				close(fds[i]);
	}
}

bool fdstore_server_take_watchdog(struct fdstore_server *k)
{
	bool has_watchdog = k->has_watchdog;

	k->has_watchdog = false;
	return has_watchdog;
}

unsigned fdstore_server_count(const struct fdstore_server *k)
{
	return k->n;
}

unsigned fdstore_server_fds(const struct fdstore_server *k, int **ret_fds, char **ret_names)
{
	int *fds = k && k->n ? calloc(k->n, sizeof(*fds)) : NULL;
	char *names = fds ? calloc(k->n, NAME_BYTES) : NULL, *end = names;

	if (!names) {
		free(fds);
		return 0;
	}
	for (unsigned i = 0; i < k->n; i++) {
		fds[i] = k->kept[i].fd;
		if (i)
			*end++ = ':';
		end = stpcpy(end, k->kept[i].name);
	}
	*ret_fds = fds;
	*ret_names = names;
	return k->n;
}
