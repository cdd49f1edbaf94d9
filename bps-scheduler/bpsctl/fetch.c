/* Fetches the documents that bpsctl shows (fetch.h): requests them over HTTP, and merges a
 * cluster's document with details of its jobs. This file prints nothing. The functions block for a
 * limited time. One thread. */
#include "bps-scheduler/bpsctl/fetch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/bpsctl/advice/advice.h"
#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/http.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/clock.h"
#include "common/os/machine.h"
#include "common/wire/ctlmsg.h"

/* time limit of a command's requests in milliseconds, so that bpsctl answers within two seconds */
#define ANSWER_MS 1900
/* time limit for the scheduler if an agent may have to be queried afterwards */
#define STUCK_MS 1500
#define AGENT_MS 350
/* Time limit for a trace, which has up to some megabytes */
#define TRACE_MS 5000
#define JOBS_MAX 32 /* largest number of jobs whose details are requested at once */
/* An agent that has been down for longer than this time in seconds is not listed as missing. The
 * scheduler's AGENT_DOWN has the same limit. */
#define DOWN_AGENT_S 600

/* Get the document from the answer to a GET. Errors: the codes of http_get_all, and BPS_ENOTFOUND
 * if the HTTP status is not 200. */
static int http_get_extract_document(struct http_get *g, json_t **ret, struct err_text *err)
{
	const char *text = json_string_value(json_object_get(g->root, "error"));

	if (g->rc < 0) {
		*err = g->err;
		return g->rc;
	}
	if (g->status != 200) {
		err_set(err, BPS_ENOTFOUND, "%s", text ? text : "the daemon rejected the request");
		json_decref(g->root);
		return BPS_ENOTFOUND;
	}
	*ret = g->root;
	return 0;
}

static int fetch_path_within_ms(const struct addr *addr, const char *path, uint32_t timeout_ms,
	json_t **ret, struct err_text *err)
{
	struct http_get g = {.rc = 0};

	snprintf(g.path, sizeof(g.path), "%s", path);
	http_get_all(addr, &g, 1, timeout_ms);
	return http_get_extract_document(&g, ret, err);
}

int fetch_path(const struct addr *addr, const char *path, json_t **ret, struct err_text *err)
{
	return fetch_path_within_ms(addr, path, ANSWER_MS, ret, err);
}

static int scheduler_only(json_t *root, struct err_text *err)
{
	if (cell_is(root, "role", "scheduler"))
		return 0;
	return err_set(err, -EINVAL,
		"the daemon at --scheduler-http is a bps-%s, but this command needs the scheduler",
		cell_str(root, "role").s);
}

/* ---- details of jobs ---- */

struct job_details {
	struct http_get gets[JOBS_MAX];
	/* jobs[i]: a job's entry in the cluster's document. gets[i]: the request for the details of
	 * this job. */
	json_t *jobs[JOBS_MAX];
	size_t n, not_asked;
};

/* Request the details of the jobs. Details of jobs that are still forming are requested only if
 * has_forming is set. */
static void job_details_fetch(struct job_details *d, const struct addr *addr, json_t *cluster,
	bool has_forming, uint32_t timeout_ms)
{
	json_t *j;
	size_t i;

	json_array_foreach (json_object_get(cluster, "jobs"), i, j) {
		if (!has_forming && !cell_is(j, "state", "running"))
			continue;
		if (d->n == JOBS_MAX) {
			d->not_asked++;
			continue;
		}
		snprintf(d->gets[d->n].path, sizeof(d->gets[d->n].path), "/status?job=%%23%" PRIu64,
			cell_num(j, "id"));
		d->jobs[d->n++] = j;
	}
	http_get_all(addr, d->gets, d->n, timeout_ms);
}

static void job_details_free(struct job_details *d)
{
	for (size_t i = 0; i < d->n; i++)
		json_decref(d->gets[i].root);
	free(d);
}

static bool array_has_string(json_t *list, const char *s)
{
	json_t *v;
	size_t i;

	json_array_foreach (list, i, v)
		if (strcmp(json_string_value(v), s) == 0)
			return true;
	return false;
}

static void append_missing_names(json_t *missing, json_t *names)
{
	json_t *v;
	size_t i;

	json_array_foreach (names, i, v) {
		const char *s = json_string_value(v);

		if (s && !array_has_string(missing, s))
			json_array_append(missing, v);
	}
}

/* Return the member's name, with the role if another member has the same name. */
static json_t *member_label_json(json_t *root, json_t *m)
{
	const char *name = json_string_value(json_object_get(m, "name"));
	size_t i, n = 0;
	json_t *other;

	json_array_foreach (json_object_get(root, "members"), i, other)
		n += name && cell_is(other, "name", name);
	return n < 2 ? json_string(name ? name : "-")
		     : json_sprintf("%s %s", cell_str(m, "role").s, name);
}

/* Return the number of members from which the scheduler receives messages. The array `silent` has
 * the names of agents that did not answer a probe. These agents are not counted, and are in the
 * array `missing` already. Skip agents that have been down for longer than DOWN_AGENT_S, because
 * their machines were probably taken away. Append to `missing` the name of each member that is
 * neither counted, nor in `silent`, nor skipped. *ret_daemons: number of all members except the
 * skipped agents. */
static size_t count_heard_members(
	json_t *root, json_t *silent, json_t *missing, size_t *ret_daemons)
{
	size_t i, n = 0;
	json_t *m;

	*ret_daemons = 0;
	json_array_foreach (json_object_get(root, "members"), i, m) {
		const char *name = json_string_value(json_object_get(m, "name"));
		bool is_agent = cell_is(m, "role", "agent");
		bool is_silent = is_agent && name && array_has_string(silent, name);
		bool is_heard = cell_is(m, "state", "up") && !is_silent &&
				!json_is_true(json_object_get(m, "is_quiet"));

		if (is_agent && cell_is(m, "state", "down") &&
			cell_sec(m, "state_s") > DOWN_AGENT_S)
			continue;
		++*ret_daemons;
		n += is_heard;
		if (is_heard || is_silent || !name)
			continue;
		/* make labels only for the first entries of `missing`, because making a label takes
		 * a scan of all members */
		if (json_array_size(missing) < SCREEN_MISSING_MAX)
			json_array_append_new(missing, member_label_json(root, m));
		else
			json_array_append_new(missing, json_string(name));
	}
	return n;
}

/* Add figures to `job`, an entry of the cluster's document. The figures are computed from the
 * workers in `detail`, the job's own document. */
static void job_add_worker_figures(json_t *job, json_t *detail)
{
	uint64_t rounds = 0, waiting = 0;
	double longest_s = 0;
	json_t *w, *workers = json_object_get(detail, "workers");
	size_t i;

	if (!json_array_size(workers))
		return;
	json_array_foreach (workers, i, w) {
		json_t *oldest = json_object_get(w, "oldest");

		if (cell_num(w, "completed") > rounds)
			rounds = cell_num(w, "completed");
		waiting += json_is_object(oldest);
		if (cell_sec(oldest, "s") > longest_s)
			longest_s = cell_sec(oldest, "s");
	}
	json_object_set_new(job, "rounds", json_integer((json_int_t)rounds));
	json_object_set_new(job, "calls_waiting", json_integer((json_int_t)waiting));
	json_object_set_new(job, "longest_s", json_real(longest_s));
}

/* Add "missing" and "collected" to the cluster's document. Call job_add_worker_figures for each job
 * whose details were requested. */
static void put_collection_summary(json_t *root, const struct job_details *d, uint64_t start_ms)
{
	json_t *missing = json_array(), *silent;
	size_t asked = 0, answered = 0, daemons, heard;

	for (size_t i = 0; i < d->n; i++) {
		json_t *agents = json_object_get(d->gets[i].root, "agents"), *a;
		char text[CTL_JOB_NAME_MAX + 16];
		size_t k;

		job_add_worker_figures(d->jobs[i], d->gets[i].root);
		if (d->gets[i].rc < 0) {
			snprintf(text, sizeof(text), "job %s", cell_str(d->jobs[i], "name").s);
			json_array_append_new(missing, json_string(text));
		}
		if (!cell_is(d->jobs[i], "state", "running"))
			continue;
		json_array_foreach (agents, k, a) {
			asked++;
			answered += json_is_true(json_object_get(a, "has_answered"));
		}
		append_missing_names(missing, json_object_get(d->gets[i].root, "missing"));
	}
	silent = json_copy(missing);
	/* the 1 counts the scheduler itself */
	heard = 1 + count_heard_members(root, silent, missing, &daemons);
	json_decref(silent);
	json_object_set_new(root, "missing", missing);
	json_object_set_new(root, "collected",
		json_pack("{s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "s",
			(double)(clock_now_ms() - start_ms) / 1e3, "jobs", (json_int_t)d->n,
			"asked", (json_int_t)asked, "answered", (json_int_t)answered, "not_asked",
			(json_int_t)d->not_asked, "daemons", (json_int_t)daemons + 1, "heard",
			(json_int_t)heard));
}

/* Get the cluster's document and the documents of its jobs. */
static int fetch_cluster_and_jobs(const struct addr *addr, bool has_forming, uint32_t timeout_ms,
	json_t **ret, struct job_details **ret_d, struct err_text *err)
{
	uint64_t start_ms = clock_now_ms();
	json_t *root = NULL;
	int rc;

	rc = fetch_path_within_ms(addr, "/status", timeout_ms, &root, err);
	if (rc < 0)
		return rc;
	*ret_d = calloc(1, sizeof(**ret_d));
	if (!*ret_d) {
		json_decref(root);
		return err_set(err, -ENOMEM, "out of memory");
	}
	if (cell_is(root, "role", "scheduler")) {
		uint32_t spent = (uint32_t)(clock_now_ms() - start_ms);

		job_details_fetch(*ret_d, addr, root, has_forming,
			spent < timeout_ms ? timeout_ms - spent : 0);
		put_collection_summary(root, *ret_d, start_ms);
	}
	*ret = root;
	return 0;
}

static int fetch_scheduler_and_jobs(const struct addr *addr, bool has_forming, uint32_t timeout_ms,
	json_t **ret, struct job_details **ret_d, struct err_text *err)
{
	int rc = fetch_cluster_and_jobs(addr, has_forming, timeout_ms, ret, ret_d, err);

	if (rc < 0)
		return rc;
	rc = scheduler_only(*ret, err);
	if (rc < 0) {
		json_decref(*ret);
		job_details_free(*ret_d);
	}
	return rc;
}

/* ---- documents ---- */

int fetch_status(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	struct job_details *d;
	int rc = fetch_cluster_and_jobs(&o->scheduler_http, false, ANSWER_MS, ret, &d, err);

	(void)arg;
	if (rc < 0)
		return rc;
	job_details_free(d);
	return 0;
}

static json_t *new_scheduler_document(json_t *cluster)
{
	json_t *o = json_pack("{s:i, s:s}", "schema", 1, "role", "scheduler");

	json_object_set(o, "view_text", json_object_get(cluster, "view_text"));
	return o;
}

static int fetch_members(
	const struct addr *addr, const char *role, json_t **ret, struct err_text *err)
{
	json_t *root = NULL, *list = json_array(), *m;
	int rc = fetch_path(addr, "/status", &root, err);
	size_t i;

	if (rc == 0)
		rc = scheduler_only(root, err);
	if (rc < 0) {
		json_decref(root);
		json_decref(list);
		return rc;
	}
	json_array_foreach (json_object_get(root, "members"), i, m)
		if (cell_is(m, "role", role))
			json_array_append(list, m);
	*ret = new_scheduler_document(root);
	json_object_set_new(*ret, "members", list);
	json_decref(root);
	return 0;
}

int fetch_servers(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	return fetch_members(&o->scheduler_http, "server", ret, err);
}

int fetch_agents(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	return fetch_members(&o->scheduler_http, "agent", ret, err);
}

int fetch_jobs(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	static const char *const keep[] = {"jobs", "ended", "missing", "collected"};
	json_t *root = NULL;
	struct job_details *d;
	int rc = fetch_scheduler_and_jobs(&o->scheduler_http, false, ANSWER_MS, &root, &d, err);

	(void)arg;
	if (rc < 0)
		return rc;
	*ret = new_scheduler_document(root);
	for (size_t i = 0; i < sizeof(keep) / sizeof(keep[0]); i++)
		json_object_set(*ret, keep[i], json_object_get(root, keep[i]));
	json_decref(root);
	job_details_free(d);
	return 0;
}

static int fetch_job_within_ms(const struct addr *addr, const char *name, uint32_t timeout_ms,
	json_t **ret, struct err_text *err)
{
	char escaped[3 * CTL_JOB_NAME_MAX + 1], path[sizeof(escaped) + 16];
	json_t *root = NULL;
	int rc;

	if (!http_escape(name, escaped, sizeof(escaped)))
		return err_set(
			err, BPS_ENOTFOUND, "there is no such job: the name is too long for a job");
	snprintf(path, sizeof(path), "/status?job=%s", escaped);
	rc = fetch_path_within_ms(addr, path, timeout_ms, &root, err);
	if (rc < 0)
		return rc;
	/* a daemon that is not the scheduler ignores "?job=NAME" in the path */
	if (!json_object_get(root, "job")) {
		rc = scheduler_only(root, err);
		json_decref(root);
		return rc < 0 ? rc
			      : err_set(err, BPS_EPROTO, "the scheduler's answer describes no job");
	}
	*ret = root;
	return 0;
}

int fetch_job(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	return fetch_job_within_ms(&o->scheduler_http, arg, ANSWER_MS, ret, err);
}

int fetch_agent(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	struct addr a;
	int rc = addr_parse(&a, arg, AGENT_HTTP, err);

	if (rc < 0)
		return -EINVAL;
	rc = fetch_path(&a, o->topology ? "/status?topology=1" : "/status", ret, err);
	if (rc < 0 || cell_is(*ret, "role", "agent"))
		return rc;
	err_set(err, -EINVAL,
		"the daemon at this address is a bps-%.32s, not an agent (the HTTP port of "
		"an agent is 7304, or the port that its --http sets)",
		cell_str(*ret, "role").s);
	json_decref(*ret);
	*ret = NULL;
	return -EINVAL;
}

int fetch_advice(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	json_t *job = NULL, *cluster = NULL;
	int rc = fetch_job(o, arg, &job, err);

	if (rc == 0)
		rc = fetch_path(&o->scheduler_http, "/status", &cluster, err);
	if (rc == 0)
		*ret = advice_about_job(job, cluster);
	json_decref(job);
	json_decref(cluster);
	return rc < 0 || *ret ? rc : err_set(err, -ENOMEM, "out of memory");
}

/* Return the fields of a trace that come before its events; NULL: the text is no trace. */
static json_t *parse_trace_head(const char *text)
{
	const char *events = strstr(text, ",\"traceEvents\":[");
	char *head = events ? strndup(text, (size_t)(events - text) + 1) : NULL;
	json_t *root;

	if (!head)
		return NULL;
	head[events - text] = '}';
	root = json_loads(head, 0, NULL);
	free(head);
	return root;
}

/* Explain why there is no trace of the job: the job has ended, or *err has the agent's reason.
 * Returns the error code. */
static int explain_missing_trace(
	const struct bpsctl_opts *o, const char *job, int rc, struct err_text *err)
{
	json_t *doc = NULL, *brief;
	struct err_text ignored;

	if (fetch_job(o, job, &doc, &ignored) < 0)
		return rc;
	brief = json_object_get(doc, "job");
	if (cell_is(brief, "state", "ended"))
		rc = err_set(err, BPS_ENOTFOUND,
			"job %.64s ended %s ago, and agents keep the rounds of a job only while it "
			"runs: `bpsctl job %.64s` shows how it ended; if it failed, the logs of "
			"its agents have its last steps",
			job, cell_time_span(cell_sec(brief, "state_s")).s, job);
	else if (rc == BPS_ENOTFOUND)
		err_set(err, rc,
			"this agent has no worker of job %.64s: --agent-http sets the address of "
			"another one (`bpsctl job %.64s` lists its machines, `bpsctl agents` the "
			"ports)",
			job, job);
	json_decref(doc);
	return rc;
}

/* Read the address of a member's HTTP server, as seen from the member's host. */
static bool read_http_address(json_t *member, struct addr *ret)
{
	const char *text = json_string_value(json_object_get(member, "http"));

	if (!text || addr_parse(ret, text, AGENT_HTTP, NULL) < 0)
		return false;
	if (strcmp(ret->host, "*") == 0)
		snprintf(ret->host, sizeof(ret->host), "127.0.0.1");
	return true;
}

/* Find the agents of this host that have workers of the job. Returns their number, and writes the
 * addresses to `text`. *ret: address of the first one; unchanged if there is none. */
static size_t find_agents_of_host(json_t *job, json_t *cluster, struct addr *ret, char text[256])
{
	char host[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES], where[ADDR_TEXT_BYTES];
	size_t i, k, n = 0, at = 0;
	struct addr a;
	json_t *agent, *m;

	machine_host_name(host, domain);
	json_array_foreach (json_object_get(job, "agents"), i, agent) {
		if (!cell_is(agent, "host", host))
			continue;
		json_array_foreach (json_object_get(cluster, "members"), k, m) {
			if (!cell_is(m, "role", "agent") ||
				!cell_is(m, "name", cell_str(agent, "name").s) ||
				!read_http_address(m, &a))
				continue;
			if (!n++)
				*ret = a;
			if (at < 150)
				at += (size_t)snprintf(text + at, 256 - at, "%s%.64s (agent %.40s)",
					at ? " or " : "", addr_format(&a, where),
					cell_str(m, "name").s);
		}
	}
	return n;
}

/* Find the agent of this host that has workers of the job. If the scheduler does not know one, *ret
 * stays. */
static int find_agent_of_job(
	const struct bpsctl_opts *o, const char *name, struct addr *ret, struct err_text *err)
{
	json_t *job = NULL, *cluster = NULL;
	struct err_text ignored;
	char text[256] = "";
	size_t n = 0;

	if (fetch_job(o, name, &job, &ignored) == 0 &&
		fetch_path(&o->scheduler_http, "/status", &cluster, &ignored) == 0)
		n = find_agents_of_host(job, cluster, ret, text);
	json_decref(job);
	json_decref(cluster);
	return n < 2 ? 0
		     : err_set(err, -EINVAL,
			       "several agents of this host have workers of the job: pass "
			       "--agent-http %s",
			       text);
}

int fetch_trace(const struct bpsctl_opts *o, const char *arg, char **ret_text, size_t *ret_n,
	json_t **ret_head, struct err_text *err)
{
	char escaped[3 * CTL_JOB_NAME_MAX + 1];
	struct http_get g = {.is_text = true};
	struct addr agent = o->agent_http;
	int rc = o->is_agent_given ? 0 : find_agent_of_job(o, arg, &agent, err);

	if (rc < 0)
		return rc;
	if (!http_escape(arg, escaped, sizeof(escaped)))
		return err_set(
			err, BPS_ENOTFOUND, "there is no such job: the name is too long for a job");
	snprintf(g.path, sizeof(g.path), "/status?trace=%s", escaped);
	http_get_all(&agent, &g, 1, TRACE_MS);
	rc = g.text ? 0 : http_get_extract_document(&g, ret_head, err);
	if (rc == BPS_ENOSCHED)
		err_set(err, rc,
			"no agent answers at %.80s:%u (--agent-http sets the address of this "
			"host's agent; `bpsctl agents` shows the ports)",
			agent.host, agent.port);
	if (rc < 0)
		return explain_missing_trace(o, arg, rc, err);
	*ret_head = g.text ? parse_trace_head(g.text) : NULL;
	if (*ret_head) {
		*ret_text = g.text;
		*ret_n = g.n_text;
		return 0;
	}
	free(g.text);
	return err_set(err, -EINVAL,
		"the daemon at %.80s:%u is not an agent (--agent-http sets the address of this "
		"host's agent)",
		agent.host, agent.port);
}

static int stuck_of_scheduler(
	const struct addr *addr, const char *name, json_t **ret, struct err_text *err)
{
	json_t *root = NULL, *jobs;
	struct job_details *d;
	int rc;

	if (*name) {
		rc = fetch_job_within_ms(addr, name, STUCK_MS, &root, err);
		if (rc < 0)
			return rc;
		*ret = new_scheduler_document(root);
		json_object_set(*ret, "missing", json_object_get(root, "missing"));
		json_object_set_new(*ret, "jobs", json_pack("[o]", root));
		return 0;
	}
	rc = fetch_scheduler_and_jobs(addr, true, STUCK_MS, &root, &d, err);
	if (rc < 0)
		return rc;
	jobs = json_array();
	for (size_t i = 0; i < d->n; i++)
		if (json_object_get(d->gets[i].root, "job"))
			json_array_append(jobs, d->gets[i].root);
	*ret = new_scheduler_document(root);
	json_object_set(*ret, "missing", json_object_get(root, "missing"));
	json_object_set(*ret, "collected", json_object_get(root, "collected"));
	json_object_set_new(*ret, "jobs", jobs);
	json_decref(root);
	job_details_free(d);
	return 0;
}

/* ---- the agent of this host, while the scheduler is silent ---- */

static bool is_document_of_job(json_t *doc, const char *name)
{
	json_t *job = json_object_get(doc, "job");
	char number[32];

	snprintf(number, sizeof(number), "#%" PRIu64, cell_num(job, "id"));
	return cell_is(job, "name", name) || strcmp(name, number) == 0 ||
	       strcmp(name, number + 1) == 0;
}

/* Remove all jobs from the document except those with this name or number. Returns whether any job
 * is left. */
static bool keep_only_named_job(json_t *root, const char *name)
{
	json_t *jobs = json_array(), *doc;
	size_t i;

	json_array_foreach (json_object_get(root, "jobs"), i, doc)
		if (is_document_of_job(doc, name))
			json_array_append(jobs, doc);
	json_object_set_new(root, "jobs", jobs);
	return json_array_size(jobs) > 0;
}

/* Get the wait report from the agent of this host. why: the scheduler's error; if the agent does
 * not answer either, the agent's error is appended. */
static int stuck_of_agent(
	const struct addr *addr, const char *name, json_t **ret, struct err_text *why)
{
	struct err_text err = {""}, silent = *why;
	json_t *root = NULL;

	if (fetch_path_within_ms(addr, "/status?waits=1", AGENT_MS, &root, &err) < 0)
		return err_set(why, BPS_ENOSCHED,
			"%.300s; and no agent answers at %.80s:%u (--agent-http sets this "
			"address)",
			silent.s, addr->host, addr->port);
	if (!cell_is(root, "role", "agent") || !json_object_get(root, "jobs") ||
		(*name && !keep_only_named_job(root, name))) {
		json_decref(root);
		return err_set(why, BPS_ENOSCHED, "%.300s; the agent at %.80s:%u has no such job",
			silent.s, addr->host, addr->port);
	}
	json_object_set_new(root, "scheduler_error", json_string(silent.s));
	*ret = root;
	return 0;
}

int fetch_stuck(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	int rc = stuck_of_scheduler(&o->scheduler_http, arg, ret, err);

	if (rc != BPS_ENOSCHED && rc != BPS_ETIMEDOUT)
		return rc;
	return stuck_of_agent(&o->agent_http, arg, ret, err);
}
