/* Lists of hosts in the form of Slurm. */
#include "libbpsclient/tools/nodes/nodelist.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void expand(const char *list, const char *want)
{
	char name[64], all[512] = "";
	long n = nodelist_count_names(list);

	assert_true(n > 0);
	for (unsigned long i = 0; i < (unsigned long)n; i++) {
		assert_int_equal(nodelist_get_name(list, i, name, sizeof(name)), 0);
		strcat(strcat(all, i ? " " : ""), name);
	}
	assert_string_equal(all, want);
	assert_int_equal(nodelist_get_name(list, (unsigned long)n, name, sizeof(name)), -ENOENT);
}

static void list_is_expanded_as_slurm_does(void **state)
{
	(void)state;
	expand("node7", "node7");
	expand("a,b.example,10.0.0.1:8", "a b.example 10.0.0.1:8");
	expand("n[1-3]", "n1 n2 n3");
	expand("n[001-003,007]", "n001 n002 n003 n007");
	expand("n[8-11]", "n8 n9 n10 n11");
	expand("n[08-11]x", "n08x n09x n10x n11x");
	expand("rack[1-2]-node[3,5-6]", "rack1-node3 rack1-node5 rack1-node6 rack2-node3 "
					"rack2-node5 rack2-node6");
	expand("login,n[1-2],gpu[10,12]-b", "login n1 n2 gpu10-b gpu12-b");
	expand("n[5]", "n5");
}

static void malformed_list_is_refused(void **state)
{
	static const char *const bad[] = {"", ",", "a,", ",a", "a,,b", "n[", "n[1", "n[1-", "n[]",
		"n[1-3", "n[3-1]", "n[a]", "n[1,]", "n[1;2]", "n]", "n[1]]", "n[-3]", "n[1-2-3]",
		"n[1-99999999]", "n[0-999]x[0-999]"};
	char name[64];

	(void)state;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(nodelist_count_names(bad[i]), -EINVAL);
		assert_int_equal(nodelist_get_name(bad[i], 100000, name, sizeof(name)), -EINVAL);
	}
}

static void name_that_does_not_fit_is_not_cut(void **state)
{
	char name[5] = "none";

	(void)state;
	assert_int_equal(nodelist_get_name("node[1-20]", 0, name, sizeof(name)), -ENAMETOOLONG);
	assert_string_equal(name, "none");
	assert_int_equal(nodelist_get_name("abcd", 0, name, sizeof(name)), 0);
	assert_string_equal(name, "abcd");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(list_is_expanded_as_slurm_does),
		cmocka_unit_test(malformed_list_is_refused),
		cmocka_unit_test(name_that_does_not_fit_is_not_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
