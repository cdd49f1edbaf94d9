/* Key files. When a file is accepted, writing the keys and reading them back must give the same
 * keys. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/control/keyring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	char *text = malloc(n_bytes + 1), again[KEYRING_FILE_BYTES];
	struct keyring ring, back;
	struct err_text err;

	if (!text)
		return 0;
	if (n_bytes)
		memcpy(text, data, n_bytes);
	if (keyring_parse(&ring, text, n_bytes, "x", &err) > 0) {
		size_t n = keyring_format(&ring, again, sizeof(again));

		if (keyring_parse(&back, again, n, "x", &err) <= 0 ||
			!keyring_is_equal(&ring, &back))
			abort();
	}
	free(text);
	return 0;
}
