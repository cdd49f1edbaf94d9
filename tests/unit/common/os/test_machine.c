/* Tests of the machine's identity: the text form of the boot id, and the parts of a host name. */
#include "common/os/machine.h"

#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void kernels_text_becomes_sixteen_bytes(void **state)
{
	static const uint8_t want[MACHINE_BOOT_ID_BYTES] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab,
		0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10};
	uint8_t id[MACHINE_BOOT_ID_BYTES];

	(void)state;
	assert_true(machine_boot_id_parse("01234567-89ab-cdef-fedc-ba9876543210", id));
	assert_memory_equal(id, want, sizeof(id));
}

static void other_text_is_no_boot_id(void **state)
{
	static const char *const bad[] = {"", "01234567-89ab-cdef-fedc-ba98765432",
		"01234567-89ab-cdef-fedc-ba98765432100", "01234567-89ab-cdef-fedc-ba987654321",
		"0123456g-89ab-cdef-fedc-ba9876543210", "01234567--89ab-cdef-fedc-ba9876543210"};
	uint8_t id[MACHINE_BOOT_ID_BYTES] = {7};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(machine_boot_id_parse(bad[i], id));
	assert_int_equal(id[0], 7);
}

static void kernel_reports_the_same_id_each_time(void **state)
{
	uint8_t id[2][MACHINE_BOOT_ID_BYTES];

	(void)state;
	if (!machine_boot_id(id[0]))
		skip();
	assert_true(machine_boot_id(id[1]));
	assert_memory_equal(id[0], id[1], MACHINE_BOOT_ID_BYTES);
}

static void domain_begins_at_the_first_dot(void **state)
{
	char host[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES];

	(void)state;
	machine_host_name_split("node.rack1.example", host, domain);
	assert_string_equal(host, "node");
	assert_string_equal(domain, "rack1.example");
	machine_host_name_split("node", host, domain);
	assert_string_equal(host, "node");
	assert_string_equal(domain, "");
	machine_host_name_split("node.", host, domain);
	assert_string_equal(host, "node");
	assert_string_equal(domain, "");
}

static void longest_host_name_is_cut(void **state)
{
	char name[MACHINE_NAME_BYTES + 1], host[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES];

	(void)state;
	memset(name, 'x', MACHINE_NAME_BYTES);
	name[MACHINE_NAME_BYTES] = '\0';
	machine_host_name_split(name, host, domain);
	assert_int_equal(strlen(host), MACHINE_NAME_BYTES - 1);
	assert_memory_equal(host, name, MACHINE_NAME_BYTES - 1);
	assert_string_equal(domain, "");
}

/* Give the process a host name of HOST_NAME_MAX bytes in a namespace of its own. Return 0 if
 * machine_host_name returns the name's first bytes, 2 if the process may have no namespace, else
 * 1. */
static int read_longest_host_name(void)
{
	char name[HOST_NAME_MAX + 1], host[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES];

	memset(name, 'y', HOST_NAME_MAX);
	name[HOST_NAME_MAX] = '\0';
	if (unshare(CLONE_NEWUTS) < 0)
		return 2;
	if (sethostname(name, HOST_NAME_MAX) < 0)
		return 1;
	machine_host_name(host, domain);
	return strlen(host) != MACHINE_NAME_BYTES - 1 ||
	       memcmp(host, name, MACHINE_NAME_BYTES - 1) != 0 || *domain;
}

static void longest_host_name_is_read_from_the_kernel(void **state)
{
	pid_t child = fork();
	int status;

	(void)state;
	assert_true(child >= 0);
	if (!child)
		_exit(read_longest_host_name());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 2)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernels_text_becomes_sixteen_bytes),
		cmocka_unit_test(other_text_is_no_boot_id),
		cmocka_unit_test(kernel_reports_the_same_id_each_time),
		cmocka_unit_test(domain_begins_at_the_first_dot),
		cmocka_unit_test(longest_host_name_is_cut),
		cmocka_unit_test(longest_host_name_is_read_from_the_kernel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
