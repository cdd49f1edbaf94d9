/* The log: an event makes one line, even if a name in the event contains control characters. Other
 * tests check the prefix of a line, and the fields for the journal. */
#include "common/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log_impl.h"

static char got[16384];

/* Run fn with stderr redirected to fd. Then read the written text from `back` into `got`. */
static void with_stderr(int fd, int back, void (*fn)(const void *arg), const void *arg)
{
	int saved = dup(STDERR_FILENO);
	ssize_t n;

	assert_true(saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
	fn(arg);
	dup2(saved, STDERR_FILENO);
	close(saved);
	if (fd == back)
		lseek(fd, 0, SEEK_SET);
	n = read(back, got, sizeof(got) - 1);
	got[n > 0 ? n : 0] = '\0';
}

static void through_pipe(void (*fn)(const void *arg), const void *arg)
{
	int fds[2];

	assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
	with_stderr(fds[1], fds[0], fn, arg);
	close(fds[0]);
	close(fds[1]);
}

static void through_file(void (*fn)(const void *arg), const void *arg)
{
	FILE *f = tmpfile();

	assert_non_null(f);
	with_stderr(fileno(f), fileno(f), fn, arg);
	fclose(f);
}

static void warn_of(const void *name)
{
	log_warn("a peer calls itself '%s'", (const char *)name);
}

static void name_cannot_make_a_second_line(void **state)
{
	(void)state;
	through_pipe(warn_of, "x'\n<0>the disk is gone\r\t\x1b[2J\x7f");
	assert_string_equal(
		got, "<4>a peer calls itself 'x'\\n<0>the disk is gone\\r\\t\\x1b[2J\\x7f'\n");
}

static void valid_utf8_stays_readable_and_other_bytes_are_escaped(void **state)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{"K\xc3\xb6ln \xe4\xba\xac \xf0\x9f\x98\x80",
			"K\xc3\xb6ln \xe4\xba\xac \xf0\x9f\x98\x80"},
		{"\xc3", "\\xc3"},                            /* a character that is cut off */
		{"\xc0\x8a", "\\xc0\\x8a"},                   /* overlong encoding of a newline */
		{"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},          /* a longer overlong encoding */
		{"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* one half of a surrogate pair */
		{"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"}, /* beyond U+10FFFF */
		{"\xc2\x85", "\\xc2\\x85"},                   /* a control character, "next line" */
		{"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},          /* the line separator */
		{"a\xe2\x80\xae"
		 "b",
			"a\\xe2\\x80\\xaeb"}, /* right-to-left override */
		{"\xff\xfe", "\\xff\\xfe"},
	};
	char out[64];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t n = log_escape(out, sizeof(out), cases[i].in, strlen(cases[i].in));

		assert_string_equal(out, cases[i].out);
		assert_int_equal(n, strlen(out));
	}
	assert_int_equal(log_escape(out, sizeof(out), "a\0b", 3), 6);
	assert_string_equal(out, "a\\x00b");
}

static void escaped_text_is_cut_between_characters(void **state)
{
	char out[8];

	(void)state;
	assert_int_equal(log_escape(out, sizeof(out), "12345\n7", 7), 7);
	assert_string_equal(out, "12345\\n");
	assert_int_equal(log_escape(out, sizeof(out), "123456\n", 7), 6);
	assert_int_equal(log_escape(out, sizeof(out), "123456\xc3\xb6", 8), 6);
}

static void long_line_is_cut_and_still_one_line(void **state)
{
	char name[6000];

	(void)state;
	memset(name, '\n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	through_pipe(warn_of, name);
	assert_true(strlen(got) > 2000);
	assert_ptr_equal(strchr(got, '\n'), got + strlen(got) - 1);
}

static void only_a_file_gets_time_stamps(void **state)
{
	regex_t re;

	(void)state;
	through_file(warn_of, "x");
	assert_int_equal(regcomp(&re,
				 "^<4>20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\."
				 "[0-9]{3}Z a peer calls itself 'x'\n$",
				 REG_EXTENDED | REG_NOSUB),
		0);
	assert_int_equal(regexec(&re, got, 0, NULL, 0), 0);
	regfree(&re);
	through_pipe(warn_of, "x");
	assert_string_equal(got, "<4>a peer calls itself 'x'\n");
}

static void flood(const void *arg)
{
	for (int i = 0; i < 100; i++)
		log_rated(LOG_WARN, "stranger %d %s", i, (const char *)arg);
}

static void stranger_gets_five_lines_a_minute(void **state)
{
	unsigned lines = 0;

	(void)state;
	through_pipe(flood, "knocks");
	for (const char *p = got; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, LOG_RATE_BURST);
}

static void swallowed_lines_are_counted(void **state)
{
	struct log_rate r = {0};
	uint32_t swallowed = 7;

	(void)state;
	assert_true(log_rate_may_write(&r, 2, &swallowed));
	assert_int_equal(swallowed, 0);
	assert_true(log_rate_may_write(&r, 2, &swallowed));
	assert_false(log_rate_may_write(&r, 2, &swallowed));
	assert_false(log_rate_may_write(&r, 2, &swallowed));
	r.window_ms -= LOG_RATE_MS; /* as if a minute had passed */
	assert_true(log_rate_may_write(&r, 2, &swallowed));
	assert_int_equal(swallowed, 2);
}

static void less_urgent_lines_are_left_out(void **state)
{
	(void)state;
	log_set_level(LOG_ERROR);
	through_pipe(warn_of, "x");
	log_set_level(LOG_INFO);
	assert_string_equal(got, "");
}

static const char *datagram(enum log_id id, const char *text)
{
	static char buf[LOG_DATAGRAM_BYTES + 1];

	buf[log_format_datagram(buf, 6, id, text, strlen(text))] = '\0';
	return buf;
}

static void journal_gets_fields_of_the_words(void **state)
{
	char want[512];

	(void)state;
	snprintf(want, sizeof(want),
		"MESSAGE=job changes from forming to running: job=mnist id=7 why=all are here\n"
		"PRIORITY=6\nSYSLOG_IDENTIFIER=%s\n"
		"MESSAGE_ID=9c9594b2d163403a8f50a454de9108e3\n"
		"BPS_JOB=mnist\nBPS_ID=7\nBPS_WHY=all\n",
		program_invocation_short_name);
	assert_string_equal(
		datagram(LOG_ID_JOB,
			"job changes from forming to running: job=mnist id=7 why=all are here"),
		want);
	assert_null(strstr(datagram(LOG_ID_NONE, "x"), "MESSAGE_ID"));
	assert_non_null(strstr(datagram(LOG_ID_NONE, "x file='/a b'"), "\nBPS_FILE=/a b\n"));
	assert_null(strstr(datagram(LOG_ID_NONE, "called 'x id=9 y' by it"), "BPS_ID"));
	assert_non_null(strstr(datagram(LOG_ID_NONE, "the peer's fault job=7"), "\nBPS_JOB=7\n"));
	assert_null(strstr(datagram(LOG_ID_NONE, "PRIORITY=0 =x y= _PID=1"), "BPS_"));
}

static void journal_is_known_by_its_stream(void **state)
{
	struct stat st = {.st_dev = 12, .st_ino = 345};

	(void)state;
	unsetenv("JOURNAL_STREAM");
	assert_false(log_is_journal(&st));
	setenv("JOURNAL_STREAM", "12:345", 1);
	assert_true(log_is_journal(&st));
	setenv("JOURNAL_STREAM", "12:346", 1);
	assert_false(log_is_journal(&st));
	setenv("JOURNAL_STREAM", "nonsense", 1);
	assert_false(log_is_journal(&st));
	unsetenv("JOURNAL_STREAM");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(name_cannot_make_a_second_line),
		cmocka_unit_test(valid_utf8_stays_readable_and_other_bytes_are_escaped),
		cmocka_unit_test(escaped_text_is_cut_between_characters),
		cmocka_unit_test(long_line_is_cut_and_still_one_line),
		cmocka_unit_test(only_a_file_gets_time_stamps),
		cmocka_unit_test(stranger_gets_five_lines_a_minute),
		cmocka_unit_test(swallowed_lines_are_counted),
		cmocka_unit_test(less_urgent_lines_are_left_out),
		cmocka_unit_test(journal_gets_fields_of_the_words),
		cmocka_unit_test(journal_is_known_by_its_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
