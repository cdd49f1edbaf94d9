/* The state log on disk. Records are read back as written, and damaged or torn records are cut off.
 * A failed write changes nothing. Each test has its own folder. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>

#include "bps-scheduler/statelog.h"
#include "common/base/log.h"

#define HEAD_BYTES 16

struct statelog_fixture {
	char dir[64], path[96];
	struct statelog *log;
	unsigned n_loaded;
	uint64_t views[64];
	int refuse; /* the load callback fails after this number of records; 0: never */
	struct err_text err;
};

static int setup(void **state)
{
	struct statelog_fixture *f = calloc(1, sizeof(*f));

	log_set_level(LOG_ERROR);
	strcpy(f->dir, "/tmp/bps_statelog_XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/state.log", f->dir);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct statelog_fixture *f = *state;
	static const char *const names[] = {"state.log", "state.log.new", "lock"};
	char path[128];

	statelog_close(f->log);
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", f->dir, names[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(f->dir), 0); /* rmdir fails if a test leaves files behind */
	free(f);
	return 0;
}

static int on_record(void *ctx, const struct state_record *rec, struct err_text *err)
{
	struct statelog_fixture *f = ctx;

	assert_true(f->n_loaded < 64);
	if (f->refuse && (int)f->n_loaded == f->refuse)
		return err_set(err, -EINVAL, "it does not fit");
	f->views[f->n_loaded++] = rec->view;
	assert_int_equal(rec->n_members, 1);
	assert_string_equal(rec->members[0].hello.name, "s1");
	return 0;
}

static int open_log(struct statelog_fixture *f)
{
	statelog_close(f->log);
	f->log = NULL;
	f->n_loaded = 0;
	return statelog_open(&f->log, f->dir, on_record, f, &f->err);
}

static struct state_member member = {.id = 1,
	.hello = {.role = 1, .name = "s1", .host = "h", .addr = "10.0.0.1", .version = "1"}};

static struct state_record record(uint64_t view)
{
	return (struct state_record){.cluster_id = {"0123456789abcdef", 16},
		.secret = {"0123456789abcdef0123456789abcdef", 32},
		.term = 1,
		.view = view,
		.job_id_limit = 1,
		.members = &member,
		.n_members = 1};
}

static void append(struct statelog_fixture *f, uint64_t view)
{
	struct state_record rec = record(view);

	assert_int_equal(statelog_append(f->log, &rec), 0);
}

static void three_records(struct statelog_fixture *f)
{
	assert_int_equal(open_log(f), 0);
	for (uint64_t v = 1; v <= 3; v++)
		append(f, v);
}

static uint64_t file_bytes(const struct statelog_fixture *f)
{
	struct stat st;

	assert_int_equal(stat(f->path, &st), 0);
	return (uint64_t)st.st_size;
}

static void flip(const struct statelog_fixture *f, uint64_t at)
{
	int fd = open(f->path, O_RDWR);
	char c;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
	c = (char)(c ^ 0x40);
	assert_int_equal(pwrite(fd, &c, 1, (off_t)at), 1);
	close(fd);
}

static void records_come_back_in_order(void **state)
{
	struct statelog_fixture *f = *state;

	three_records(f);
	assert_int_equal(open_log(f), 0);
	assert_int_equal(f->n_loaded, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(f->views[i], i + 1);
	append(f, 4);
	assert_int_equal(open_log(f), 0);
	assert_int_equal(f->n_loaded, 4);
}

static void missing_folder_is_made_private(void **state)
{
	struct statelog_fixture *f = *state;
	struct stat st;

	assert_int_equal(rmdir(f->dir), 0);
	assert_int_equal(open_log(f), 0);
	assert_int_equal(stat(f->dir, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

static void second_scheduler_is_kept_out(void **state)
{
	struct statelog_fixture *f = *state;
	struct statelog *other = NULL;

	three_records(f);
	assert_int_equal(statelog_open(&other, f->dir, on_record, f, &f->err), -EBUSY);
	assert_non_null(strstr(f->err.s, "another bps-scheduler"));
}

static void every_torn_tail_is_cut_off(void **state)
{
	struct statelog_fixture *f = *state;
	uint64_t two, three;

	assert_int_equal(open_log(f), 0);
	append(f, 1);
	append(f, 2);
	two = file_bytes(f);
	append(f, 3);
	three = file_bytes(f);
	for (uint64_t size = two; size < three; size++) {
		assert_int_equal(truncate(f->path, (off_t)size), 0);
		assert_int_equal(open_log(f), 0);
		assert_int_equal(f->n_loaded, 2);
		assert_int_equal(file_bytes(f), two);
		append(f, 3);
		assert_int_equal(file_bytes(f), three);
	}
}

static void garbled_last_record_is_cut_off(void **state)
{
	struct statelog_fixture *f = *state;
	uint64_t two;

	assert_int_equal(open_log(f), 0);
	append(f, 1);
	append(f, 2);
	two = file_bytes(f);
	append(f, 3);
	flip(f, two + 20);
	assert_int_equal(open_log(f), 0);
	assert_int_equal(f->n_loaded, 2);
}

static void broken_middle_is_an_error_that_says_what_to_do(void **state)
{
	struct statelog_fixture *f = *state;
	uint64_t one;

	assert_int_equal(open_log(f), 0);
	append(f, 1);
	one = file_bytes(f);
	append(f, 2);
	append(f, 3);
	/* change each byte of a record: its length, checksum and body */
	for (uint64_t at = one; at < one + 30; at++) {
		uint64_t size = file_bytes(f);

		flip(f, at);
		assert_int_equal(open_log(f), -EBADMSG);
		assert_non_null(strstr(f->err.s, "Move the file away"));
		assert_int_equal(file_bytes(f), size);
		flip(f, at);
	}
	assert_int_equal(open_log(f), 0);
	assert_int_equal(f->n_loaded, 3);
}

static void record_that_the_core_refuses_is_an_error(void **state)
{
	struct statelog_fixture *f = *state;

	three_records(f);
	f->refuse = 1;
	assert_int_equal(open_log(f), -EBADMSG);
	assert_non_null(strstr(f->err.s, "it does not fit"));
}

static void newer_format_is_refused(void **state)
{
	struct statelog_fixture *f = *state;

	three_records(f);
	flip(f, 9);
	assert_int_equal(open_log(f), BPS_EVERSION);
	assert_non_null(strstr(f->err.s, "install the release"));
	flip(f, 9);
	flip(f, 0);
	assert_int_equal(open_log(f), -EBADMSG);
	assert_non_null(strstr(f->err.s, "not a state log"));
}

static void compaction_leaves_one_record(void **state)
{
	struct statelog_fixture *f = *state;
	struct state_record rec = record(9);

	three_records(f);
	assert_int_equal(statelog_compact(f->log, &rec), 0);
	append(f, 10);
	assert_int_equal(open_log(f), 0);
	assert_int_equal(f->n_loaded, 2);
	assert_int_equal(f->views[0], 9);
	assert_int_equal(f->views[1], 10);
}

static void long_log_asks_for_compaction(void **state)
{
	struct statelog_fixture *f = *state;
	struct state_record rec = record(1);
	struct state_run *runs = calloc(100000, sizeof(*runs));
	unsigned n = 0;

	assert_int_equal(open_log(f), 0);
	rec.runs = runs;
	rec.n_runs = 100000;
	assert_false(statelog_is_long(f->log));
	while (!statelog_is_long(f->log) && n++ < 10)
		assert_int_equal(statelog_append(f->log, &rec), 0);
	assert_true(statelog_is_long(f->log));
	assert_int_equal(statelog_compact(f->log, &rec), 0);
	assert_false(statelog_is_long(f->log));
	free(runs);
}

/* A limit on the size of files simulates a full disk. A failed write leaves the log's content as it
 * was. Once the limit is lifted, the log works again. */
static void failed_write_leaves_the_log_as_it_was(void **state)
{
	struct statelog_fixture *f = *state;
	struct state_record rec = record(4);
	struct rlimit old, small;
	uint64_t bytes;
	int r_append, r_compact;

	three_records(f);
	bytes = file_bytes(f);
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	small = old;
	small.rlim_cur = bytes + 20;
	setrlimit(RLIMIT_FSIZE, &small);
	r_append = statelog_append(f->log, &rec);
	small.rlim_cur = HEAD_BYTES + 4;
	setrlimit(RLIMIT_FSIZE, &small);
	r_compact = statelog_compact(f->log, &rec);
	setrlimit(RLIMIT_FSIZE, &old);
	assert_int_equal(r_append, -EFBIG);
	assert_int_equal(r_compact, -EFBIG);
	assert_int_equal(file_bytes(f), bytes);
	append(f, 4);
	assert_int_equal(open_log(f), 0);
	assert_int_equal(f->n_loaded, 4);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(records_come_back_in_order),
		T(missing_folder_is_made_private),
		T(second_scheduler_is_kept_out),
		T(every_torn_tail_is_cut_off),
		T(garbled_last_record_is_cut_off),
		T(broken_middle_is_an_error_that_says_what_to_do),
		T(record_that_the_core_refuses_is_an_error),
		T(newer_format_is_refused),
		T(compaction_leaves_one_record),
		T(long_log_asks_for_compaction),
		T(failed_write_leaves_the_log_as_it_was),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
