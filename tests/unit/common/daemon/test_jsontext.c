/* Tests of the conversion of text from untrusted sources to JSON strings. */
#include "common/daemon/jsontext.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void check(const char *text, const char *want)
{
	json_t *j = json_text_sanitized(text);

	assert_non_null(j);
	assert_string_equal(json_string_value(j), want);
	json_decref(j);
}

static void utf8_stays_as_it_is(void **state)
{
	(void)state;
	check("resnet-\xc3\xa9", "resnet-\xc3\xa9");
	check("", "");
	check(NULL, "");
}

static void bytes_that_are_no_utf8_are_replaced(void **state)
{
	(void)state;
	check("job\xff"
	      "7",
		"job?7");
	check("\xc3", "?");
}

static void name_that_is_no_utf8_does_not_spoil_its_document(void **state)
{
	json_t *doc = json_pack("{s:o}", "name", json_text_sanitized("\xed\xa0\x80"));

	(void)state;
	assert_non_null(doc);
	json_decref(doc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(utf8_stays_as_it_is),
		cmocka_unit_test(bytes_that_are_no_utf8_are_replaced),
		cmocka_unit_test(name_that_is_no_utf8_does_not_spoil_its_document),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
