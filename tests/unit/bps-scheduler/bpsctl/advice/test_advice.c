/* The findings of `bpsctl advise` (bps-scheduler/bpsctl/advice/advice.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bps-scheduler/bpsctl/advice/advice.h"

/* Times of a step in ms. The step takes 100 ms. */
struct phases_ms {
	double local, queue, push, wait, sum, pull;
	const char *last; /* agent that is last; NULL: none */
};

static json_t *steps_json(const struct phases_ms *t, unsigned n_last, unsigned n)
{
	double exposed = t->local + t->queue + t->push + t->wait + t->sum + t->pull;

	return json_pack(
		"{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:i, s:i, s:{s:s, s:s}, "
		"s:f}",
		"n", (int)n, "length_s", 0.1, "computing_s", 0.1 - exposed / 1e3, "exposed_s",
		exposed / 1e3, "local_s", t->local / 1e3, "queue_s", t->queue / 1e3, "push_s",
		t->push / 1e3, "wait_s", t->wait / 1e3, "sum_s", t->sum / 1e3, "pull_s",
		t->pull / 1e3, "last",
		t->last ? json_pack("{s:s, s:s}", "agent", t->last, "host", t->last) : json_null(),
		"n_last", (int)n_last, "machines", 2, "worst", "agent", "a1", "host", "h1",
		"worst_computing_s", 0.09);
}

/* Return the job's document: agents a0 and a1, each with the same times. The mean has them too. */
static json_t *job_json(const struct phases_ms *t, unsigned n_last)
{
	json_t *brief = json_pack("{s:s, s:i, s:i, s:{s:i}}", "name", "j", "tensors", 100, "bytes",
		100000000, "bytes_by_type", "f32", 100000000);

	return json_pack("{s:o, s:[{s:s, s:s, s:o}, {s:s, s:s, s:o}], s:o}", "job", brief, "agents",
		"name", "a0", "host", "h0", "steps", steps_json(t, 10, 10), "name", "a1", "host",
		"h1", "steps", steps_json(t, 0, 10), "steps", steps_json(t, n_last, 20));
}

/* Return the cluster's document: agent a0 and three servers. */
static json_t *cluster_json(double agent_rate, double rate, double slow_sum_ms)
{
	json_t *list = json_array();

	json_array_append_new(
		list, json_pack("{s:s, s:s, s:i, s:f, s:i}", "role", "agent", "name", "a0",
			      "nic_mbps", 1000, "tx_bytes_s", agent_rate, "busy_percent", 90));
	for (int i = 0; i < 3; i++) {
		char name[3] = {'s', (char)('0' + i), 0};

		json_array_append_new(
			list, json_pack("{s:s, s:s, s:i, s:f, s:i, s:f}", "role", "server", "name",
				      name, "nic_mbps", 1000, "rx_bytes_s", rate, "partitions", 1,
				      "sum_s", i == 1 ? slow_sum_ms / 1e3 : 1e-3));
	}
	return json_pack("{s:o}", "members", list);
}

/* Check the codes and gains (in ms; negative: not known) of all findings. */
static void expect_findings(json_t *job, json_t *cluster, const char *codes, const double *gains_ms)
{
	json_t *doc = advice_about_job(job, cluster), *f;
	char text[256] = "";
	size_t i;

	assert_non_null(doc);
	json_array_foreach (json_object_get(doc, "findings"), i, f) {
		json_t *gain = json_object_get(f, "gain_s");

		strcat(text, i ? " " : "");
		strcat(text, json_string_value(json_object_get(f, "code")));
		assert_true(*json_string_value(json_object_get(f, "next")));
		if (gains_ms[i] < 0)
			assert_true(json_is_null(gain));
		else
			assert_true(json_number_value(gain) > (gains_ms[i] - 0.1) / 1e3 &&
				    json_number_value(gain) < (gains_ms[i] + 0.1) / 1e3);
	}
	assert_string_equal(text, codes);
	json_decref(doc);
	json_decref(job);
	json_decref(cluster);
}

#define EXPECT(in_ms, n_last, cluster, codes, ...)                                                 \
	expect_findings(job_json(&(struct phases_ms)in_ms, n_last), cluster, codes,                \
		(const double[]){__VA_ARGS__})
#define TIMES(...)                                                                                 \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

static void computing_alone_is_said_first(void **state)
{
	(void)state;
	EXPECT(TIMES(.wait = 4.9, .last = "a1"), 10, cluster_json(0, 0, 1), "COMPUTING", -1);
}

static void late_machine_is_named_only_if_it_is_the_same_one(void **state)
{
	(void)state;
	EXPECT(TIMES(.wait = 30, .last = "a1"), 10, cluster_json(0, 0, 1), "LATE_MACHINE", 30);
	/* of two machines, each is last in about half of the steps */
	EXPECT(TIMES(.wait = 30, .last = "a1"), 7, cluster_json(0, 0, 1), "SPREAD", -1);
	EXPECT(TIMES(.wait = 30), 0, cluster_json(0, 0, 1), "SPREAD", -1);
}

static void full_card_is_named(void **state)
{
	(void)state;
	/* 100 MB/s in a step of 100 ms take 80 ms at 1 Gbit/s */
	EXPECT(TIMES(.push = 70, .pull = 10), 0, cluster_json(0, 1e8, 1), "FULL_CARD", 59.7);
	EXPECT(TIMES(.push = 30, .pull = 10), 0, cluster_json(1e8, 0, 1), "FULL_CARD", 29.8);
	EXPECT(TIMES(.push = 70, .pull = 10), 0, cluster_json(0, 2e7, 1), "SPREAD", -1);
}

/* Return the cluster's document with one more agent, a1, and the speed of its card. The bytes of a
 * step need 80 ms at the speed of a0's card. */
static json_t *cluster_with_a1(int mbps, const char *source)
{
	json_t *cluster = cluster_json(1e8, 0, 1);

	json_array_append_new(json_object_get(cluster, "members"),
		json_pack("{s:s, s:s, s:i, s:s}", "role", "agent", "name", "a1", "nic_mbps", mbps,
			"nic_source", source));
	return cluster;
}

/* The other machine waits for wait_ms, and a0 pushes for 70 ms. */
static json_t *job_with_wait(double wait_ms)
{
	json_t *job = job_json(&(struct phases_ms){.push = 70, .pull = 10, .last = "a0"}, 20);
	json_t *a1 = json_array_get(json_object_get(job, "agents"), 1);

	json_object_set_new(json_object_get(a1, "steps"), "wait_s", json_real(wait_ms / 1e3));
	return job;
}

static void slow_card_of_one_machine_is_named(void **state)
{
	static const struct {
		double wait_ms;
		int mbps;
		const char *source, *codes;
		double gain_ms;
	} cases[] = {
		/* at the speed of the other machine's card, the bytes take half of 80 ms */
		{60, 2000, "?", "SLOW_CARD", 40},
		{30, 2000, "?", "SLOW_CARD", 30}, /* no more than the other machine waits */
		{60, 1300, "?", "LATE_MACHINE FULL_CARD", 60},
		{0, 2000, "?", "FULL_CARD", 59.7}, /* the other machine does not wait */
		{60, 2000, "measured", "LATE_MACHINE FULL_CARD", 60},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		expect_findings(job_with_wait(cases[i].wait_ms),
			cluster_with_a1(cases[i].mbps, cases[i].source), cases[i].codes,
			(const double[]){cases[i].gain_ms, 59.7});
}

static void server_with_the_name_of_an_agent_is_a_server(void **state)
{
	json_t *cluster = cluster_with_a1(2000, "?"), *m;
	size_t i;

	(void)state;
	json_array_foreach (json_object_get(cluster, "members"), i, m)
		if (i == 1)
			json_object_set_new(m, "name", json_string("a0"));
	expect_findings(job_with_wait(60), cluster, "SLOW_CARD", (const double[]){40});
}

static void bytes_of_a_step_replace_a_rate_that_is_a_little_off(void **state)
{
	/* The rate says that a step of 100 ms moves 5.5 MB, which need 44 ms at 1 Gbit/s. 5 MB need
	 * 40 ms. If the job moves 2.5 MB, other jobs move the rest. */
	const struct {
		int bytes;
		double gain_ms;
	} cases[] = {{5000000, 29.8}, {2500000, 32.8}};

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		json_t *job = job_json(&(struct phases_ms){.push = 40, .pull = 10}, 0), *agent;
		size_t i;

		json_array_foreach (json_object_get(job, "agents"), i, agent)
			json_object_set_new(json_object_get(agent, "steps"), "bytes",
				json_integer(cases[k].bytes));
		expect_findings(job, cluster_json(5.5e7, 0, 1), "FULL_CARD", &cases[k].gain_ms);
	}
}

static void machine_with_a_slow_card_that_computes_longer_is_late(void **state)
{
	json_t *job = job_with_wait(60), *a0 = json_array_get(json_object_get(job, "agents"), 0);

	(void)state;
	json_object_set_new(json_object_get(a0, "steps"), "computing_s", json_real(0.06));
	expect_findings(job, cluster_with_a1(2000, "?"), "LATE_MACHINE SLOW_CARD",
		(const double[]){60, 40});
}

static void gain_of_fewer_bytes_is_known_only_for_f32(void **state)
{
	json_t *job = job_json(&(struct phases_ms){.push = 70, .pull = 10}, 0);

	(void)state;
	json_object_set_new(json_object_get(job, "job"), "bytes_by_type", json_object());
	expect_findings(job, cluster_json(0, 1e8, 1), "FULL_CARD", (const double[]){-1});
}

static void servers_do_not_matter_to_a_job_on_one_machine(void **state)
{
	json_t *job = job_json(&(struct phases_ms){.push = 70, .sum = 10}, 0);

	(void)state;
	json_object_set_new(json_object_get(job, "steps"), "machines", json_integer(1));
	expect_findings(job, cluster_json(0, 1e8, 10), "SPREAD", (const double[]){-1});
}

static void slow_server_is_told_from_slow_servers(void **state)
{
	(void)state;
	EXPECT(TIMES(.sum = 20), 0, cluster_json(0, 0, 10), "SLOW_SERVER", 18);
	EXPECT(TIMES(.sum = 20), 0, cluster_json(0, 0, 2), "SUMS", 10);
}

static void largest_gains_come_first(void **state)
{
	(void)state;
	EXPECT(TIMES(.local = 10, .queue = 20, .wait = 15, .sum = 8, .last = "a1"), 10,
		cluster_json(0, 0, 10), "QUEUE LATE_MACHINE LOCAL", 20, 15, 10);
}

static void small_tensors_are_named(void **state)
{
	json_t *job = job_json(&(struct phases_ms){.queue = 20}, 0);

	(void)state;
	json_object_set_new(json_object_get(job, "job"), "tensors", json_integer(100000));
	expect_findings(job, cluster_json(0, 0, 1), "SMALL_TENSORS", (const double[]){20});
}

static void unknown_steps_and_empty_documents_are_no_crash(void **state)
{
	json_t *job = job_json(&(struct phases_ms){0}, 0);

	(void)state;
	json_object_set_new(job, "steps", json_null());
	expect_findings(job, cluster_json(0, 0, 1), "NOT_KNOWN", (const double[]){-1});
	job = job_json(&(struct phases_ms){.push = 50, .sum = 10}, 0);
	expect_findings(job, json_object(), "SPREAD", (const double[]){-1});
}

/* Return the n-th finding about the job, which the function frees. */
static json_t *nth_finding(json_t *job, size_t n)
{
	json_t *cluster = cluster_json(0, 0, 1), *doc = advice_about_job(job, cluster);
	json_t *f = json_incref(json_array_get(json_object_get(doc, "findings"), n));

	json_decref(doc);
	json_decref(job);
	json_decref(cluster);
	return f;
}

static void assert_field_has(json_t *f, const char *key, const char *part, bool is_there)
{
	const char *text = json_string_value(json_object_get(f, key));

	if (!text || !strstr(text, part) == is_there)
		fail_msg("'%s' in %s: %s", part, key, text ? text : "-");
}

static void hang_comes_first_and_names_the_command(void **state)
{
	json_t *job = job_json(&(struct phases_ms){.wait = 30, .last = "a1"}, 10), *f;

	(void)state;
	json_object_set_new(job, "waits",
		json_pack("[{s:s, s:f}, {s:s, s:f}]", "why", "submit", "s", 7.5, "why", "sum", "s",
			1.0));
	json_incref(job);
	expect_findings(job, cluster_json(0, 0, 1), "HANG", (const double[]){-1});
	f = nth_finding(job, 0);
	assert_field_has(f, "text", "has waited for 7.5 s", true);
	assert_field_has(f, "next", "`bpsctl why-stuck j`", true);
	json_decref(f);
	/* the same wait is usual for a job whose steps take a second */
	job = job_json(&(struct phases_ms){.wait = 30, .last = "a1"}, 10);
	json_object_set_new(json_object_get(job, "steps"), "length_s", json_real(1.0));
	json_object_set_new(job, "waits", json_pack("[{s:s, s:f}]", "why", "submit", "s", 7.5));
	expect_findings(job, cluster_json(0, 0, 1), "COMPUTING", (const double[]){-1});
}

static void two_machines_get_no_advice_about_backup_machines(void **state)
{
	json_t *f = nth_finding(job_json(&(struct phases_ms){.wait = 30, .last = "a1"}, 10), 0);
	json_t *job = job_json(&(struct phases_ms){.wait = 30, .last = "a1"}, 20);

	(void)state;
	assert_field_has(f, "next", "BPS_BACKUP", false);
	assert_field_has(f, "text", "the other machine waits", true);
	json_decref(f);
	json_object_set_new(json_object_get(job, "steps"), "machines", json_integer(3));
	f = nth_finding(job, 0);
	assert_field_has(f, "next", "BPS_BACKUP", true);
	json_decref(f);
}

static void agents_of_one_host_are_told_apart(void **state)
{
	json_t *job = job_json(&(struct phases_ms){.local = 30}, 0), *agent, *f;
	size_t i;

	(void)state;
	json_array_foreach (json_object_get(job, "agents"), i, agent)
		json_object_set_new(agent, "host", json_string("h"));
	f = nth_finding(job, 0);
	assert_field_has(f, "text", "workers of h (agent a0)", true);
	json_decref(f);
}

static void machines_with_slow_cards_are_counted(void **state)
{
	json_t *job = job_with_wait(60), *a1 = json_array_get(json_object_get(job, "agents"), 1);
	json_t *cluster = cluster_with_a1(1000, "?"),
	       *members = json_object_get(cluster, "members");
	json_t *doc, *f;

	(void)state;
	/* a0 and a1 have 1 Gbit/s, a2 and a3 have 2, and a1 is the last one */
	json_object_set_new(json_object_get(a1, "steps"), "wait_s", json_real(0.06));
	json_object_set_new(json_object_get(job, "steps"), "last",
		json_pack("{s:s, s:s}", "agent", "a1", "host", "h1"));
	for (int i = 2; i < 4; i++) {
		const char *name = i == 2 ? "a2" : "a3";

		json_array_append_new(members, json_pack("{s:s, s:s, s:i}", "role", "agent", "name",
						       name, "nic_mbps", 2000));
		json_array_append_new(json_object_get(job, "agents"),
			json_pack("{s:s, s:s, s:{s:f}}", "name", name, "host", name, "steps",
				"wait_s", 0.06));
	}
	doc = advice_about_job(job, cluster);
	assert_int_equal(json_array_size(json_object_get(doc, "findings")), 1);
	f = json_array_get(json_object_get(doc, "findings"), 0);
	assert_string_equal(json_string_value(json_object_get(f, "code")), "SLOW_CARD");
	assert_field_has(f, "text", "others with slow cards", true);
	json_decref(doc);
	json_decref(job);
	json_decref(cluster);
}

static void ended_job_has_ended(void **state)
{
	json_t *job = job_json(&(struct phases_ms){0}, 0), *f;

	(void)state;
	json_object_set_new(job, "steps", json_null());
	json_object_set_new(json_object_get(job, "job"), "state", json_string("ended"));
	json_object_set_new(json_object_get(job, "job"), "state_s", json_real(12));
	json_object_set_new(json_object_get(job, "job"), "text", json_string("killed by root"));
	f = nth_finding(job, 0);
	assert_field_has(f, "text", "ended 12 s ago: killed by root", true);
	json_decref(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(computing_alone_is_said_first),
		cmocka_unit_test(late_machine_is_named_only_if_it_is_the_same_one),
		cmocka_unit_test(full_card_is_named),
		cmocka_unit_test(slow_card_of_one_machine_is_named),
		cmocka_unit_test(bytes_of_a_step_replace_a_rate_that_is_a_little_off),
		cmocka_unit_test(server_with_the_name_of_an_agent_is_a_server),
		cmocka_unit_test(machines_with_slow_cards_are_counted),
		cmocka_unit_test(machine_with_a_slow_card_that_computes_longer_is_late),
		cmocka_unit_test(gain_of_fewer_bytes_is_known_only_for_f32),
		cmocka_unit_test(servers_do_not_matter_to_a_job_on_one_machine),
		cmocka_unit_test(slow_server_is_told_from_slow_servers),
		cmocka_unit_test(largest_gains_come_first),
		cmocka_unit_test(small_tensors_are_named),
		cmocka_unit_test(hang_comes_first_and_names_the_command),
		cmocka_unit_test(two_machines_get_no_advice_about_backup_machines),
		cmocka_unit_test(agents_of_one_host_are_told_apart),
		cmocka_unit_test(ended_job_has_ended),
		cmocka_unit_test(unknown_steps_and_empty_documents_are_no_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
