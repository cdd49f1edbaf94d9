#include "common/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <emmintrin.h>

#define LINE sizeof(__m128i[4])

static void stream_line(char *dst, const char *src)
{
	for (size_t i = 0; i < LINE; i += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(dst + i), _mm_loadu_si128((const __m128i *)(src + i)));
}

void copy_past_caches(void *dst, const void *src, size_t n_bytes)
{
	size_t head = -(uintptr_t)dst % LINE;
	const char *from = src;
	char *to = dst;

	if (n_bytes < head + LINE) {
		memcpy(to, from, n_bytes);
		return;
	}
	memcpy(to, from, head);
	for (to += head, from += head, n_bytes -= head; n_bytes >= LINE; n_bytes -= LINE) {
		stream_line(to, from);
		to += LINE;
		from += LINE;
	}
	memcpy(to, from, n_bytes);
	_mm_sfence(); /* before a word that it is there */
}
#else
void copy_past_caches(void *dst, const void *src, size_t n_bytes)
{
	memcpy(dst, src, n_bytes);
}
#endif
