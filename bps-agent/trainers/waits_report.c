/* Describes the waiting calls of this machine's workers (waits_report.h). The functions read jobs,
 * but do not change them. Thread: the data thread. */
#include "bps-agent/trainers/waits_report.h"

#include "bps-agent/trainers/why_stuck.h"
#include "common/base/clock.h"
#include "common/daemon/jsontext.h"

static void json_set_integer(json_t *o, const char *key, uint64_t v)
{
	json_object_set_new(o, key, json_integer((json_int_t)v));
}

static double elapsed_seconds(uint64_t since_ns, uint64_t now_ns)
{
	return now_ns > since_ns ? (double)(now_ns - since_ns) / 1e9 : 0;
}

static json_t *waits_worker_to_json(const struct agent *a, uint32_t rank, const struct trainer *t)
{
	json_t *o = json_object();

	json_set_integer(o, "rank", rank);
	json_object_set_new(o, "host", json_text_sanitized(a->cfg.host));
	if (t)
		json_set_integer(o, "pid", (uint64_t)t->pid);
	json_object_set_new(o, "attached", json_boolean(t != NULL));
	return o;
}

static json_t *waits_wait_to_json(const char *why, const char *tensor, uint64_t round, double s,
	json_t *waiting, json_t *missing)
{
	json_t *o = json_object();

	json_object_set_new(o, "why", json_string(why));
	json_object_set_new(o, "tensor", tensor ? json_text_sanitized(tensor) : json_null());
	json_set_integer(o, "round", round);
	json_object_set_new(o, "s", json_real(s));
	json_set_integer(o, "n_waiting", json_array_size(waiting));
	json_set_integer(o, "n_missing", json_array_size(missing));
	json_object_set_new(o, "waiting", waiting);
	json_object_set_new(o, "missing", missing);
	return o;
}

static json_t *waits_describe_join(const struct agent *a, const struct job *job, uint64_t now_ns)
{
	json_t *waiting = json_array();
	const struct trainer *t;
	uint64_t since_ns = now_ns;

	TAILQ_FOREACH (t, &job->trainers, of_job) {
		json_array_append_new(waiting, waits_worker_to_json(a, t->rank, t));
		if (t->quiet_since_ns < since_ns)
			since_ns = t->quiet_since_ns;
	}
	return waits_wait_to_json(
		"join", NULL, 0, elapsed_seconds(since_ns, now_ns), waiting, json_array());
}

static void waits_append_late_worker(json_t *missing, const struct agent *a, const struct job *job,
	uint32_t w, uint64_t submitted, uint64_t now_ns)
{
	const struct trainer *t = job->by_worker[w];
	json_t *o = waits_worker_to_json(a, job->ranks[w], t);

	json_set_integer(o, "submitted", submitted);
	json_object_set_new(
		o, "quiet_s", json_real(t ? elapsed_seconds(t->quiet_since_ns, now_ns) : 0));
	json_array_append_new(missing, o);
}

/* Describe the wait for the tensor's next round. Returns NULL if no worker waits for this round. */
static json_t *waits_describe_round(
	const struct agent *a, const struct tensor *tensor, uint64_t now_ns)
{
	uint64_t done = tensor->core ? agt_tensor_round(tensor->core) : 0, since_ns = now_ns;
	json_t *waiting = json_array(), *missing = json_array();
	const struct job *job = tensor->job;

	for (uint32_t w = 0; w < job->n_workers; w++) {
		const struct tensor_worker *tw = &tensor->workers[w];

		if (tw->submitted <= done) {
			waits_append_late_worker(missing, a, job, w, tw->submitted, now_ns);
			continue;
		}
		json_array_append_new(
			waiting, waits_worker_to_json(a, job->ranks[w], job->by_worker[w]));
		if (tw->since_ns < since_ns)
			since_ns = tw->since_ns;
	}
	if (!json_array_size(waiting)) {
		json_decref(waiting);
		json_decref(missing);
		return NULL;
	}
	return waits_wait_to_json(json_array_size(missing) ? "submit" : "elsewhere", tensor->name,
		done + 1, elapsed_seconds(since_ns, now_ns), waiting, missing);
}

static json_t *waits_job_to_json(const struct agent *a, const struct job *job, uint64_t now_ns)
{
	json_t *o = json_object(), *head = json_object(), *waits = json_array();
	char condition[CTL_TEXT_MAX + 1] = "";
	const struct tensor *tensor;

	json_object_set_new(head, "name", json_text_sanitized(job->name));
	json_set_integer(head, "id", job->id);
	json_set_integer(head, "uid", job->uid);
	json_object_set_new(
		head, "state", json_string(job->state == JOB_FORMING ? "forming" : "running"));
	json_set_integer(head, "size", job->size);
	if (job->state == JOB_FORMING)
		json_array_append_new(waits, waits_describe_join(a, job, now_ns));
	else
		TAILQ_FOREACH (tensor, &job->tensors, link) {
			json_t *wait = json_array_size(waits) < WAITS_MAX
					       ? waits_describe_round(a, tensor, now_ns)
					       : NULL;

			if (wait)
				json_array_append_new(waits, wait);
		}
	why_stuck_describe(a, job, CTL_NO_ID, now_ns, condition, sizeof(condition));
	json_object_set_new(o, "job", head);
	json_object_set_new(o, "waits", waits);
	json_object_set_new(o, "condition", json_text_sanitized(condition));
	return o;
}

json_t *waits_report_to_json(const struct agent *a)
{
	uint64_t now_ns = clock_now_ns();
	json_t *list = json_array();
	const struct job *job;

	TAILQ_FOREACH (job, &a->jobs, link)
		if (job->state != JOB_ENDED)
			json_array_append_new(list, waits_job_to_json(a, job, now_ns));
	return list;
}
