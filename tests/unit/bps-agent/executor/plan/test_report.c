/* The executor reports its GPUs to the agent as lines of text. The parser must read the lines that
 * the executor writes, and refuse invalid lines. */
#include "bps-agent/executor/plan/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct topo_report model = {.pci = "0000:3b:00.0",
	.uuid = {0x6a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0xff},
	.numa = 1,
	.name = "NVIDIA H200",
	.links = 0xfe,
	.peers = UINT64_MAX};

static void written_lines_are_read_back(void **state)
{
	struct topo_report r;
	char line[REPORT_LINE_BYTES];
	bool has_cliques = false;

	(void)state;
	topo_report_format(&model, true, line);
	assert_string_equal(line, "0000:3b:00.0 6a000102030405060708090a0b0c0dff 1 fe "
				  "ffffffffffffffff 1 NVIDIA H200");
	assert_true(topo_report_parse(line, &r, &has_cliques));
	assert_true(has_cliques);
	assert_string_equal(r.pci, model.pci);
	assert_string_equal(r.name, model.name);
	assert_memory_equal(r.uuid, model.uuid, sizeof(r.uuid));
	assert_int_equal(r.numa, 1);
	assert_int_equal(r.links, 0xfe);
	assert_int_equal(r.peers, UINT64_MAX);
}

static void unknown_values_are_written_as_a_word(void **state)
{
	struct topo_report r = {.numa = -1}, back;
	char line[REPORT_LINE_BYTES];
	bool has_cliques = true;

	(void)state;
	topo_report_format(&r, false, line);
	assert_string_equal(line, "- 00000000000000000000000000000000 -1 0 0 0 ?");
	assert_true(topo_report_parse(line, &back, &has_cliques));
	assert_false(has_cliques);
	assert_int_equal(back.numa, -1);
}

static void names_cannot_add_or_lengthen_lines(void **state)
{
	struct topo_report r = model, back;
	char line[REPORT_LINE_BYTES];
	bool has_cliques;

	(void)state;
	memset(r.name, '\n', sizeof(r.name) - 1);
	memset(r.pci, 'x', sizeof(r.pci) - 1);
	topo_report_format(&r, true, line);
	assert_null(strchr(line, '\n'));
	assert_false(topo_report_parse(line, &back, &has_cliques));
	snprintf(r.pci, sizeof(r.pci), "ffffffff:ff:1f.7");
	topo_report_format(&r, true, line);
	assert_true(topo_report_parse(line, &back, &has_cliques));
	assert_int_equal(strlen(back.name), TOPO_NAME_BYTES - 1);
}

static void invalid_lines_are_not_read_as_gpus(void **state)
{
	static const char *const lines[] = {"", " ", "no driver: libcuda.so.1 is missing",
		"0000:3b:00.0", "0000:3b:00.0 6a000102030405060708090a0b0c0dff 1 fe 0 1",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff 1 fe 0 1 ",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dfg 1 fe 0 1 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0d 1 fe 0 1 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff -2 fe 0 1 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff 1024 fe 0 1 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff 1 fe 0 2 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff 1 -1 0 1 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff 1 fez 0 1 x",
		"0000:3b:00.0 6a000102030405060708090a0b0c0dff  fe 0 1 x",
		"0000:3b:20.0 6a000102030405060708090a0b0c0dff 1 fe 0 1 x",
		"<6>NCCL 2.28.9 6a000102030405060708090a0b0c0dff 1 fe 0 1 x"};
	struct topo_report r;
	bool has_cliques;

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (topo_report_parse(lines[i], &r, &has_cliques))
			fail_msg("the parser accepts '%s'", lines[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_lines_are_read_back),
		cmocka_unit_test(unknown_values_are_written_as_a_word),
		cmocka_unit_test(names_cannot_add_or_lengthen_lines),
		cmocka_unit_test(invalid_lines_are_not_read_as_gpus),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
