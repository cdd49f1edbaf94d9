/* The executor with a misbehaving trainer, on the host back-end. The test takes the roles of the
 * agent and of the trainers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/host_executor/host.h"
#include "bps-agent/executor/exec.h"
#include "common/base/clock.h"
#include "common/os/memfd.h"
#include "common/data/dtype.h"
#include "common/transport/shm/shm.h"

#define WORKERS 2
#define SLOTS   16
#define MS      UINT64_C(1000000)
#define WAIT_MS 5000

struct exec_rig {
	int agent, of_executor, trainers[WORKERS];
	int page_fd, wake_fd, my_fd;
	struct ring_pair pipe;
	struct ring_pair_page *page;
	pthread_t thread;
	int status;
};

static void *executor(void *arg)
{
	struct exec_rig *r = arg;

	r->status = exec_main(&device_host, r->of_executor);
	return NULL;
}

/* Return the next message of that type. Messages before it are dropped. */
static struct local_msg expect(int sock, uint16_t type, void **ret_mem)
{
	uint64_t end_ns = clock_now_ns() + WAIT_MS * MS;

	while (clock_now_ns() < end_ns) {
		struct err_text err = {""};
		struct local_frame f;
		int rc = local_recv(sock, &f, WAIT_MS, &err);

		if (rc == 1 && f.msg.type == type) {
			for (unsigned i = 0; i < f.n_fds; i++)
				close(f.fds[i]);
			*ret_mem = f.mem;
			return f.msg;
		}
		local_frame_free(&f);
		if (rc != 1)
			fail_msg("no %s: %s", local_type_name(type), err.s);
	}
	fail_msg("no %s in time", local_type_name(type));
	return (struct local_msg){0};
}

static void say(int sock, const struct local_msg *m, const int *fds, unsigned n)
{
	assert_int_equal(local_send(sock, m, fds, n, WAIT_MS), 0);
}

/* Give the executor a trainer's socket, as the agent does. Returns the trainer's end. */
static int introduce(struct exec_rig *r, uint32_t worker)
{
	struct local_msg m = {.type = GPU_TRAINER, .gpu_trainer = {.worker = worker, .pid = 1}};
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	say(r->agent, &m, &sv[1], 1);
	close(sv[1]);
	return sv[0];
}

static void say_hello(struct exec_rig *r, uint32_t worker, int sock)
{
	struct local_msg hello = {.type = GPU_HELLO,
		.seq = 1,
		.gpu_hello = {.abi = LOCAL_ABI, .version = BPS_VERSION}};

	r->trainers[worker] = sock;
	say(sock, &hello, NULL, 0);
}

static void make_rings(struct exec_rig *r)
{
	assert_int_equal(
		memfd_create_sealed("pipe", sizeof(*r->page), MEMFD_FIXED_SIZE, &r->page_fd), 0);
	r->page = mmap(NULL, sizeof(*r->page), PROT_READ | PROT_WRITE, MAP_SHARED, r->page_fd, 0);
	assert_true(r->page != MAP_FAILED);
	r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r->my_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ring_pair_init(&r->pipe, r->page, r->wake_fd, true);
}

static void drop_rings(struct exec_rig *r)
{
	ring_pair_fini(&r->pipe);
	munmap(r->page, sizeof(*r->page));
	close(r->page_fd);
	close(r->wake_fd);
	close(r->my_fd);
}

static void say_start(struct exec_rig *r, const char *job)
{
	struct local_msg m = {.type = GPU_START,
		.gpu_start = {.abi = LOCAL_ABI,
			.version = BPS_VERSION,
			.job = job,
			.n_workers = WORKERS,
			.n_slots = SLOTS,
			.route = "copy",
			.sysfs = ""}};

	say(r->agent, &m, (int[]){r->page_fd, r->wake_fd, r->my_fd}, 3);
}

static void start(struct exec_rig *r)
{
	struct local_msg m;
	void *mem = NULL;
	int sv[2];

	memset(r, 0, sizeof(*r));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	r->agent = sv[0];
	r->of_executor = sv[1];
	make_rings(r);
	assert_int_equal(pthread_create(&r->thread, NULL, executor, r), 0);
	say_start(r, "job");
	m = expect(r->agent, GPU_READY, &mem);
	assert_int_equal(m.gpu_text.code, 0);
	free(mem);
}

static void rig_open(struct exec_rig *r)
{
	void *mem = NULL;

	start(r);
	for (uint32_t w = 0; w < WORKERS; w++)
		say_hello(r, w, introduce(r, w));
	expect(r->agent, GPU_ROUTE, &mem);
	free(mem);
	for (uint32_t w = 0; w < WORKERS; w++) {
		expect(r->trainers[w], GPU_WELCOME, &mem);
		free(mem);
	}
}

static void rig_close(struct exec_rig *r)
{
	struct local_msg m = {.type = GPU_END, .gpu_text = {.text = ""}};

	local_send(r->agent, &m, NULL, 0, WAIT_MS);
	pthread_join(r->thread, NULL);
	for (uint32_t w = 0; w < WORKERS; w++)
		close(r->trainers[w]);
	drop_rings(r);
	close(r->agent);
}

static uint32_t alloc(struct exec_rig *r, uint32_t worker, uint64_t bytes)
{
	struct local_msg m = {.type = GPU_ALLOC, .seq = 5, .gpu_alloc = {.bytes = bytes}};
	void *mem = NULL;

	say(r->trainers[worker], &m, NULL, 0);
	m = expect(r->trainers[worker], GPU_REGION, &mem);
	free(mem);
	assert_int_equal(m.gpu_region.code, 0);
	return m.gpu_region.region;
}

/* Import a region. Returns the code in the executor's answer. */
static uint32_t import(struct exec_rig *r, uint64_t bytes, uint64_t offset, int fd)
{
	uint8_t uuid[GPU_UUID_BYTES] = {0}, blob[1] = {0};
	struct gpu_memory memory = {.version = GPU_MEMORY_VERSION,
		.kind = GPU_MEMORY_HOST,
		.uuid = {uuid, sizeof(uuid)},
		.bytes = bytes,
		.chunk_bytes = bytes,
		.offset = offset,
		.handle = {blob, 0}};
	struct local_msg m = {
		.type = GPU_IMPORT, .seq = 6, .gpu_import = {.memory = &memory, .n_memory = 1}};
	void *mem = NULL;

	say(r->trainers[0], &m, &fd, 1);
	m = expect(r->trainers[0], GPU_REGION, &mem);
	free(mem);
	return m.gpu_region.code;
}

static void memory_that_can_shrink_is_refused(void **state)
{
	char path[] = "/tmp/bps-exec-XXXXXX";
	int file = mkstemp(path), open_fd = memfd_create("open", MFD_ALLOW_SEALING), pipes[2], fd;
	struct exec_rig r;

	(void)state;
	rig_open(&r);
	assert_int_equal(unlink(path) | ftruncate(file, 65536) | ftruncate(open_fd, 65536), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_not_equal(import(&r, 65536, 0, open_fd), 0);
	assert_int_not_equal(import(&r, 65536, 0, pipes[0]), 0);
	assert_int_not_equal(import(&r, 65536, 0, file), 0);
	fd = open("/", O_RDONLY | O_DIRECTORY);
	assert_int_not_equal(import(&r, 1, 0, fd), 0);
	close(fd);
	assert_int_equal(memfd_create_sealed("good", 65536, MEMFD_FIXED_SIZE, &fd), 0);
	assert_int_not_equal(import(&r, 131072, 0, fd), 0);
	assert_int_not_equal(import(&r, UINT64_MAX, 1, fd), 0);
	assert_int_equal(import(&r, 65536, 0, fd), 0);
	close(fd);
	close(file);
	close(open_fd);
	close(pipes[0]);
	close(pipes[1]);
	rig_close(&r);
}

static void push(struct exec_rig *r, struct ring_pair_entry e)
{
	assert_int_equal(ring_pair_push(&r->pipe, &e), 0);
	ring_pair_flush(&r->pipe);
}

static struct ring_pair_entry answer(struct exec_rig *r)
{
	uint64_t end_ns = clock_now_ns() + WAIT_MS * MS;
	struct ring_pair_entry e = {0};

	while (!ring_pair_pop(&r->pipe, &e) && clock_now_ns() < end_ns)
		poll(NULL, 0, 1);
	return e;
}

static void give_arena(struct exec_rig *r)
{
	struct local_msg arena = {.type = GPU_ARENA, .gpu_arena = {.id = 1, .bytes = 1 << 20}};
	int fd;

	assert_int_equal(memfd_create_sealed("arena", 1 << 20, MEMFD_FIXED_SIZE, &fd), 0);
	say(r->agent, &arena, &fd, 1);
	close(fd);
}

static void memory_released_while_a_tensor_is_described_is_not_used(void **state)
{
	struct local_msg m = {.type = GPU_RELEASE, .seq = 7, .gpu_release = {.text = ""}};
	uint32_t region[WORKERS];
	void *mem = NULL;
	struct exec_rig r;

	(void)state;
	rig_open(&r);
	give_arena(&r);
	for (uint32_t w = 0; w < WORKERS; w++)
		region[w] = alloc(&r, w, 1 << 20);
	push(&r, (struct ring_pair_entry){
			 .type = RING_PAIR_TENSOR, .a = DTYPE_I32, .x = 1000, .y = 4096});
	for (uint16_t w = 0; w < WORKERS; w++)
		push(&r, (struct ring_pair_entry){
				 .type = RING_PAIR_PLACE, .b = w, .x = region[w], .z = w});
	/* Wait until the executor has read the ring's entries. Otherwise a turn that has just read
	 * the ring could read the trainer's next message before the entries (see turn() in
	 * exec.c). */
	poll(NULL, 0, 50);
	m.gpu_release.region = region[1];
	say(r.trainers[1], &m, NULL, 0);
	m = expect(r.trainers[1], GPU_RELEASED, &mem);
	free(mem);
	assert_int_equal(m.gpu_release.code, 0);
	for (uint16_t i = 0; i < WORKERS; i++)
		push(&r, (struct ring_pair_entry){.type = RING_PAIR_BUFFER,
				 .a = RING_PAIR_IN,
				 .b = i,
				 .x = 1,
				 .y = 8192u * i});
	for (uint16_t i = 0; i < 2; i++)
		push(&r, (struct ring_pair_entry){.type = RING_PAIR_BUFFER,
				 .a = RING_PAIR_OUT,
				 .b = i,
				 .x = 1,
				 .y = 65536u * (i + 1u)});
	assert_int_equal(answer(&r).type, RING_PAIR_BAD);
	rig_close(&r);
}

static void describe(struct exec_rig *r, const uint32_t region[WORKERS], uint64_t n_elems)
{
	push(r, (struct ring_pair_entry){
			.type = RING_PAIR_TENSOR, .a = DTYPE_I32, .x = n_elems, .y = 4096});
	for (uint16_t w = 0; w < WORKERS; w++)
		push(r, (struct ring_pair_entry){
				.type = RING_PAIR_PLACE, .b = w, .x = region[w], .z = w});
	for (uint16_t i = 0; i < WORKERS; i++)
		push(r, (struct ring_pair_entry){.type = RING_PAIR_BUFFER,
				.a = RING_PAIR_IN,
				.b = i,
				.x = 1,
				.y = 8192u * i});
	for (uint16_t i = 0; i < 2; i++)
		push(r, (struct ring_pair_entry){.type = RING_PAIR_BUFFER,
				.a = RING_PAIR_OUT,
				.b = i,
				.x = 1,
				.y = 65536u * (i + 1u)});
}

static void run(struct exec_rig *r, uint64_t round)
{
	push(r, (struct ring_pair_entry){.type = RING_PAIR_RUN, .a = OP_SUM, .x = round});
}

static void a_second_start_connects_the_restarted_agent(void **state)
{
	uint32_t region[WORKERS];
	struct local_msg m;
	void *mem = NULL;
	struct exec_rig r;

	(void)state;
	rig_open(&r);
	for (uint32_t w = 0; w < WORKERS; w++)
		region[w] = alloc(&r, w, 1 << 20);
	give_arena(&r);
	describe(&r, region, 1000);
	run(&r, 1); /* run a round for which no stream is ready yet */
	drop_rings(&r);
	make_rings(&r);
	say_start(&r, "job");
	m = expect(r.agent, GPU_READY, &mem);
	assert_int_equal(m.gpu_text.code, 0);
	free(mem);
	m = expect(r.agent, GPU_ROUTE, &mem);
	assert_string_equal(m.gpu_route.route, "copy");
	assert_int_equal(m.gpu_route.n_inputs, WORKERS);
	assert_int_equal(m.gpu_route.input_nodes.bytes, WORKERS * sizeof(uint16_t));
	assert_int_equal(m.gpu_route.input_workers.bytes, WORKERS * sizeof(uint16_t));
	for (unsigned w = 0; w < WORKERS; w++)
		assert_int_equal(((const uint16_t *)m.gpu_route.input_workers.data)[w], 1);
	free(mem);
	give_arena(&r); /* the executor already has this region */
	describe(&r, region, 1000);
	run(&r, 1);
	describe(&r, region, 1001); /* not the same descriptor as in the first message */
	assert_int_equal(answer(&r).type, RING_PAIR_BAD);
	run(&r, 1); /* a descriptor stays invalid after it has been rejected */
	assert_int_equal(answer(&r).type, RING_PAIR_BAD);
	say_start(&r, "another");
	m = expect(r.agent, GPU_FAILED, &mem);
	assert_int_equal(m.gpu_text.code, -BPS_EPROTO);
	free(mem);
	rig_close(&r);
}

/* An agent sends a socket to a trainer and then dies. The agent's next process sends the trainer
 * another socket. Both sockets are connected to the executor. */
static void a_trainer_takes_one_of_two_sockets(void **state)
{
	(void)state;
	for (unsigned way = 0; way < 3; way++) {
		void *mem = NULL;
		int a, b;
		struct exec_rig r;
		char c;

		start(&r);
		say_hello(&r, 0, introduce(&r, 0));
		a = introduce(&r, 1);
		b = introduce(&r, 1);
		if (way == 2)
			close(a); /* the trainer never got the first socket */
		say_hello(&r, 1, way ? b : a);
		expect(r.agent, GPU_ROUTE, &mem);
		free(mem);
		expect(r.trainers[1], GPU_WELCOME, &mem);
		free(mem);
		if (way < 2) {
			/* the executor has closed the socket that was not used */
			assert_int_equal(recv(way ? a : b, &c, 1, 0), 0);
			close(way ? a : b);
		}
		alloc(&r, 1, 4096);
		a = introduce(&r, 1); /* the executor closes this third socket */
		assert_int_equal(recv(a, &c, 1, 0), 0);
		close(a);
		rig_close(&r);
	}
}

static unsigned n_descriptors(void)
{
	struct dirent *e;
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");

	assert_non_null(d);
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static void an_abandoned_hello_may_be_followed_by_another(void **state)
{
	unsigned before = n_descriptors();
	int sock = -1;
	struct exec_rig r;
	void *mem;

	(void)state;
	start(&r);
	for (unsigned i = 0; i < 40; i++) {
		if (i)
			/* The executor may or may not have noticed the close before the next socket
			 * arrives. */
			close(sock);
		sock = introduce(&r, 0);
		say_hello(&r, 0, sock);
	}
	say_hello(&r, 1, introduce(&r, 1));
	expect(r.agent, GPU_ROUTE, &mem);
	free(mem);
	for (uint32_t w = 0; w < WORKERS; w++) {
		expect(r.trainers[w], GPU_WELCOME, &mem);
		free(mem);
		alloc(&r, w, 4096);
	}
	rig_close(&r);
	assert_int_equal(n_descriptors(), before);
}

static void a_trainer_of_another_version_ends_the_job_with_both_versions(void **state)
{
	struct local_msg m, hello = {.type = GPU_HELLO,
				    .seq = 1,
				    .gpu_hello = {.abi = LOCAL_ABI + 75, .version = "9.9"}};
	struct exec_rig r;
	struct err_text theirs, ours;
	void *mem = NULL;

	(void)state;
	err_set(&theirs, 0, "libbpsclient 9.9 uses protocol version %d, ", LOCAL_ABI + 75);
	err_set(&ours, 0, " uses version %d: install both from one release", LOCAL_ABI);
	start(&r);
	for (uint32_t w = 0; w < WORKERS; w++)
		r.trainers[w] = introduce(&r, w);
	say(r.trainers[0], &hello, NULL, 0);
	m = expect(r.agent, GPU_FAILED, &mem);
	assert_int_equal(m.gpu_text.code, -BPS_EVERSION);
	assert_non_null(strstr(m.gpu_text.text, theirs.s));
	assert_non_null(strstr(m.gpu_text.text, ours.s));
	free(mem);
	rig_close(&r);
}

static void a_hello_of_a_closed_connection_starts_nothing(void **state)
{
	struct local_msg hello = {.type = GPU_HELLO,
		.seq = 1,
		.gpu_hello = {.abi = LOCAL_ABI, .version = BPS_VERSION}};
	struct local_msg m = {.type = GPU_TRAINER, .gpu_trainer = {.worker = 0, .pid = 1}};
	struct exec_rig r;
	void *mem;
	int sv[2];

	(void)state;
	start(&r);
	say_hello(&r, 1, introduce(&r, 1));
	/* Worker 0 sends HELLO and closes its socket before the executor reads the HELLO. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	say(sv[0], &hello, NULL, 0);
	close(sv[0]);
	say(r.agent, &m, &sv[1], 1);
	close(sv[1]);
	say_hello(&r, 0, introduce(&r, 0)); /* worker 0 connects again */
	for (uint32_t w = 0; w < WORKERS; w++) {
		expect(r.trainers[w], GPU_WELCOME, &mem);
		free(mem);
		alloc(&r, w, 4096);
	}
	rig_close(&r);
}

static void noise_of_a_trainer_ends_its_connection_only(void **state)
{
	unsigned char noise[512];
	unsigned seed = 1;
	struct exec_rig r;
	char byte;

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		rig_open(&r);
		for (size_t k = 0; k < sizeof(noise); k++)
			noise[k] = (unsigned char)rand_r(&seed);
		noise[0] = (unsigned char)(30 + i); /* a message of each type */
		noise[1] = noise[2] = noise[3] = 0;
		assert_true(send(r.trainers[0], noise, i % 3 ? sizeof(noise) : 8 + i, 0) > 0);
		assert_int_equal(recv(r.trainers[0], &byte, 1, 0), 0);
		alloc(&r, 1, 4096); /* the connection of trainer 1 still works */
		rig_close(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_that_can_shrink_is_refused),
		cmocka_unit_test(memory_released_while_a_tensor_is_described_is_not_used),
		cmocka_unit_test(a_second_start_connects_the_restarted_agent),
		cmocka_unit_test(a_trainer_takes_one_of_two_sockets),
		cmocka_unit_test(an_abandoned_hello_may_be_followed_by_another),
		cmocka_unit_test(a_trainer_of_another_version_ends_the_job_with_both_versions),
		cmocka_unit_test(a_hello_of_a_closed_connection_starts_nothing),
		cmocka_unit_test(noise_of_a_trainer_ends_its_connection_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
