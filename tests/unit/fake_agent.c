/* The fake agent of fake_agent.h: its thread, the messages on its socket, the rings of its
 * trainers, and the faults that a test orders. */
#include "tests/unit/fake_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/data/dtype.h"

#define SQ_ENTRIES 512

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

static void fake_say(struct fake_agent *f, struct fake_trainer *t, struct local_msg *m,
	const int *fds, unsigned n_fds)
{
	fake_send(t, m, fds, n_fds);
	if (f->repeats)
		fake_send(t, m, fds, n_fds);
}

static void fake_welcome(struct fake_agent *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {.type = LOCAL_WELCOME,
		.seq = in->seq,
		.welcome = {.code = f->refuse_code,
			.text = "no room for you",
			.n_types = f->is_old ? LOCAL_ASK_TRAFFIC : LOCAL_TYPE_END}};
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

static uint32_t fake_tensor_of(struct fake_agent *f, const struct local_decl *d)
{
	struct fake_tensor *t;
	uint32_t i;

	for (i = 0; i < f->n_tensors; i++)
		if (!strcmp(f->tensors[i].name, d->name))
			return i;
	t = &f->tensors[f->n_tensors++];
	snprintf(t->name, sizeof(t->name), "%s", d->name);
	t->dtype = d->shape.dtype;
	t->n_elems = shape_elems(&d->shape);
	t->slot_bytes = (shape_bytes(&d->shape) + 63) / 64 * 64;
	t->out_fd = fake_memfd(2 * t->slot_bytes, true);
	t->out = fake_map(t->out_fd, 2 * t->slot_bytes);
	return i;
}

static void fake_declare(struct fake_agent *f, struct fake_trainer *t, struct local_msg *in)
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

static void fake_why(struct fake_agent *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {
		.type = LOCAL_TEXT, .seq = in->seq, .text = {.text = f->why, .cause = f->cause}};

	atomic_fetch_add(&f->whys, 1);
	if (!f->keeps_quiet)
		fake_send(t, &m, NULL, 0);
}

static void fake_close(struct fake_trainer *t)
{
	if (t->sock >= 0)
		close(t->sock);
	t->sock = -1;
}

static void fake_traffic(struct fake_agent *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {.type = LOCAL_TRAFFIC,
		.seq = in->seq,
		.traffic = {.instance = 7, .sent_bytes = 1, .received_bytes = 2}};

	if (f->is_old)
		fake_close(t); /* a real agent also drops a trainer for an unknown message */
	else
		fake_say(f, t, &m, NULL, 0);
}

static void fake_finish(struct fake_agent *f, struct fake_trainer *t, struct local_msg *in)
{
	struct local_msg m = {.type = LOCAL_FINISHED, .finished = {.text = ""}};

	if (f->refuses_finish)
		m.finished =
			(struct local_finished){-BPS_EWORKER_LOST, "rank 1 was lost", {1, "b"}};
	f->finish_seq[t - f->trainers] = in->seq;
	if (++f->n_finished < f->size)
		return;
	for (uint32_t i = 0; i < f->n_trainers; i++) {
		m.seq = f->finish_seq[i];
		fake_say(f, &f->trainers[i], &m, NULL, 0);
	}
}

static void fake_read(struct fake_agent *f, struct fake_trainer *t)
{
	struct local_frame frame;
	int rc = local_recv(t->sock, &frame, 0, NULL);
	struct local_msg m = frame.msg;

	if (rc == -EAGAIN)
		return;
	if (rc != 1) {
		fake_close(t);
		return;
	}
	if (m.type == LOCAL_HELLO && f->n_deaths > 0) {
		f->n_deaths--;
		f->n_trainers--; /* the newcomer is always the last in the list */
		fake_close(t);
	} else if (m.type == LOCAL_HELLO)
		fake_welcome(f, t, &m);
	else if (m.type == LOCAL_DECLARE)
		fake_declare(f, t, &m);
	else if (m.type == LOCAL_WHY)
		fake_why(f, t, &m);
	else if (m.type == LOCAL_ASK_TRAFFIC)
		fake_traffic(f, t, &m);
	else if (m.type == LOCAL_FINISH)
		fake_finish(f, t, &m);
	local_frame_free(&frame);
}

static double fake_get(uint8_t dtype, const char *in, uint64_t e)
{
	return dtype == DTYPE_F64 ? ((const double *)in)[e] : (double)((const float *)in)[e];
}

static void fake_put(uint8_t dtype, char *out, uint64_t e, double v)
{
	if (dtype == DTYPE_F64)
		((double *)out)[e] = v;
	else
		((float *)out)[e] = (float)v;
}

static int64_t fake_get_integer(uint8_t dtype, const char *in, uint64_t e)
{
	switch (dtype) {
	case DTYPE_I8:
		return ((const int8_t *)in)[e];
	case DTYPE_I32:
		return ((const int32_t *)in)[e];
	case DTYPE_I64:
		return ((const int64_t *)in)[e];
	default:
		return ((const uint8_t *)in)[e];
	}
}

static void fake_put_integer(uint8_t dtype, char *out, uint64_t e, int64_t v)
{
	switch (dtype) {
	case DTYPE_I8:
		((int8_t *)out)[e] = (int8_t)v;
		break;
	case DTYPE_I32:
		((int32_t *)out)[e] = (int32_t)v;
		break;
	case DTYPE_I64:
		((int64_t *)out)[e] = v;
		break;
	default:
		((uint8_t *)out)[e] = (uint8_t)v;
	}
}

/* Return the number of trainers whose values are in the round. */
static uint32_t fake_n_givers(const struct fake_agent *f, uint32_t idx)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < f->size; i++)
		n += !f->trainers[i].slots[idx].abstains;
	return n;
}

static void fake_sum_integers(struct fake_agent *f, struct fake_tensor *ft, uint32_t idx, char *out)
{
	for (uint64_t e = 0; e < ft->n_elems; e++) {
		uint64_t sum = 0; /* an overflow wraps around, as in the servers */
		int64_t value, n = fake_n_givers(f, idx);

		for (uint32_t i = 0; i < f->size; i++)
			if (!f->trainers[i].slots[idx].abstains)
				sum += (uint64_t)fake_get_integer(
					ft->dtype, f->trainers[i].slots[idx].in, e);
		value = (int64_t)sum;
		if (ft->op == OP_AVG && n)
			value = value / n - (value % n < 0);
		fake_put_integer(ft->dtype, out, e, value);
	}
}

static void fake_sum(struct fake_agent *f, struct fake_tensor *ft, uint32_t idx, uint64_t round)
{
	char *out = ft->out + (round & 1) * ft->slot_bytes;
	double sum;

	if (ft->dtype != DTYPE_F32 && ft->dtype != DTYPE_F64) {
		fake_sum_integers(f, ft, idx, out);
		return;
	}
	for (uint64_t e = 0; e < ft->n_elems; e++) {
		sum = 0;
		for (uint32_t i = 0; i < f->size; i++)
			if (!f->trainers[i].slots[idx].abstains)
				sum += fake_get(ft->dtype, f->trainers[i].slots[idx].in, e);
		if (ft->op == OP_AVG && fake_n_givers(f, idx))
			sum /= fake_n_givers(f, idx);
		fake_put(ft->dtype, out, e, sum);
	}
}

static void fake_done(struct fake_trainer *t, uint32_t idx, int status, uint32_t workers)
{
	struct fake_slot *s = &t->slots[idx];

	s->done = s->submitted;
	local_set_contributors(t->c, SQ_ENTRIES, idx, workers, s->abstains, false);
	local_complete_round(t->c, SQ_ENTRIES, idx, s->done, status, workers);
	local_done_wake(t->c);
}

static void fake_complete(struct fake_agent *f, uint32_t idx)
{
	struct fake_tensor *ft = &f->tensors[idx];
	uint64_t round = f->trainers[0].slots[idx].submitted;
	const char *mute = atomic_load(&f->mute_name);

	if (mute && !strcmp(ft->name, mute))
		return;
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
		fake_done(&f->trainers[i], idx, 0, fake_n_givers(f, idx));
}

static void fake_pop(struct fake_agent *f, struct fake_trainer *t)
{
	struct local_sqe e;

	while (local_sq_pop(t->c, SQ_ENTRIES, &t->head, &e)) {
		t->slots[e.tensor].submitted = e.round;
		t->slots[e.tensor].abstains = e.flags & LOCAL_ABSTAINS;
		t->last_priority[e.tensor] = e.priority;
		f->tensors[e.tensor].op = e.op;
		atomic_fetch_add(&f->submissions, 1);
		if (!f->is_mute)
			fake_complete(f, e.tensor);
	}
}

static void fake_fail_job(struct fake_agent *f)
{
	struct local_msg m = {.type = LOCAL_JOB,
		.job = {.code = -BPS_EWORKER_LOST,
			.text = "rank 1 (pid 77 on host b) was killed by signal 9",
			.cause = {1, "b"}}};

	for (uint32_t i = 0; i < f->n_trainers; i++) {
		fake_send(&f->trainers[i], &m, NULL, 0);
		for (uint32_t t = 0; t < f->n_tensors; t++)
			if (f->trainers[i].slots[t].submitted > f->trainers[i].slots[t].done)
				fake_done(&f->trainers[i], t, BPS_EWORKER_LOST, 0);
	}
}

static void fake_obey(struct fake_agent *f, enum fake_cmd cmd)
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

static bool fake_take_cmd(struct fake_agent *f)
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

static void fake_accept(struct fake_agent *f)
{
	struct fake_trainer *t = &f->trainers[f->n_trainers];

	t->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	t->event_fd = -1;
	if (t->sock >= 0)
		f->n_trainers++;
}

static void fake_turn(struct fake_agent *f)
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
	struct fake_agent *f = arg;

	do
		fake_turn(f);
	while (fake_take_cmd(f));
	return NULL;
}

void fake_agent_order(struct fake_agent *f, enum fake_cmd cmd)
{
	struct pollfd p = {.fd = f->ack_fd, .events = POLLIN};
	uint64_t n = 1;

	atomic_store(&f->cmd, (int)cmd);
	assert_int_equal(write(f->cmd_fd, &n, sizeof(n)), sizeof(n));
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_int_equal(read(f->ack_fd, &n, sizeof(n)), sizeof(n));
}

struct fake_agent *fake_agent_new(void)
{
	struct fake_agent *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->why = "";
	return f;
}

void fake_agent_start(struct fake_agent *f)
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

void fake_agent_free(struct fake_agent *f)
{
	fake_agent_order(f, FAKE_STOP);
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
