/* Frames of the trainers' socket. The fuzzer decodes the input and sends the message as a frame.
 * Then it decodes this frame and sends the message again. Both frames must have the same bytes. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/local/local.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Build the frame that carries m. Returns the frame's size, or 0 when the frame would be too large.
 * The frame may be larger than the input, since missing fields of a list's items decode as zero. */
static size_t frame_of(const struct local_msg *m, uint8_t *buf)
{
	ssize_t n = 0;
	int sv[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv) < 0)
		abort();
	rc = local_send(sv[0], m, NULL, 0, 0);
	if (!rc)
		n = recv(sv[1], buf, LOCAL_FRAME_MAX, 0);
	else if (rc != -EMSGSIZE)
		abort();
	if (n < 0)
		abort();
	close(sv[0]);
	close(sv[1]);
	return (size_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static uint8_t once[LOCAL_FRAME_MAX], twice[LOCAL_FRAME_MAX];
	struct local_msg first, second;
	void *first_mem, *second_mem;
	struct err_text err;
	size_t n_once;

	if (local_decode(data, n_bytes, &first, &first_mem, &err))
		return 0;
	n_once = frame_of(&first, once);
	if (n_once) {
		if (local_decode(once, n_once, &second, &second_mem, &err))
			abort();
		if (frame_of(&second, twice) != n_once || memcmp(once, twice, n_once))
			abort();
		free(second_mem);
	}
	free(first_mem);
	return 0;
}
