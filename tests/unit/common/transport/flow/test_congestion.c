/* How the congestion control of data sockets is chosen. */
#include "common/transport/flow/congestion.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* The congestion controls of a kernel: those that a process may use, and those that are
 * restricted. */
struct kernel {
	const char *allowed, *restricted;
};

static bool lists(const char *list, const char *name)
{
	const char *at = strstr(list, name);

	return at && (at == list || at[-1] == ' ') && strchr(" ", at[strlen(name)]);
}

static int may_use(void *ctx, const char *name)
{
	const struct kernel *k = ctx;

	return lists(k->allowed, name) ? 0 : lists(k->restricted, name) ? -EPERM : -ENOENT;
}

static const char *choose(const char *wanted, const char *system, struct kernel k)
{
	struct err_text err = {""};

	return congestion_choose(wanted, system, may_use, &k, &err);
}

static void auto_keeps_what_the_administrator_chose(void **state)
{
	struct kernel k = {"reno cubic dctcp bbr", ""};

	(void)state;
	assert_string_equal(choose("auto", "cubic", k), "");
	assert_string_equal(choose("auto", "dctcp", k), "");
	assert_string_equal(choose("auto", "reno", k), "");
}

static void auto_takes_the_best_allowed_in_the_place_of_bbr(void **state)
{
	(void)state;
	assert_string_equal(choose("auto", "bbr", (struct kernel){"reno cubic bbr", ""}), "cubic");
	assert_string_equal(choose("auto", "bbr", (struct kernel){"reno bbr", "cubic"}), "reno");
	assert_string_equal(choose("auto", "bbr3", (struct kernel){"reno bbr3", ""}), "reno");
	assert_string_equal(choose("auto", "bbr", (struct kernel){"bbr", "reno cubic"}), "");
}

static void system_and_a_name_are_taken_as_they_are(void **state)
{
	struct kernel k = {"reno cubic bbr", ""};

	(void)state;
	assert_string_equal(choose("system", "bbr", k), "");
	assert_string_equal(choose("bbr", "cubic", k), "bbr");
	assert_string_equal(choose("cubic", "cubic", k), "cubic");
}

static void unavailable_control_is_reported(void **state)
{
	struct kernel k = {"reno", "cubic"};
	struct err_text err = {""};

	(void)state;
	assert_null(congestion_choose("cubic", "reno", may_use, &k, &err));
	assert_non_null(strstr(err.s, "tcp_allowed_congestion_control"));
	assert_null(congestion_choose("vegas", "reno", may_use, &k, &err));
	assert_non_null(strstr(err.s, "no congestion-control 'vegas'"));
	assert_null(congestion_choose("", "reno", may_use, &k, &err));
}

static void sockets_get_the_chosen_control(void **state)
{
	char name[CONGESTION_NAME_MAX + 1] = "x", has[CONGESTION_NAME_MAX + 2] = "";
	socklen_t len = CONGESTION_NAME_MAX + 1;
	struct err_text err = {""};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(congestion_find("reno", name, &err), 0); /* every kernel has reno */
	assert_string_equal(name, "reno");
	assert_int_equal(congestion_set(fd, name), 0);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &len), 0);
	assert_string_equal(has, "reno");
	assert_int_equal(congestion_set(fd, ""), 0);
	assert_int_equal(congestion_set(fd, "no-such"), -ENOENT);
	assert_int_equal(congestion_find("no-such", name, &err), -EINVAL);
	assert_non_null(strstr(err.s, "no congestion-control 'no-such'"));
	assert_int_equal(congestion_find("system", name, &err), 0);
	assert_string_equal(name, "");
	assert_int_equal(congestion_find("auto", name, &err), 0);
	assert_true(strncmp(name, "bbr", 3) != 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(auto_keeps_what_the_administrator_chose),
		cmocka_unit_test(auto_takes_the_best_allowed_in_the_place_of_bbr),
		cmocka_unit_test(system_and_a_name_are_taken_as_they_are),
		cmocka_unit_test(unavailable_control_is_reported),
		cmocka_unit_test(sockets_get_the_chosen_control),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
