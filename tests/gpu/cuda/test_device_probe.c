/* Run a program that is linked with the driver, on machines without a usable driver. Check that the
 * program prints the reason, and check its exit status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/gpu/cuda/two.h"

/* Return the path of a folder that is next to this program's folder. */
static void beside(const char *what, char ret[600])
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	assert_true(n > 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	snprintf(ret, 600, "%s/%s", self, what);
}

static int probe(const char *libraries, const char *setting, char ret_out[4000])
{
	char path[600], folder[600], library_path[640];
	const char *env[] = {library_path, setting, NULL};

	beside("gpu-probe", path);
	beside(libraries, folder);
	snprintf(library_path, sizeof(library_path), "LD_LIBRARY_PATH=%s", folder);
	return two_run(path, env, ret_out, 4000);
}

static void gpus_are_listed_with_a_driver(void **state)
{
	char out[4000];

	(void)state;
	assert_int_equal(probe("../fake", "FAKE_CUDA_GPUS=2", out), 0);
	assert_non_null(strstr(out, "gpu 1: Fake GPU 1 at 0000:1b:00.0, node 1"));
	assert_null(strstr(out, "gpu 2"));
	assert_int_equal(probe("../fake", "FAKE_CUDA_VISIBLE=0", out), 0);
	assert_non_null(strstr(out, "gpu 0: Fake GPU 0"));
}

/* Without a driver, the dynamic loader prints a message that names the missing libcuda.so.1. On a
 * machine with a driver, the loader finds this library, so the test is skipped. */
static void without_a_driver_the_program_does_not_start(void **state)
{
	char out[4000];
	int status;

	(void)state;
	status = probe("..", "A=", out);
	if (access("/dev/nvidiactl", F_OK) == 0)
		skip();
	assert_int_equal(status, 127);
	assert_non_null(strstr(out, "libcuda.so.1"));
}

static void the_stub_of_the_toolkit_is_named_as_such(void **state)
{
	char out[4000];

	(void)state;
	assert_int_equal(probe("../stub", "A=", out), 1);
	assert_non_null(strstr(out, "NODEV: cannot use GPUs"));
	assert_non_null(strstr(out, "(34): libcuda.so.1 is the toolkit's stub"));
}

static void each_reason_for_no_gpu_has_its_sentence(void **state)
{
	static const char *const cases[][2] = {
		{"FAKE_CUDA_GPUS=0", "no GPU is visible"},
		{"FAKE_CUDA_FAULTS=cuDeviceGetCount:1=100", "no GPU is visible"},
		{"FAKE_CUDA_FAULTS=cuInit:1=35", "too old"},
		{"FAKE_CUDA_FAULTS=cuInit:1=802", "fabric manager"},
		{"FAKE_CUDA_FAULTS=cuInit:1=803", "different versions"},
		{"FAKE_CUDA_FAULTS=cuInit:1=805", "MPS"},
		{"FAKE_CUDA_FAULTS=cuInit:1=46", "exclusive"},
		{"FAKE_CUDA_FAULTS=cuInit:1=3", "kernel module"},
		{"FAKE_CUDA_FAULTS=cuInit:1=999", "dmesg"},
		{"FAKE_CUDA_VERSION=11080", "too old: it is for CUDA 11.8,"},
	};
	char out[4000];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(probe("../fake", cases[i][0], out), 1);
		if (!strstr(out, "NODEV: ") || !strstr(out, cases[i][1]))
			fail_msg("%s: no '%s' in '%s'", cases[i][0], cases[i][1], out);
	}
}

static void missing_attributes_are_missing_capabilities(void **state)
{
	char out[4000];

	(void)state;
	assert_int_equal(probe("../fake", "FAKE_CUDA_LACKS=122,103,124", out), 0);
	assert_non_null(strstr(out, "caps 0x2,"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpus_are_listed_with_a_driver),
		cmocka_unit_test(without_a_driver_the_program_does_not_start),
		cmocka_unit_test(the_stub_of_the_toolkit_is_named_as_such),
		cmocka_unit_test(each_reason_for_no_gpu_has_its_sentence),
		cmocka_unit_test(missing_attributes_are_missing_capabilities),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
