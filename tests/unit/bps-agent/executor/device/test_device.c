#include "bps-agent/executor/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct device_desc fine = {
	.version = DEVICE_DESC_VERSION,
	.kind = DEVICE_DESC_FD,
	.n_fds = 3,
	.bytes = 5 << 20,
	.chunk_bytes = 2 << 20,
	.offset = 1 << 20,
};

static void descriptions_whose_bytes_fit_are_taken(void **state)
{
	struct device_desc d = fine;
	struct err_text err;

	(void)state;
	assert_int_equal(device_desc_check(&d, 3, &err), 0);
	d.kind = DEVICE_DESC_IPC;
	d.n_fds = 0;
	d.chunk_bytes = 6 << 20;
	assert_int_equal(device_desc_check(&d, 0, &err), 0);
	d.kind = DEVICE_DESC_HOST;
	d.n_fds = 1;
	assert_int_equal(device_desc_check(&d, 1, NULL), 0);
}

/* Expect that a description is refused with an error text that contains `word`. */
static void refused(struct device_desc d, unsigned n_fds, const char *word)
{
	struct err_text err = {""};

	assert_int_equal(device_desc_check(&d, n_fds, &err), DEVICE_ARG);
	if (!strstr(err.s, word))
		fail_msg("no '%s' in '%s'", word, err.s);
}

static void every_field_of_a_description_is_checked(void **state)
{
	struct device_desc d;

	(void)state;
	d = fine, d.version++, refused(d, 3, "version 2");
	d = fine, d.kind = 0, refused(d, 3, "unknown kind 0");
	d = fine, d.kind = 9, refused(d, 3, "unknown kind 9");
	d = fine, refused(d, 2, "received 2 file descriptors");
	d = fine, d.n_fds = 0, refused(d, 0, "by 0 file descriptors");
	d = fine, d.n_fds = DEVICE_FDS_MAX + 1,
	refused(d, DEVICE_FDS_MAX + 1, "254 file descriptors");
	d = fine, d.kind = DEVICE_DESC_IPC, refused(d, 3, "legacy");
	d = fine, d.kind = DEVICE_DESC_HOST, refused(d, 3, "instead of one");
	d = fine, d.bytes = 0, refused(d, 3, "0 bytes");
	d = fine, d.chunk_bytes = 0, refused(d, 3, "handles of 0");
	d = fine, d.bytes += 1, refused(d, 3, "5242881");
	d = fine, d.offset = (6 << 20) + 1, refused(d, 3, "at offset 6291457");
	d = fine, d.offset = UINT64_MAX, refused(d, 3, "at offset 1844");
	d = fine, d.bytes = UINT64_MAX, refused(d, 3, "of 1844");
	d = fine, d.chunk_bytes = UINT64_MAX / 2, refused(d, 3, "3 handles");
}

static void errors_have_names(void **state)
{
	(void)state;
	assert_string_equal(device_error_name(DEVICE_LOST), "LOST");
	assert_string_equal(device_error_name(DEVICE_AGAIN), "AGAIN");
	assert_string_equal(device_error_name(-EPERM), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptions_whose_bytes_fit_are_taken),
		cmocka_unit_test(every_field_of_a_description_is_checked),
		cmocka_unit_test(errors_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
