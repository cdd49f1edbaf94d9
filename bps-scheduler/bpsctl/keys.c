/* The words of bpsctl about keys. */
#include <string.h>
#include <sysexits.h>

#include "bps-scheduler/bpsctl/cells.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/bpsctl.h"
#include "common/key.h"

static bool is_identity(const char *s)
{
	static const char *const roles[] = {"server:", "agent:", "ctl:"};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (strncmp(s, roles[i], strlen(roles[i])) == 0)
			return s[strlen(roles[i])] != '\0';
	return false;
}

int run_key_new(const struct opts *o, const char *arg)
{
	struct cluster_key key;
	char hex[KEY_HEX_BYTES];

	(void)o;
	(void)arg;
	if (key_random(&key) < 0)
		return complain("no randomness", EXIT_ERR);
	key_hex(&key, hex);
	printf("%s\n", hex);
	key_wipe(&key);
	return 0;
}

int run_key_derive(const struct opts *o, const char *arg)
{
	struct cluster_key master, key;
	struct err_text err = {""};
	char hex[KEY_HEX_BYTES];
	int r;

	if (!is_identity(arg))
		return complain("`key derive` wants server:NAME, agent:NAME or ctl:NAME", EX_USAGE);
	r = steer_key(&o->steer, &master, &err);
	if (r <= 0)
		return complain(r < 0 ? err.s : "there is no --key-file", EXIT_ERR);
	r = key_for_host(&key, &master, arg);
	key_wipe(&master);
	if (r < 0)
		return complain(err_str(r), EXIT_ERR);
	key_hex(&key, hex);
	printf("%s\n", hex);
	key_wipe(&key);
	return 0;
}

static int screen_keys(FILE *out, json_t *root)
{
	json_t *keys = json_object_get(root, "keys"), *o;
	size_t i, n_shown = 0;

	if (!json_array_size(keys))
		fprintf(out, "the cluster has no key\n");
	else
		fprintf(out, "%-9s %-12s %s\n", "KEY", "FINGERPRINT", "MEMBERS");
	json_array_foreach(keys, i, o) fprintf(out, "%-9s %-12s %llu\n", cell_str(o, "key").s,
		cell_str(o, "fingerprint").s, (unsigned long long)cell_num(o, "members"));
	json_array_foreach(json_object_get(root, "members"), i, o)
	{
		if (cell_is(o, "key", "current") || cell_is(o, "key", "none"))
			continue;
		if (n_shown++ == 0)
			fprintf(out, "\n%-24s %-24s %s\n", "NOT YET", "HOST", "KEY");
		if (n_shown <= SCREEN_MISSING_MAX)
			fprintf(out, "%-6s %-17s %-24s %s\n", cell_str(o, "role").s,
				cell_str(o, "name").s, cell_str(o, "host").s, cell_str(o, "key").s);
	}
	if (n_shown > SCREEN_MISSING_MAX)
		fprintf(out, "(%zu more: --json)\n", n_shown - SCREEN_MISSING_MAX);
	return 0;
}

int run_key_status(const struct opts *o, const char *arg)
{
	struct err_text text = {""}, err = {""};
	json_t *root = NULL;
	int rc = steer_call(&o->steer, "key status", "", NULL, 0, &text, &root, &err);

	(void)arg;
	return rc < 0 ? complain_failed(rc, &err) : show(o, root, screen_keys);
}
