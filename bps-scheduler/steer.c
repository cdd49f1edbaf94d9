/* Implements the verbs, which are the commands of operators (steer.h). Contains the table of verbs,
 * the check of whether the caller may use them, and one function for each verb. The functions
 * change the core at once and never wait. All functions run on the core's thread. */
#include "bps-scheduler/steer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/placement/drain.h"
#include "bps-scheduler/status/status_impl.h"
#include "common/base/nearest_name.h"
#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/log.h"
#include "common/control/ctlchan.h"

typedef int verb_fn(struct steer *s, const struct steer_call *call, struct steer_reply *reply);

/* Return the value of an argument, or "" if the request does not have it. The value belongs to the
 * message. */
static const char *steer_arg_value(const struct steer_call *call, const char *name)
{
	for (uint32_t i = 0; i < call->msg->n_args; i++)
		if (strcmp(call->msg->args[i].name, name) == 0)
			return call->msg->args[i].value;
	return "";
}

/* ---- verbs ---- */

/* Find the forming or running job whose name or id is `name`. Returns an error if several users
 * have a job of this name. */
static int find_unended_job(
	const struct sched_core *c, const char *name, uint32_t *ret_job, struct err_text *err)
{
	const struct sched_job *found = NULL;

	for (const struct sched_job *j = c->jobs; j; j = j->next) {
		if (strcmp(j->name, name) != 0)
			continue;
		if (found)
			return err_set(err, -EINVAL,
				"several users have a job '%s': use the number #%u (uid %u) or "
				"#%u (uid %u)",
				name, found->id, found->uid, j->id, j->uid);
		found = j;
	}
	*ret_job = found ? found->id : status_find_job(c, name);
	if (sched_job_by_id(c, *ret_job))
		return 0;
	return err_set(err, BPS_ENOTFOUND,
		*ret_job ? "job '%s' has already ended" : "there is no forming or running job '%s'",
		name);
}

static int steer_run_job_kill(
	struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	const char *reason = steer_arg_value(call, "reason");
	struct err_text text;
	uint32_t job = 0;
	int rc = find_unended_job(s->core, call->target, &job, &reply->text);

	if (rc < 0)
		return rc;
	err_set(&text, 0, "killed by %s%s%s", call->who, *reason ? ": " : "", reason);
	rc = sched_job_kill(s->core, job, text.s, call->now_ns);
	if (rc == 0)
		return err_set(&reply->text, 0, "job '%s' has ended: %s", call->target, text.s);
	return err_set(&reply->text, rc,
		"the scheduler cannot write its state; see its log, and try again");
}

/* Write the error text for a code that the scheduler does not report. */
static int set_unknown_code_error(const char *code, struct err_text *err)
{
	struct nearest_name best = NEAREST_NONE;
	char hint[NEAREST_HINT_BYTES];

	for (const struct explanation *e = explanations; e->code; e++)
		if (e->reporter & BY_SCHEDULER)
			nearest_name_try(&best, code, e->code);
	return err_set(err, -EINVAL,
		"there is no problem code '%s'%s; `bpsctl explain` lists all codes", code,
		nearest_name_hint(&best, "", hint));
}

static int steer_run_mute(struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	const char *span = steer_arg_value(call, "duration");
	uint64_t ms = *span ? duration_parse_ms(span, MUTE_SPAN_MAX_MS) : MUTE_DEFAULT_MS;
	int rc;

	if (!explanation_find(call->target))
		return set_unknown_code_error(call->target, &reply->text);
	if (!ms)
		return err_set(&reply->text, -EINVAL,
			"'%s' is not a duration from 1ms to 90d, such as 30min, 4h or 2d", span);
	rc = sched_mute(s->core, call->target, ms, steer_arg_value(call, "reason"), call->who,
		call->now_ns);
	if (rc == BPS_EQUOTA)
		return err_set(&reply->text, rc,
			"%u codes are muted, which is the limit: unmute one first", MUTES_MAX);
	if (rc < 0)
		return err_set(&reply->text, rc,
			"the problem is muted now, but the scheduler cannot store the mute; see "
			"its log");
	return err_set(
		&reply->text, 0, "%s is muted for %.1f h", call->target, (double)ms / 3600e3);
}

static int steer_run_unmute(
	struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	int rc = sched_unmute(s->core, call->target, call->now_ns);

	if (rc == BPS_ENOTFOUND && !explanation_find(call->target))
		return set_unknown_code_error(call->target, &reply->text);
	if (rc == BPS_ENOTFOUND)
		return err_set(&reply->text, 0, "%s is not muted", call->target);
	if (rc < 0)
		return err_set(&reply->text, rc,
			"the problem is unmuted now, but the scheduler cannot store this change; "
			"see its log");
	return err_set(&reply->text, 0, "%s is unmuted", call->target);
}

static int steer_run_drain(
	struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	return sched_drain(s->core, call->target, steer_arg_value(call, "reason"), call->who,
		call->now_ns, &reply->text);
}

static int steer_run_drain_preview(
	struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	return drain_preview(s->core, call->target, &reply->text);
}

static int steer_run_undrain(
	struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	return sched_undrain(s->core, call->target, call->now_ns, &reply->text);
}

/* Report the state of a drain, for bpsctl drain --wait. */
static int steer_run_drain_status(
	struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	struct sched_member *m = NULL;
	int rc = drain_find_member(s->core, call->target, &m, &reply->text);
	uint64_t n;

	if (rc < 0)
		return rc;
	n = drain_count_parts(s->core, m);
	reply->json = json_pack("{s:s, s:s, s:s, s:b, s:I}", "role", sched_role_name(m->role),
		"name", m->name, "state", sched_member_state_name(m->state), "is_drained",
		m->is_drained, "partitions", (json_int_t)n);
	return err_set(&reply->text, 0, "%s %s has %llu partitions", sched_role_name(m->role),
		m->name, (unsigned long long)n);
}

static const struct verb {
	const char *name;
	bool wants_target;
	/* the verb changes the scheduler's state, so each call is recorded as an event */
	bool changes;
	const char *args[4];
	verb_fn *run;
} verbs[] = {
	{"drain", true, true, {"reason"}, steer_run_drain},
	{"drain preview", true, false, {NULL}, steer_run_drain_preview},
	{"drain status", true, false, {NULL}, steer_run_drain_status},
	{"job kill", true, true, {"reason"}, steer_run_job_kill},
	{"key status", false, false, {NULL}, keys_status},
	{"key reload", false, true, {NULL}, keys_reload},
	{"mute", true, true, {"duration", "reason"}, steer_run_mute},
	{"undrain", true, true, {NULL}, steer_run_undrain},
	{"unmute", true, true, {NULL}, steer_run_unmute},
};
#define N_VERBS (sizeof(verbs) / sizeof(verbs[0]))

/* ---- requests ---- */

static bool is_operator_channel(const struct ctlchan *chan, struct err_text *err)
{
	const char *identity = ctlchan_identity(chan);

	if (!*identity || strncmp(identity, "ctl:", 4) == 0)
		return true;
	err_set(err, BPS_EAUTH,
		"the key of %s does not allow commands: use a key from "
		"`bpsctl key derive ctl:NAME`",
		identity);
	return false;
}

/* Return whether the text has no control characters, so that it can be shown in logs and on
 * screens. */
static bool is_printable_text(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < ' ' || *s == 0x7f)
			return false;
	return true;
}

static bool is_request_printable(const struct ctl_steer *msg)
{
	for (uint32_t i = 0; i < msg->n_args; i++)
		if (!is_printable_text(msg->args[i].name) || !is_printable_text(msg->args[i].value))
			return false;
	return is_printable_text(msg->verb) && is_printable_text(msg->target) &&
	       is_printable_text(msg->user) && is_printable_text(msg->host);
}

static bool verb_has_argument(const struct verb *v, const char *name)
{
	for (size_t i = 0; i < sizeof(v->args) / sizeof(v->args[0]) && v->args[i]; i++)
		if (strcmp(v->args[i], name) == 0)
			return true;
	return false;
}

static int check_verb_arguments(
	const struct verb *v, const struct ctl_steer *msg, struct err_text *err)
{
	for (uint32_t i = 0; i < msg->n_args; i++)
		if (!verb_has_argument(v, msg->args[i].name))
			return err_set(err, -EINVAL, "'%s' takes no argument '%s'", v->name,
				msg->args[i].name);
	if (v->wants_target != (*msg->target != '\0'))
		return err_set(err, -EINVAL, "'%s' %s", v->name,
			v->wants_target ? "needs an argument" : "takes no argument");
	return 0;
}

static const struct verb *find_steer_verb(const char *name)
{
	for (size_t i = 0; i < N_VERBS; i++)
		if (strcmp(verbs[i].name, name) == 0)
			return &verbs[i];
	return NULL;
}

/* Record a call and its result as an event and in the log. The text is like "alice (uid 1000) on
 * login1: job kill mnist: RESULT". */
static void record_steer_event(struct steer *s, const struct steer_call *call, const char *identity,
	int rc, const char *result)
{
	struct err_text text;

	err_set(&text, 0, "%s: %s%s%s: %s%s", call->who, call->msg->verb, *call->target ? " " : "",
		call->target, rc < 0 ? "refused: " : "", result);
	log_limited(LOG_AS(LOG_INFO, STEERED), "operator's command: %s identity=%s", text.s,
		*identity ? identity : "none");
	events_add(s->events,
		&(struct sched_event){EVENT_STEER, sched_current_view(s->core), text.s},
		clock_unix_seconds());
}

static int steer_run_request(struct steer *s, const struct ctlchan *chan,
	const struct ctl_steer *msg, uint64_t now_ns, struct steer_reply *reply)
{
	const struct verb *v = find_steer_verb(msg->verb);
	char who[STEER_WHO_BYTES];
	struct steer_call call = {msg, msg->target, who, ctlchan_has_master(chan), now_ns};
	int rc;

	if (!is_operator_channel(chan, &reply->text))
		return BPS_EAUTH;
	if (!is_request_printable(msg))
		return err_set(&reply->text, -EINVAL, "the request contains control characters");
	if (!v)
		return err_set(&reply->text, -ENOTSUP,
			"this scheduler (release %s) has no command '%s'", BPS_VERSION, msg->verb);
	rc = check_verb_arguments(v, msg, &reply->text);
	if (rc < 0)
		return rc;
	snprintf(who, sizeof(who), "%s (uid %u) on %s", msg->user, msg->uid, msg->host);
	rc = v->run(s, &call, reply);
	if (v->changes)
		record_steer_event(s, &call, ctlchan_identity(chan), rc, reply->text.s);
	return rc;
}

/* Send STEERED, the answer to STEER. Returns false if the message cannot be encoded. */
static bool steer_send_answer(struct ctlchan *chan, int rc, const char *text, const char *json)
{
	struct ctl_steered msg = {rc < 0 ? (uint32_t)-rc : 0, text, json};
	const struct layout *layout = ctl_layout(CTL_STEERED);
	size_t n = codec_encoded_size(layout, &msg);
	void *buf = n ? malloc(n) : NULL;

	if (!buf)
		return false;
	codec_encode(layout, &msg, buf);
	ctlchan_send(chan, CTL_STEERED, buf, n); /* the send fails only if chan is already closed */
	free(buf);
	return true;
}

void steer_receive_request(
	struct steer *s, struct ctlchan *chan, const struct ctl_steer *msg, uint64_t now_ns)
{
	struct steer_reply reply = {.json = NULL};
	int rc = steer_run_request(s, chan, msg, now_ns, &reply);
	char *json = reply.json ? json_dumps(reply.json, JSON_COMPACT) : NULL;

	if (rc == BPS_EAUTH)
		log_rated(LOG_WARN, "rejected an operator's command: %s peer=%s", reply.text.s,
			ctlchan_peer_address(chan));
	if (!steer_send_answer(chan, rc, reply.text.s, json))
		steer_send_answer(chan, rc, reply.text.s, NULL);
	ctlchan_close(chan, "steered");
	free(json);
	json_decref(reply.json);
}
