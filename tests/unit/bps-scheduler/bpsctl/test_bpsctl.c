/* Tests the screens of bpsctl, which show JSON documents of daemons as text. Values in these
 * documents may be missing, long or malicious. Also tests the commands "explain" and "watch". No
 * daemon runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-scheduler/bpsctl/checks.h"
#include "bps-scheduler/bpsctl/explain.h"
#include "bps-scheduler/bpsctl/live_screen.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/error.h"
#include "common/daemon/explanations.h"

/* ---- rendering ---- */

struct bpsctl_page {
	char *text;
	int status;
};

static void assert_narrow(const char *text)
{
	for (const char *end; *text; text = end + 1) {
		end = strchr(text, '\n');
		assert_non_null(end);
		if (end - text > 99)
			fail_msg("too wide: %.*s", (int)(end - text), text);
	}
}

/* Render a screen from a JSON document. In the document, ' stands for ". */
static struct bpsctl_page render(int (*screen)(FILE *out, json_t *root), const char *json)
{
	struct bpsctl_page p = {NULL, 0};
	char *copy = strdup(json);
	size_t n = 0;
	FILE *out = open_memstream(&p.text, &n);
	json_error_t err;
	json_t *root;

	assert_non_null(copy);
	assert_non_null(out);
	for (char *c = copy; *c; c++)
		if (*c == '\'')
			*c = '"';
	root = json_loads(copy, 0, &err);
	if (!root)
		fail_msg("%s at %d", err.text, err.position);
	p.status = screen(out, root);
	fclose(out);
	json_decref(root);
	free(copy);
	assert_narrow(p.text);
	return p;
}

static void assert_has(const struct bpsctl_page *p, const char *text)
{
	if (!strstr(p->text, text))
		fail_msg("no '%s' in:\n%s", text, p->text);
}

static void assert_lacks(const struct bpsctl_page *p, const char *text)
{
	if (strstr(p->text, text))
		fail_msg("'%s' in:\n%s", text, p->text);
}

#define LONG_NAME                                                                                  \
	"a-name-that-somebody-thought-would-be-unique-if-only-it-were-long-enough-and-then-made-"  \
	"longer"
#define HUGE_NUMBER "9007199254740993"

/* ---- members ---- */

static void servers_show_each_with_its_state_and_why_it_is_down(void **state)
{
	struct bpsctl_page p = render(screen_servers,
		"{'members': [{'name': 's0', 'host': 'node1', 'state': 'up', 'threads': 4,"
		" 'partitions_bytes': 1048576, 'mem_bytes': 2048, 'quota_bytes': 536870912,"
		" 'rx_bytes': 10, 'nic_mbps': 957, 'nic_source': 'measured', 'quiet_s': 0.1},"
		" {'name': 's1', 'host': 'node2', 'state': 'down',"
		" 'state_s': 41.0, 'why': 'silent for 3.0 s'}]}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(&p, "s0           node1        up             4   1.0 MiB");
	assert_has(&p, "0.96 meas.");
	assert_has(&p, "2.0 KiB/512 MiB");
	assert_has(&p, "down: silent for 3.0 s");
	free(p.text);
}

static void agents_that_are_all_up_are_shown_as_well(void **state)
{
	struct bpsctl_page p = render(screen_agents,
		"{'members': [{'name': 'a0', 'host': 'node1', 'state': 'up', 'pid': 4711,"
		" 'trainers': 8, 'restarts': 2, 'nic_mbps': 100000, 'nic_source': 'driver',"
		" 'http': '127.0.0.1:7304'}, {'name': 'a1', 'host': 'node1', 'state': 'up',"
		" 'http': '*:7305'}, {'name': 'old', 'state': 'up'}]}");

	(void)state;
	assert_int_equal(p.status, 0);
	assert_has(&p, "a0           node1         up          4711        8        2  7304*");
	assert_has(&p, "a1           node1         up             0        0        0   7305 ");
	assert_has(&p, "old          -             up             0        0        0      - ");
	assert_has(&p, "100 drv.");
	assert_has(&p, "(bpsctl agent HOST:HTTP shows one; *: only on the agent's host");
	assert_narrow(p.text);
	free(p.text);
}

static void tables_without_rows_say_so(void **state)
{
	struct bpsctl_page p = render(screen_servers, "{}");

	(void)state;
	assert_has(&p, "(no server has ever joined)");
	free(p.text);
	p = render(screen_jobs, "{}");
	assert_has(&p, "(no job forms or runs)");
	free(p.text);
}

/* A document in which each value is as long or as large as possible. */
static const char worst[] =
	"{'schema': 1, 'role': 'scheduler', 'name': '" LONG_NAME "', 'host': '" LONG_NAME "',"
	" 'id': " HUGE_NUMBER ", 'version': '" LONG_NAME "', 'ok': " HUGE_NUMBER ","
	" 'bad': " HUGE_NUMBER ", 'checks': [{'name': '" LONG_NAME "', 'state': 'bad',"
	" 'what': '" LONG_NAME LONG_NAME "', 'action': '" LONG_NAME LONG_NAME "'}],"
	" 'codes': [{'code': '" LONG_NAME "', 'what': '" LONG_NAME "'}],"
	" 'cluster': '" LONG_NAME "', 'a_very_long_bytes': " HUGE_NUMBER ","
	" 'members': [{'role': 'server', 'name': '" LONG_NAME "', 'host': '" LONG_NAME "',"
	" 'state': '" LONG_NAME "', 'why': '" LONG_NAME " " LONG_NAME "',"
	" 'mem_bytes': " HUGE_NUMBER ", 'quota_bytes': " HUGE_NUMBER ", 'threads': " HUGE_NUMBER ","
	" 'trainers': " HUGE_NUMBER ", 'tx_bytes': " HUGE_NUMBER ", 'rx_bytes': " HUGE_NUMBER ","
	" 'quiet_s': 1e9, 'pid': " HUGE_NUMBER ", 'restarts': " HUGE_NUMBER ", 'id': " HUGE_NUMBER
	","
	" 'partitions': " HUGE_NUMBER ", 'rx_bytes_s': 1e18, 'tx_bytes_s': 1e300,"
	" 'sum_s': 1e18},"
	" {'role': 'server', 'name': '" LONG_NAME "', 'state': 'up', 'id': 1, 'rx_bytes_s': 1e18,"
	" 'provider': '" LONG_NAME "',"
	" 'tx_bytes_s': 1e300, 'partitions': 99999, 'sum_s': 1e18, "
	"'mem_bytes': " HUGE_NUMBER ","
	" 'quota_bytes': " HUGE_NUMBER ", 'quiet_s': 1e18},"
	" {'role': 'agent', 'name': '" LONG_NAME "', 'host': '" LONG_NAME "', 'state': 'down',"
	" 'state_s': 1e18, 'id': " HUGE_NUMBER "}],"
	" 'events': [{'seq': " HUGE_NUMBER ", 'kind': '" LONG_NAME "', 'time': 1e9,"
	" 'text': '" LONG_NAME LONG_NAME "'}],"
	" 'missing': ['" LONG_NAME LONG_NAME "', '" LONG_NAME "'],"
	" 'health': '" LONG_NAME "', 'view_text': '" LONG_NAME "', 'up_s': 1e18, 'verbose': true,"
	" 'commit': '" LONG_NAME "', 'version': '" LONG_NAME "', 'view': " HUGE_NUMBER ","
	" 'tolerates': {'server_losses': " HUGE_NUMBER ", 'limit': 'memory'},"
	" 'state': {'kind': 'file', 'bytes': " HUGE_NUMBER ", 'sync_s': 1e18},"
	" 'collected': {'daemons': " HUGE_NUMBER ", 'heard': " HUGE_NUMBER ", 's': 1e18},"
	" 'muted': [{'code': '" LONG_NAME "', 'present': " HUGE_NUMBER ", 'left_s': 1e18,"
	" 'reason': '" LONG_NAME "'}], 'problems': [{'code': '" LONG_NAME "', 'what': '" LONG_NAME
	" " LONG_NAME "', 'effect': '" LONG_NAME "', 'see': '" LONG_NAME "'}],"
	" 'ended': [{'name': '" LONG_NAME "', 'code': 1, 'text': '" LONG_NAME "'}],"
	" 'job': {'name': '" LONG_NAME "', 'id': 4294967295, 'state': 'running', 'pace': {"
	" 'round': " HUGE_NUMBER ", 'steps_s': 1e300, 'push_bytes_s': 1e300, 'wait_p50_s': 1e18,"
	" 'wait_p99_s': 1e18, 'slowest': {'agent': '" LONG_NAME "', 'host': '" LONG_NAME "',"
	" 'share': 1e18, 'lag_s': 1e18}}},"
	" 'jobs': [{'name': '" LONG_NAME "', 'id': 1, 'state': 'running', 'agents_up': " HUGE_NUMBER
	", 'waiting_partitions': " HUGE_NUMBER ", 'pace': {'round': " HUGE_NUMBER ", 'rounds': 5,"
	" 'steps_s': 1e300, 'push_bytes_s': 1e300, 'wait_p50_s': 1e18, 'wait_p99_s': 1e18,"
	" 'slowest': {'host': '" LONG_NAME "', 'lag_s': 1e18}}},"
	" {'name': '" LONG_NAME "', 'state': 'forming', 'joined': " HUGE_NUMBER ","
	" 'size': " HUGE_NUMBER "}, {'name': '" LONG_NAME "', 'uid': 4294967294, 'joined': 65536,"
	" 'size': 65536, 'tensors': 100000, 'rounds': 9999999999,"
	" 'calls_waiting': 65536, 'longest_s': 1e9, 'state': '" LONG_NAME "',"
	" 'job': {'name': '" LONG_NAME "', 'id': 4294967295, 'state': '" LONG_NAME "'},"
	" 'condition': '" LONG_NAME " " LONG_NAME "',"
	" 'waits': [{'why': 'submit', 'tensor': '" LONG_NAME LONG_NAME "', 's': 1e9,"
	" 'missing': [{'rank': 65535, 'host': '" LONG_NAME "', 'pid': 4294967295,"
	" 'submitted': " HUGE_NUMBER ", 'quiet_s': 1e9}], 'n_missing': 70000,"
	" 'waiting': [{'rank': 65535, 'host': '" LONG_NAME "', 'pid': 4294967295}],"
	" 'servers': [{'name': '" LONG_NAME "', 'host': '" LONG_NAME "'}]}]}]}";

static void long_names_and_huge_numbers_stay_within_the_columns(void **state)
{
	static int (*const screens[])(FILE *, json_t *) = {screen_servers, screen_agents,
		screen_jobs, screen_status, screen_stuck, screen_job, screen_events, screen_daemon,
		screen_check, screen_explain};

	(void)state;
	for (size_t i = 0; i < sizeof(screens) / sizeof(screens[0]); i++)
		free(render(screens[i], worst).text);
}

static void verbose_status_has_the_provider(void **state)
{
	struct bpsctl_page p = render(screen_status,
		"{'role': 'scheduler', 'verbose': true, 'commit': '5eed', 'members': ["
		" {'role': 'agent', 'name': 'a0', 'state': 'down', 'provider': 'verbs'},"
		" {'role': 'agent', 'name': 'a1', 'state': 'up', 'provider': 'tcp'}]}");

	(void)state;
	assert_has(&p, "commit 5eed   provider tcp\n");
	free(p.text);
}

static void status_has_a_line_for_each_job_and_server(void **state)
{
	struct bpsctl_page p = render(screen_status,
		"{'role': 'scheduler', 'cluster': 'train-a', 'health': 'WARN', 'view_text': '3.41',"
		" 'up_s': 1051200, 'is_durable': true,"
		" 'state': {'kind': 'file', 'bytes': 2048, 'sync_s': 0.0002},"
		" 'tolerates': {'server_losses': 1, 'limit': 'memory', 'scheduler_loss': true},"
		" 'refused': [{'identity': 'server:s1', 'count': 3}],"
		" 'members': [{'role': 'server', 'name': 's0', 'host': 'node14', 'state': 'up',"
		" 'partitions': 256, 'rx_bytes_s': 4.1e9, 'tx_bytes_s': 4.2e9, 'mem_bytes': "
		"40802189312,"
		" 'quota_bytes': 68719476736, 'sum_s': 0.0004, 'quiet_s': 0.1},"
		" {'role': 'server', 'name': 's2', 'host': 'node17', 'state': 'down', 'state_s': "
		"41},"
		" {'role': 'agent', 'name': 'a0', 'host': 'node09', 'state': 'up'},"
		" {'role': 'agent', 'name': 'a1', 'host': 'node10', 'state': 'up', 'quiet_s': 2.5,"
		" 'is_quiet': true}],"
		" 'jobs': [{'name': '7f3a', 'uid': 4000001, 'state': 'running', 'agents': ['a0', "
		"'a1'],"
		" 'agents_up': 2, 'pace': {'round': 18412, 'steps_s': 3.1, 'push_bytes_s': 9.4e9,"
		" 'rounds': 10, 'wait_p50_s': 0.012, 'wait_p99_s': 0.055, 'slowest': {'agent': "
		"'a0',"
		" 'host': 'node09', 'lag_s': 0.041, 'share': 0.93}}},"
		" {'name': 'aa17', 'uid': 4000002, 'state': 'forming', 'joined': 0, 'size': 2},"
		" {'name': 'here', 'uid': 4000003, 'state': 'running', 'rounds': 7, 'pace': "
		"null}]}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(
		&p, "cluster train-a  HEALTH_WARN  view 3.41  up 12d 4h  servers 1/2  agents 2/2");
	assert_has(&p, "tolerates: 1 more server loss (memory), scheduler loss: yes");
	assert_has(&p, "refused: 3 connections as server:s1 in the last minute");
	assert_has(&p, "7f3a         4000001     2/2  18,412    3.10      9.40"
		       "           12/55  node09 +41 ms       running\n");
	assert_has(&p, "  0 of 2 joined       forming\n");
	assert_has(&p, "here         4000003     0/0       7       -         -               -  -");
	assert_has(&p, "s0           node14        up            256    4.10     4.20"
		       "   38.0 GiB/64.0 GiB   0.40     0.1 s\n");
	assert_has(&p, "s2           node17        down*");
	assert_has(&p,
		"a1           node10        up*           2.5 s\n(1 more agent: bpsctl agents)");
	free(p.text);
}

static void of_many_servers_only_those_that_are_not_well_have_a_line(void **state)
{
	char doc[16384] = "{'role': 'scheduler', 'health': 'OK', 'members': [";
	struct bpsctl_page p;

	(void)state;
	for (unsigned i = 0; i < 100; i++)
		snprintf(doc + strlen(doc), sizeof(doc) - strlen(doc),
			"%s{'role': 'server', 'name': 's%u', 'state': '%s'}", i ? "," : "", i,
			i % 50 == 7 ? "suspect" : "up");
	snprintf(doc + strlen(doc), sizeof(doc) - strlen(doc), "]}");
	p = render(screen_status, doc);
	assert_has(&p, "s7 ");
	assert_has(&p, "s57 ");
	assert_lacks(&p, "s8 ");
	assert_has(&p, "(98 more: bpsctl servers)");
	free(p.text);
}

static void of_many_problems_of_one_code_the_first_are_shown_and_the_others_counted(void **state)
{
	char doc[8192] = "{'role': 'scheduler', 'health': 'WARN', 'problems': [";
	struct bpsctl_page p;

	(void)state;
	for (unsigned i = 0; i < 20; i++)
		snprintf(doc + strlen(doc), sizeof(doc) - strlen(doc),
			"%s{'code': '%s', 'what': 'what%u.'}", i ? "," : "", i % 2 ? "ODD" : "EVEN",
			i);
	snprintf(doc + strlen(doc), sizeof(doc) - strlen(doc), "]}");
	p = render(screen_status, doc);
	assert_has(&p, "what5.");
	assert_lacks(&p, "what6.");
	assert_lacks(&p, "what7.");
	assert_has(&p, "EVEN          (7 more of these: --json)");
	assert_has(&p, "ODD           (7 more of these: --json)");
	free(p.text);
}

static void strange_documents_are_shown_without_harm(void **state)
{
	static int (*const screens[])(FILE *, json_t *) = {screen_servers, screen_agents,
		screen_jobs, screen_status, screen_stuck, screen_job, screen_events, screen_daemon,
		screen_explain};
	static const char *const docs[] = {"{}",
		"{'members': 5, 'jobs': 'x', 'missing': [null, {}, 3], 'events': [1, [], null]}",
		"{'role': 'scheduler', 'jobs': [null, {'waits': [null, 7, {'why': 3, 's': 9,"
		" 'missing': {}, 'waiting': [[]]}]}], 'members': [null], 'problems': [0, {}],"
		" 'workers': [3], 'agents': [null], 'codes': [null, {'what': 4}]}",
		"{'members': [{'name': '\\u001b[2J\\n', 'state': -1, 'threads': -5}]}",
		"{'role': 'scheduler', 'job': {'name': 'a\\u009b2Jb\\u202ec'},"
		" 'jobs': [{'name': 'a\\u009b2Jb\\u202ec', 'state': 'running'}],"
		" 'problems': [{'code': 'X', 'what': 'a\\u009b2Jb\\u202ec'}],"
		" 'events': [{'text': 'a\\u009b2Jb\\u202ec'}]}"};

	(void)state;
	for (size_t i = 0; i < sizeof(screens) / sizeof(screens[0]); i++) {
		for (size_t k = 0; k < sizeof(docs) / sizeof(docs[0]); k++) {
			struct bpsctl_page p = render(screens[i], docs[k]);

			assert_lacks(&p, "\033");
			/* U+009B has the same effect as the escape sequence ESC [ */
			assert_lacks(&p, "\xc2\x9b");
			assert_lacks(&p, "\xe2\x80\xae");
			free(p.text);
		}
	}
}

/* ---- jobs ---- */

static void text_that_is_missing_is_shown_as_a_dash(void **state)
{
	(void)state;
	assert_string_equal(cell_text(NULL).s, "-");
}

static void jobs_show_users_by_name_and_what_was_not_asked_as_a_dash(void **state)
{
	struct bpsctl_page p = render(screen_jobs,
		"{'jobs': [{'name': 'digits', 'uid': 0, 'agents': ['a', 'b'], 'joined': 2, 'size': "
		"2,"
		" 'tensors': 3, 'rounds': 17, 'calls_waiting': 1, 'longest_s': 0.1,"
		" 'state': 'running', 'state_s': 3.0},"
		" {'name': 'late', 'uid': 4000000, 'joined': 1, 'size': 4, 'state': 'forming'}],"
		" 'collected': {'jobs': 1, 'asked': 2, 'answered': 1, 's': 1.0, 'daemons': 4,"
		" 'heard': 3}, 'missing': "
		"['b']}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(&p, "digits             root            2         2/2       3         17");
	assert_has(&p, "late               4000000");
	assert_has(&p, "          -            -  forming");
	assert_has(&p, "collected from 3 of 4 daemons in 1.00 s; missing: b\n");
	free(p.text);
}

static void jobs_show_the_last_ended_jobs_with_their_errors(void **state)
{
	struct bpsctl_page p = render(screen_jobs,
		"{'jobs': [], 'ended': [{'name': 'bad', 'uid': 0, 'code': -10007, 'state_s': 61,"
		" 'text': 'rank 1 has ended'}, {'name': 'good', 'uid': 0, 'code': 0, 'text': '',"
		" 'state_s': 5},{},{},{},{},{},{},{},{},{},{}]}");

	(void)state;
	assert_int_equal(p.status, 0);
	assert_has(&p, "(no job forms or runs)\n(ended; the last one first)\n  bad  ");
	assert_has(&p, "ago  rank 1 has ended\n  good  ");
	assert_has(&p, "ago  ended without an error\n");
	assert_has(&p, "(2 more: bpsctl --json jobs)\n");
	free(p.text);
}

/* An elastic job may have enough workers, and wait for the other workers of a machine. */
static void forming_job_shows_missing_ranks_only_if_there_are_any(void **state)
{
	struct bpsctl_page p = render(screen_job,
		"{'job': {'name': 'x', 'state': 'forming', 'joined': 1, 'size': 4,"
		" 'missing_ranks': [0, 2]}}");

	(void)state;
	assert_has(&p, "! missing rank 0, 2 and 1 more\n");
	free(p.text);
	p = render(screen_job, "{'job': {'name': 'x', 'state': 'forming', 'joined': 3, 'size': 2,"
			       " 'missing_ranks': []}}");
	assert_lacks(&p, "missing");
	free(p.text);
}

static void running_jobs_without_old_calls_are_shown_as_well(void **state)
{
	struct bpsctl_page p = render(screen_jobs,
		"{'jobs': [{'name': 'x', 'state': 'running', 'rounds': 1, 'longest_s': 0.1}]}");

	(void)state;
	assert_int_equal(p.status, 0);
	free(p.text);
}

/* Write the steps of an agent, with its name, its host and its computing time in ms. */
#define STEPS_OF(name, host, ms, last)                                                             \
	"{'name': '" name "', 'host': '" host "', 'steps': {'n': 10, 'length_s': 0.1,"             \
	" 'computing_s': 0.0" ms ", 'last': {'agent': '" last "', 'host': 'h'}, 'n_last': 9}}"

static void machines_that_compute_longest_come_first(void **state)
{
	struct bpsctl_page p = render(screen_job,
		"{'job': {'name': 'x', 'state': 'running'}, 'agents': [" STEPS_OF("a0", "h", "20",
			"a1") ", " STEPS_OF("a1", "h", "50", "a0") ", " STEPS_OF("a2", "i", "30",
			"a1") "], 'steps': {'n': 30, 'length_s': 0.1,"
			      " 'machines': 3, 'worst': {'agent': 'a1', 'host': 'h'}}}");
	const char *first = strstr(p.text, "\na1 "), *second = strstr(p.text, "\ni  "),
		   *third = strstr(p.text, "\na0 ");

	(void)state;
	/* two agents have the host h, so their names stand there */
	assert_true(first && second && third && first < second && second < third);
	assert_has(&p, "  a1 (90 %)\n");
	assert_has(&p, "a1 computes longest");
	assert_has(&p, "MACHINE          STEP COMPUTE EXPOSED = WAIT  PUSH   SUM  PULL QUEUE LOCAL"
		       "  WAITS FOR\n");
	free(p.text);
}

static void machines_that_are_not_shown_are_counted(void **state)
{
	char text[8192] = "{'job': {'name': 'x', 'state': 'running'}, 'agents': [";
	struct bpsctl_page p;

	(void)state;
	for (int i = 0; i < 17; i++)
		strcat(text,
			i ? ", " STEPS_OF("b", "k", "20", "a1") : STEPS_OF("a", "h", "10", "b"));
	strcat(text, "], 'steps': {'n': 30, 'length_s': 0.1, 'machines': 17}}");
	p = render(screen_job, text);
	assert_lacks(&p, "\nh  ");
	assert_has(&p, "(and 1 more machine with less computing; --json shows all)\n");
	free(p.text);
}

static void asynchronous_job_names_no_worker_that_is_behind(void **state)
{
	struct bpsctl_page p = render(screen_job,
		"{'job': {'name': 'x', 'state': 'running', 'values': {'tensors': 1, 'stale': 1}},"
		" 'workers': [{'rank': 0, 'submitted': 9, 'behind': 40, 'quiet_s': 9,"
		" 'oldest': {'tensor': '__bps.barrier', 'round': 3, 's': 0.2}}]}");

	(void)state;
	assert_int_equal(p.status, 0);
	assert_lacks(&p, "push_pulls behind");
	assert_has(&p, "  asynchronous: a worker may be 1 round ahead of another one\n");
	assert_has(&p, "a barrier 3, 0.2 s");
	free(p.text);
}

/* ---- why-stuck ---- */

static void stuck_names_what_the_librarys_tensors_are_for(void **state)
{
	struct bpsctl_page p = render(screen_stuck,
		"{'jobs': [{'job': {'name': 'x', 'state': 'running'}, 'waits': ["
		"{'why': 'submit', 'tensor': '__bps.barrier', 'round': 1, 's': 2, 'n_waiting': 1},"
		"{'why': 'submit', 'tensor': '__bps.bytes.64.0', 'round': 1, 's': 2},"
		"{'why': 'declare', 'tensor': '__bps_avg.w', 's': 2}]}]}");

	(void)state;
	assert_has(&p, "! a barrier round 1: 1 worker waiting");
	assert_has(&p, "! a broadcast or gather round 1: ");
	assert_has(&p, "! 'w' not ready");
	assert_lacks(&p, "__bps");
	free(p.text);
}

static void stuck_names_tensor_round_and_who_is_missing(void **state)
{
	struct bpsctl_page p = render(screen_stuck,
		"{'jobs': [{'job': {'name': 'digits', 'id': 3, 'state': 'running'}, 'waits': ["
		"{'why': 'submit', 'tensor': 'layer3.w', 'round': 12, 's': 2.1, 'n_waiting': 7,"
		" 'waiting': [{'rank': 0, 'host': 'node0', 'pid': 10}], 'n_missing': 1,"
		" 'missing': [{'rank': 9, 'host': 'node9', 'pid': 99, 'attached': true,"
		" 'submitted': 11, 'quiet_s': 2.3}]},"
		"{'why': 'sum', 'tensor': 'quick', 'round': 4, 's': 0.01, 'n_waiting': 1}]}]}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(&p,
		"'layer3.w' round 12: 7 workers waiting for 2.1 s; these have not submitted it:");
	assert_has(&p,
		"rank 9 (host node9, pid 99) is at round 11, and has submitted nothing for 2.3 s");
	assert_has(&p, "waiting: rank 0 (host node0, pid 10) and 6 more");
	assert_lacks(&p, "quick");
	free(p.text);
}

static void stuck_sum_names_servers_conditions_and_networks(void **state)
{
	struct bpsctl_page p = render(screen_stuck,
		"{'jobs': [{'job': {'name': 'digits', 'id': 3, 'state': 'running'}, 'waits': ["
		"{'why': 'sum', 'tensor': 'w', 'round': 2, 's': 3.0, 'n_waiting': 2, 'n_missing': "
		"0,"
		" 'servers': [{'name': 's1', 'host': 'node1', 'state': 'suspect', 'quiet_s': 2.5}],"
		" 'n_servers': 1}], 'condition': 'server s1 (host node1) is down since 0.5 s',"
		" 'agents': [{'name': 'a0', 'host': 'node0', 'text': 'connecting to s1'}]}]}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(&p, "all workers have submitted it; these servers sum it:");
	assert_has(&p, "server s1 (host node1), suspect, last message 2.5 s ago");
	assert_has(&p, "agent a0 on node0: connecting to s1");
	assert_has(&p, "! server s1 (host node1) is down since 0.5 s");
	free(p.text);
}

static void stuck_forming_job_names_ranks(void **state)
{
	struct bpsctl_page p = render(screen_stuck,
		"{'jobs': [{'job': {'name': 'f', 'id': 4, 'state': 'forming'}, 'waits': ["
		"{'why': 'join', 'tensor': null, 's': 0.2, 'n_waiting': 1, 'n_missing': 12,"
		" 'missing': [{'rank': 1}, {'rank': 2}]}]}]}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(&p, "      rank 1\n      rank 2\n      and 10 more\n");
	free(p.text);
}

static void job_that_flows_is_not_stuck(void **state)
{
	struct bpsctl_page p = render(screen_stuck,
		"{'jobs': [{'job': {'name': 'f', 'id': 4, 'state': 'running'}, 'waits': ["
		"{'why': 'sum', 'tensor': 'w', 'round': 2, 's': 0.01, 'n_waiting': 2}],"
		" 'condition': 'server s9 (host x) is down since 20.0 s'},"
		" {'job': {'name': 'idle', 'id': 5, 'state': 'running'}, 'waits': []}]}");

	(void)state;
	assert_int_equal(p.status, 0);
	assert_has(&p, "calls are in flight, but none has waited for long");
	assert_has(&p, "nothing waits");
	assert_lacks(&p, "s9");
	free(p.text);
}

static void without_a_job_nothing_waits(void **state)
{
	struct bpsctl_page p = render(screen_stuck, "{'jobs': []}");

	(void)state;
	assert_int_equal(p.status, 0);
	assert_string_equal(p.text, "nothing waits: no job forms or runs\n");
	free(p.text);
}

/* ---- events ---- */

static void events_have_number_time_kind_and_text(void **state)
{
	struct bpsctl_page p;

	(void)state;
	setenv("TZ", "UTC", 1);
	p = render(screen_events,
		"{'lost': 3, 'events': [{'seq': 41, 'time': 1763630400.5, 'kind': 'member',"
		" 'text': 'server s2 (host node17) is down: silent for 3.0 s'}]}");
	assert_has(&p, "(3 older events are not kept any more)\n");
	assert_has(&p, "    41  2025-11-20 09:20:00  member      server s2 (host node17) is down");
	free(p.text);
}

/* ---- one daemon ---- */

static void status_of_one_daemon_shows_its_role_and_figures(void **state)
{
	struct bpsctl_page p = render(screen_status,
		"{'schema': 1, 'role': 'agent', 'name': 'a0', 'host': 'n1', 'id': 3,"
		" 'scheduler_up': true, 'trainers': 8, 'sent_bytes': 2048}");

	(void)state;
	assert_int_equal(p.status, 0);
	assert_has(&p, "bps-agent a0 (id 3) on n1");
	assert_has(&p, "sent                      2.0 KiB");
	free(p.text);
	p = render(screen_status,
		"{'role': 'server', 'problems': [{'code': 'SCHEDULER_UNREACHABLE', 'severity':"
		" 'WARN', 'what': 'none', 'effect': 'e', 'action': 'x', 'see': 'y'}]}");
	assert_int_equal(p.status, 1);
	assert_has(&p, "! SCHEDULER_UNREACHABLE");
	free(p.text);
}

static void missing_answers_and_their_problems_are_shown_in_the_status(void **state)
{
	struct bpsctl_page p = render(screen_status,
		"{'role': 'scheduler', 'health': 'WARN', 'problems': [{'code': 'NO_ANSWER',"
		" 'severity': 'WARN', 'what': 'agent a1', 'effect': 'e', 'action': 'x', 'see': "
		"'y'}],"
		" 'collected': {'jobs': 2, 'asked': 3, 'answered': 2, 'not_asked': 4, 's': 1.01,"
		" 'daemons': 5, 'heard': 4},"
		" 'missing': ['a1']}");

	(void)state;
	assert_int_equal(p.status, 1);
	assert_has(
		&p, "! NO_ANSWER     agent a1\n    effect:  e\n    action:  x\n    see:     y\n");
	assert_has(&p, "! 4 more jobs without figures");
	assert_has(&p, "collected from 4 of 5 daemons in 1.01 s; missing: a1\n");
	free(p.text);
}

/* ---- explain ---- */

static void explained(const char *code)
{
	json_t *o = explain_json(code);

	if (!o)
		fail_msg("%s is not explained", code);
	assert_true(json_string_length(json_object_get(o, "what")) > 0);
	assert_true(json_string_length(json_object_get(o, "effect")) > 0);
	assert_true(json_string_length(json_object_get(o, "action")) > 0);
	json_decref(o);
}

static void every_problem_and_every_error_is_explained(void **state)
{
	(void)state;
	for (const struct explanation *e = explanations; e->code; e++)
		explained(e->code);
#define ERROR(name, num, text)                                                                     \
	explained(#name);                                                                          \
	explained(#num);
	BPS_ERRORS(ERROR)
#undef ERROR
}

static void codes_are_found_as_people_write_them(void **state)
{
	(void)state;
	explained("server_down");
	explained("etimedout");
	explained("-10001");
	assert_null(explain_json("10"));
	assert_null(explain_json("SERVER"));
	assert_null(explain_json("0"));
}

static void explanations_fit_the_screen(void **state)
{
	json_t *list = explain_json(""), *codes = json_object_get(list, "codes");

	(void)state;
	assert_true(json_array_size(codes) > 20);
	for (size_t i = 0; i <= json_array_size(codes); i++) {
		json_t *o = i ? json_array_get(codes, i - 1) : list;
		char *text = NULL;
		size_t n = 0;
		FILE *out = open_memstream(&text, &n);

		assert_non_null(out);
		assert_int_equal(screen_explain(out, o), 0);
		fclose(out);
		assert_narrow(text);
		free(text);
	}
	json_decref(list);
}

/* ---- watch ---- */

static char *frame(const char *text, unsigned n_rows, bool is_first)
{
	char *s = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&s, &n);

	assert_non_null(out);
	live_screen_frame(out, text, n_rows, is_first);
	fclose(out);
	return s;
}

static void frames_are_drawn_over_each_other_without_clearing(void **state)
{
	char *s = frame("a\nb\n", 24, true);

	(void)state;
	assert_string_equal(s, "\033[2J\033[Ha\033[K\r\nb\033[K\r\n\033[J");
	free(s);
	s = frame("a\n", 24, false);
	assert_string_equal(s, "\033[Ha\033[K\r\n\033[J");
	free(s);
}

static void frames_do_not_scroll(void **state)
{
	char *s = frame("a\nb\nc\nd\n", 4, false);

	(void)state;
	assert_string_equal(s, "\033[Ha\033[K\r\nb\033[K\r\n(2 more lines)\033[K\033[J");
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(servers_show_each_with_its_state_and_why_it_is_down),
		cmocka_unit_test(agents_that_are_all_up_are_shown_as_well),
		cmocka_unit_test(tables_without_rows_say_so),
		cmocka_unit_test(long_names_and_huge_numbers_stay_within_the_columns),
		cmocka_unit_test(verbose_status_has_the_provider),
		cmocka_unit_test(status_has_a_line_for_each_job_and_server),
		cmocka_unit_test(of_many_servers_only_those_that_are_not_well_have_a_line),
		cmocka_unit_test(
			of_many_problems_of_one_code_the_first_are_shown_and_the_others_counted),
		cmocka_unit_test(strange_documents_are_shown_without_harm),
		cmocka_unit_test(text_that_is_missing_is_shown_as_a_dash),
		cmocka_unit_test(jobs_show_users_by_name_and_what_was_not_asked_as_a_dash),
		cmocka_unit_test(forming_job_shows_missing_ranks_only_if_there_are_any),
		cmocka_unit_test(running_jobs_without_old_calls_are_shown_as_well),
		cmocka_unit_test(machines_that_compute_longest_come_first),
		cmocka_unit_test(machines_that_are_not_shown_are_counted),
		cmocka_unit_test(asynchronous_job_names_no_worker_that_is_behind),
		cmocka_unit_test(stuck_names_what_the_librarys_tensors_are_for),
		cmocka_unit_test(stuck_names_tensor_round_and_who_is_missing),
		cmocka_unit_test(stuck_sum_names_servers_conditions_and_networks),
		cmocka_unit_test(stuck_forming_job_names_ranks),
		cmocka_unit_test(job_that_flows_is_not_stuck),
		cmocka_unit_test(without_a_job_nothing_waits),
		cmocka_unit_test(events_have_number_time_kind_and_text),
		cmocka_unit_test(status_of_one_daemon_shows_its_role_and_figures),
		cmocka_unit_test(missing_answers_and_their_problems_are_shown_in_the_status),
		cmocka_unit_test(every_problem_and_every_error_is_explained),
		cmocka_unit_test(codes_are_found_as_people_write_them),
		cmocka_unit_test(explanations_fit_the_screen),
		cmocka_unit_test(jobs_show_the_last_ended_jobs_with_their_errors),
		cmocka_unit_test(frames_are_drawn_over_each_other_without_clearing),
		cmocka_unit_test(frames_do_not_scroll),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
