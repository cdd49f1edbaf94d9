/* Findings about a job's steps (advice.h). Each rule is one function, which appends at most one
 * finding. */
#include "bps-scheduler/bpsctl/advice/advice.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINDINGS_MAX 3
/* A job hangs if a call has waited for this many seconds, and for this many steps. Both are chosen:
 * a shorter wait ends before a user asks, and a checkpoint takes a few steps. */
#define HANG_S     2.0
#define HANG_STEPS 10
/* Shares of a step. If less than LITTLE is exposed, nothing helps. A part of the exposed time that
 * takes less than WORTH of the step is not mentioned. */
#define LITTLE 0.05
#define WORTH  0.02
/* A card is the limit if it needs at least this share of the exposed time for the bytes of a step,
 * or if it is busy for this share of the step. */
#define CARD_SHARE 0.7
#define CARD_BUSY  0.85
/* A card is slow if its speed is below this share of the speed that other machines' cards have. */
#define SLOW_CARD 0.75
/* The scheduler computes rates over this many seconds. Other jobs send much if a machine moves this
 * many times the bytes of the job's steps, and one step more. */
#define RATE_S    2.0
#define MUCH_MORE 1.5
/* A server is slow if its sums take this many times the median's. */
#define SLOW_SERVER 3.0
#define SMALL_BYTES 16384
/* Bytes of a value as f32 over its bytes as int8 with a scale for 256 values */
#define INT8_RATIO (4.0 / (260.0 / 256))

struct machine_label {
	char s[160];
};

struct advice {
	json_t *job, *cluster, *findings;
	json_t *brief; /* job.job */
	json_t *steps;
	double length_s, exposed_s;
	double slow_mbps; /* an agent's card of at most this speed is slow; 0: none is */
};

static double real_of(json_t *o, const char *key)
{
	double v = json_number_value(json_object_get(o, key));

	return v > 0 ? v : 0;
}

static const char *text_of(json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "?";
}

static void add_finding(struct advice *a, const char *code, double gain_s, const char *next,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* gain_s: negative: not known */
static void add_finding(
	struct advice *a, const char *code, double gain_s, const char *next, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_array_append_new(
		a->findings, json_pack("{s:s, s:s, s:s, s:o}", "code", code, "text", text, "next",
				     next, "gain_s", gain_s < 0 ? json_null() : json_real(gain_s)));
}

/* Return the host of a machine or, if several agents of the job have this host, host and agent. */
static struct machine_label label_of(struct advice *a, json_t *machine, const char *key)
{
	const char *host = text_of(machine, "host");
	struct machine_label label;
	json_t *agent;
	size_t i, n = 0;

	json_array_foreach (json_object_get(a->job, "agents"), i, agent)
		n += strcmp(text_of(agent, "host"), host) == 0;
	if (n > 1)
		snprintf(label.s, sizeof(label.s), "%.64s (agent %.64s)", host,
			text_of(machine, key));
	else
		snprintf(label.s, sizeof(label.s), "%.64s", host);
	return label;
}

/* Return the steps of the machine that takes longest in `phase`. */
static json_t *machine_with_most(struct advice *a, const char *phase, json_t **ret_agent)
{
	json_t *agent, *best = NULL;
	double most_s = -1;
	size_t i;

	json_array_foreach (json_object_get(a->job, "agents"), i, agent) {
		json_t *steps = json_object_get(agent, "steps");

		if (!json_is_object(steps) || real_of(steps, phase) <= most_s)
			continue;
		most_s = real_of(steps, phase);
		best = steps;
		*ret_agent = agent;
	}
	return best;
}

static bool has_name(json_t *o, const char *name)
{
	return strcmp(text_of(o, "name"), name) == 0;
}

/* Return the mean of a time of a step over all machines of the job but the agent `name`. */
static double mean_of_others(struct advice *a, const char *name, const char *key)
{
	double sum_s = 0;
	json_t *agent;
	size_t i, n = 0;

	json_array_foreach (json_object_get(a->job, "agents"), i, agent) {
		json_t *steps = json_object_get(agent, "steps");

		if (!json_is_object(steps) || has_name(agent, name))
			continue;
		sum_s += real_of(steps, key);
		n++;
	}
	return n ? sum_s / (double)n : 0;
}

/* Find the agent of the job with the name `name`. */
static json_t *find_agent(struct advice *a, const char *name)
{
	json_t *agent;
	size_t i;

	json_array_foreach (json_object_get(a->job, "agents"), i, agent)
		if (has_name(agent, name))
			return agent;
	return NULL;
}

/* Find the member of the cluster that is the agent `name`. A server may have the same name. */
static json_t *find_agent_member(struct advice *a, const char *name)
{
	json_t *m;
	size_t i;

	json_array_foreach (json_object_get(a->cluster, "members"), i, m)
		if (strcmp(text_of(m, "role"), "agent") == 0 && has_name(m, name))
			return m;
	return NULL;
}

/* ---- rules ---- */

static bool has_slow_card(struct advice *a, json_t *agent_member)
{
	double mbps = real_of(agent_member, "nic_mbps");

	return mbps > 0 && mbps <= a->slow_mbps;
}

/* A machine with a slow card needs no second finding, unless it also computes longer. */
static void advise_on_late_machine(struct advice *a)
{
	json_t *last = json_object_get(a->steps, "last");
	const char *name = text_of(last, "agent");
	double n = real_of(a->steps, "n"), n_machines = real_of(a->steps, "machines");
	double share = n > 0 ? real_of(a->steps, "n_last") / n : 0;
	double wait_s = mean_of_others(a, name, "wait_s");
	double own_s = real_of(json_object_get(find_agent(a, name), "steps"), "computing_s");
	double longer_s = own_s - mean_of_others(a, name, "computing_s");

	if (!json_is_object(last) || n_machines < 2)
		return;
	if (has_slow_card(a, find_agent_member(a, name)) && longer_s < wait_s / 2)
		return;
	/* the machine that is last names another one in its own steps, so leave its vote out */
	share *= n_machines / (n_machines - 1);
	if (share <= 0.5 + 1 / (2 * n_machines) || wait_s < WORTH * a->length_s)
		return;
	/* with a backup machine, one of two machines would go on alone */
	add_finding(a, "LATE_MACHINE", wait_s,
		n_machines > 2 ? "look at that machine's load, clock and input files; backup "
				 "machines (BPS_BACKUP) let the others go on"
			       : "look at that machine's load, clock and input files",
		"%s comes last in %.0f %% of the steps, and the other machine%s %.1f ms for it",
		label_of(a, last, "agent").s, 100 * (share < 1 ? share : 1),
		n_machines > 2 ? "s wait" : " waits", 1e3 * wait_s);
}

static bool is_agent_of_job(struct advice *a, json_t *m)
{
	return strcmp(text_of(m, "role"), "agent") == 0 && find_agent(a, text_of(m, "name"));
}

static bool job_uses_member(struct advice *a, json_t *m)
{
	if (strcmp(text_of(m, "role"), "server") == 0)
		return real_of(m, "partitions") > 0;
	return is_agent_of_job(a, m);
}

/* Return the seconds in which the member's card, at its full speed, carries the bytes of a step.
 * The card carries both directions at once. The time over which a rate is computed may have a step
 * more or less, so an agent's own bytes count, unless other jobs send much. */
static double member_card_s(struct advice *a, json_t *m)
{
	json_t *agent = is_agent_of_job(a, m) ? find_agent(a, text_of(m, "name")) : NULL;
	double rate = real_of(m, "rx_bytes_s"), out = real_of(m, "tx_bytes_s");
	double mbps = real_of(m, "nic_mbps");
	double own = real_of(json_object_get(agent, "steps"), "bytes");
	double of_all = a->length_s * (rate > out ? rate : out);

	if (mbps <= 0)
		return 0;
	if (own > 0 && of_all < MUCH_MORE * own + own * a->length_s / RATE_S)
		of_all = own;
	return 8 * of_all / (mbps * 1e6);
}

/* Return whether nearly all bytes of the job's tensors are f32, so that int8 makes them fewer. */
static bool job_is_f32(struct advice *a)
{
	double f32 = real_of(json_object_get(a->brief, "bytes_by_type"), "f32");

	return f32 > 0.9 * real_of(a->brief, "bytes");
}

static int compare_reals(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Return the speed of an agent's card in Mbit/s if it can be compared with that of the card `with`:
 * both are measured, or neither is. A measured speed is a lower bound. Otherwise, return 0. */
static double comparable_mbps(struct advice *a, json_t *m, json_t *with)
{
	if (!is_agent_of_job(a, m) ||
		strcmp(text_of(m, "nic_source"), text_of(with, "nic_source")) != 0)
		return 0;
	return real_of(m, "nic_mbps");
}

/* Return the median speed of the cards of the job's other agents, in Mbit/s; 0: not known. */
static double other_cards_mbps(struct advice *a, json_t *slow)
{
	json_t *members = json_object_get(a->cluster, "members"), *m;
	double *mbps = calloc(json_array_size(members) + 1, sizeof(*mbps)), median;
	size_t i, n = 0;

	json_array_foreach (members, i, m)
		if (mbps && m != slow && comparable_mbps(a, m, slow) > 0)
			mbps[n++] = comparable_mbps(a, m, slow);
	if (n)
		qsort(mbps, n, sizeof(*mbps), compare_reals);
	median = n ? mbps[(n - 1) / 2] : 0;
	free(mbps);
	return median;
}

/* Find the agent of the job with the slowest card. */
static json_t *find_slowest_card(struct advice *a)
{
	json_t *m, *slowest = NULL;
	size_t i;

	json_array_foreach (json_object_get(a->cluster, "members"), i, m)
		if (is_agent_of_job(a, m) && real_of(m, "nic_mbps") > 0 &&
			(!slowest || real_of(m, "nic_mbps") < real_of(slowest, "nic_mbps")))
			slowest = m;
	return slowest;
}

/* The other machines wait for those whose cards are slower than theirs. Sets slow_mbps. */
static void advise_on_slow_card(struct advice *a)
{
	json_t *slow = find_slowest_card(a), *m;
	const char *name = text_of(slow, "name");
	json_t *steps = json_object_get(find_agent(a, name), "steps");
	double mbps = real_of(slow, "nic_mbps"), others = other_cards_mbps(a, slow);
	double card_s = member_card_s(a, slow), wait_s = mean_of_others(a, name, "wait_s");
	double moving_s = real_of(steps, "push_s") + real_of(steps, "pull_s");
	size_t i, n_slow = 0;

	if (!slow || mbps > SLOW_CARD * others || wait_s < WORTH * a->length_s ||
		(card_s < CARD_SHARE * moving_s && card_s < CARD_BUSY * a->length_s))
		return;
	a->slow_mbps = SLOW_CARD * others;
	json_array_foreach (json_object_get(a->cluster, "members"), i, m)
		n_slow += is_agent_of_job(a, m) && has_slow_card(a, m);
	add_finding(a, "SLOW_CARD", fmin(card_s * (1 - mbps / others), wait_s),
		n_slow > 1 ? "look at the speed of these cards, their cables and their ports; "
			     "fewer bytes help, too (docs/guides/fewer-bytes.md)"
			   : "look at the speed of that card, its cable and its port, and at the "
			     "machine's load; fewer bytes help, too (docs/guides/fewer-bytes.md)",
		"the network card of %s carries %.0f Mbit/s, the median of the other machines "
		"%.0f; it needs %.1f ms for the bytes of a step, and the other machines wait%s",
		label_of(a, slow, "name").s, mbps, others, 1e3 * card_s,
		n_slow > 1 ? " for it and for others with slow cards" : " for it");
}

/* A slow card needs no second finding. */
static void advise_on_full_card(struct advice *a)
{
	double moving_s = real_of(a->steps, "push_s") + real_of(a->steps, "pull_s"), card_s = 0;
	json_t *m, *full = NULL;
	bool is_server;
	size_t i;

	json_array_foreach (json_object_get(a->cluster, "members"), i, m)
		if (job_uses_member(a, m) && member_card_s(a, m) > card_s) {
			card_s = member_card_s(a, m);
			full = m;
		}
	/* in a job on one machine, the agent sums, and no card moves anything */
	is_server = strcmp(text_of(full, "role"), "server") == 0;
	if (!full || (!is_server && has_slow_card(a, full)) || real_of(a->steps, "machines") < 2 ||
		moving_s < WORTH * a->length_s ||
		(card_s < CARD_SHARE * moving_s && card_s < CARD_BUSY * a->length_s))
		return;
	/* Fewer bytes shorten the time of the card, and of this only what is exposed. */
	add_finding(a, "FULL_CARD",
		job_is_f32(a) ? (card_s < moving_s ? card_s : moving_s) * (1 - 1 / INT8_RATIO) : -1,
		is_server ? "add servers (docs/guides/plan.md), or send fewer bytes, such as int8 "
			    "(docs/guides/fewer-bytes.md)"
			  : "send fewer bytes, such as int8 (docs/guides/fewer-bytes.md)",
		"the network card of %s (%.0f Mbit/s) needs %.1f ms for the bytes of a step, "
		"and the calls wait %.1f ms for the network",
		text_of(full, "name"), real_of(full, "nic_mbps"), 1e3 * card_s, 1e3 * moving_s);
}

/* A server is compared with the median of all servers. A single server is compared with nothing. */
static void advise_on_slow_server(struct advice *a)
{
	json_t *members = json_object_get(a->cluster, "members"), *m, *slow = NULL;
	double *sums_s = calloc(json_array_size(members) + 1, sizeof(*sums_s)), most_s = 0;
	double sum_s = real_of(a->steps, "sum_s"), median_s;
	size_t i, n = 0;

	json_array_foreach (members, i, m) {
		if (!sums_s || strcmp(text_of(m, "role"), "server") != 0 || !job_uses_member(a, m))
			continue;
		sums_s[n++] = real_of(m, "sum_s");
		if (real_of(m, "sum_s") > most_s) {
			most_s = real_of(m, "sum_s");
			slow = m;
		}
	}
	if (n)
		qsort(sums_s, n, sizeof(*sums_s), compare_reals);
	median_s = n ? sums_s[(n - 1) / 2] : 0;
	free(sums_s);
	if (!slow || real_of(a->steps, "machines") < 2 || sum_s < WORTH * a->length_s)
		return;
	if (n > 1 && most_s > SLOW_SERVER * median_s)
		add_finding(a, "SLOW_SERVER", sum_s * (1 - median_s / most_s),
			"look at that server's load; `bpsctl drain` moves its partitions away",
			"server %s takes %.1f ms for a sum, the median server %.1f ms",
			text_of(slow, "name"), 1e3 * most_s, 1e3 * median_s);
	else
		add_finding(a, "SUMS", sum_s / 2, "add as many servers as there are now",
			"the calls wait %.1f ms for the sums of the servers", 1e3 * sum_s);
}

static void advise_on_local(struct advice *a)
{
	json_t *agent = NULL, *steps = machine_with_most(a, "local_s", &agent);
	double local_s = steps ? real_of(steps, "local_s") : 0;

	if (local_s < WORTH * a->length_s || local_s < 0.1 * a->exposed_s)
		return;
	add_finding(a, "LOCAL", local_s,
		"compare the workers of this machine: input files, processors, GPUs",
		"the workers of %s wait %.1f ms for each other", label_of(a, agent, "name").s,
		1e3 * local_s);
}

static void advise_on_queue(struct advice *a)
{
	json_t *agent = NULL, *steps = machine_with_most(a, "queue_s", &agent), *m;
	double queue_s = steps ? real_of(steps, "queue_s") : 0;
	double tensors = real_of(a->brief, "tensors"), bytes = real_of(a->brief, "bytes");

	if (queue_s < WORTH * a->length_s)
		return;
	if (tensors > 0 && bytes / tensors < SMALL_BYTES) {
		add_finding(a, "SMALL_TENSORS", queue_s,
			"let the front-end join small tensors: bucket_bytes of "
			"DistributedOptimizer",
			"the agent of %s needs %.1f ms to start on %.0f tensors of %.0f bytes on "
			"average",
			label_of(a, agent, "name").s, 1e3 * queue_s, tensors, bytes / tensors);
		return;
	}
	m = find_agent_member(a, text_of(agent, "name"));
	add_finding(a, "QUEUE", queue_s,
		"give the agent more threads (`threads` in bps.conf), or raise job-inflight",
		"contributions wait %.1f ms in the agent of %s, whose threads are busy for %.0f %%",
		1e3 * queue_s, label_of(a, agent, "name").s, real_of(m, "busy_percent"));
}

/* ---- */

static int larger_gain_first(const void *a, const void *b)
{
	double x = real_of(*(json_t *const *)a, "gain_s"),
	       y = real_of(*(json_t *const *)b, "gain_s");

	return (x < y) - (x > y);
}

/* Return the findings with the largest gains, sorted. Takes the reference to `all`. */
static json_t *best_findings(json_t *all)
{
	size_t n = json_array_size(all);
	json_t **sorted = calloc(n + 1, sizeof(*sorted)), *list = json_array();

	for (size_t i = 0; sorted && i < n; i++)
		sorted[i] = json_array_get(all, i);
	if (sorted)
		qsort(sorted, n, sizeof(*sorted), larger_gain_first);
	for (size_t i = 0; sorted && i < n && i < FINDINGS_MAX; i++)
		json_array_append(list, sorted[i]);
	free(sorted);
	json_decref(all);
	return list;
}

/* Calls wait for so long that no step will end soon. What limited the steps before does not matter
 * then. Return whether the job hangs. */
static bool advise_on_hang(struct advice *a)
{
	const char *job = text_of(a->brief, "name");
	double longest_s = 0;
	json_t *wait;
	char next[160];
	size_t i;

	json_array_foreach (json_object_get(a->job, "waits"), i, wait)
		if (strcmp(text_of(wait, "why"), "join") != 0 && real_of(wait, "s") > longest_s)
			longest_s = real_of(wait, "s");
	if (longest_s < HANG_S || longest_s < HANG_STEPS * a->length_s)
		return false;
	snprintf(next, sizeof(next), "`bpsctl why-stuck %.64s` names the workers that are missing",
		job);
	add_finding(a, "HANG", -1, next, "the job hangs: a call has waited for %.1f s", longest_s);
	return true;
}

static void advise_on_ended_job(struct advice *a)
{
	const char *text = json_string_value(json_object_get(a->brief, "text"));
	char next[240];

	snprintf(next, sizeof(next),
		"`bpsctl job %.64s` shows how it ended; if it failed, the logs of its agents have "
		"its last steps",
		text_of(a->brief, "name"));
	add_finding(a, "ENDED", -1, next,
		"the job ended %.0f s ago%s%.200s; where the time of its steps went is no longer "
		"known",
		real_of(a->brief, "state_s"), text && *text ? ": " : " without an error",
		text ? text : "");
}

static void advise_on_unknown_steps(struct advice *a)
{
	add_finding(a, "NOT_KNOWN", -1,
		"ask again when the job has done some steps; for GPUs use the framework's profiler",
		"the agents do not know where the time of this job's steps goes: no step is "
		"complete, or its tensors are in GPU memory");
}

static void advise_on_steps(struct advice *a)
{
	json_t *worst = json_object_get(a->steps, "worst");
	size_t n_before = json_array_size(a->findings);

	if (a->exposed_s < LITTLE * a->length_s) {
		add_finding(a, "COMPUTING", -1,
			"make the computation faster; the network and the servers are no limit",
			"only %.1f %% of a step is exposed communication; %s computes longest, "
			"%.1f ms",
			100 * a->exposed_s / a->length_s, label_of(a, worst, "agent").s,
			1e3 * real_of(a->steps, "worst_computing_s"));
		return;
	}
	advise_on_slow_card(a);
	advise_on_late_machine(a);
	advise_on_full_card(a);
	advise_on_slow_server(a);
	advise_on_local(a);
	advise_on_queue(a);
	if (json_array_size(a->findings) == n_before)
		add_finding(a, "SPREAD", -1,
			"look at the columns of `bpsctl job`, or at a trace (`bpsctl trace`)",
			"%.1f ms of a step are exposed, but no single cause stands out",
			1e3 * a->exposed_s);
}

/* Write the shortest and the longest exposed time of a step by machine; 0: not known. */
static void find_exposed_range(struct advice *a, double *ret_min_s, double *ret_max_s)
{
	json_t *agent;
	size_t i;

	*ret_min_s = *ret_max_s = a->exposed_s;
	json_array_foreach (json_object_get(a->job, "agents"), i, agent) {
		json_t *steps = json_object_get(agent, "steps");

		if (!json_is_object(steps))
			continue;
		*ret_min_s = fmin(*ret_min_s, real_of(steps, "exposed_s"));
		*ret_max_s = fmax(*ret_max_s, real_of(steps, "exposed_s"));
	}
}

json_t *advice_about_job(json_t *job, json_t *cluster)
{
	struct advice a = {.job = job,
		.cluster = cluster,
		.findings = json_array(),
		.brief = json_object_get(job, "job"),
		.steps = json_object_get(job, "steps")};
	double min_s, max_s;

	a.length_s = real_of(a.steps, "length_s");
	a.exposed_s = real_of(a.steps, "exposed_s");
	find_exposed_range(&a, &min_s, &max_s);
	if (!advise_on_hang(&a)) {
		if (a.length_s > 0)
			advise_on_steps(&a);
		else if (strcmp(text_of(a.brief, "state"), "ended") == 0)
			advise_on_ended_job(&a);
		else
			advise_on_unknown_steps(&a);
	}
	return json_pack("{s:i, s:s, s:O, s:O, s:f, s:f, s:o}", "schema", 1, "role", "scheduler",
		"job", a.brief, "steps", json_is_object(a.steps) ? a.steps : json_null(),
		"exposed_min_s", min_s, "exposed_max_s", max_s, "findings",
		best_findings(a.findings));
}
