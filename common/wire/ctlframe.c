#include "common/wire/ctlframe.h"

#include "common/base/error.h"

#define TYPE_BYTES 2

int ctlframe_parse(const uint8_t *buf, size_t n_bytes, size_t max_bytes, struct ctlframe *ret_frame,
	size_t *ret_bytes)
{
	size_t length;

	if (n_bytes < CTLFRAME_HEAD_BYTES) {
		*ret_bytes = CTLFRAME_HEAD_BYTES;
		return 0;
	}
	length = (size_t)buf[0] | (size_t)buf[1] << 8 | (size_t)buf[2] << 16 | (size_t)buf[3] << 24;
	if (length < TYPE_BYTES || length > max_bytes)
		return BPS_EPROTO;
	*ret_bytes = CTLFRAME_HEAD_BYTES - TYPE_BYTES + length;
	if (n_bytes < *ret_bytes)
		return 0;
	ret_frame->type = (uint16_t)(buf[4] | buf[5] << 8);
	ret_frame->body = buf + CTLFRAME_HEAD_BYTES;
	ret_frame->n_body = length - TYPE_BYTES;
	return 1;
}

void ctlframe_write_head(uint8_t ret_head[static CTLFRAME_HEAD_BYTES], uint16_t type, size_t n_body)
{
	uint32_t length = (uint32_t)(TYPE_BYTES + n_body);

	for (int i = 0; i < 4; i++)
		ret_head[i] = (uint8_t)(length >> (8 * i));
	ret_head[4] = (uint8_t)type;
	ret_head[5] = (uint8_t)(type >> 8);
}
