/* Data messages. The input is decoded like the bytes from one receive call. Such bytes may contain
 * several messages. Each message has exactly one encoding, so a decoded message must encode to the
 * same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static uint64_t again[WIRE_SEND_MAX / 8];
	/* Copy the input, because decoding needs 8-byte alignment. The copy is exactly as large as
	 * its content, so that a sanitizer detects each access beyond the copy. */
	uint8_t *buf = malloc(n_bytes ? n_bytes : 1);
	struct err_text err;
	struct wire_msg m;
	size_t at = 0;
	int rc;

	if (!buf)
		abort();
	if (n_bytes)
		memcpy(buf, data, n_bytes);
	while (at < n_bytes) {
		rc = wire_decode(buf + at, n_bytes - at, &m, &err);
		if (rc < 0)
			break;
		if (rc == 0 || (size_t)rc > n_bytes - at || wire_size(&m) != (size_t)rc)
			abort();
		if (wire_encode(&m, again) != (size_t)rc || memcmp(again, buf + at, (size_t)rc))
			abort();
		at += (size_t)rc;
	}
	free(buf);
	return 0;
}
