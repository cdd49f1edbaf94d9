/* Reads the cluster key, and derives the keys of the daemons and the job's token from it. */
#include "libbpsclient/tools/nodes/cluster_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/error.h"
#include "common/os/secret.h"
#include "libbpsclient/tools/process/output.h"

int cluster_key_parse(const char *text, const char *source, struct cluster_key *ret)
{
	if (strlen(text) == 2 * KEY_BYTES && key_parse_hex(ret, text) == 0)
		return 0;
	output_print_message("%s is not a key of %d hex digits: `bpsctl key new` prints one",
		source, 2 * KEY_BYTES);
	return -EINVAL;
}

static int read_key_file(const char *file, struct cluster_key *ret)
{
	char text[2 * KEY_BYTES + 8];
	struct err_text err;
	int n = secret_read(file, "key file", false, text, sizeof(text) - 1, &err), rc;

	if (n < 0) {
		output_print_message("%s", err.s);
		return n;
	}
	text[n] = 0;
	text[strcspn(text, "\r\n")] = 0;
	rc = cluster_key_parse(text, file, ret);
	explicit_bzero(text, sizeof(text));
	return rc;
}

int cluster_key_load(const char *file, struct cluster_key *ret)
{
	char *env = getenv(CLUSTER_KEY_ENV);
	bool has_key = file || (env && *env);
	int rc = 0;

	if (file)
		rc = read_key_file(file, ret);
	else if (has_key)
		rc = cluster_key_parse(env, CLUSTER_KEY_ENV, ret);
	if (env) {
		/* overwrite it, because unsetenv leaves the text in this process's memory */
		explicit_bzero(env, strlen(env));
		unsetenv(CLUSTER_KEY_ENV);
	}
	return rc < 0 ? rc : has_key;
}

int cluster_key_write_file(const struct cluster_key *key, const char *identity, const char *path)
{
	struct cluster_key own = *key;
	char hex[KEY_HEX_BYTES];
	int fd = -1, rc = identity ? key_derive_for_host(&own, key, identity) : 0;

	if (!rc)
		fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	if (!rc && fd < 0)
		rc = -errno;
	key_format_hex(&own, hex);
	if (!rc && write(fd, hex, sizeof(hex) - 1) != (ssize_t)sizeof(hex) - 1)
		rc = -EIO;
	if (fd >= 0)
		close(fd);
	key_wipe(&own);
	explicit_bzero(hex, sizeof(hex));
	if (rc < 0)
		output_print_message("cannot write the key file '%s': %s", path, err_str(rc));
	return rc;
}

int cluster_key_derive_token(
	const struct cluster_key *key, const char *job, char ret_hex[static KEY_HEX_BYTES])
{
	struct cluster_key token;
	int rc = key_derive(&token, key, "bps job token", job);

	if (rc < 0)
		output_print_message("cannot derive the job's token: %s", err_str(rc));
	else
		key_format_hex(&token, ret_hex);
	key_wipe(&token);
	return rc;
}
