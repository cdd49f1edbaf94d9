#include "bps-agent/quota/quota_report.h"

#include "common/daemon/jsontext.h"
#include "common/daemon/metrics.h"

/* Write one sample of a metric for each limit that has a setting: the refused requests, or the
 * largest used share. */
static void quota_write_samples(
	struct evbuffer *out, const char *name, const struct quota_view *v, bool is_refused)
{
	for (unsigned s = 0; s < QUOTA_SCOPES; s++) {
		for (unsigned k = 0; k < QUOTA_KINDS; k++) {
			const char *setting =
				quota_setting_name((enum quota_scope)s, (enum quota_kind)k);

			if (setting)
				metric_append_value(out, name,
					is_refused ? (double)v->refused[s][k] : v->fullest[s][k],
					"quota", setting, NULL);
		}
	}
}

void quota_write_metrics(const struct quota_view *v, struct evbuffer *out)
{
	metric_append_header(out, "bps_agent_quota_used_ratio",
		"largest share of its limit that a job, a user or the machine uses");
	quota_write_samples(out, "bps_agent_quota_used_ratio", v, false);
	metric_append_header(
		out, "bps_agent_quota_refused_total", "requests that exceeded a limit");
	quota_write_samples(out, "bps_agent_quota_refused_total", v, true);
	metric_append_value(out, "bps_agent_quota_refused_total", (double)v->hopeless, "quota",
		"user-requests", NULL);
	metric_append_single(out, "bps_agent_requests_slowed_total",
		"trainers' requests that were delayed by their user's rate limit",
		(double)v->slowed);
}

static json_t *quota_row_to_json(const struct quota_view *v, const struct quota_row *r)
{
	json_t *o = json_object();

	if (r->scope != QUOTA_MACHINE) {
		json_object_set_new(o, "uid", json_integer((json_int_t)r->uid));
		json_object_set_new(o, "user", json_text_sanitized(r->user));
	}
	if (r->scope == QUOTA_JOB)
		json_object_set_new(o, "job", json_text_sanitized(r->job));
	for (unsigned k = 0; k < QUOTA_KINDS; k++) {
		uint64_t limit = v->limits.of[r->scope][k];

		json_object_set_new(o, quota_kind_name((enum quota_kind)k),
			json_pack("{s:I, s:I}", "used", (json_int_t)r->used[k], "limit",
				(json_int_t)limit));
	}
	json_object_set_new(o, "refused", json_integer((json_int_t)r->refused));
	if (r->scope == QUOTA_USER)
		json_object_set_new(o, "slowed", json_integer((json_int_t)r->slowed));
	return o;
}

json_t *quota_view_to_json(const struct quota_view *v)
{
	json_t *o = json_object(), *lists[QUOTA_SCOPES];

	for (unsigned s = 0; s < QUOTA_SCOPES; s++) {
		lists[s] = json_array();
		json_object_set_new(o, quota_scope_name((enum quota_scope)s), lists[s]);
	}
	for (uint32_t i = 0; i < v->n_rows; i++)
		json_array_append_new(lists[v->rows[i].scope], quota_row_to_json(v, &v->rows[i]));
	json_object_set_new(o, "left_out", json_integer((json_int_t)v->n_left_out));
	json_object_set_new(
		o, "requests_per_s", json_integer((json_int_t)v->limits.requests_per_s));
	return o;
}
