/* Frames of the control channel. The frames in a stream of bytes must not depend on how the stream
 * is split into pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/error.h"
#include "common/wire/ctlframe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Parse the first n bytes of `data`, for each n up to the length of the first frame. The parser
 * must report a complete frame only when it gets all n_frame bytes. */
static void check_pieces(const uint8_t *data, const struct ctlframe *whole, size_t n_frame)
{
	struct ctlframe frame;
	size_t need;

	for (size_t n = 0; n < n_frame; n++) {
		if (ctlframe_parse(data, n, CTLFRAME_MAX_BYTES, &frame, &need) != 0 || need <= n ||
			need > n_frame)
			abort();
	}
	if (ctlframe_parse(data, n_frame, CTLFRAME_MAX_BYTES, &frame, &need) != 1 ||
		need != n_frame || frame.type != whole->type || frame.n_body != whole->n_body)
		abort();
}

static void check_head(const uint8_t *data, const struct ctlframe *frame)
{
	uint8_t head[CTLFRAME_HEAD_BYTES];

	ctlframe_write_head(head, frame->type, frame->n_body);
	if (memcmp(head, data, sizeof(head)) || frame->body != data + sizeof(head))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct ctlframe frame;
	size_t n_frame;

	while (ctlframe_parse(data, n_bytes, CTLFRAME_MAX_BYTES, &frame, &n_frame) == 1) {
		if (n_frame > n_bytes)
			abort();
		check_head(data, &frame);
		if (n_frame < 256)
			check_pieces(data, &frame, n_frame);
		data += n_frame;
		n_bytes -= n_frame;
	}
	return 0;
}
