/* Commands of bpsctl that create, derive, rotate, retire, revoke and show keys. After a command has
 * changed the key file, the command asks the scheduler to read the file. One thread. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/control/keyring.h"

static bool is_member_identity(const char *s)
{
	static const char *const roles[] = {"server:", "agent:", "ctl:"};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (strncmp(s, roles[i], strlen(roles[i])) == 0)
			return s[strlen(roles[i])] != '\0';
	return false;
}

static int print_key_answer(const struct bpsctl_opts *o, const char *hex)
{
	return print_answer(o, hex, json_pack("{s:i, s:s}", "schema", 1, "key", hex));
}

int cmd_key_new(const struct bpsctl_opts *o, const char *arg)
{
	struct cluster_key key;
	char hex[KEY_HEX_BYTES];

	(void)arg;
	if (key_generate_random(&key) < 0)
		return print_error_line("cannot get random bytes from the kernel", EXIT_ERR);
	key_format_hex(&key, hex);
	print_key_answer(o, hex);
	key_wipe(&key);
	return 0;
}

/* Derive the key of an identity. Returns -EKEYREVOKED if the key is revoked, because the scheduler
 * would refuse the key. */
static int derive_identity_key(
	struct cluster_key *ret_key, const struct keyring *ring, const char *identity)
{
	char print[KEY_PRINT_BYTES], wire[KEYRING_ID_BYTES];
	int rc = key_derive_for_host(ret_key, &ring->key[0], identity);

	if (rc == 0)
		rc = key_fingerprint(ret_key, print);
	if (rc < 0)
		return rc;
	snprintf(wire, sizeof(wire), "%.*s#%s", KEYRING_ID_BYTES - KEY_PRINT_BYTES - 1, identity,
		print);
	return keyring_is_revoked(ring, wire) ? -EKEYREVOKED : 0;
}

/* Load the file with the master key. If there is no key, or loading fails, print an error on
 * stderr. Returns the result of steer_load_keyring. */
static int load_master_keys(const struct bpsctl_opts *o, struct keyring *ret_ring)
{
	struct err_text err = {""};
	int rc = steer_load_keyring(&o->steer, ret_ring, &err);

	if (rc <= 0)
		print_error_line(
			rc < 0 ? err.s
			       : "there is no cluster key: set --key-file to the cluster's key "
				 "file, or create a key with `bpsctl key new`",
			EXIT_ERR);
	return rc;
}

int cmd_key_derive(const struct bpsctl_opts *o, const char *arg)
{
	struct keyring ring;
	struct cluster_key key = {{0}};
	char hex[KEY_HEX_BYTES];
	int rc;

	if (!is_member_identity(arg))
		return print_error_line(
			"`key derive` needs server:NAME, agent:NAME or ctl:NAME", EX_USAGE);
	if (load_master_keys(o, &ring) <= 0)
		return EXIT_ERR;
	rc = derive_identity_key(&key, &ring, arg);
	keyring_wipe(&ring);
	if (rc == -EKEYREVOKED)
		return print_error_line(
			"the key of this name is revoked: run `bpsctl key rotate`, then "
			"derive a new key",
			EXIT_ERR);
	if (rc < 0)
		return print_error_line(err_str(rc), EXIT_ERR);
	key_format_hex(&key, hex);
	print_key_answer(o, hex);
	key_wipe(&key);
	return 0;
}

/* ---- commands that change the key file ---- */

/* Return whether the scheduler uses the keys of the keyring `ring`. root: the scheduler's answer to
 * `key reload`. */
static bool has_scheduler_loaded_keys(json_t *root, const struct keyring *ring)
{
	json_t *first = json_array_get(json_object_get(root, "keys"), 0);
	char print[KEY_PRINT_BYTES];

	return key_fingerprint(&ring->key[0], print) == 0 && cell_is(first, "fingerprint", print) &&
	       json_array_size(json_object_get(root, "keys")) == ring->n_keys &&
	       json_array_size(json_object_get(root, "revoked")) == ring->n_revoked;
}

/* Send the scheduler the request to read the changed key file. Returns the exit code. */
static int request_key_reload(const struct bpsctl_opts *o, const struct keyring *ring)
{
	struct err_text text = {""}, err = {""};
	json_t *root = NULL;
	int rc = send_steer_request(o, "key reload", "", NULL, 0, &text, &root, NULL, &err);
	bool is_good = rc == 0 && has_scheduler_loaded_keys(root, ring);

	json_decref(root);
	if (rc < 0) {
		fprintf(stderr,
			"bpsctl: the key file is written, but the scheduler did not receive the "
			"request to read it: %s\n"
			"The scheduler reads the file when it starts and at SIGHUP.\n",
			err.s);
		return EXIT_WARN;
	}
	if (is_good) {
		if (!o->json)
			printf("scheduler: %s\n", text.s);
		return 0;
	}
	fprintf(stderr,
		"bpsctl: the key file is written, but the scheduler reads a copy of it, such as a\n"
		"credential of systemd, which only a restart renews. Run systemctl restart "
		"bps-scheduler\n"
		"(jobs go on meanwhile).\n");
	return EXIT_WARN;
}

static const char *const key_words[KEYRING_KEYS] = {"current", "previous"};

static void print_key_change_json(const struct keyring *ring, const char *text)
{
	json_t *keys = json_array(), *root;
	char print[KEY_PRINT_BYTES] = "";

	for (unsigned i = 0; i < ring->n_keys && i < KEYRING_KEYS; i++)
		if (key_fingerprint(&ring->key[i], print) == 0)
			json_array_append_new(keys,
				json_pack("{s:s, s:s}", "key", key_words[i], "fingerprint", print));
	root = json_pack("{s:i, s:s, s:o}", "schema", 1, "text", text, "keys", keys);
	print_json_line(root);
	json_decref(root);
}

/* Write the changed keys to the key file and let the scheduler read it. done: a sentence about the
 * change, for --json. Returns the exit code. */
static int store_keyring_and_reload(
	const struct bpsctl_opts *o, const struct keyring *ring, const char *done)
{
	struct err_text err = {""};
	int status;

	if (keyring_store(ring, steer_key_path(&o->steer), &err) < 0)
		return print_error_line(err.s, EXIT_ERR);
	status = request_key_reload(o, ring);
	if (o->json)
		print_key_change_json(ring, done);
	return status;
}

static void print_key_fingerprints(const struct keyring *ring)
{
	char print[KEY_PRINT_BYTES] = "";

	for (unsigned i = 0; i < ring->n_keys && i < KEYRING_KEYS; i++)
		if (key_fingerprint(&ring->key[i], print) == 0)
			printf("%-9s %s\n", key_words[i], print);
}

int cmd_key_rotate(const struct bpsctl_opts *o, const char *arg)
{
	struct cluster_key fresh = {{0}};
	struct keyring ring;
	int rc = 0, status = EXIT_ERR;

	(void)arg;
	if (load_master_keys(o, &ring) <= 0)
		return EXIT_ERR;
	if (ring.n_keys == KEYRING_KEYS && !o->force) {
		print_error_line(
			"the previous key is still accepted: run `bpsctl key retire` first "
			"(--force drops the previous key)",
			EXIT_ERR);
		goto out;
	}
	rc = key_generate_random(&fresh);
	if (rc == 0)
		rc = keyring_rotate(&ring, &fresh);
	if (rc < 0) {
		print_error_line(err_str(rc), EXIT_ERR);
		goto out;
	}
	status = store_keyring_and_reload(o, &ring, "the key is rotated");
	if (status == EXIT_ERR || o->json)
		goto out;
	print_key_fingerprints(&ring);
	printf("Next: give each host its new key (bpsctl key derive ROLE:NAME) and reload its "
	       "daemon\n"
	       "(SIGHUP). When `bpsctl key status` shows no member with the previous key, run\n"
	       "bpsctl key retire\n");
out:
	keyring_wipe(&ring);
	key_wipe(&fresh);
	return status;
}

/* Return whether no member uses the previous key. If some members use the key, or the scheduler
 * does not answer, print a message and return false. */
static bool is_previous_unused(const struct bpsctl_opts *o)
{
	struct err_text text = {""}, err = {""};
	json_t *root = NULL, *k;
	uint64_t n = 0;
	size_t i;
	int rc = send_steer_request(o, "key status", "", NULL, 0, &text, &root, NULL, &err);

	if (rc < 0) {
		fprintf(stderr, "bpsctl: cannot find out which members use the previous key: %s\n",
			err.s);
		return false;
	}
	json_array_foreach (json_object_get(root, "keys"), i, k) {
		if (cell_is(k, "key", "previous"))
			n += cell_num(k, "members");
	}
	json_decref(root);
	if (n)
		fprintf(stderr,
			"bpsctl: %llu member%s use%s the previous key; `bpsctl key status` has "
			"the names\n",
			(unsigned long long)n, plural_suffix_of(n), verb_suffix_of(n));
	return n == 0;
}

int cmd_key_retire(const struct bpsctl_opts *o, const char *arg)
{
	struct keyring ring;
	int rc, status = EXIT_ERR;

	(void)arg;
	if (load_master_keys(o, &ring) <= 0)
		return EXIT_ERR;
	if (!o->force && ring.n_keys == KEYRING_KEYS && !is_previous_unused(o)) {
		print_error_line("the previous key is not retired (--force retires it)", EXIT_ERR);
		goto out;
	}
	rc = keyring_retire(&ring);
	if (rc < 0)
		print_error_line(
			rc == -ENOENT ? "there is no previous key" : err_str(rc), EXIT_ERR);
	else
		status = store_keyring_and_reload(o, &ring, "the previous key is retired");
out:
	keyring_wipe(&ring);
	return status;
}

int cmd_key_revoke(const struct bpsctl_opts *o, const char *arg)
{
	struct keyring ring;
	int rc, status = EXIT_ERR;

	if (!is_member_identity(arg))
		return print_error_line(
			"`key revoke` needs server:NAME, agent:NAME or ctl:NAME", EX_USAGE);
	if (load_master_keys(o, &ring) <= 0)
		return EXIT_ERR;
	rc = keyring_revoke(&ring, arg);
	/* -EEXIST: the key was revoked by an earlier command. Write the file nevertheless, because
	 * the scheduler may not have read the file since that command. */
	if (rc == 0 || rc == -EEXIST)
		status = store_keyring_and_reload(o, &ring, "the key is revoked");
	else
		print_error_line(rc == -ENOSPC ? "too many keys are revoked: rotate the key instead"
					       : err_str(rc),
			EXIT_ERR);
	keyring_wipe(&ring);
	return status;
}

/* ---- key status ---- */

static void print_master_key_holders(FILE *out, json_t *members)
{
	json_t *o;
	size_t i, n = 0;

	json_array_foreach (members, i, o) {
		if (!json_is_true(json_object_get(o, "is_master")))
			continue;
		if (n++ == 0)
			fprintf(out, "\n%-24s %s\n", "HAS THE MASTER KEY", "HOST");
		if (n <= SCREEN_MISSING_MAX)
			fprintf(out, "%-6s %-17s %s\n", cell_str(o, "role").s,
				cell_str(o, "name").s, cell_str(o, "host").s);
	}
	if (n > SCREEN_MISSING_MAX)
		fprintf(out, "(%zu more: --json)\n", n - SCREEN_MISSING_MAX);
}

static int screen_keys(FILE *out, json_t *root)
{
	json_t *keys = json_object_get(root, "keys"), *o;
	size_t i, n_shown = 0;

	if (!json_array_size(keys))
		fprintf(out, "the cluster has no key, or uses certificates\n");
	else
		fprintf(out, "%-9s %-12s %s\n", "KEY", "FINGERPRINT", "MEMBERS");
	json_array_foreach (keys, i, o)
		fprintf(out, "%-9s %-12s %llu\n", cell_str(o, "key").s,
			cell_str(o, "fingerprint").s, (unsigned long long)cell_num(o, "members"));
	json_array_foreach (json_object_get(root, "members"), i, o) {
		if (cell_is(o, "key", "current") || cell_is(o, "key", "none") ||
			cell_is(o, "key", "certificate"))
			continue;
		if (n_shown++ == 0)
			fprintf(out, "\n%-24s %-24s %s\n", "NOT ON CURRENT KEY", "HOST", "KEY");
		if (n_shown <= SCREEN_MISSING_MAX)
			fprintf(out, "%-6s %-17s %-24s %s\n", cell_str(o, "role").s,
				cell_str(o, "name").s, cell_str(o, "host").s, cell_str(o, "key").s);
	}
	if (n_shown > SCREEN_MISSING_MAX)
		fprintf(out, "(%zu more: --json)\n", n_shown - SCREEN_MISSING_MAX);
	print_master_key_holders(out, json_object_get(root, "members"));
	json_array_foreach (json_object_get(root, "revoked"), i, o)
		fprintf(out, "%srevoked %s\n", i ? "" : "\n", cell_text(json_string_value(o)).s);
	return 0;
}

int cmd_key_status(const struct bpsctl_opts *o, const char *arg)
{
	struct err_text text = {""}, err = {""};
	json_t *root = NULL;
	int rc = send_steer_request(o, "key status", "", NULL, 0, &text, &root, NULL, &err);

	(void)arg;
	return rc < 0 ? print_failure(rc, &err) : print_document(o, root, screen_keys);
}
