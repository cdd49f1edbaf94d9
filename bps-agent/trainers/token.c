#include "bps-agent/trainers/token.h"

#include <errno.h>
#include <string.h>

#include "common/base/key.h"

_Static_assert(CTL_TOKEN_BYTES == KEY_BYTES, "a token is the key of its proof");
_Static_assert(CTL_TOKEN_BYTES == KEY_MAC_BYTES, "a proof is as long as its token");

int token_compute_proof(
	const struct blob *token, const char *job, uint8_t ret[static CTL_TOKEN_BYTES])
{
	static const char purpose[] = "bps job token"; /* sizeof(purpose) includes the zero byte */
	char text[sizeof(purpose) + CTL_JOB_NAME_MAX];
	struct cluster_key key;
	size_t n = strnlen(job, CTL_JOB_NAME_MAX);
	int rc;

	if (token->bytes != CTL_TOKEN_BYTES)
		return -EINVAL;
	memcpy(text, purpose, sizeof(purpose));
	memcpy(text + sizeof(purpose), job, n);
	memcpy(key.b, token->data, sizeof(key.b));
	rc = key_compute_mac(&key, text, sizeof(purpose) + n, ret);
	key_wipe(&key);
	return rc;
}
