/* Control messages. Input: a u16 with the type, then the body of a frame. If the body decodes to a
 * message, the program encodes the message, decodes the encoding, and encodes the decoded message.
 * Both encodings must be equal. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/error.h"
#include "common/wire/ctlmsg.h"

#define TYPE_BYTES 2

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Encode m. The caller has to free the result. */
static uint8_t *encode(const struct ctl_msg *m, size_t *ret_n)
{
	const struct layout *l = ctl_layout(m->type);
	size_t n = codec_encoded_size(l, &m->hello);
	uint8_t *buf = malloc(n);

	if (!n || !buf || codec_encode(l, &m->hello, buf) != n)
		abort();
	*ret_n = n;
	return buf;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct ctl_msg first, second;
	void *first_mem, *second_mem;
	uint8_t *once, *twice;
	size_t n_once, n_twice;
	struct err_text err;
	unsigned type;

	if (n_bytes < TYPE_BYTES)
		return 0;
	type = (unsigned)data[0] | (unsigned)data[1] << 8;
	if (ctl_decode(type, data + TYPE_BYTES, n_bytes - TYPE_BYTES, &first, &first_mem, &err))
		return 0;
	once = encode(&first, &n_once);
	if (ctl_decode(type, once, n_once, &second, &second_mem, &err))
		abort();
	twice = encode(&second, &n_twice);
	if (n_once != n_twice || memcmp(once, twice, n_once))
		abort();
	free(twice);
	free(once);
	free(second_mem);
	free(first_mem);
	return 0;
}
