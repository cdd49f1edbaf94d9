/* Tests of fabric_gates.h, which lists properties of libfabric's versions. libfabric itself is not
 * used. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <rdma/fabric.h>

#include "common/transport/fabric/fabric_gates.h"
#include "common/transport/flow/read_window.h"

static void version_too_old_is_refused_with_those_that_can_be_used(void **state)
{
	struct err_text err = {""};

	(void)state;
	assert_int_equal(fabric_gates_check(FI_VERSION(1, 16), &err), -ENOSYS);
	assert_non_null(strstr(err.s, "libfabric 1.16 is too old: install 1.17"));
	assert_int_equal(fabric_gates_check(FI_VERSION(1, 17), &err), 0);
}

static void version_that_never_sleeps_is_refused_with_the_reason(void **state)
{
	struct err_text err = {""};

	(void)state;
	assert_int_equal(fabric_gates_check(FI_VERSION(1, 18), &err), -ENOSYS);
	assert_string_equal(err.s,
		"libfabric 1.18 keeps a processor busy while a data thread is idle: install 1.17, "
		"or any version from 1.19 on");
	assert_int_equal(fabric_gates_check(FI_VERSION(1, 19), &err), 0);
	assert_int_equal(fabric_gates_check(FI_VERSION(1, 22), &err), 0);
	assert_int_equal(fabric_gates_check(FI_VERSION(2, 0), &err), 0);
	assert_int_equal(fabric_gates_check(FI_VERSION(2, 18), &err), 0);
}

static void only_tcp_of_1_17_is_spoiled_by_cut_reads(void **state)
{
	(void)state;
	assert_true(fabric_gates_of(FI_VERSION(1, 17), false).is_spoiled_by_cut_reads);
	assert_false(fabric_gates_of(FI_VERSION(1, 17), true).is_spoiled_by_cut_reads);
	assert_false(fabric_gates_of(FI_VERSION(1, 19), false).is_spoiled_by_cut_reads);
	assert_false(fabric_gates_of(FI_VERSION(2, 5), false).is_spoiled_by_cut_reads);
}

static void tcp_has_many_connections_from_1_19_on(void **state)
{
	(void)state;
	assert_int_equal(fabric_gates_of(FI_VERSION(1, 17), false).conns_max, 256);
	assert_int_equal(fabric_gates_of(FI_VERSION(1, 19), false).conns_max, 1024);
	assert_int_equal(fabric_gates_of(FI_VERSION(2, 5), false).conns_max, 1024);
	assert_int_equal(fabric_gates_of(FI_VERSION(2, 5), true).conns_max, 256);
}

static void reads_of_tcp_have_larger_windows(void **state)
{
	(void)state;
	assert_int_equal(
		fabric_gates_of(FI_VERSION(1, 17), true).read_least_bytes, READ_WINDOW_MIN);
	assert_int_equal(fabric_gates_of(FI_VERSION(1, 17), false).read_least_bytes, 512 << 10);
	assert_int_equal(
		fabric_gates_of(FI_VERSION(1, 19), false).read_least_bytes, READ_WINDOW_FIRST);
}

static void tcp_sends_eager_bytes_from_1_19_on(void **state)
{
	(void)state;
	assert_false(fabric_gates_of(FI_VERSION(1, 17), false).has_eager);
	assert_true(fabric_gates_of(FI_VERSION(1, 19), false).has_eager);
	assert_false(fabric_gates_of(FI_VERSION(1, 19), true).has_eager);
}

static void tcp_shows_its_sockets_from_2_2_on(void **state)
{
	(void)state;
	assert_false(fabric_gates_of(FI_VERSION(1, 22), false).has_get_fd);
	assert_false(fabric_gates_of(FI_VERSION(2, 1), false).has_get_fd);
	assert_true(fabric_gates_of(FI_VERSION(2, 2), false).has_get_fd);
	assert_true(fabric_gates_of(FI_VERSION(3, 0), false).has_get_fd);
	assert_false(fabric_gates_of(FI_VERSION(2, 2), true).has_get_fd);
}

static void threads_of_tcp_read_their_events_from_1_19_on(void **state)
{
	(void)state;
	assert_false(fabric_gates_of(FI_VERSION(1, 17), false).has_own_events);
	assert_true(fabric_gates_of(FI_VERSION(1, 19), false).has_own_events);
	assert_false(fabric_gates_of(FI_VERSION(1, 19), true).has_own_events);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(version_too_old_is_refused_with_those_that_can_be_used),
		cmocka_unit_test(version_that_never_sleeps_is_refused_with_the_reason),
		cmocka_unit_test(only_tcp_of_1_17_is_spoiled_by_cut_reads),
		cmocka_unit_test(tcp_has_many_connections_from_1_19_on),
		cmocka_unit_test(reads_of_tcp_have_larger_windows),
		cmocka_unit_test(tcp_sends_eager_bytes_from_1_19_on),
		cmocka_unit_test(tcp_shows_its_sockets_from_2_2_on),
		cmocka_unit_test(threads_of_tcp_read_their_events_from_1_19_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
