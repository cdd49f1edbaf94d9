/* Tests of the interface between trainer and agent: the control page and its checks, the ring and
 * its wake-ups, and the frames on the socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/local/local.h"

#define WAIT_NS (20ull * 1000000000u)
#define WAIT_MS 20000
#define SQ      8
#define TENSORS 4

static struct local_control *control_new(uint32_t sq_entries, uint32_t tensor_entries)
{
	size_t bytes = local_control_bytes(sq_entries, tensor_entries);
	struct local_control *c = aligned_alloc(64, bytes);

	assert_non_null(c);
	memset(c, 0, bytes);
	local_control_init(c, sq_entries, tensor_entries);
	return c;
}

/* ---- control page ---- */

static void fresh_control_page_passes_its_check(void **state)
{
	struct local_control *c = control_new(SQ, TENSORS);
	struct err_text err;

	(void)state;
	assert_int_equal(local_control_check(c, local_control_bytes(SQ, TENSORS), &err), 0);
	assert_ptr_equal(local_tensor_entries(c, SQ), (char *)c + c->entries_offset);
	free(c);
}

static void control_page_that_does_not_fit_is_refused(void **state)
{
	size_t bytes = local_control_bytes(SQ, TENSORS);
	struct local_control *c = control_new(SQ, TENSORS);
	struct local_control good = *c;

	(void)state;
	assert_int_equal(local_control_check(c, bytes - 1, NULL), BPS_EPROTO);
	assert_int_equal(local_control_check(c, 8, NULL), BPS_EPROTO);
	c->magic++;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EPROTO);
	*c = good;
	c->abi++;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EVERSION);
	*c = good;
	c->sq_entries = SQ - 1;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EPROTO);
	c->sq_entries = 0;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EPROTO);
	*c = good;
	c->tensor_entries = 0;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EPROTO);
	*c = good;
	c->tensor_entries++;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EPROTO);
	*c = good;
	c->entries_offset += 64;
	assert_int_equal(local_control_check(c, bytes, NULL), BPS_EPROTO);
	free(c);
}

/* ---- ring ---- */

static void full_ring_refuses_and_has_room_again_after_a_pop(void **state)
{
	struct local_control *c = control_new(SQ, TENSORS);
	struct local_sqe e = {0}, got;
	uint32_t head = 0;

	(void)state;
	for (uint64_t i = 0; i < SQ; i++) {
		e.round = i;
		assert_int_equal(local_sq_room(c), SQ - i);
		assert_int_equal(local_sq_push(c, &e), 0);
	}
	assert_int_equal(local_sq_push(c, &e), -EAGAIN);
	assert_true(local_sq_pop(c, SQ, &head, &got));
	assert_int_equal(got.round, 0);
	assert_int_equal(local_sq_push(c, &e), 0);
	free(c);
}

static void ring_works_across_the_wrap_of_its_positions(void **state)
{
	struct local_control *c = control_new(SQ, TENSORS);
	struct local_sqe e = {0}, got;
	uint32_t head = UINT32_MAX - 2;

	(void)state;
	atomic_store(&c->sq_tail, head);
	atomic_store(&c->sq_head, head);
	for (uint64_t i = 0; i < 6; i++) {
		e.round = i;
		assert_int_equal(local_sq_push(c, &e), 0);
	}
	for (uint64_t i = 0; i < 6; i++) {
		assert_true(local_sq_pop(c, SQ, &head, &got));
		assert_int_equal(got.round, i);
	}
	assert_false(local_sq_pop(c, SQ, &head, &got));
	free(c);
}

static void invalid_tail_gives_no_entry_and_lets_the_agent_sleep(void **state)
{
	struct local_control *c = control_new(SQ, TENSORS);
	struct local_sqe got;
	uint32_t head = 0;

	(void)state;
	atomic_store(&c->sq_tail, SQ + 1);
	assert_false(local_sq_pop(c, SQ, &head, &got));
	assert_true(local_sq_sleep(c, SQ, head));
	free(c);
}

static void sleep_is_refused_while_something_is_in_the_ring(void **state)
{
	struct local_control *c = control_new(SQ, TENSORS);
	struct local_sqe e = {0};

	(void)state;
	assert_true(local_sq_sleep(c, SQ, 0));
	assert_int_equal(local_sq_push(c, &e), 0);
	assert_true(local_sq_publish(c));
	local_sq_awake(c);
	assert_false(local_sq_publish(c));
	assert_false(local_sq_sleep(c, SQ, 0));
	free(c);
}

static void wait_for_a_completion_ends_at_its_time_out(void **state)
{
	struct local_control *c = control_new(SQ, TENSORS);

	(void)state;
	assert_int_equal(
		local_done_wait(c, local_tensor_entries(c, SQ), 0, 0, 1000000), -ETIMEDOUT);
	assert_int_equal(atomic_load(&c->trainer_waits), 0);
	local_done_wake(c);
	assert_int_equal(local_done_wait(c, local_tensor_entries(c, SQ), 0, 0, 1000000), 0);
	free(c);
}

/* The agent and the trainer run in different threads. Each of them sleeps when it has nothing to
 * do. If a wake-up is lost, a wait reaches its deadline. */
#define PUMP_TENSORS 32

struct pump {
	struct local_control *c;
	int event_fd;
	uint64_t rounds; /* number of rounds that each tensor runs */
	int failed;
};

static int agent_sleep(struct pump *p, uint32_t head)
{
	struct pollfd pfd = {.fd = p->event_fd, .events = POLLIN};
	uint64_t n;

	if (!local_sq_sleep(p->c, PUMP_TENSORS, head))
		return 0;
	if (poll(&pfd, 1, WAIT_MS) != 1)
		return -1;
	local_sq_awake(p->c);
	return read(p->event_fd, &n, sizeof(n)) == sizeof(n) ? 0 : -1;
}

static void *agent_main(void *arg)
{
	struct pump *p = arg;
	uint64_t next[PUMP_TENSORS] = {0}, left = p->rounds * PUMP_TENSORS;
	struct local_sqe e;
	uint32_t head = 0;

	while (left) {
		if (!local_sq_pop(p->c, PUMP_TENSORS, &head, &e)) {
			if (agent_sleep(p, head) < 0)
				break;
			continue;
		}
		if (e.tensor >= PUMP_TENSORS || e.round != ++next[e.tensor])
			break;
		local_complete_round(p->c, PUMP_TENSORS, e.tensor, e.round, 0, (uint32_t)e.round);
		local_done_wake(p->c);
		left--;
	}
	p->failed = left != 0;
	return NULL;
}

static void trainer_submit(struct pump *p, uint32_t tensor, uint64_t round)
{
	struct local_sqe e = {.tensor = tensor, .round = round};
	uint64_t one = 1;

	assert_int_equal(local_sq_push(p->c, &e), 0);
	if (local_sq_publish(p->c))
		assert_int_equal(write(p->event_fd, &one, sizeof(one)), sizeof(one));
}

static void trainer_wait(struct pump *p, uint32_t tensor, uint64_t round)
{
	struct local_entry *e = &local_tensor_entries(p->c, PUMP_TENSORS)[tensor];
	uint32_t seen;

	for (;;) {
		seen = atomic_load(&p->c->done_seq);
		if (atomic_load(&e->done_round) >= round)
			break;
		assert_int_equal(
			local_done_wait(p->c, local_tensor_entries(p->c, SQ), seen, 0, WAIT_NS), 0);
	}
	assert_int_equal(atomic_load(&e->workers), round);
}

static void run_pump(uint64_t rounds, uint32_t batch)
{
	struct pump p = {.c = control_new(PUMP_TENSORS, PUMP_TENSORS), .rounds = rounds};
	pthread_t agent;

	p.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_true(p.event_fd >= 0);
	assert_int_equal(pthread_create(&agent, NULL, agent_main, &p), 0);
	for (uint64_t r = 1; r <= rounds; r++)
		for (uint32_t t = 0; t < PUMP_TENSORS; t += batch) {
			for (uint32_t i = t; i < t + batch; i++)
				trainer_submit(&p, i, r);
			for (uint32_t i = t; i < t + batch; i++)
				trainer_wait(&p, i, r);
		}
	pthread_join(agent, NULL);
	assert_false(p.failed);
	close(p.event_fd);
	free(p.c);
}

static void million_submissions_lose_no_wake_up(void **state)
{
	(void)state;
	run_pump(1000000 / PUMP_TENSORS, PUMP_TENSORS);
	run_pump(500, 1);
}

struct publisher {
	struct local_control *c;
	_Atomic bool is_running, is_over;
};

static void *publish_main(void *arg)
{
	struct publisher *p = arg;

	do {
		local_sq_publish(p->c);
		atomic_store(&p->is_running, true);
	} while (!atomic_load(&p->is_over));
	return NULL;
}

static void publish_by_one_thread_takes_back_nothing_that_another_pushes(void **state)
{
	struct publisher p = {.c = control_new(SQ, TENSORS)};
	struct local_sqe e = {0}, got;
	pthread_t thread;
	uint32_t head = 0;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, publish_main, &p), 0);
	while (!atomic_load(&p.is_running))
		sched_yield();
	for (e.round = 1; e.round < 5000000; e.round++) {
		assert_int_equal(local_sq_push(p.c, &e), 0);
		assert_true(local_sq_pop(p.c, SQ, &head, &got));
		assert_int_equal(got.round, e.round);
	}
	atomic_store(&p.is_over, true);
	pthread_join(thread, NULL);
	free(p.c);
}

/* ---- frames ---- */

struct local_pair {
	int a, b;
};

static struct local_pair pair_new(void)
{
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	return (struct local_pair){sv[0], sv[1]};
}

static void pair_free(struct local_pair *p)
{
	close(p->a);
	close(p->b);
}

static int count_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static int send_raw(int sock, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds)
{
	char room[CMSG_SPACE(LOCAL_FDS_ROOM * sizeof(int))] __attribute__((aligned(16))) = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cm;

	if (n_fds) {
		mh.msg_control = room;
		mh.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cm = CMSG_FIRSTHDR(&mh);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cm), fds, n_fds * sizeof(int));
	}
	return sendmsg(sock, &mh, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int receive(int sock, struct local_msg *ret, void **ret_mem, int *fds, unsigned *ret_n_fds,
	uint32_t timeout_ms, struct err_text *err)
{
	struct local_frame f;
	int rc = local_recv(sock, &f, timeout_ms, err);

	*ret = f.msg;
	*ret_mem = f.mem;
	memcpy(fds, f.fds, sizeof(f.fds));
	*ret_n_fds = f.n_fds;
	return rc;
}

static void hello_arrives_as_it_was_sent(void **state)
{
	struct local_msg m = {.type = LOCAL_HELLO, .seq = 7}, got;
	struct local_pair p = pair_new();
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds = 9;
	void *mem;

	(void)state;
	m.hello = (struct local_hello){.abi = 1,
		.version = "0.1.0",
		.job = "j",
		.rank = 3,
		.size = 4,
		.flags = 1,
		.part_bytes = 4096,
		.token = {"0123456789abcdef0123456789abcdef", 32}};
	assert_int_equal(local_send(p.a, &m, NULL, 0, 0), 0);
	assert_int_equal(receive(p.b, &got, &mem, fds, &n_fds, WAIT_MS, NULL), 1);
	assert_int_equal(got.type, LOCAL_HELLO);
	assert_int_equal(got.seq, 7);
	assert_int_equal(n_fds, 0);
	assert_string_equal(got.hello.version, "0.1.0");
	assert_string_equal(got.hello.job, "j");
	assert_int_equal(got.hello.rank, 3);
	assert_int_equal(got.hello.size, 4);
	assert_int_equal(got.hello.part_bytes, 4096);
	assert_int_equal(got.hello.token.bytes, 32);
	assert_memory_equal(got.hello.token.data, "0123456789abcdef0123456789abcdef", 32);
	free(mem);
	pair_free(&p);
}

static void descriptors_arrive_closed_on_exec(void **state)
{
	struct local_msg m = {.type = LOCAL_ARENA,
				 .arena = {.id = 5, .is_writable = 1, .bytes = 99}},
			 got;
	struct local_pair p = pair_new();
	int fds[LOCAL_FDS_ROOM], sent[2] = {p.a, p.b};
	unsigned n_fds;
	void *mem;

	(void)state;
	assert_int_equal(local_send(p.a, &m, sent, 2, 0), 0);
	assert_int_equal(receive(p.b, &got, &mem, fds, &n_fds, WAIT_MS, NULL), 1);
	assert_int_equal(n_fds, 2);
	assert_int_equal(got.arena.bytes, 99);
	for (unsigned i = 0; i < n_fds; i++) {
		assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		close(fds[i]);
	}
	free(mem);
	pair_free(&p);
}

static void largest_declare_and_largest_refusal_fit_into_a_frame(void **state)
{
	struct local_decl decls[LOCAL_DECLARE_MAX];
	struct local_slot slots[LOCAL_DECLARE_MAX];
	struct local_msg m = {.type = LOCAL_DECLARE}, got;
	char name[256], text[512];
	struct local_pair p = pair_new();
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
	void *mem;

	(void)state;
	memset(name, 'n', 255);
	memset(text, 't', 511);
	name[255] = text[511] = 0;
	for (unsigned i = 0; i < LOCAL_DECLARE_MAX; i++) {
		decls[i] = (struct local_decl){
			.name = name, .shape = shape_from_dtype_and_count(7, i + 1)};
		/* The host name in .cause has CTL_NAME_MAX bytes, the maximum length. */
		slots[i] = (struct local_slot){.code = 1,
			.text = text,
			.out_offset = {i, i + 64},
			.cause = {i, &text[511 - 63]}};
	}
	m.declare = (struct local_declare){decls, LOCAL_DECLARE_MAX};
	assert_int_equal(local_send(p.a, &m, NULL, 0, 0), 0);
	assert_int_equal(receive(p.b, &got, &mem, fds, &n_fds, WAIT_MS, NULL), 1);
	assert_int_equal(got.declare.n_tensors, LOCAL_DECLARE_MAX);
	assert_string_equal(got.declare.tensors[99].name, name);
	assert_int_equal(got.declare.tensors[99].shape.n_values, 100);
	free(mem);
	m.type = LOCAL_DECLARED;
	m.declared = (struct local_declared){slots, LOCAL_DECLARE_MAX};
	assert_int_equal(local_send(p.b, &m, NULL, 0, 0), 0);
	assert_int_equal(receive(p.a, &got, &mem, fds, &n_fds, WAIT_MS, NULL), 1);
	assert_string_equal(got.declared.slots[99].text, text);
	assert_int_equal(got.declared.slots[99].out_offset[1], 99 + 64);
	assert_int_equal(got.declared.slots[99].cause.rank, 99);
	assert_string_equal(got.declared.slots[99].cause.host, &text[511 - 63]);
	free(mem);
	pair_free(&p);
}

static void end_of_file_and_silence_are_told_apart(void **state)
{
	struct local_pair p = pair_new();
	struct local_msg got;
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
	void *mem;

	(void)state;
	assert_int_equal(receive(p.a, &got, &mem, fds, &n_fds, 0, NULL), -EAGAIN);
	assert_int_equal(receive(p.a, &got, &mem, fds, &n_fds, 5, NULL), -ETIMEDOUT);
	close(p.b);
	assert_int_equal(receive(p.a, &got, &mem, fds, &n_fds, WAIT_MS, NULL), 0);
	close(p.a);
}

static void sender_does_not_block_on_a_reader_that_sleeps(void **state)
{
	struct local_msg m = {.type = LOCAL_FINISH};
	struct local_pair p = pair_new();
	int rc;

	(void)state;
	do
		rc = local_send(p.a, &m, NULL, 0, 0);
	while (!rc);
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(local_send(p.a, &m, NULL, 0, 5), -ETIMEDOUT);
	close(p.b);
	assert_int_equal(local_send(p.a, &m, NULL, 0, 5), -ECONNRESET);
	assert_int_equal(local_send(p.a, &m, NULL, 0, 5), -EPIPE);
	close(p.a);
}

static void malformed_frames_are_refused_and_leak_no_descriptor(void **state)
{
	static const struct {
		unsigned char bytes[16];
		size_t n_bytes;
		size_t n_fds;
	} bad[] = {
		{{0}, 0, 1},                            /* a descriptor without any bytes */
		{{1}, 1, 0},                            /* the head of the frame is incomplete */
		{{99, 0, 0, 0, 0, 0, 0, 0}, 8, 2},      /* unknown type */
		{{0, 0, 0, 0, 0, 0, 0, 0}, 8, 0},       /* type 0 */
		{{9, 0, 1, 0, 0, 0, 0, 0}, 8, 1},       /* flags, which no type may have */
		{{9, 0, 0, 0, 0, 0, 0, 0}, 8, 1},       /* the struct is missing */
		{{9, 0, 0, 0, 0, 0, 0, 0, 9}, 12, 4},   /* the struct is longer than the frame */
		{{9, 0, 0, 0, 0, 0, 0, 0, 0}, 12, 251}, /* valid bytes, one descriptor too many */
		{{9, 0, 0, 0, 0, 0, 0, 0, 0}, 12, 253}, /* far too many descriptors */
	};
	struct local_pair p = pair_new();
	int fds[LOCAL_FDS_ROOM], sent[LOCAL_FDS_ROOM], before;
	struct local_msg got;
	struct err_text err;
	unsigned n_fds;
	void *mem;

	(void)state;
	for (unsigned i = 0; i < LOCAL_FDS_ROOM; i++)
		sent[i] = p.a;
	before = count_fds();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(
			send_raw(p.a, bad[i].bytes, bad[i].n_bytes, sent, bad[i].n_fds), 0);
		assert_int_equal(receive(p.b, &got, &mem, fds, &n_fds, WAIT_MS, &err),
			bad[i].n_bytes ? BPS_EPROTO : 0);
		/* The test closes the descriptors in fds. The receiver has closed all others. */
		assert_int_equal(n_fds, bad[i].n_fds);
		while (n_fds > 0)
			close(fds[--n_fds]);
		assert_int_equal(count_fds(), before);
	}
	pair_free(&p);
}

static void frame_longer_than_the_limit_is_refused(void **state)
{
	size_t n_bytes = LOCAL_FRAME_MAX + 1;
	unsigned char *bytes = calloc(1, n_bytes);
	struct local_pair p = pair_new();
	int fds[LOCAL_FDS_ROOM];
	struct local_msg got;
	unsigned n_fds;
	void *mem;

	(void)state;
	assert_non_null(bytes);
	assert_int_equal(send_raw(p.a, bytes, n_bytes, NULL, 0), 0);
	assert_int_equal(receive(p.b, &got, &mem, fds, &n_fds, WAIT_MS, NULL), BPS_EPROTO);
	free(bytes);
	pair_free(&p);
}

static void check_golden(const struct local_msg *m, const unsigned char *golden, size_t n_bytes)
{
	struct local_pair p = pair_new();
	unsigned char bytes[256];

	assert_int_equal(local_send(p.a, m, NULL, 0, 0), 0);
	assert_int_equal(recv(p.b, bytes, sizeof(bytes), 0), n_bytes);
	assert_memory_equal(bytes, golden, n_bytes);
	pair_free(&p);
}

static void golden_bytes_of_a_why_frame_do_not_change(void **state)
{
	static const unsigned char golden[] = {
		7, 0, 0, 0, 4, 3, 2, 1, 12, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1};
	struct local_msg m = {.type = LOCAL_WHY,
		.seq = 0x01020304,
		.why = {.tensor = 2, .round = (1ull << 56) + 9}};

	(void)state;
	check_golden(&m, golden, sizeof(golden));
}

static void golden_bytes_of_traffic_do_not_change(void **state)
{
	static const unsigned char golden[] = {18, 0, 0, 0, 3, 0, 0, 0, 24, 0, 0, 0, /* head */
		9, 0, 0, 0, 0, 3, 0, 0,                                              /* instance */
		7, 0, 0, 0, 0, 0, 0, 1, 8, 0, 0, 0, 0, 2, 0, 0};
	struct local_msg m = {.type = LOCAL_TRAFFIC,
		.seq = 3,
		.traffic = {.instance = (3ull << 40) + 9,
			.sent_bytes = (1ull << 56) + 7,
			.received_bytes = (2ull << 40) + 8}};

	(void)state;
	check_golden(&m, golden, sizeof(golden));
}

static void golden_bytes_of_a_request_for_a_trace_do_not_change(void **state)
{
	static const unsigned char golden[] = {19, 0, 0, 0, 4, 0, 0, 0, 24, 0, 0, 0, /* head */
		9, 0, 0, 0, 0, 3, 0, 0,                                              /* since_ns */
		7, 0, 0, 0, 0, 0, 0, 1, 8, 0, 0, 0, 0, 2, 0, 0};
	struct local_msg m = {.type = LOCAL_ASK_TRACE,
		.seq = 4,
		.ask_trace = {.since_ns = (3ull << 40) + 9,
			.first_round = (1ull << 56) + 7,
			.last_round = (2ull << 40) + 8}};

	(void)state;
	check_golden(&m, golden, sizeof(golden));
}

static void golden_bytes_of_a_trace_do_not_change(void **state)
{
	static const unsigned char golden[] = {20, 0, 0, 0, 4, 0, 0, 0, /* head */
		20, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 'n', 'o',         /* code, text */
		1, 0, 0, 0, 2, 0, 0, 0, 'a', '0'};                      /* cause */
	struct local_msg m = {.type = LOCAL_TRACE,
		.seq = 4,
		.trace = {.code = 12, .text = "no", .cause = {.rank = 1, .host = "a0"}}};

	(void)state;
	check_golden(&m, golden, sizeof(golden));
}

static void golden_bytes_of_device_memory_do_not_change(void **state)
{
	static const unsigned char golden[] = {36, 0, 0, 0, 2, 0, 0, 0, /* head */
		76, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0,
		0,                       /* code, text, region */
		56, 0, 0, 0, 1, 0, 3, 0, /* version, kind */
		4, 0, 0, 0, 'u', 'u', 'i', 'd', 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 5,
		0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 'h', 'a', 'n', 'd', 'l',
		'e', 's', '.'};
	struct gpu_memory memory = {.version = 1,
		.kind = GPU_MEMORY_HOST,
		.uuid = {"uuid", 4},
		.bytes = 2 << 20,
		.chunk_bytes = 1 << 20,
		.offset = 5,
		.buffer_id = 6,
		.handle = {"handles.", 8}};
	struct local_msg m = {.type = GPU_REGION,
		.seq = 2,
		.gpu_region = {
			.code = 16, .text = "", .region = 1, .memory = &memory, .n_memory = 1}};

	(void)state;
	check_golden(&m, golden, sizeof(golden));
}

static void every_type_has_a_name_and_survives_the_trip_empty(void **state)
{
	struct local_pair p = pair_new();
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
	void *mem;

	(void)state;
	assert_string_equal(local_type_name(0), "?");
	assert_string_equal(local_type_name(LOCAL_TYPE_END), "?");
	assert_string_equal(local_type_name(GPU_TYPE_END), "?");
	for (unsigned t = 1; t < GPU_TYPE_END; t++) {
		struct local_msg m = {.type = (uint16_t)t, .seq = t}, got;

		if (t >= LOCAL_TYPE_END && t < GPU_TYPE_FIRST)
			continue;
		assert_string_not_equal(local_type_name(t), "?");
		assert_int_equal(local_send(p.a, &m, NULL, 0, 0), 0);
		assert_int_equal(receive(p.b, &got, &mem, fds, &n_fds, WAIT_MS, NULL), 1);
		assert_int_equal(got.type, t);
		assert_int_equal(got.seq, t);
		free(mem);
	}
	pair_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fresh_control_page_passes_its_check),
		cmocka_unit_test(control_page_that_does_not_fit_is_refused),
		cmocka_unit_test(full_ring_refuses_and_has_room_again_after_a_pop),
		cmocka_unit_test(ring_works_across_the_wrap_of_its_positions),
		cmocka_unit_test(invalid_tail_gives_no_entry_and_lets_the_agent_sleep),
		cmocka_unit_test(sleep_is_refused_while_something_is_in_the_ring),
		cmocka_unit_test(wait_for_a_completion_ends_at_its_time_out),
		cmocka_unit_test(million_submissions_lose_no_wake_up),
		cmocka_unit_test(publish_by_one_thread_takes_back_nothing_that_another_pushes),
		cmocka_unit_test(hello_arrives_as_it_was_sent),
		cmocka_unit_test(descriptors_arrive_closed_on_exec),
		cmocka_unit_test(largest_declare_and_largest_refusal_fit_into_a_frame),
		cmocka_unit_test(end_of_file_and_silence_are_told_apart),
		cmocka_unit_test(sender_does_not_block_on_a_reader_that_sleeps),
		cmocka_unit_test(malformed_frames_are_refused_and_leak_no_descriptor),
		cmocka_unit_test(frame_longer_than_the_limit_is_refused),
		cmocka_unit_test(golden_bytes_of_a_why_frame_do_not_change),
		cmocka_unit_test(golden_bytes_of_traffic_do_not_change),
		cmocka_unit_test(golden_bytes_of_a_request_for_a_trace_do_not_change),
		cmocka_unit_test(golden_bytes_of_a_trace_do_not_change),
		cmocka_unit_test(golden_bytes_of_device_memory_do_not_change),
		cmocka_unit_test(every_type_has_a_name_and_survives_the_trip_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
