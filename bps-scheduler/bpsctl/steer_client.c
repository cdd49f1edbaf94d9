/* Sends requests to the scheduler's control port (steer_client.h): loads keys, connects, sends the
 * request and receives the answer. The caller chooses the address and prints the result. The
 * functions block for a limited time; any thread may call them. */
#include "bps-scheduler/bpsctl/steer_client.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <event2/event.h>

#include "common/control/ctlchan.h"
#include "common/wire/ctlmsg.h"

#define BOUND_MS   2000
#define NAME_BYTES (CTL_NAME_MAX + 1)

/* A request in progress. When is_over is set, rc has the result. If rc is 0, msg has the
 * scheduler's answer. Otherwise err has the reason. */
struct steer_request {
	const struct steer_conf *conf;
	struct event_base *base;
	struct ctlchan *chan; /* connection to the scheduler; NULL once it is closed */
	struct ctl_steer steer;
	struct ctl_steer_arg args[CTL_STEER_ARGS_MAX];
	char user[NAME_BYTES], host[NAME_BYTES];
	struct ctl_msg msg;
	void *mem;
	bool is_over;
	int rc;
	struct err_text *err;
};

static void steer_request_finish(struct steer_request *call, int rc)
{
	call->is_over = true;
	call->rc = rc;
	event_base_loopbreak(call->base);
}

static void on_steer_chan_opened(void *arg, struct ctlchan *chan)
{
	struct steer_request *call = arg;
	const struct layout *layout = ctl_layout(CTL_STEER);
	size_t n = codec_encoded_size(layout, &call->steer);
	void *buf = n ? malloc(n) : NULL;
	int rc = n ? -ENOMEM : -EMSGSIZE;

	if (buf) {
		codec_encode(layout, &call->steer, buf);
		rc = ctlchan_send(chan, CTL_STEER, buf, n);
	}
	free(buf);
	if (rc == -EMSGSIZE)
		err_set(call->err, rc,
			"cannot send the request to the scheduler: %s (allowed: at most %d "
			"characters in a user or host name, %d in an argument)",
			err_str(rc), CTL_NAME_MAX, CTL_STEER_VALUE_MAX);
	else if (rc < 0)
		err_set(call->err, rc, "cannot send the request to the scheduler: %s", err_str(rc));
	if (rc < 0)
		steer_request_finish(call, rc);
}

static void on_steer_answer_frame(
	void *arg, struct ctlchan *chan, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct steer_request *call = arg;
	int rc = BPS_EPROTO;

	(void)chan;
	if (call->is_over)
		return;
	if (type == CTL_STEERED)
		rc = ctl_decode(type, body, n_body, &call->msg, &call->mem, call->err);
	else
		err_set(call->err, rc, "the scheduler's answer is not the message STEERED");
	steer_request_finish(call, rc);
}

static void on_steer_chan_closed(void *arg, struct ctlchan *chan, const char *reason)
{
	struct steer_request *call = arg;
	char text[ADDR_TEXT_BYTES];

	(void)chan;
	call->chan = NULL;
	if (call->is_over)
		return;
	steer_request_finish(call,
		err_set(call->err, BPS_ENOSCHED,
			"the scheduler's control port %s does not answer: %s (--scheduler sets "
			"another address)",
			addr_format(&call->conf->scheduler, text), reason));
}

static const struct ctlchan_ops ops = {
	on_steer_chan_opened, on_steer_answer_frame, on_steer_chan_closed};

const char *steer_key_path(const struct steer_conf *conf)
{
	return *conf->auth.key_file ? conf->auth.key_file : STEER_KEY_FILE;
}

int steer_load_keyring(
	const struct steer_conf *conf, struct keyring *ret_ring, struct err_text *err)
{
	int rc;

	if (conf->auth.kind == AUTH_CERT)
		return err_set(err, -EINVAL,
			"this command needs the cluster key, but with auth = cert there is none");
	rc = keyring_load(ret_ring, conf->auth.key_file, err);
	if (rc != 0 || *conf->auth.key_file)
		return rc;
	return access(STEER_KEY_FILE, F_OK) == 0 ? keyring_load(ret_ring, STEER_KEY_FILE, err) : 0;
}

static void steer_request_set_user(struct steer_request *call)
{
	const struct passwd *pw = getpwuid(getuid());

	if (pw)
		snprintf(call->user, sizeof(call->user), "%s", pw->pw_name);
	else
		snprintf(call->user, sizeof(call->user), "uid%u", (unsigned)getuid());
	if (gethostname(call->host, sizeof(call->host)) < 0)
		snprintf(call->host, sizeof(call->host), "?");
	call->host[sizeof(call->host) - 1] = '\0';
	call->steer.uid = getuid();
	call->steer.user = call->user;
	call->steer.host = call->host;
}

static int steer_request_exchange(struct steer_request *call, struct tls *tls)
{
	struct timeval bound = {BOUND_MS / 1000, BOUND_MS % 1000 * 1000L};
	char text[ADDR_TEXT_BYTES];
	struct sockaddr_storage sa;
	socklen_t len;
	int rc = addr_resolve_host(&call->conf->scheduler, &sa, &len, call->err);

	call->is_over = false;
	if (rc < 0)
		return rc;
	rc = ctlchan_connect(&call->chan, call->base, (struct sockaddr *)&sa, len, tls, BOUND_MS,
		&ops, call, call->err);
	if (rc < 0)
		return rc;
	event_base_loopexit(call->base, &bound);
	event_base_dispatch(call->base);
	if (!call->is_over)
		call->rc = err_set(call->err, BPS_ETIMEDOUT,
			"the scheduler's control port %s did not answer within %d s",
			addr_format(&call->conf->scheduler, text), BOUND_MS / 1000);
	ctlchan_free(call->chan);
	call->chan = NULL;
	return call->rc;
}

/* Store the scheduler's answer in the caller's variables. */
static int steer_answer_store(const struct ctl_steered *m, struct err_text *ret_text,
	json_t **ret_json, struct err_text *err)
{
	int rc = m->code && m->code <= INT32_MAX ? -(int)m->code : m->code ? BPS_EPROTO : 0;
	json_error_t je;

	if (rc < 0)
		return err_set(err, rc, "%s", m->text);
	if (ret_json) {
		*ret_json = *m->json ? json_loads(m->json, JSON_REJECT_DUPLICATES, &je) : NULL;
		if (*m->json && !*ret_json)
			return err_set(
				err, BPS_EPROTO, "the scheduler's answer is not JSON: %s", je.text);
	}
	err_set(ret_text, 0, "%s", m->text);
	return 0;
}

static int steer_request_add_args(
	struct steer_request *call, const struct steer_arg *args, size_t n_args)
{
	struct ctl_steer *s = &call->steer;

	for (size_t i = 0; i < n_args; i++) {
		if (!*args[i].value)
			continue;
		if (s->n_args == CTL_STEER_ARGS_MAX)
			return err_set(call->err, -E2BIG, "the request has more than %d arguments",
				CTL_STEER_ARGS_MAX);
		call->args[s->n_args++] = (struct ctl_steer_arg){args[i].name, args[i].value};
	}
	s->args = call->args;
	return 0;
}

/* Send the request with one key of `auth`. `which`: index of that key. If `auth` is NULL, send the
 * request without a key. */
static int steer_request_send_with_key(
	struct steer_request *call, const struct tls_conf *auth, unsigned which)
{
	const char *as = *call->conf->as ? call->conf->as : call->user;
	char identity[TLS_IDENTITY_BYTES];
	struct tls *tls = NULL;
	int rc = 0;

	snprintf(identity, sizeof(identity), "ctl:%s", as);
	if (auth)
		rc = tls_new_client(&tls, auth, which, auth->cert ? "ctl:" : identity, call->err);
	if (rc == 0)
		rc = steer_request_exchange(call, tls);
	tls_free(tls);
	return rc;
}

/* Send the request with the current key. If that fails, try the previous key, because the scheduler
 * may not have read the current key yet. */
static int steer_request_try_keys(struct steer_request *call, const struct tls_conf *auth)
{
	int rc = BPS_ENOSCHED;

	if (tls_conf_is_empty(auth) || auth->cert)
		return steer_request_send_with_key(call, auth->cert ? auth : NULL, 0);
	for (unsigned i = 0; rc == BPS_ENOSCHED && i < auth->keys.n_keys; i++)
		rc = steer_request_send_with_key(call, auth, i);
	return rc;
}

int steer_call(const struct steer_conf *conf, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	bool *ret_is_answer, struct err_text *err)
{
	struct steer_request call = {.conf = conf, .err = err};
	struct tls_conf auth = {.keys.n_keys = 0};
	int rc;

	call.steer.verb = verb;
	call.steer.target = target;
	steer_request_set_user(&call);
	if (ret_is_answer)
		*ret_is_answer = false;
	rc = steer_request_add_args(&call, args, n_args);
	if (rc < 0)
		return rc;
	rc = conf->auth.kind == AUTH_CERT ? auth_load(&auth, &conf->auth, err)
					  : steer_load_keyring(conf, &auth.keys, err);
	if (rc >= 0) {
		call.base = event_base_new();
		rc = call.base ? steer_request_try_keys(&call, &auth)
			       : err_set(err, -ENOMEM, "out of memory");
	}
	if (ret_is_answer)
		*ret_is_answer = rc == 0;
	if (rc == 0)
		rc = steer_answer_store(&call.msg.steered, ret_text, ret_json, err);
	if (call.base)
		event_base_free(call.base);
	keyring_wipe(&auth.keys);
	free(call.mem);
	return rc;
}
