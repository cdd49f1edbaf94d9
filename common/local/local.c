/* Communication between a trainer and its agent, for both sides: layout checks of the control page,
 * push and pop on the ring, completions, and encoding of the frames on the socket. The callers
 * decide what to submit and when a round is complete. The comments in local.h name the side that
 * may call a function. */
#include "common/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/os/fd_passing.h"
#include "common/wire/ctlmsg.h"

/* ---- control page ---- */

_Static_assert(sizeof(struct local_sqe) == 16, "ring entries are part of the ABI");
_Static_assert(sizeof(struct local_entry) == 64, "tensor entries are part of the ABI");
_Static_assert(sizeof(struct local_control) % LOCAL_ALIGN == 0, "the ring is aligned");

static size_t local_sq_ring_bytes(uint32_t sq_entries)
{
	size_t bytes = (size_t)sq_entries * sizeof(struct local_sqe);

	return (bytes + LOCAL_ALIGN - 1) / LOCAL_ALIGN * LOCAL_ALIGN;
}

size_t local_control_bytes(uint32_t sq_entries, uint32_t tensor_entries)
{
	return sizeof(struct local_control) + local_sq_ring_bytes(sq_entries) +
	       (size_t)tensor_entries * sizeof(struct local_entry);
}

void local_control_init(struct local_control *c, uint32_t sq_entries, uint32_t tensor_entries)
{
	c->magic = LOCAL_MAGIC;
	c->abi = LOCAL_ABI;
	c->sq_entries = sq_entries;
	c->tensor_entries = tensor_entries;
	c->sq_offset = sizeof(*c);
	c->entries_offset = sizeof(*c) + local_sq_ring_bytes(sq_entries);
	c->bytes = local_control_bytes(sq_entries, tensor_entries);
}

int local_control_check(const struct local_control *c, size_t mapped_bytes, struct err_text *err)
{
	if (mapped_bytes < sizeof(*c))
		return err_set(err, BPS_EPROTO,
			"the agent's control page of %zu bytes is too small", mapped_bytes);
	if (c->magic != LOCAL_MAGIC)
		return err_set(err, BPS_EPROTO,
			"the agent's control page has magic number %#x, not %#x", c->magic,
			LOCAL_MAGIC);
	if (c->abi != LOCAL_ABI)
		return err_set(err, BPS_EVERSION,
			"the agent's control page has ABI version %u, but this library needs "
			"version %u",
			c->abi, (unsigned)LOCAL_ABI);
	if (!c->sq_entries || c->sq_entries > LOCAL_SQ_MAX || (c->sq_entries & (c->sq_entries - 1)))
		return err_set(err, BPS_EPROTO,
			"the agent's control page has an invalid ring size of %u entries",
			c->sq_entries);
	if (!c->tensor_entries || c->tensor_entries > LOCAL_TENSORS_MAX)
		return err_set(err, BPS_EPROTO,
			"the agent's control page has an invalid number of tensor entries: %u",
			c->tensor_entries);
	if (c->sq_offset != sizeof(*c) ||
		c->entries_offset != sizeof(*c) + local_sq_ring_bytes(c->sq_entries) ||
		c->bytes != local_control_bytes(c->sq_entries, c->tensor_entries) ||
		c->bytes > mapped_bytes)
		return err_set(err, BPS_EPROTO,
			"the agent's control page of %zu bytes has an invalid layout",
			mapped_bytes);
	return 0;
}

struct local_entry *local_tensor_entries(struct local_control *c, uint32_t sq_entries)
{
	return (struct local_entry *)((char *)c + sizeof(*c) + local_sq_ring_bytes(sq_entries));
}

/* ---- ring ---- */

uint32_t local_sq_room(const struct local_control *c)
{
	/* Relaxed, because only the trainer, which calls this function, writes the tail */
	uint32_t tail = atomic_load_explicit(&c->sq_tail, memory_order_relaxed);
	/* The acquire load pairs with the store in local_sq_pop. The agent copies an entry before
	 * it frees the entry's place in the ring. */
	uint32_t used = tail - atomic_load_explicit(&c->sq_head, memory_order_acquire);

	return used < c->sq_entries ? c->sq_entries - used : 0;
}

int local_sq_push(struct local_control *c, const struct local_sqe *e)
{
	uint32_t tail = atomic_load_explicit(&c->sq_tail, memory_order_relaxed);

	if (!local_sq_room(c))
		return -EAGAIN;
	local_sq(c)[tail & (c->sq_entries - 1)] = *e;
	/* The release store pairs with the load in local_sq_pop. The entry must be written before
	 * the tail. */
	atomic_store_explicit(&c->sq_tail, tail + 1, memory_order_release);
	return 0;
}

bool local_sq_publish(struct local_control *c)
{
	/* The agent stores agent_sleeps, then loads sq_tail (local_sq_sleep). This side stores
	 * sq_tail, then loads agent_sleeps. All four accesses are seq_cst. So at least one side
	 * reads the other side's store, and an agent that is about to block is woken. The store in
	 * local_sq_push is not seq_cst, so write the tail again here. Add 0 instead of storing a
	 * value, because another thread may push at the same time. */
	atomic_fetch_add(&c->sq_tail, 0);
	return atomic_load(&c->agent_sleeps) != 0;
}

static uint32_t local_sq_ready_count(uint32_t tail, uint32_t head, uint32_t sq_entries)
{
	return tail - head <= sq_entries ? tail - head : 0;
}

bool local_sq_pop(
	struct local_control *c, uint32_t sq_entries, uint32_t *head, struct local_sqe *ret)
{
	uint32_t tail = atomic_load_explicit(&c->sq_tail, memory_order_acquire);

	if (!local_sq_ready_count(tail, *head, sq_entries))
		return false;
	*ret = local_sq(c)[*head & (sq_entries - 1)];
	*head += 1;
	/* The release store pairs with the load in local_sq_room. After this store the trainer may
	 * overwrite the entry. */
	atomic_store_explicit(&c->sq_head, *head, memory_order_release);
	return true;
}

bool local_sq_sleep(struct local_control *c, uint32_t sq_entries, uint32_t head)
{
	atomic_store(&c->agent_sleeps, 1); /* seq_cst, for the reason in local_sq_publish */
	if (!local_sq_ready_count(atomic_load(&c->sq_tail), head, sq_entries))
		return true;
	local_sq_awake(c);
	return false;
}

void local_sq_awake(struct local_control *c)
{
	atomic_store_explicit(&c->agent_sleeps, 0, memory_order_relaxed);
}

/* ---- completions ---- */

static long futex_system_call(
	_Atomic uint32_t *word, int op, uint32_t val, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, val, timeout, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

void local_complete_round(struct local_control *c, uint32_t sq_entries, uint32_t tensor,
	uint64_t round, int status, uint32_t workers)
{
	struct local_entry *e = &local_tensor_entries(c, sq_entries)[tensor];

	atomic_store_explicit(&e->status, status, memory_order_relaxed);
	atomic_store_explicit(&e->workers, workers, memory_order_relaxed);
	atomic_store_explicit(&e->done_order,
		atomic_fetch_add_explicit(&c->n_done, 1, memory_order_relaxed) + 1,
		memory_order_relaxed);
	/* The release store pairs with the trainer's acquire load of done_round. If that load
	 * returns `round`, the trainer's later reads return the values that were stored above, and
	 * the sum of this round. */
	atomic_store_explicit(&e->done_round, round, memory_order_release);
}

void local_set_contributors(struct local_control *c, uint32_t sq_entries, uint32_t tensor,
	uint32_t workers_most, bool is_mine_missing, bool is_late)
{
	struct local_entry *e = &local_tensor_entries(c, sq_entries)[tensor];

	/* Relaxed, because the caller calls local_complete_round next. The release store in
	 * local_complete_round also orders these stores. */
	atomic_store_explicit(&e->workers_most, workers_most, memory_order_relaxed);
	atomic_store_explicit(&e->is_mine_missing, is_mine_missing, memory_order_relaxed);
	atomic_store_explicit(&e->is_late, is_late, memory_order_relaxed);
}

void local_done_wake(struct local_control *c)
{
	/* The trainer adds to trainer_waits, then the kernel compares done_seq (local_done_wait).
	 * This side adds to done_seq, then loads trainer_waits. All four accesses are seq_cst. So
	 * either the kernel compares the new done_seq and the trainer does not sleep, or this side
	 * reads that the trainer waits. */
	atomic_fetch_add(&c->done_seq, 1);
	if (atomic_load(&c->trainer_waits))
		futex_system_call(&c->done_seq, FUTEX_WAKE, INT_MAX, NULL);
}

bool local_is_awaited(struct local_control *c, uint32_t sq_entries, uint32_t tensor)
{
	/* Relaxed: the number guards no data. An old value only moves a finding of the agent to a
	 * later look, or reports a wait that has just ended. */
	return atomic_load_explicit(
		&local_tensor_entries(c, sq_entries)[tensor].waits, memory_order_relaxed);
}

int local_done_wait(struct local_control *c, struct local_entry *entry, uint32_t seen,
	uint64_t spin_ns, uint64_t timeout_ns)
{
	struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
		.tv_nsec = (long)(timeout_ns % 1000000000u)};
	uint64_t start_ns;
	long rc = 0;

	if (spin_ns) {
		start_ns = clock_now_ns();
		do {
			if (atomic_load(&c->done_seq) != seen)
				return 0;
			cpu_relax();
		} while (clock_now_ns() - start_ns < spin_ns);
	}
	atomic_fetch_add_explicit(&entry->waits, 1, memory_order_relaxed);
	atomic_fetch_add(&c->trainer_waits, 1);
	if (atomic_load(&c->done_seq) == seen)
		rc = futex_system_call(&c->done_seq, FUTEX_WAIT, seen, &ts);
	rc = rc && (errno == ETIMEDOUT || errno == EINTR) ? -errno : 0;
	atomic_fetch_sub(&c->trainer_waits, 1);
	atomic_fetch_sub_explicit(&entry->waits, 1, memory_order_relaxed);
	return (int)rc;
}

/* ---- messages ---- */

#define FRAME_HEAD_BYTES 8 /* bytes of a frame's header: u16 type, u16 0, u32 seq */
/* Largest memory in bytes for the strings and lists of one decoded frame. The limit is larger than
 * a frame, because the structs of a list take more bytes than their encoding. */
#define DECODE_MEM_MAX (2 * LOCAL_FRAME_MAX)
#define VERSION_MAX    63

static const struct field hello_fields[] = {
	FIELD_U16_(local_hello, abi),
	FIELD_STR_(local_hello, version, VERSION_MAX),
	FIELD_STR_(local_hello, job, CTL_JOB_NAME_MAX),
	FIELD_U32_(local_hello, rank),
	FIELD_U32_(local_hello, size),
	FIELD_U32_(local_hello, flags),
	FIELD_U32_(local_hello, part_bytes),
	FIELD_BLOB_(local_hello, token, CTL_TOKEN_BYTES),
	FIELD_U16_(local_hello, backup),
	FIELD_U32_(local_hello, grace_ms),
	FIELD_U32_(local_hello, max_size),
	FIELD_U32_(local_hello, machine_size),
};
static const struct field welcome_fields[] = {
	FIELD_U32_(local_welcome, code),
	FIELD_STR_(local_welcome, text, CTL_TEXT_MAX),
	FIELD_U16_(local_welcome, n_types),
};
static const struct field job_fields[] = {
	FIELD_U32_(local_job, code),
	FIELD_STR_(local_job, text, CTL_TEXT_MAX),
	FIELD_U32_(local_job, rank),
	FIELD_U32_(local_job, size),
	FIELD_U32_(local_job, local_rank),
	FIELD_U32_(local_job, local_size),
	FIELD_U64_(local_job, barrier),
	FIELD_U8_(local_job, is_new),
	FIELD_U32_(local_job, root),
	FIELD_CAUSE_(local_job),
};
static const struct field decl_fields[] = {
	FIELD_STR_(local_decl, name, CTL_TENSOR_NAME_MAX),
	FIELD_SHAPE_(local_decl),
	FIELD_U32_(local_decl, region),
	FIELD_U64_(local_decl, region_offset),
};
static const struct layout decl_layout = LAYOUT_(local_decl, decl_fields);
static const struct field declare_fields[] = {
	FIELD_LIST_(local_declare, tensors, LOCAL_DECLARE_MAX, &decl_layout),
};
static const struct field slot_fields[] = {
	FIELD_U32_(local_slot, code),
	FIELD_STR_(local_slot, text, CTL_TEXT_MAX),
	FIELD_U32_(local_slot, tensor),
	FIELD_U32_(local_slot, in_arena),
	FIELD_U32_(local_slot, out_arena),
	FIELD_U64_(local_slot, in_offset),
	FIELD_U64_(local_slot, out_offset[0]),
	FIELD_U64_(local_slot, out_offset[1]),
	FIELD_CAUSE_(local_slot),
};
static const struct layout slot_layout = LAYOUT_(local_slot, slot_fields);
static const struct field declared_fields[] = {
	FIELD_LIST_(local_declared, slots, LOCAL_DECLARE_MAX, &slot_layout),
};
static const struct field arena_fields[] = {
	FIELD_U32_(local_arena, id),
	FIELD_U8_(local_arena, is_writable),
	FIELD_U64_(local_arena, bytes),
};
static const struct field why_fields[] = {
	FIELD_U32_(local_why, tensor),
	FIELD_U64_(local_why, round),
};
static const struct field text_fields[] = {
	FIELD_U32_(local_text, code),
	FIELD_STR_(local_text, text, CTL_TEXT_MAX),
	FIELD_CAUSE_(local_text),
};
static const struct field ask_fields[] = {
	FIELD_U32_(local_ask, tensor),
	FIELD_U32_(local_ask, first),
};
static const struct field person_fields[] = {
	FIELD_U32_(local_person, rank),
	FIELD_U8_(local_person, is_lost),
	FIELD_U8_(local_person, is_missing),
	FIELD_STR_(local_person, host, CTL_NAME_MAX),
	FIELD_STR_(local_person, why, CTL_WHY_GONE_MAX),
	FIELD_U8_(local_person, is_new),
};
static const struct layout person_layout = LAYOUT_(local_person, person_fields);
static const struct field people_fields[] = {
	FIELD_U64_(local_people, view),
	FIELD_U32_(local_people, n_all),
	FIELD_LIST_(local_people, people, LOCAL_PEOPLE_MAX, &person_layout),
};
static const struct field ask_trace_fields[] = {
	FIELD_U64_(local_ask_trace, since_ns),
	FIELD_U64_(local_ask_trace, first_round),
	FIELD_U64_(local_ask_trace, last_round),
};
static const struct field barrier_fields[] = {
	FIELD_U64_(local_barrier, number),
};
static const struct field passed_fields[] = {
	FIELD_U32_(local_passed, code),
	FIELD_STR_(local_passed, text, CTL_TEXT_MAX),
	FIELD_U64_(local_passed, barrier),
	FIELD_U32_(local_passed, n_new),
	FIELD_U32_(local_passed, root),
	FIELD_CAUSE_(local_passed),
};
static const struct field traffic_fields[] = {
	FIELD_U64_(local_traffic, instance),
	FIELD_U64_(local_traffic, sent_bytes),
	FIELD_U64_(local_traffic, received_bytes),
};
static const struct field none_fields[] = {
	FIELD_U8_(local_none, unused),
};
static const struct field finished_fields[] = {
	FIELD_U32_(local_finished, code),
	FIELD_STR_(local_finished, text, CTL_TEXT_MAX),
	FIELD_CAUSE_(local_finished),
};

static const struct local_row rows[LOCAL_TYPE_END] = {
	[LOCAL_HELLO] = {"HELLO", LAYOUT_(local_hello, hello_fields)},
	[LOCAL_WELCOME] = {"WELCOME", LAYOUT_(local_welcome, welcome_fields)},
	[LOCAL_JOB] = {"JOB", LAYOUT_(local_job, job_fields)},
	[LOCAL_DECLARE] = {"DECLARE", LAYOUT_(local_declare, declare_fields)},
	[LOCAL_DECLARED] = {"DECLARED", LAYOUT_(local_declared, declared_fields)},
	[LOCAL_ARENA] = {"ARENA", LAYOUT_(local_arena, arena_fields)},
	[LOCAL_WHY] = {"WHY", LAYOUT_(local_why, why_fields)},
	[LOCAL_TEXT] = {"TEXT", LAYOUT_(local_text, text_fields)},
	[LOCAL_FINISH] = {"FINISH", LAYOUT_(local_none, none_fields)},
	[LOCAL_FINISHED] = {"FINISHED", LAYOUT_(local_finished, finished_fields)},
	[LOCAL_ASK] = {"ASK", LAYOUT_(local_ask, ask_fields)},
	[LOCAL_PEOPLE] = {"PEOPLE", LAYOUT_(local_people, people_fields)},
	[LOCAL_DEVICE] = {"DEVICE", LAYOUT_(local_none, none_fields)},
	[LOCAL_DEVICE_AT] = {"DEVICE_AT", LAYOUT_(local_text, text_fields)},
	[LOCAL_BARRIER] = {"BARRIER", LAYOUT_(local_barrier, barrier_fields)},
	[LOCAL_PASSED] = {"PASSED", LAYOUT_(local_passed, passed_fields)},
	[LOCAL_ASK_TRAFFIC] = {"ASK_TRAFFIC", LAYOUT_(local_none, none_fields)},
	[LOCAL_TRAFFIC] = {"TRAFFIC", LAYOUT_(local_traffic, traffic_fields)},
	[LOCAL_ASK_TRACE] = {"ASK_TRACE", LAYOUT_(local_ask_trace, ask_trace_fields)},
	[LOCAL_TRACE] = {"TRACE", LAYOUT_(local_text, text_fields)},
};

bool local_is_sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & F_SEAL_SHRINK; /* seals: -1 if the file cannot have seals */
}

static const struct local_row *local_row_of_type(unsigned type)
{
	if (type >= GPU_TYPE_FIRST && type < GPU_TYPE_END)
		return &gpu_rows[type - GPU_TYPE_FIRST];
	return type < LOCAL_TYPE_END && rows[type].name ? &rows[type] : NULL;
}

const char *local_type_name(unsigned type)
{
	const struct local_row *row = local_row_of_type(type);

	return row ? row->name : "?";
}

static void store_little_endian(unsigned char *p, uint32_t v, unsigned n_bytes)
{
	for (unsigned i = 0; i < n_bytes; i++)
		p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t load_little_endian(const unsigned char *p, unsigned n_bytes)
{
	uint32_t v = 0;

	for (unsigned i = 0; i < n_bytes; i++)
		v |= (uint32_t)p[i] << (8 * i);
	return v;
}

int local_decode(const void *buf, size_t n_bytes, struct local_msg *ret, void **ret_mem,
	struct err_text *err)
{
	const unsigned char *p = buf;
	const struct local_row *row;
	struct local_msg m;
	int rc;

	if (n_bytes < FRAME_HEAD_BYTES || n_bytes > LOCAL_FRAME_MAX)
		return err_set(err, BPS_EPROTO, "a received frame has an invalid size of %zu bytes",
			n_bytes);
	memset(&m, 0, sizeof(m));
	m.type = (uint16_t)load_little_endian(p, 2);
	m.seq = load_little_endian(p + 4, 4);
	row = local_row_of_type(m.type);
	if (!row)
		return err_set(err, BPS_EPROTO, "a received frame has the unknown message type %u",
			(unsigned)m.type);
	if (load_little_endian(p + 2, 2))
		return err_set(
			err, BPS_EPROTO, "a received frame (%s) has unknown flags", row->name);
	rc = codec_decode(&row->layout, p + FRAME_HEAD_BYTES, n_bytes - FRAME_HEAD_BYTES,
		DECODE_MEM_MAX, &m.hello, ret_mem, err);
	if (rc == -E2BIG)
		return BPS_EPROTO;
	if (rc < 0)
		return rc;
	*ret = m;
	return 0;
}

/* Wait until sock is ready for `events`, or until the deadline. Returns 0, -ETIMEDOUT or another
 * -errno. If deadline_ns is 0, returns -EAGAIN at once, without a check of the socket. */
static int socket_wait_ready(int sock, short events, uint64_t deadline_ns)
{
	struct pollfd pfd = {.fd = sock, .events = events};
	uint32_t left_ms;
	int rc;

	if (!deadline_ns)
		return -EAGAIN;
	do {
		left_ms = clock_ms_until_deadline(deadline_ns);
		rc = poll(&pfd, 1, left_ms > INT_MAX ? INT_MAX : (int)left_ms);
	} while (rc < 0 && errno == EINTR);
	if (rc < 0)
		return -errno;
	return rc ? 0 : -ETIMEDOUT;
}

/* Send or receive one message. Returns its length or -errno. */
static ssize_t socket_transfer_message(
	int sock, struct msghdr *mh, bool is_send, uint32_t timeout_ms)
{
	uint64_t deadline_ns = timeout_ms ? clock_deadline(timeout_ms) : 0;
	size_t control_bytes = mh->msg_controllen;
	ssize_t n;
	int rc;

	for (;;) {
		mh->msg_controllen = control_bytes;
		n = is_send ? sendmsg(sock, mh, MSG_NOSIGNAL | MSG_DONTWAIT)
			    : recvmsg(sock, mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n >= 0)
			return n;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		rc = socket_wait_ready(sock, is_send ? POLLOUT : POLLIN, deadline_ns);
		if (rc < 0)
			return rc;
	}
}

int local_send(
	int sock, const struct local_msg *m, const int *fds, unsigned n_fds, uint32_t timeout_ms)
{
	const struct local_row *row = local_row_of_type(m->type);
	union fd_passing_room room;
	struct iovec iov;
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
	unsigned char *buf;
	size_t body;
	ssize_t n;

	if (!row || n_fds > LOCAL_FDS_MAX || (n_fds && !fds))
		return -EINVAL;
	body = codec_encoded_size(&row->layout, &m->hello);
	if (!body || body + FRAME_HEAD_BYTES > LOCAL_FRAME_MAX)
		return -EMSGSIZE;
	buf = malloc(body + FRAME_HEAD_BYTES);
	if (!buf)
		return -ENOMEM;
	store_little_endian(buf, m->type, 2);
	store_little_endian(buf + 2, 0, 2);
	store_little_endian(buf + 4, m->seq, 4);
	codec_encode(&row->layout, &m->hello, buf + FRAME_HEAD_BYTES);
	iov.iov_base = buf;
	iov.iov_len = body + FRAME_HEAD_BYTES;
	if (n_fds)
		fd_passing_attach(&mh, &room, fds, n_fds);
	n = socket_transfer_message(sock, &mh, true, timeout_ms);
	if (m->type == LOCAL_HELLO)
		explicit_bzero(buf, body + FRAME_HEAD_BYTES); /* erase the job's token */
	free(buf);
	return n < 0 ? (int)n : 0;
}

int local_code_from_wire(uint32_t wire, int fallback)
{
	int code = wire <= INT32_MAX ? -(int)wire : 0;

	return code < 0 && (code > -4096 || err_name(code)) ? code : fallback;
}

void local_frame_free(struct local_frame *f)
{
	for (unsigned i = 0; i < f->n_fds; i++)
		if (f->fds[i] >= 0)
			close(f->fds[i]);
	free(f->mem);
	*f = (struct local_frame){.mem = NULL};
}

int local_peek(int sock, struct local_msg *ret, void **ret_mem, struct err_text *err)
{
	unsigned char *buf = malloc(LOCAL_FRAME_MAX);
	ssize_t n;
	int rc;

	if (!buf)
		return err_set(err, -ENOMEM, "out of memory");
	n = recv(sock, buf, LOCAL_FRAME_MAX, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
	if (n < 0)
		rc = err_set(err, -errno, "cannot receive: %s", strerror(errno));
	else if (n > LOCAL_FRAME_MAX)
		rc = err_set(err, BPS_EPROTO, "a received frame has more than %u bytes",
			LOCAL_FRAME_MAX);
	else
		rc = n ? local_decode(buf, (size_t)n, ret, ret_mem, err) : 0;
	if (n > 0 && rc == 0)
		rc = 1;
	if (rc == 1 && ret->type == LOCAL_HELLO)
		explicit_bzero(buf, (size_t)n); /* erase the job's token */
	free(buf);
	return rc;
}

int local_recv(int sock, struct local_frame *ret, uint32_t timeout_ms, struct err_text *err)
{
	union fd_passing_room room;
	struct iovec iov = {.iov_len = LOCAL_FRAME_MAX};
	struct msghdr mh = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = room.bytes,
		.msg_controllen = sizeof(room.bytes)};
	ssize_t n;
	int rc;

	*ret = (struct local_frame){.mem = NULL};
	iov.iov_base = malloc(LOCAL_FRAME_MAX);
	if (!iov.iov_base)
		return err_set(err, -ENOMEM, "out of memory");
	n = socket_transfer_message(sock, &mh, false, timeout_ms);
	if (n < 0) {
		rc = err_set(err, (int)n, "cannot receive: %s", err_str((int)n));
		goto free_buf;
	}
	ret->n_fds = fd_passing_detach(&mh, ret->fds, LOCAL_FDS_ROOM);
	if (ret->n_fds > LOCAL_FDS_MAX)
		rc = err_set(err, BPS_EPROTO, "a received frame has too many descriptors");
	else if (mh.msg_flags & MSG_TRUNC)
		rc = err_set(err, BPS_EPROTO, "a received frame has more than %u bytes",
			LOCAL_FRAME_MAX);
	else
		rc = n ? local_decode(iov.iov_base, (size_t)n, &ret->msg, &ret->mem, err) : 0;
	if (n && rc == 0)
		rc = 1;
	if (rc < 0 || ret->msg.type == LOCAL_HELLO)
		explicit_bzero(iov.iov_base, (size_t)n); /* erase the job's token */
	/* The control buffer has room for all descriptors that a message can have. So MSG_CTRUNC
	 * means that this process could not open some of the descriptors, because it has reached
	 * its limit. */
	if (rc == 1 && (mh.msg_flags & MSG_CTRUNC))
		rc = err_set(err, -EMFILE, "cannot receive the descriptors of a frame: %s",
			err_str(-EMFILE));
free_buf:
	free(iov.iov_base);
	return rc;
}
