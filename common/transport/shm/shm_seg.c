/* Segments of the shared-memory transport: send the memfds of own segments, map the memfds of a
 * peer, and count references to the mappings. shm_io.c reads from the mappings. Thread: the data
 * thread. */
#include "common/transport/shm/shm_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/os/fd_passing.h"
#include "common/os/memfd.h"

/* Largest segment of a peer. The limit keeps a peer from using up the address space of this
 * process. */
#define SEGMENT_MAX (UINT64_C(1) << 40)

void *shm_map_sealed_fd(int fd, size_t bytes, int prot, int flags)
{
	int seals = fcntl(fd, F_GET_SEALS);
	void *mem = MAP_FAILED;
	struct statfs fs;
	struct stat st;

	/* Accept only tmpfs, not hugetlbfs: even in a sealed memfd of huge pages, a page may be
	 * missing when it is read (SIGBUS). */
	if (seals >= 0 && (seals & MEMFD_FIXED_SIZE) == MEMFD_FIXED_SIZE && fstat(fd, &st) == 0 &&
		st.st_size >= 0 && (uint64_t)st.st_size >= bytes && fstatfs(fd, &fs) == 0 &&
		fs.f_type == TMPFS_MAGIC)
		mem = mmap(NULL, bytes, prot, MAP_SHARED | flags, fd, 0);
	close(fd);
	return mem == MAP_FAILED ? NULL : mem;
}

/* ---- descriptors ---- */

int shm_send_fd(int sock, const void *buf, size_t n, int fd)
{
	union fd_passing_room room;
	struct iovec iov = {(void *)(uintptr_t)buf, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	fd_passing_attach(&m, &room, &fd, 1);
	/* The socket is SOCK_SEQPACKET, so a message is sent as a whole or not at all. */
	return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

ssize_t shm_recv_fd(int sock, void *buf, size_t room, int *ret_fd)
{
	union fd_passing_room control;
	struct iovec iov = {buf, room};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(sizeof(int))};
	ssize_t n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	bool is_cut;
	unsigned n_fds;
	int fds[2];

	*ret_fd = -1;
	if (n < 0)
		return -errno;
	is_cut = m.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
	/* Take descriptors even when no bytes were received, because a message without bytes may
	 * carry descriptors. */
	n_fds = fd_passing_detach(&m, fds, 2);
	if (n_fds == 1 && !is_cut)
		*ret_fd = fds[0];
	else
		for (unsigned i = 0; i < n_fds; i++)
			close(fds[i]);
	return is_cut ? -EMSGSIZE : n;
}

/* ---- own segments ---- */

static void shm_mark_segment_dirty(struct shm_xport *x, uint16_t id)
{
	uint64_t bit = UINT64_C(1) << (id % 64);

	for (unsigned i = 0; i < SHM_CONNS_MAX; i++) {
		struct shm_conn *c = x->conns[i];

		if (!c || c->base.state != CONN_UP || c->dirty[id / 64] & bit)
			continue;
		c->dirty[id / 64] |= bit;
		c->n_dirty++;
	}
}

void shm_mark_all_segments(struct shm_conn *c)
{
	const struct shm_xport *x = shm_xport_of_conn(c);

	for (unsigned i = 0; i < SHM_SEGS_MAX; i++) {
		if (x->segs[i].fd < 0)
			continue;
		c->dirty[i / 64] |= UINT64_C(1) << (i % 64);
		c->n_dirty++;
	}
}

void shm_seg_set(struct xport *xp, uint16_t id, void *mem, size_t bytes)
{
	struct shm_xport *x = (struct shm_xport *)xp;

	x->segs[id] = (struct shm_seg){.mem = mem, .bytes = bytes, .fd = -1};
}

int shm_seg_add(struct xport *xp, void *mem, size_t bytes, uint16_t *ret_segment)
{
	const struct shm_xport *x = (const struct shm_xport *)xp;

	if (!mem || !bytes)
		return -EINVAL;
	for (uint16_t i = 0; i < SHM_SEGS_MAX; i++) {
		if (x->segs[i].mem)
			continue;
		shm_seg_set(xp, i, mem, bytes);
		*ret_segment = i;
		return 0;
	}
	return -ENOSPC;
}

int shm_seg_share(struct xport *xp, uint16_t id, int fd)
{
	struct shm_xport *x = (struct shm_xport *)xp;

	if (id >= SHM_SEGS_MAX || !x->segs[id].mem || x->segs[id].fd >= 0)
		return -EINVAL;
	x->segs[id].fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (x->segs[id].fd < 0)
		return -errno;
	shm_mark_segment_dirty(x, id);
	return 0;
}

void shm_seg_del(struct xport *xp, uint16_t id)
{
	struct shm_xport *x = (struct shm_xport *)xp;

	if (id >= SHM_SEGS_MAX || !x->segs[id].mem)
		return;
	if (x->segs[id].fd >= 0) {
		close(x->segs[id].fd);
		shm_mark_segment_dirty(x, id);
	}
	x->segs[id] = (struct shm_seg){.fd = -1};
}

void shm_segs_free(struct shm_xport *x)
{
	for (unsigned i = 0; x->segs && i < SHM_SEGS_MAX; i++)
		if (x->segs[i].fd >= 0)
			close(x->segs[i].fd);
	free(x->segs);
	x->segs = NULL;
}

/* Send the memfd of a segment over the socket. Call this before the message that names the segment
 * is put into the ring.
 * Errors: -EAGAIN: the socket cannot take the memfd now; -ENOTCONN: the connection has failed
 * (DOOMED). */
static int shm_send_segment_memfd(struct shm_conn *c, uint16_t id)
{
	const struct shm_seg *s = &shm_xport_of_conn(c)->segs[id];
	struct shm_note note = {.type = SHM_SEGMENT, .segment = id, .bytes = s->bytes};
	int rc = shm_send_fd(c->sock, &note, sizeof(note), s->fd);

	if (rc == 0)
		return 0;
	if (rc == -EAGAIN || rc == -ENOBUFS || rc == -ETOOMANYREFS) {
		c->is_sock_full = true;
		c->sock_retry_ns = shm_xport_of_conn(c)->base.now_ns + SHM_SOCK_FULL_NS;
		peer_xport_lower_deadline(&shm_xport_of_conn(c)->base, c->sock_retry_ns);
		return -EAGAIN;
	}
	peer_conn_doom(&c->base, "cannot share a segment: %s", strerror(-rc));
	return -ENOTCONN;
}

static int shm_announce_segment(struct shm_conn *c, uint16_t id)
{
	const struct shm_seg *s = &shm_xport_of_conn(c)->segs[id];
	struct wire_msg m = {
		.type = s->fd >= 0 ? WIRE_SEG_ADD : WIRE_SEG_DEL, .segment = id, .seg.bytes = 0};
	int rc = 0;

	/* Check the ring's room before shm_send_segment_memfd. If shm_put_message failed after
	 * shm_send_segment_memfd, a retry would send the memfd again. */
	if (!ring_has_room(&c->tx, SHM_NOTE_ROOM))
		return -EAGAIN;
	if (s->fd >= 0) {
		m.seg.bytes = s->bytes;
		rc = shm_send_segment_memfd(c, id);
	}
	return rc ? rc : shm_put_message(c, &m);
}

int shm_announce_dirty(struct shm_conn *c)
{
	if (c->is_sock_full && shm_xport_of_conn(c)->base.now_ns < c->sock_retry_ns)
		return -EAGAIN;
	c->is_sock_full = false;
	for (unsigned w = 0; c->n_dirty && w < SHM_SEGS_MAX / 64; w++) {
		while (c->dirty[w]) {
			uint16_t id = (uint16_t)(w * 64 + (unsigned)__builtin_ctzll(c->dirty[w]));
			int rc = shm_announce_segment(c, id);

			if (rc)
				return rc;
			c->dirty[w] &= c->dirty[w] - 1;
			c->n_dirty--;
		}
	}
	return 0;
}

/* ---- peers' segments ---- */

void shm_map_put(void *p)
{
	struct shm_map *map = p;

	if (--map->refs)
		return;
	munmap((void *)map->mem, map->bytes);
	free(map);
}

static void shm_map_withdraw(struct shm_conn *c, uint16_t id)
{
	struct shm_map *map = c->maps[id];

	if (!map)
		return;
	c->maps[id] = NULL;
	map->is_withdrawn = true;
	shm_map_put(map);
}

void shm_maps_drop(struct shm_conn *c)
{
	for (unsigned i = 0; i < SHM_SEGS_MAX; i++)
		shm_map_withdraw(c, (uint16_t)i);
}

/* Receive the memfd for the segment of message m from the socket. Discard wake-ups that arrive
 * before the memfd. Returns -1 when the memfd is missing. */
static int shm_receive_memfd(struct shm_conn *c, const struct wire_msg *m)
{
	struct shm_note note;
	ssize_t n;
	int fd;

	for (;;) {
		n = shm_recv_fd(c->sock, &note, sizeof(note), &fd);
		if (n == sizeof(note) && note.type == SHM_SEGMENT && fd >= 0 &&
			note.segment == m->segment && note.bytes == m->seg.bytes)
			return fd;
		if (fd >= 0)
			close(fd);
		if (n != sizeof(note) || note.type != SHM_WAKE || fd >= 0)
			return -1;
	}
}

void shm_apply_segment_message(struct shm_conn *c, const struct wire_msg *m)
{
	struct shm_map *map;
	int fd;

	if (m->segment >= SHM_SEGS_MAX) {
		shm_protocol_error(c, "a segment number above the limit");
		return;
	}
	shm_map_withdraw(c, m->segment);
	if (m->type == WIRE_SEG_DEL)
		return;
	fd = shm_receive_memfd(c, m);
	if (fd < 0 || m->seg.bytes > SEGMENT_MAX) {
		if (fd >= 0)
			close(fd);
		shm_protocol_error(c, "a segment without its memfd");
		return;
	}
	map = calloc(1, sizeof(*map));
	if (map)
		/* shm_map_sealed_fd closes fd, also when the mapping fails */
		map->mem = shm_map_sealed_fd(fd, m->seg.bytes, PROT_READ, 0);
	else
		close(fd);
	if (!map || !map->mem) {
		free(map);
		shm_protocol_error(c, "a segment that is not sealed, or cannot be mapped");
		return;
	}
	map->bytes = m->seg.bytes;
	map->refs = 1;
	c->maps[m->segment] = map;
}

int shm_map_get(
	struct shm_conn *c, uint16_t segment, uint64_t offset, uint32_t len, struct shm_map **ret)
{
	struct shm_map *map = segment < SHM_SEGS_MAX ? c->maps[segment] : NULL;

	if (!map || !len || offset > map->bytes || len > map->bytes - offset)
		return BPS_EPROTO;
	map->refs++;
	*ret = map;
	return 0;
}
