/* Implements the verbs about keys (steer.h): report which member uses which key, and read the key
 * file again. All functions run on the control loop's thread. */
#include "bps-scheduler/steer.h"

#include <string.h>

#include "bps-scheduler/status/status_impl.h"
#include "common/control/ctlchan.h"

#define STATUS_MEMBERS_MAX 2048 /* largest number of members in one reply */

/* Fingerprints of the current and the previous key. */
struct prints {
	char s[KEYRING_KEYS][KEY_PRINT_BYTES];
	unsigned n;
};
static const char *const words[KEYRING_KEYS] = {"current", "previous"};

static void fill_key_fingerprints(const struct steer *s, struct prints *ret)
{
	const struct keyring *keys = &s->auth->keys;

	ret->n = 0;
	while (ret->n < keys->n_keys && ret->n < KEYRING_KEYS &&
		key_fingerprint(&keys->key[ret->n], ret->s[ret->n]) == 0)
		ret->n++;
}

static const char *member_key_fingerprint(const struct steer *s, const struct sched_member *m)
{
	const struct ctlchan *chan = m->conn ? s->chan(s->ctx, m->conn->id) : NULL;

	if (!chan)
		return "";
	return s->auth->cert ? ctlchan_fingerprint(chan) : ctlchan_master(chan);
}

/* Return a word for the key that a member uses: "current" or "previous" for a key of this
 * scheduler; "dropped" for an older key; "certificate"; "none" in a cluster without a key; "away"
 * if the member is not connected. */
static const char *member_key_word(
	const struct steer *s, const struct prints *p, const struct sched_member *m)
{
	const char *print = member_key_fingerprint(s, m);

	for (unsigned i = 0; i < p->n && i < KEYRING_KEYS; i++)
		if (strcmp(p->s[i], print) == 0)
			return words[i];
	return !m->conn ? "away" : s->auth->cert ? "certificate" : *print ? "dropped" : "none";
}

/* Append members that are not down to the array `list`. If is_current is true, append only members
 * that use the current key. If is_current is false, append only members that do not use it. */
static void list_members_by_key(
	const struct steer *s, const struct prints *p, bool is_current, json_t *list)
{
	const struct sched_core *c = s->core;

	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];
		const char *word = member_key_word(s, p, m);
		json_t *o;

		if ((strcmp(word, "current") == 0) != is_current || m->state == MEMBER_DOWN ||
			json_array_size(list) >= STATUS_MEMBERS_MAX)
			continue;
		o = json_object();
		status_put_str(o, "role", sched_role_name(m->role));
		status_put_str(o, "name", m->name);
		status_put_str(o, "host", m->host);
		status_put_str(o, "key", word);
		status_put_str(o, "fingerprint", member_key_fingerprint(s, m));
		json_object_set_new(o, "is_master", json_boolean(m->conn && m->conn->has_master));
		json_array_append_new(list, o);
	}
}

static unsigned count_members_with_key(
	const struct steer *s, const struct prints *p, const char *word)
{
	const struct sched_core *c = s->core;
	unsigned n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += strcmp(member_key_word(s, p, c->members[i]), word) == 0;
	return n;
}

static json_t *keys_status_json(const struct steer *s)
{
	json_t *o = json_object(), *keys = json_array(), *members = json_array(),
	       *revoked = json_array();
	struct prints p;

	fill_key_fingerprints(s, &p);
	for (unsigned i = 0; i < p.n && i < KEYRING_KEYS; i++) {
		json_t *k = json_object();

		status_put_str(k, "key", words[i]);
		status_put_str(k, "fingerprint", p.s[i]);
		status_put_num(k, "members", count_members_with_key(s, &p, words[i]));
		json_array_append_new(keys, k);
	}
	for (unsigned i = 0; i < s->auth->keys.n_revoked; i++)
		json_array_append_new(revoked, json_text_sanitized(s->auth->keys.revoked[i]));
	list_members_by_key(s, &p, false, members);
	list_members_by_key(s, &p, true, members);
	status_put_num(o, "schema", STATUS_SCHEMA);
	json_object_set_new(o, "keys", keys);
	json_object_set_new(o, "revoked", revoked);
	json_object_set_new(o, "members", members);
	return o;
}

int keys_status(struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	(void)call;
	reply->json = keys_status_json(s);
	if (s->auth->cert)
		return err_set(&reply->text, 0, "certificates");
	return err_set(&reply->text, 0,
		s->auth->keys.n_keys ? "keys: %u" : "the cluster has no key", s->auth->keys.n_keys);
}

int keys_reload(struct steer *s, const struct steer_call *call, struct steer_reply *reply)
{
	unsigned n_closed = 0;
	int rc;

	if (!call->has_master)
		return err_set(&reply->text, BPS_EAUTH, "this command needs the master key");
	rc = s->reload_keys(s->ctx, &n_closed, &reply->text);
	if (rc < 0)
		return rc;
	reply->json = keys_status_json(s);
	if (s->auth->cert)
		return err_set(&reply->text, 0, "the certificates %s; connections closed: %u",
			rc ? "have changed" : "have not changed", n_closed);
	return err_set(&reply->text, 0,
		"the key file %s; keys: %u, revoked: %u, connections closed: %u",
		rc ? "has changed" : "has not changed", s->auth->keys.n_keys,
		s->auth->keys.n_revoked, n_closed);
}
