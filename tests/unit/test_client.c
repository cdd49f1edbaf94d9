/* The client library against a fake agent: a thread that speaks common/local.h and sums f32, i32
 * and u8 of the trainers of one job, and can be told to misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "libbpsclient/bps.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/dtype.h"
#include "common/local.h"
#include "libbpsclient/options.h"

#define SQ_ENTRIES   512
#define TENSORS_MAX  512
#define TRAINERS_MAX 4
#define WAIT_MS      20000
#define WHO          "rank 1 on host b has not submitted it, for 3 s"

/* ---- fake agent ---- */

enum fake_cmd {
	FAKE_NONE,
	FAKE_STOP,
	FAKE_DIE,
	FAKE_FAIL_JOB,
	FAKE_GARBAGE,
	FAKE_STRAY_ARENA,
	FAKE_SPEAK
};

struct fake_tensor {
	char name[256];
	uint8_t dtype;
	uint64_t n_elems;
	int out_fd;
	size_t slot_bytes;
	char *out;
	uint8_t op;
};

struct fake_slot {
	char *in;
	uint64_t submitted, done;
	bool has_out;
};

struct fake_trainer {
	int sock, event_fd;
	struct local_control *_Atomic c;
	uint32_t head, rank, next_arena;
	_Atomic uint16_t last_priority[TENSORS_MAX];
	struct fake_slot slots[TENSORS_MAX];
};

struct fake {
	/* How to behave, set before fake_start. */
	uint32_t refuse_code; /* of WELCOME */
	bool holds_job;       /* never says that the job is complete */
	bool is_mute;         /* completes nothing until FAKE_SPEAK */
	bool keeps_quiet;     /* does not answer WHY */
	bool spoils_control;  /* wrong magic */
	bool is_unsealed;     /* control page can shrink */
	bool misplaces_slots; /* outside of the arena */
	bool refuses_finish;
	bool repeats;              /* says all twice, as a successor of an agent that died */
	unsigned n_deaths;         /* connections that end at HELLO */
	const char *refused_name;  /* slot code EQUOTA */
	const char *mismatch_name; /* first round ends in EMISMATCH */
	const char *why;

	char dir[64], path[96];
	int listener, cmd_fd, ack_fd;
	_Atomic int cmd;
	pthread_t thread;
	struct fake_trainer trainers[TRAINERS_MAX];
	uint32_t n_trainers, n_welcome, n_finished;
	_Atomic uint32_t size;
	uint32_t finish_seq[TRAINERS_MAX];
	struct fake_tensor tensors[TENSORS_MAX];
	uint32_t n_tensors;
	_Atomic uint32_t whys, submissions;
};

static int fake_memfd(size_t bytes, bool is_sealed)
{
	int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (is_sealed)
		assert_int_equal(
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	return fd;
}

static char *fake_map(int fd, size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

static void fake_send(struct fake_trainer *t, struct local_msg *m, const int *fds, unsigned n_fds)
{
	if (t->sock >= 0)
		(void)local_send(t->sock, m, fds, n_fds, 1000);
}

static void fake_say(
	struct fake *f, struct fake_trainer *t, struct local_msg *m, const int *fds, unsigned n_fds)
{
	fake_send(t, m, fds, n_fds);
	if (f->repeats)
		fake_send(t, m, fds, n_fds);
}

static void fake_welcome(struct fake *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {.type = LOCAL_WELCOME,
		.seq = in->seq,
		.welcome = {.code = f->refuse_code, .text = "no room for you"}};
	size_t bytes = local_control_bytes(SQ_ENTRIES, TENSORS_MAX);
	int fds[2];

	t->rank = in->hello.rank == UINT32_MAX ? f->n_trainers - 1 : in->hello.rank;
	f->size = in->hello.size;
	if (f->refuse_code) {
		fake_send(t, &m, NULL, 0);
		return;
	}
	fds[0] = fake_memfd(bytes, !f->is_unsealed);
	fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	t->c = (struct local_control *)fake_map(fds[0], bytes);
	t->event_fd = fds[1];
	local_control_init(t->c, SQ_ENTRIES, TENSORS_MAX);
	if (f->spoils_control)
		t->c->magic++;
	fake_say(f, t, &m, fds, 2);
	close(fds[0]);
	f->n_welcome++;
	for (uint32_t i = 0; f->n_welcome == f->size && !f->holds_job && i < f->size; i++) {
		struct fake_trainer *o = &f->trainers[i];
		struct local_msg job = {.type = LOCAL_JOB,
			.job = {.rank = o->rank,
				.size = f->size,
				.local_rank = o->rank,
				.local_size = f->size,
				.text = ""}};

		fake_say(f, o, &job, NULL, 0);
	}
}

static uint32_t fake_tensor_of(struct fake *f, const struct local_decl *d)
{
	struct fake_tensor *t;
	uint32_t i;

	for (i = 0; i < f->n_tensors; i++)
		if (!strcmp(f->tensors[i].name, d->name))
			return i;
	t = &f->tensors[f->n_tensors++];
	snprintf(t->name, sizeof(t->name), "%s", d->name);
	t->dtype = d->dtype;
	t->n_elems = d->n_elems;
	t->slot_bytes = (d->n_elems * dtype_bytes(d->dtype) + 63) / 64 * 64;
	t->out_fd = fake_memfd(2 * t->slot_bytes, true);
	t->out = fake_map(t->out_fd, 2 * t->slot_bytes);
	return i;
}

static void fake_declare(struct fake *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_slot slots[LOCAL_DECLARE_MAX] = {0};
	struct local_msg m = {.type = LOCAL_DECLARED,
				 .seq = in->seq,
				 .declared = {slots, in->declare.n_tensors}},
			 arena;
	uint32_t in_arena = t->next_arena++;
	size_t bytes = 0;
	char *base;
	int fd;

	for (uint32_t i = 0; i < in->declare.n_tensors; i++)
		bytes += f->tensors[fake_tensor_of(f, &in->declare.tensors[i])].slot_bytes;
	fd = fake_memfd(bytes, true);
	base = fake_map(fd, bytes);
	arena = (struct local_msg){
		.type = LOCAL_ARENA, .arena = {.id = in_arena, .is_writable = 1, .bytes = bytes}};
	fake_say(f, t, &arena, &fd, 1);
	close(fd);
	bytes = 0;
	for (uint32_t i = 0; i < in->declare.n_tensors; i++) {
		uint32_t idx = fake_tensor_of(f, &in->declare.tensors[i]);
		struct fake_tensor *ft = &f->tensors[idx];

		if (f->refused_name && !strcmp(ft->name, f->refused_name)) {
			slots[i] = (struct local_slot){.code = -BPS_EQUOTA, .text = "limit 1 MiB"};
			continue;
		}
		if (!t->slots[idx].has_out) {
			arena = (struct local_msg){.type = LOCAL_ARENA,
				.arena = {.id = 1000 + idx, .bytes = 2 * ft->slot_bytes}};
			fake_say(f, t, &arena, &ft->out_fd, 1);
			t->slots[idx].has_out = true;
		}
		t->slots[idx].in = base + bytes;
		slots[i] = (struct local_slot){.tensor = idx,
			.text = "",
			.in_arena = in_arena,
			.out_arena = 1000 + idx,
			.in_offset = bytes,
			.out_offset = {0, ft->slot_bytes}};
		if (f->misplaces_slots)
			slots[i].in_offset += 64;
		bytes += ft->slot_bytes;
	}
	fake_say(f, t, &m, NULL, 0);
}

static void fake_why(struct fake *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {.type = LOCAL_TEXT, .seq = in->seq, .text = {.text = f->why}};

	atomic_fetch_add(&f->whys, 1);
	if (!f->keeps_quiet)
		fake_send(t, &m, NULL, 0);
}

static void fake_finish(struct fake *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {.type = LOCAL_FINISHED, .finished = {.text = ""}};

	if (f->refuses_finish)
		m.finished = (struct local_finished){-BPS_EWORKER_LOST, "rank 1 was lost"};
	f->finish_seq[t - f->trainers] = in->seq;
	if (++f->n_finished < f->size)
		return;
	for (uint32_t i = 0; i < f->n_trainers; i++) {
		m.seq = f->finish_seq[i];
		fake_say(f, &f->trainers[i], &m, NULL, 0);
	}
}

static void fake_close(struct fake_trainer *t)
{
	if (t->sock >= 0)
		close(t->sock);
	t->sock = -1;
}

static void fake_read(struct fake *f, struct fake_trainer *t)
{
	int fds[LOCAL_FDS_ROOM], rc;
	struct local_msg m;
	unsigned n_fds;
	void *mem = NULL;

	rc = local_recv(t->sock, &m, &mem, fds, &n_fds, 0, NULL);
	if (rc == -EAGAIN)
		return;
	if (rc != 1) {
		fake_close(t);
		return;
	}
	if (m.type == LOCAL_HELLO && f->n_deaths > 0) {
		f->n_deaths--;
		f->n_trainers--; /* it was the newest */
		fake_close(t);
	} else if (m.type == LOCAL_HELLO)
		fake_welcome(f, t, &m);
	else if (m.type == LOCAL_DECLARE)
		fake_declare(f, t, &m);
	else if (m.type == LOCAL_WHY)
		fake_why(f, t, &m);
	else if (m.type == LOCAL_FINISH)
		fake_finish(f, t, &m);
	free(mem);
}

static double fake_get(uint8_t dtype, const char *in, uint64_t e)
{
	switch (dtype) {
	case DTYPE_F32:
		return (double)((const float *)in)[e];
	case DTYPE_F64:
		return ((const double *)in)[e];
	case DTYPE_I32:
		return (double)((const int32_t *)in)[e];
	default:
		return (double)((const uint8_t *)in)[e];
	}
}

static void fake_put(uint8_t dtype, char *out, uint64_t e, double v)
{
	switch (dtype) {
	case DTYPE_F32:
		((float *)out)[e] = (float)v;
		break;
	case DTYPE_F64:
		((double *)out)[e] = v;
		break;
	case DTYPE_I32:
		((int32_t *)out)[e] = (int32_t)v;
		break;
	default:
		((uint8_t *)out)[e] = (uint8_t)v;
	}
}

static void fake_sum(struct fake *f, struct fake_tensor *ft, uint32_t idx, uint64_t round)
{
	char *out = ft->out + (round & 1) * ft->slot_bytes;
	double sum;

	for (uint64_t e = 0; e < ft->n_elems; e++) {
		sum = 0;
		for (uint32_t i = 0; i < f->size; i++)
			sum += fake_get(ft->dtype, f->trainers[i].slots[idx].in, e);
		fake_put(ft->dtype, out, e, ft->op == OP_AVG ? sum / f->size : sum);
	}
}

static void fake_done(struct fake_trainer *t, uint32_t idx, int status, uint32_t workers)
{
	struct fake_slot *s = &t->slots[idx];

	s->done = s->submitted;
	local_done(t->c, SQ_ENTRIES, idx, s->done, status, workers);
	local_done_wake(t->c);
}

static void fake_complete(struct fake *f, uint32_t idx)
{
	struct fake_tensor *ft = &f->tensors[idx];
	uint64_t round = f->trainers[0].slots[idx].submitted;

	for (uint32_t i = 0; i < f->size; i++) {
		struct fake_slot *s = &f->trainers[i].slots[idx];

		if (i >= f->n_trainers || s->submitted != round || s->done == round)
			return;
	}
	if (f->mismatch_name && !strcmp(ft->name, f->mismatch_name)) {
		for (uint32_t i = 0; i < f->size; i++)
			fake_done(&f->trainers[i], idx, BPS_EMISMATCH, 0);
		return;
	}
	fake_sum(f, ft, idx, round);
	for (uint32_t i = 0; i < f->size; i++)
		fake_done(&f->trainers[i], idx, 0, f->size);
}

static void fake_pop(struct fake *f, struct fake_trainer *t)
{
	struct local_sqe e;

	while (local_sq_pop(t->c, SQ_ENTRIES, &t->head, &e)) {
		t->slots[e.tensor].submitted = e.round;
		t->last_priority[e.tensor] = e.priority;
		f->tensors[e.tensor].op = e.op;
		atomic_fetch_add(&f->submissions, 1);
		if (!f->is_mute)
			fake_complete(f, e.tensor);
	}
}

static void fake_fail_job(struct fake *f)
{
	struct local_msg m = {.type = LOCAL_JOB,
		.job = {.code = -BPS_EWORKER_LOST,
			.text = "rank 1 (pid 77 on host b) was killed by signal 9"}};

	for (uint32_t i = 0; i < f->n_trainers; i++) {
		fake_send(&f->trainers[i], &m, NULL, 0);
		for (uint32_t t = 0; t < f->n_tensors; t++)
			if (f->trainers[i].slots[t].submitted > f->trainers[i].slots[t].done)
				fake_done(&f->trainers[i], t, BPS_EWORKER_LOST, 0);
	}
}

static void fake_obey(struct fake *f, enum fake_cmd cmd)
{
	struct local_msg m = {.type = LOCAL_ARENA, .arena = {.id = 9999, .bytes = 64}};

	switch (cmd) {
	case FAKE_DIE:
		for (uint32_t i = 0; i < f->n_trainers; i++)
			fake_close(&f->trainers[i]);
		break;
	case FAKE_FAIL_JOB:
		fake_fail_job(f);
		break;
	case FAKE_GARBAGE:
		assert_int_equal(send(f->trainers[0].sock, "\xff\xff\xff", 3, 0), 3);
		break;
	case FAKE_STRAY_ARENA:
		fake_send(&f->trainers[0], &m, NULL, 0);
		break;
	case FAKE_SPEAK:
		f->is_mute = false;
		for (uint32_t t = 0; t < f->n_tensors; t++)
			fake_complete(f, t);
		break;
	case FAKE_NONE:
	case FAKE_STOP:
		break;
	}
}

static bool fake_take_cmd(struct fake *f)
{
	uint64_t n = 1;
	enum fake_cmd cmd;

	if (read(f->cmd_fd, &n, sizeof(n)) != sizeof(n))
		return true;
	cmd = (enum fake_cmd)atomic_load(&f->cmd);
	fake_obey(f, cmd);
	assert_int_equal(write(f->ack_fd, &n, sizeof(n)), sizeof(n));
	return cmd != FAKE_STOP;
}

static void fake_accept(struct fake *f)
{
	struct fake_trainer *t = &f->trainers[f->n_trainers];

	t->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	t->event_fd = -1;
	if (t->sock >= 0)
		f->n_trainers++;
}

static void fake_turn(struct fake *f)
{
	struct pollfd p[2 + 2 * TRAINERS_MAX] = {
		{.fd = f->listener, .events = POLLIN}, {.fd = f->cmd_fd, .events = POLLIN}};
	bool may_sleep = true;
	uint64_t n;

	for (uint32_t i = 0; i < TRAINERS_MAX; i++) {
		struct fake_trainer *t = &f->trainers[i];
		bool is_there = i < f->n_trainers;

		p[2 + 2 * i] = (struct pollfd){.fd = is_there ? t->sock : -1, .events = POLLIN};
		p[3 + 2 * i] = (struct pollfd){.fd = is_there ? t->event_fd : -1, .events = POLLIN};
		if (is_there && t->c && !local_sq_sleep(t->c, SQ_ENTRIES, t->head))
			may_sleep = false;
	}
	poll(p, 2 + 2 * TRAINERS_MAX, may_sleep ? WAIT_MS : 0);
	if (p[0].revents)
		fake_accept(f);
	for (uint32_t i = 0; i < f->n_trainers; i++) {
		struct fake_trainer *t = &f->trainers[i];

		if (p[3 + 2 * i].revents)
			(void)!read(t->event_fd, &n, sizeof(n));
		if (t->sock >= 0 && p[2 + 2 * i].revents)
			fake_read(f, t);
		if (t->c) {
			local_sq_awake(t->c);
			fake_pop(f, t);
		}
	}
}

static void *fake_main(void *arg)
{
	struct fake *f = arg;

	do
		fake_turn(f);
	while (fake_take_cmd(f));
	return NULL;
}

static void fake_order(struct fake *f, enum fake_cmd cmd)
{
	struct pollfd p = {.fd = f->ack_fd, .events = POLLIN};
	uint64_t n = 1;

	atomic_store(&f->cmd, (int)cmd);
	assert_int_equal(write(f->cmd_fd, &n, sizeof(n)), sizeof(n));
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_int_equal(read(f->ack_fd, &n, sizeof(n)), sizeof(n));
}

static struct fake *fake_new(void)
{
	struct fake *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->why = "";
	return f;
}

static void fake_start(struct fake *f)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(f->dir, sizeof(f->dir), "/tmp/bps-test-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/agent.sock", f->dir);
	memcpy(addr.sun_path, f->path, strlen(f->path));
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(f->listener, 16), 0);
	f->cmd_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->ack_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

static void fake_free(struct fake *f)
{
	fake_order(f, FAKE_STOP);
	pthread_join(f->thread, NULL);
	for (uint32_t i = 0; i < f->n_trainers; i++) {
		fake_close(&f->trainers[i]);
		if (f->trainers[i].event_fd >= 0)
			close(f->trainers[i].event_fd);
		if (f->trainers[i].c)
			munmap(f->trainers[i].c, local_control_bytes(SQ_ENTRIES, TENSORS_MAX));
	}
	for (uint32_t i = 0; i < f->n_tensors; i++) {
		munmap(f->tensors[i].out, 2 * f->tensors[i].slot_bytes);
		close(f->tensors[i].out_fd);
	}
	close(f->listener);
	close(f->cmd_fd);
	close(f->ack_fd);
	unlink(f->path);
	rmdir(f->dir);
	free(f);
}

/* ---- helpers ---- */

static struct bps_options options_of(struct fake *f, int rank, int size)
{
	struct bps_options o;

	bps_options_init(&o);
	o.job = "j";
	o.agent_socket = f->path;
	o.rank = rank;
	o.size = size;
	o.timeout_ms = WAIT_MS;
	return o;
}

/* One worker of a job of one, through the agent. */
static struct bps *open_one(struct fake *f)
{
	struct bps_options o = options_of(f, 0, 1);
	struct bps *b = NULL;

	assert_int_equal(bps_open(&o, &b), 0);
	return b;
}

static struct bps_tensor *declare(struct bps *b, const char *name, uint64_t n_elems)
{
	struct bps_tensor *t = NULL;

	assert_int_equal(bps_declare(b, name, BPS_F32, n_elems, &t), 0);
	return t;
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

#define assert_error_has(part)                                                                     \
	do {                                                                                       \
		if (!strstr(bps_last_error(), part))                                               \
			fail_msg("'%s' is not in '%s'", part, bps_last_error());                   \
	} while (0)

static int clean_env(void **state)
{
	static const char *const names[] = {"BPS_JOB", "BPS_RANK", "BPS_SIZE", "BPS_LOCAL_RANK",
		"BPS_LOCAL_SIZE", "BPS_TIMEOUT", "BPS_OPEN_TIMEOUT", "BPS_AGENT_SOCKET", "RANK",
		"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
		"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID",
		"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
		"OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "DMLC_WORKER_ID", "DMLC_NUM_WORKER",
		"BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_GLOBAL_RANK",
		"BPS_PARTITION_BYTES", "BYTEPS_PARTITION_BYTES", "BPS_DETERMINISTIC"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	setenv("BPS_FORCE_DISTRIBUTED", "1", 1);
	return 0;
}

/* ---- several workers ---- */

struct worker {
	struct fake *f;
	int rank, size;
	void (*body)(struct worker *w, struct bps *b);
	int rc;
	char text[512];
};

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct bps_options o = options_of(w->f, w->rank, w->size);
	struct bps *b;

	w->rc = bps_open(&o, &b);
	if (!w->rc) {
		w->body(w, b);
		if (w->rc)
			bps_abort(b);
		else
			w->rc = bps_close(b, 0);
	}
	snprintf(w->text, sizeof(w->text), "%s", bps_last_error());
	return NULL;
}

static void run_workers(struct fake *f, int size, void (*body)(struct worker *, struct bps *))
{
	struct worker w[TRAINERS_MAX];
	pthread_t threads[TRAINERS_MAX];

	for (int i = 0; i < size; i++) {
		w[i] = (struct worker){.f = f, .rank = i, .size = size, .body = body};
		assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &w[i]), 0);
	}
	for (int i = 0; i < size; i++) {
		pthread_join(threads[i], NULL);
		if (w[i].rc)
			fail_msg("rank %d: %d %s", i, w[i].rc, w[i].text);
	}
}

static void sum_rounds(struct worker *w, struct bps *b)
{
	struct bps_tensor *t;
	const float *out;
	float *in;

	if ((w->rc = bps_declare(b, "w", BPS_F32, 1000, &t)))
		return;
	in = bps_input(t);
	for (int r = 1; r <= 50 && !w->rc; r++) {
		for (int i = 0; i < 1000; i++)
			in[i] = (float)(i * r * (w->rank + 1));
		if ((w->rc = bps_push_pull(t, BPS_SUM, BPS_PRIORITY_AUTO)) ||
			(w->rc = bps_wait(t, 0)))
			return;
		out = bps_output(t);
		for (int i = 0; i < 1000; i++)
			if (out[i] != (float)(i * r * 10))
				w->rc = -ERANGE;
	}
	if (bps_contributors(t) != 4)
		w->rc = -ERANGE;
}

static void four_workers_sum_over_many_rounds(void **state)
{
	struct fake *f = fake_new();

	(void)state;
	fake_start(f);
	run_workers(f, 4, sum_rounds);
	fake_free(f);
}

static void collect_all(struct worker *w, struct bps *b)
{
	size_t n = 70000;
	char *data = calloc(4, n), *mine = calloc(1, n);

	for (size_t i = 0; i < n; i++) {
		mine[i] = (char)(i * 7 + (size_t)w->rank);
		data[i] = w->rank == 2 ? (char)(i * 3) : 'x';
	}
	if ((w->rc = bps_barrier(b, 0)) || (w->rc = bps_broadcast(b, data, n, 2, 0)))
		goto out;
	for (size_t i = 0; i < n; i++)
		if (data[i] != (char)(i * 3))
			w->rc = -ERANGE;
	if (w->rc || (w->rc = bps_allgather(b, mine, n, data, 0)))
		goto out;
	for (size_t r = 0; r < 4; r++)
		for (size_t i = 0; i < n; i++)
			if (data[r * n + i] != (char)(i * 7 + r))
				w->rc = -ERANGE;
out:
	free(mine);
	free(data);
}

static void barrier_broadcast_and_allgather_reach_all(void **state)
{
	struct fake *f = fake_new();

	(void)state;
	fake_start(f);
	run_workers(f, 4, collect_all);
	fake_free(f);
}

static sem_t has_given_up;

static void expect_rc(struct worker *w, int is, int want)
{
	if (!w->rc && is != want)
		w->rc = is ? is : -ERANGE;
}

static void collect_in_vain(struct worker *w, struct bps *b)
{
	char byte = 'a';

	if (w->rank == 0) {
		expect_rc(w, bps_broadcast(b, &byte, 1, 0, 1), BPS_ETIMEDOUT);
		byte = 'b';
		expect_rc(w, bps_broadcast(b, &byte, 1, 0, 1), BPS_EBUSY);
		sem_post(&has_given_up);
	} else {
		sem_wait(&has_given_up);
		expect_rc(w, bps_broadcast(b, &byte, 1, 0, 0), 0);
		expect_rc(w, byte, 'a');
	}
	expect_rc(w, bps_barrier(b, 0), 0);
}

static void collective_behind_one_in_flight_does_not_touch_its_bytes(void **state)
{
	struct fake *f = fake_new();

	(void)state;
	sem_init(&has_given_up, 0, 0);
	fake_start(f);
	run_workers(f, 2, collect_in_vain);
	fake_free(f);
	sem_destroy(&has_given_up);
}

/* Four threads of each worker, each with tensors of its own. */
struct lane {
	struct bps *b;
	int lane, rank, rc;
};

static void *lane_main(void *arg)
{
	struct lane *l = arg;
	struct bps_tensor *t[4];
	char name[32];

	for (int i = 0; i < 4 && !l->rc; i++) {
		snprintf(name, sizeof(name), "t%d.%d", l->lane, i);
		l->rc = bps_declare(l->b, name, BPS_I32, 16, &t[i]);
	}
	for (int r = 0; r < 1000 && !l->rc; r++) {
		for (int i = 0; i < 4; i++)
			*(int32_t *)bps_input(t[i]) = r + i + l->rank;
		l->rc = bps_push_pull_group(t, 4, BPS_SUM, BPS_PRIORITY_AUTO);
		if (!l->rc)
			l->rc = bps_wait_group(t, 4, 0);
		for (int i = 0; i < 4 && !l->rc; i++)
			if (*(const int32_t *)bps_output(t[i]) != 2 * (r + i) + 1)
				l->rc = -ERANGE;
	}
	return NULL;
}

static void run_lanes(struct worker *w, struct bps *b)
{
	struct lane lanes[4];
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		lanes[i] = (struct lane){.b = b, .lane = i, .rank = w->rank};
		if (pthread_create(&threads[i], NULL, lane_main, &lanes[i]))
			abort();
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		w->rc = w->rc ? w->rc : lanes[i].rc;
	}
}

static void many_threads_share_one_job(void **state)
{
	struct fake *f = fake_new();

	(void)state;
	fake_start(f);
	run_workers(f, 2, run_lanes);
	fake_free(f);
}

/* ---- open ---- */

static void open_without_an_agent_says_where_it_looked(void **state)
{
	struct bps_options o;
	struct bps *b;

	(void)state;
	bps_options_init(&o);
	o.size = 2;
	o.rank = 0;
	o.agent_socket = "/nonexistent/agent.sock";
	assert_int_equal(bps_open(&o, &b), BPS_ENOAGENT);
	assert_string_equal(bps_last_error(),
		"cannot connect to '/nonexistent/agent.sock': No such file "
		"or directory (is bps-agent running?)");
}

static void agent_that_dies_before_its_welcome_is_connected_anew(void **state)
{
	struct fake *f = fake_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	f->n_deaths = 2;
	fake_start(f);
	b = open_one(f);
	assert_int_equal(bps_close(b, WAIT_MS), 0);
	fake_free(f);

	f = fake_new();
	f->n_deaths = 3;
	fake_start(f);
	o = options_of(f, 0, 1);
	assert_int_equal(bps_open(&o, &b), BPS_ENOAGENT);
	fake_free(f);
}

static void what_a_successor_of_the_agent_says_again_changes_nothing(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t, *u;
	struct bps *b;

	(void)state;
	f->repeats = true;
	fake_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "a", BPS_F32, 100, &t), 0);
	((float *)bps_input(t))[7] = 3;
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_declare(b, "b", BPS_F32, 100, &u), 0);
	assert_int_equal(bps_wait(t, WAIT_MS), 0);
	assert_true(((const float *)bps_output(t))[7] == 3);
	assert_int_equal(bps_close(b, WAIT_MS), 0);
	fake_free(f);
}

static void open_is_refused_with_the_agents_reason(void **state)
{
	struct fake *f = fake_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	f->refuse_code = -BPS_EDUP;
	fake_start(f);
	o = options_of(f, 0, 2);
	assert_int_equal(bps_open(&o, &b), BPS_EDUP);
	assert_error_has("no room for you");
	fake_free(f);
}

static void open_that_waits_in_vain_names_who_is_missing(void **state)
{
	struct fake *f = fake_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	f->why = "ranks 1 and 3 have not attached";
	fake_start(f);
	o = options_of(f, 0, 4);
	o.open_timeout_ms = 300;
	assert_int_equal(bps_open(&o, &b), BPS_ETIMEDOUT);
	assert_error_has("ranks 1 and 3 have not attached");
	assert_error_has("job 'j' of 4 workers");
	fake_free(f);
}

static void expect_open(void (*set)(struct fake *), int code)
{
	struct fake *f = fake_new();
	struct bps_options o;
	struct bps *b;

	set(f);
	fake_start(f);
	o = options_of(f, 0, 1);
	assert_int_equal(bps_open(&o, &b), code);
	fake_free(f);
}

static void spoil_control(struct fake *f)
{
	f->spoils_control = true;
}

static void unseal_control(struct fake *f)
{
	f->is_unsealed = true;
}

static void control_page_that_is_bad_or_can_shrink_is_refused(void **state)
{
	(void)state;
	expect_open(spoil_control, BPS_EPROTO);
	expect_open(unseal_control, BPS_EPROTO);
}

static void assigned_rank_is_told(void **state)
{
	struct fake *f = fake_new();
	struct bps_options o;
	struct bps *b;

	(void)state;
	fake_start(f);
	o = options_of(f, -1, 1);
	assert_int_equal(bps_open(&o, &b), 0);
	assert_int_equal(bps_rank(b), 0);
	assert_int_equal(bps_size(b), 1);
	assert_int_equal(bps_local_size(b), 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

/* ---- declare ---- */

static void bad_declarations_are_refused(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t, *same;
	char longest[257];
	struct bps *b;

	(void)state;
	fake_start(f);
	b = open_one(f);
	memset(longest, 'n', 256);
	longest[256] = 0;
	assert_int_equal(bps_declare(b, "", BPS_F32, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, NULL, BPS_F32, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, longest, BPS_F32, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "w", BPS_F32, 0, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "w", (enum bps_dtype)3, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "w", BPS_F64, UINT64_MAX / 8, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "__bps.w", BPS_F32, 1, &t), -EINVAL);
	assert_error_has("the library's own");
	longest[255] = 0;
	assert_int_equal(bps_declare(b, longest, BPS_F32, 1, &t), 0);
	assert_int_equal(bps_declare(b, longest, BPS_F32, 1, &same), 0);
	assert_ptr_equal(t, same);
	assert_int_equal(bps_declare(b, longest, BPS_F32, 2, &t), BPS_EMISMATCH);
	assert_error_has("f32[1]");
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void more_tensors_than_a_frame_holds_are_declared_in_one_call(void **state)
{
	enum { N = 250 };
	struct fake *f = fake_new();
	struct bps_decl decls[N];
	struct bps_tensor *t[N];
	char names[N][8];
	struct bps *b;

	(void)state;
	fake_start(f);
	b = open_one(f);
	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "t%d", i % (N - 1));
		decls[i] = (struct bps_decl){names[i], BPS_F32, 4};
	}
	assert_int_equal(bps_declare_group(b, decls, N, t), 0);
	assert_ptr_equal(t[0], t[N - 1]);
	for (int i = 0; i < N - 1; i++) {
		assert_string_equal(bps_name(t[i]), names[i]);
		assert_null(bps_output(t[i]));
		*(float *)bps_input(t[i]) = (float)i;
	}
	assert_int_equal(bps_push_pull_group(t, N - 1, BPS_SUM, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait_group(t, N - 1, 0), 0);
	for (int i = 0; i < N - 1; i++)
		assert_true(*(const float *)bps_output(t[i]) == (float)i);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void refused_tensor_is_told_and_may_be_declared_again(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->refused_name = "big";
	fake_start(f);
	b = open_one(f);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(bps_declare(b, "big", BPS_F32, 9, &t), BPS_EQUOTA);
		assert_error_has("tensor 'big' in job 'j': limit 1 MiB");
	}
	declare(b, "small", 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void slot_outside_of_its_arena_is_refused(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->misplaces_slots = true;
	fake_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "w", BPS_F32, 9, &t), BPS_EPROTO);
	assert_int_equal(bps_close(b, 0), BPS_EPROTO);
	fake_free(f);
}

/* ---- push_pull ---- */

static void results_stay_until_the_round_after_the_next(void **state)
{
	struct fake *f = fake_new();
	const float *first, *second;
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	fake_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	*(float *)bps_input(t) = 1;
	assert_int_equal(bps_push_pull(t, BPS_SUM, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	first = bps_output(t);
	*(float *)bps_input(t) = 2;
	assert_int_equal(bps_push_pull(t, BPS_AVG, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	second = bps_output(t);
	assert_true(*first == 1 && *second == 2);
	assert_int_equal(bps_poll(t), 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void copies_are_taken_at_the_call_and_delivered_by_the_wait(void **state)
{
	struct fake *f = fake_new();
	float src[3] = {1, 2, 3}, dst[3] = {0};
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_start(f);
	b = open_one(f);
	t = declare(b, "w", 3);
	assert_int_equal(bps_push_pull_copy(t, src, dst, BPS_SUM, 0), 0);
	src[0] = 99;
	assert_int_equal(bps_push_pull_copy(t, src, dst, BPS_SUM, 0), BPS_EBUSY);
	assert_int_equal(bps_poll(t), 0);
	fake_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_true(dst[0] == 1 && dst[1] == 2 && dst[2] == 3);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void second_push_pull_in_flight_is_busy_and_a_group_is_all_or_none(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t[3];
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	t[2] = t[0];
	assert_int_equal(bps_push_pull_group(t, 3, BPS_SUM, 0), BPS_EBUSY);
	assert_int_equal(bps_poll(t[0]), 1);
	assert_int_equal(bps_push_pull(t[1], BPS_SUM, 0), 0);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, 0), BPS_EBUSY);
	assert_error_has("tensor 'b'");
	assert_int_equal(bps_poll(t[0]), 1);
	assert_int_equal(bps_push_pull(t[0], (enum bps_op)5, 0), -EINVAL);
	fake_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait_group(t, 2, 0), 0);
	assert_int_equal(atomic_load(&f->submissions), 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void first_declared_goes_first_and_explicit_priorities_are_clamped(void **state)
{
	static const struct {
		int32_t priority;
		uint16_t wire;
	} cases[] = {{0, 32768}, {-1, 32767}, {INT32_MAX, 65535}, {-40000, 0}};
	struct fake *f = fake_new();
	struct bps_tensor *t[2];
	struct bps *b;

	(void)state;
	fake_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait_group(t, 2, 0), 0);
	assert_int_equal(f->trainers[0].last_priority[0], 65535);
	assert_int_equal(f->trainers[0].last_priority[1], 65534);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(bps_push_pull(t[0], BPS_SUM, cases[i].priority), 0);
		assert_int_equal(bps_wait(t[0], 0), 0);
		assert_int_equal(f->trainers[0].last_priority[0], cases[i].wire);
	}
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

/* ---- failures ---- */

static void wait_that_times_out_says_who_is_missing_and_may_go_on(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	f->why = WHO;
	fake_start(f);
	b = open_one(f);
	t = declare(b, "layer.0", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 20), BPS_ETIMEDOUT);
	assert_error_has("tensor 'layer.0' in job 'j', round 1, is not complete after 20 ms");
	assert_error_has(WHO);
	fake_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void agent_that_does_not_explain_delays_the_time_out_by_its_bound_only(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t;
	uint64_t start, took;
	struct bps *b;

	(void)state;
	f->is_mute = f->keeps_quiet = true;
	fake_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	start = now_ms();
	assert_int_equal(bps_wait(t, 10), BPS_ETIMEDOUT);
	took = now_ms() - start;
	assert_true(took >= 900 && took < 5000);
	assert_error_has("does not say why");
	bps_abort(b);
	fake_free(f);
}

static void *wait_main(void *arg)
{
	return (void *)(intptr_t)bps_wait(arg, 0);
}

/* Let a thread wait for a mute agent's tensor, give the order, and see the wait end. */
static void expect_wait_ends(enum fake_cmd cmd, int code)
{
	struct fake *f = fake_new();
	struct bps_tensor *t;
	pthread_t waiter;
	uint64_t start;
	struct bps *b;
	void *rc;

	f->is_mute = true;
	fake_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	*(char *)bps_input(t) = 1;
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(pthread_create(&waiter, NULL, wait_main, t), 0);
	while (!atomic_load(&f->trainers[0].c->trainer_waits))
		sched_yield();
	start = now_ms();
	fake_order(f, cmd);
	pthread_join(waiter, &rc);
	assert_int_equal((int)(intptr_t)rc, code);
	assert_true(now_ms() - start < 1000);
	/* A server may still sum what was submitted: see session.h. */
	assert_int_equal(*(char *)bps_input(t), 1);
	*(char *)bps_input(t) = 2;
	assert_int_equal(*f->trainers[0].slots[0].in, 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), cmd == FAKE_FAIL_JOB ? code : BPS_EBUSY);
	assert_int_equal(bps_poll(t), code);
	assert_true(strlen(bps_last_error()) > 0);
	assert_int_equal(bps_close(b, 0), code);
	fake_free(f);
}

static void death_of_the_agent_ends_a_wait_within_a_second(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_DIE, BPS_ENOAGENT);
	assert_error_has("is gone: it closed the connection");
}

static void malformed_frame_from_the_agent_ends_a_wait(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_GARBAGE, BPS_EPROTO);
	assert_error_has("broke the protocol");
}

static void arena_without_memory_ends_a_wait(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_STRAY_ARENA, BPS_EPROTO);
}

static void failure_of_the_job_ends_a_wait_with_its_reason(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_FAIL_JOB, BPS_EWORKER_LOST);
	assert_error_has("killed by signal 9");
}

static void mismatch_is_the_error_of_the_first_push_pull(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->mismatch_name = "w";
	f->why = "rank 0 declared f32[1], rank 1 f32[2]";
	fake_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), BPS_EMISMATCH);
	assert_error_has("rank 0 declared f32[1], rank 1 f32[2]");
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), BPS_EMISMATCH);
	assert_null(bps_output(t));
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

static void close_returns_the_jobs_end(void **state)
{
	struct fake *f = fake_new();
	struct bps *b;

	(void)state;
	f->refuses_finish = true;
	fake_start(f);
	b = open_one(f);
	assert_int_equal(bps_close(b, 0), BPS_EWORKER_LOST);
	assert_error_has("rank 1 was lost");
	fake_free(f);
}

static void close_that_waits_in_vain_times_out(void **state)
{
	struct fake *f = fake_new();
	struct bps *b;

	(void)state;
	f->why = "rank 1 has not finished";
	fake_start(f);
	b = open_one(f);
	f->size = 2; /* only finish looks at it from here on */
	assert_int_equal(bps_close(b, 20), BPS_ETIMEDOUT);
	assert_error_has("rank 1 has not finished");
	fake_free(f);
}

static void forked_child_is_refused_and_the_parent_goes_on(void **state)
{
	struct fake *f = fake_new();
	struct bps_tensor *t, *u;
	struct bps *b;
	int status, ok;
	pid_t pid;

	(void)state;
	fake_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		ok = bps_push_pull(t, BPS_SUM, 0) == BPS_EFORKED && bps_wait(t, 1) == BPS_EFORKED &&
		     bps_poll(t) == BPS_EFORKED && bps_barrier(b, 1) == BPS_EFORKED &&
		     bps_declare(b, "x", BPS_F32, 1, &u) == BPS_EFORKED &&
		     bps_close(b, 1) == BPS_EFORKED;
		_exit(ok ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_free(f);
}

/* ---- a job of one worker ---- */

static void job_of_one_worker_needs_no_agent(void **state)
{
	char data[8] = "abcdefg", all[8];
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	assert_int_equal(bps_rank(b), 0);
	assert_int_equal(bps_size(b), 1);
	t = declare(b, "w", 2);
	for (int op = BPS_SUM; op <= BPS_AVG; op++) {
		((float *)bps_input(t))[0] = (float)op + 1;
		assert_int_equal(bps_push_pull(t, (enum bps_op)op, 0), 0);
		assert_int_equal(bps_wait(t, 0), 0);
		assert_true(((const float *)bps_output(t))[0] == (float)op + 1);
	}
	assert_int_equal(bps_contributors(t), 1);
	assert_int_equal(bps_barrier(b, 0), 0);
	assert_int_equal(bps_broadcast(b, data, 8, 0, 0), 0);
	assert_int_equal(bps_broadcast(b, data, 8, 1, 0), -EINVAL);
	assert_int_equal(bps_allgather(b, data, 8, all, 0), 0);
	assert_string_equal(all, "abcdefg");
	assert_int_equal(bps_close(b, 0), 0);
}

/* ---- options ---- */

static void set_all(const char *const *pairs)
{
	for (; pairs[0]; pairs += 2)
		setenv(pairs[0], pairs[1], 1);
}

static void expect_place(
	const char *const *pairs, int rank, int size, int local_rank, const char *job)
{
	struct options o;

	clean_env(NULL);
	set_all(pairs);
	assert_int_equal(options_resolve(NULL, &o), 0);
	assert_int_equal(o.rank, rank);
	assert_int_equal(o.size, size);
	assert_int_equal(o.local_rank, local_rank);
	assert_string_equal(o.job, job);
}

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static void each_launchers_variables_give_the_place(void **state)
{
	(void)state;
	expect_place(ENV("LOCAL_RANK", "3", "RANK", "3"), -1, 1, -1, "default");
	expect_place(ENV("BPS_SIZE", "5"), -1, 5, -1, "default");
	expect_place(ENV("BPS_RANK", "2", "BPS_SIZE", "5", "RANK", "1", "WORLD_SIZE", "3",
			     "LOCAL_RANK", "1", "BPS_JOB", "mine"),
		2, 5, -1, "mine");
	expect_place(ENV("RANK", "1", "WORLD_SIZE", "3", "LOCAL_RANK", "1", "TORCHELASTIC_RUN_ID",
			     "run"),
		1, 3, 1, "run");
	expect_place(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_JOB_ID", "8",
			     "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4",
			     "PMIX_NAMESPACE", "ns@1"),
		3, 4, -1, "ns@1");
	expect_place(ENV("SLURM_PROCID", "6", "SLURM_NTASKS", "8", "SLURM_LOCALID", "2",
			     "SLURM_JOB_ID", "17", "SLURM_STEP_ID", "0", "RANK", "3"),
		6, 8, 2, "17.0");
	expect_place(ENV("DMLC_WORKER_ID", "1", "DMLC_NUM_WORKER", "3", "BYTEPS_LOCAL_RANK", "2",
			     "BYTEPS_LOCAL_SIZE", "4"),
		6, 12, 2, "default");
	expect_place(ENV("DMLC_WORKER_ID", "1", "DMLC_NUM_WORKER", "3", "BYTEPS_LOCAL_RANK", "2",
			     "BYTEPS_LOCAL_SIZE", "4", "BYTEPS_GLOBAL_RANK", "11"),
		11, 12, 2, "default");
}

static void given_place_leaves_only_the_job_to_the_launcher(void **state)
{
	struct bps_options given;
	struct options o;

	(void)state;
	set_all(ENV(
		"RANK", "7", "WORLD_SIZE", "8", "LOCAL_RANK", "7", "TORCHELASTIC_RUN_ID", "run"));
	bps_options_init(&given);
	given.rank = 1;
	given.size = 2;
	assert_int_equal(options_resolve(&given, &o), 0);
	assert_int_equal(o.rank, 1);
	assert_int_equal(o.size, 2);
	assert_int_equal(o.local_rank, -1);
	assert_string_equal(o.job, "run");
}

static void units_of_the_settings_are_understood(void **state)
{
	struct options o;

	(void)state;
	set_all(ENV("BPS_TIMEOUT", "1500ms", "BPS_OPEN_TIMEOUT", "2min", "BPS_PARTITION_BYTES",
		"4MiB", "BYTEPS_PARTITION_BYTES", "99", "BPS_DETERMINISTIC", "Yes"));
	assert_int_equal(options_resolve(NULL, &o), 0);
	assert_int_equal(o.timeout_ms, 1500);
	assert_int_equal(o.open_timeout_ms, 120000);
	assert_int_equal(o.part_bytes, 4u << 20);
	assert_true(o.is_deterministic);
}

static void bad_variables_are_errors_that_name_them(void **state)
{
	static const struct {
		const char *pairs[7];
		const char *text;
	} cases[] = {
		{{"BPS_SIZE", "two"}, "BPS_SIZE='two' is not a number"},
		{{"BPS_SIZE", "-2"}, "BPS_SIZE='-2' is not a number"},
		{{"BPS_SIZE", "99999999"}, "BPS_SIZE='99999999' is too large"},
		{{"BPS_RANK", "1"}, "BPS_RANK is set but BPS_SIZE is not"},
		{{"RANK", "4", "WORLD_SIZE", "4"}, "rank 4 (RANK='4') is not below the size 4"},
		{{"WORLD_SIZE", "0", "RANK", "0"}, "WORLD_SIZE='0' is not a number of workers"},
		{{"BPS_TIMEOUT", "30"}, "BPS_TIMEOUT='30' needs a unit"},
		{{"BPS_TIMEOUT", "30x"}, "unknown unit 'x'"},
		{{"BPS_DETERMINISTIC", "maybe"}, "BPS_DETERMINISTIC='maybe' is neither"},
		{{"BPS_PARTITION_BYTES", "9999999999GiB"}, "is too large"},
		{{"BPS_SIZE", "2", "BPS_ELASTIC", "1", "BPS_MAX_SIZE", "1"}, "BPS_MAX_SIZE"},
		{{"BPS_DETERMINISTIC", "1", "BPS_BACKUP", "1"}, "BPS_BACKUP"},
	};
	struct bps *b;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		clean_env(NULL);
		set_all(cases[i].pairs);
		assert_int_equal(bps_open(NULL, &b), -EINVAL);
		assert_error_has(cases[i].text);
	}
	clean_env(NULL);
}

static void options_that_were_not_initialised_are_refused(void **state)
{
	struct bps_options o = {0};
	struct bps *b;

	(void)state;
	assert_int_equal(bps_open(&o, &b), -EINVAL);
	assert_error_has("bps_options_init");
	bps_options_init(&o);
	o.size = 2;
	o.rank = 2;
	assert_int_equal(bps_open(&o, &b), -EINVAL);
	assert_int_equal(bps_close(NULL, 0), 0);
	assert_string_equal(
		bps_strerror(BPS_EBUSY), "a push_pull of this tensor is already in flight");
}

#define T(name) cmocka_unit_test_setup(name, clean_env)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(four_workers_sum_over_many_rounds),
		T(barrier_broadcast_and_allgather_reach_all),
		T(collective_behind_one_in_flight_does_not_touch_its_bytes),
		T(many_threads_share_one_job),
		T(open_without_an_agent_says_where_it_looked),
		T(agent_that_dies_before_its_welcome_is_connected_anew),
		T(what_a_successor_of_the_agent_says_again_changes_nothing),
		T(open_is_refused_with_the_agents_reason),
		T(open_that_waits_in_vain_names_who_is_missing),
		T(control_page_that_is_bad_or_can_shrink_is_refused),
		T(assigned_rank_is_told),
		T(bad_declarations_are_refused),
		T(more_tensors_than_a_frame_holds_are_declared_in_one_call),
		T(refused_tensor_is_told_and_may_be_declared_again),
		T(slot_outside_of_its_arena_is_refused),
		T(results_stay_until_the_round_after_the_next),
		T(copies_are_taken_at_the_call_and_delivered_by_the_wait),
		T(second_push_pull_in_flight_is_busy_and_a_group_is_all_or_none),
		T(first_declared_goes_first_and_explicit_priorities_are_clamped),
		T(wait_that_times_out_says_who_is_missing_and_may_go_on),
		T(agent_that_does_not_explain_delays_the_time_out_by_its_bound_only),
		T(death_of_the_agent_ends_a_wait_within_a_second),
		T(malformed_frame_from_the_agent_ends_a_wait),
		T(arena_without_memory_ends_a_wait),
		T(failure_of_the_job_ends_a_wait_with_its_reason),
		T(mismatch_is_the_error_of_the_first_push_pull),
		T(close_returns_the_jobs_end),
		T(close_that_waits_in_vain_times_out),
		T(forked_child_is_refused_and_the_parent_goes_on),
		T(job_of_one_worker_needs_no_agent),
		T(each_launchers_variables_give_the_place),
		T(given_place_leaves_only_the_job_to_the_launcher),
		T(units_of_the_settings_are_understood),
		T(bad_variables_are_errors_that_name_them),
		T(options_that_were_not_initialised_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
