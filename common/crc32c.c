#include "common/crc32c.h"

#include <pthread.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define POLY_REFLECTED 0x82f63b78u

/* tables[k][b]: the register after byte b and k zero bytes, so that eight bytes are eight
 * independent look-ups (M. E. Kounavis, F. L. Berry: A systematic approach to building high
 * performance software-based CRC generators, ISCC 2005). Written once. */
static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_fill(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t c = b;

		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? c >> 1 ^ POLY_REFLECTED : c >> 1;
		tables[0][b] = c;
	}
	for (uint32_t b = 0; b < 256; b++)
		for (int k = 1; k < 8; k++)
			tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xff];
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n_bytes)
{
	const unsigned char *p = data;
	uint32_t c = ~crc;

	pthread_once(&tables_once, tables_fill);
	for (; n_bytes >= 8; n_bytes -= 8, p += 8)
		c = tables[7][p[0] ^ (c & 0xff)] ^ tables[6][p[1] ^ (c >> 8 & 0xff)] ^
		    tables[5][p[2] ^ (c >> 16 & 0xff)] ^ tables[4][p[3] ^ c >> 24] ^
		    tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^ tables[0][p[7]];
	for (; n_bytes; n_bytes--)
		c = c >> 8 ^ tables[0][(c ^ *p++) & 0xff];
	return ~c;
}

#ifdef __x86_64__
#define TARGET __attribute__((target("sse4.2,pclmul")))

/* Three lanes of neighbouring bytes hide the instruction's latency of three cycles. The long lanes
 * make the merge's cost vanish, the short ones serve what is left of them. */
#define LONG_LANE  4096
#define SHORT_LANE 256

/* x^(8n - 33) mod P, bits reflected, for a shift by n = 1 and 2 lanes: the carry-less product of
 * two reflected 32-bit numbers is theirs times x, and the crc of the product as a message
 * multiplies by x^32 more (V. Gopal et al.: Fast CRC computation for iSCSI polynomial using CRC32
 * instruction, Intel 323405, 2011). */
static const uint32_t long_shift[2] = {0x82f89c77, 0x54a86326};
static const uint32_t short_shift[2] = {0xb9e02b86, 0xdd7e3b0c};

static inline uint64_t load64(const unsigned char *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

TARGET static inline uint64_t shift_lane(uint64_t crc, uint32_t by)
{
	__m128i product = _mm_clmulepi64_si128(
		_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)by), 0);

	return (uint64_t)_mm_cvtsi128_si64(product);
}

/* Crc of three lanes of lane bytes at p. The shifted crcs of the first two are due after the last
 * lane's end, where the last word's own bits are when they enter the register: they go in with
 * it. */
TARGET static inline uint64_t three_lanes(
	uint64_t crc, const unsigned char *p, size_t lane, const uint32_t shift[2])
{
	uint64_t c0 = crc, c1 = 0, c2 = 0, merge;
	const unsigned char *last = p + lane - 8;

	for (; p < last; p += 8) {
		c0 = _mm_crc32_u64(c0, load64(p));
		c1 = _mm_crc32_u64(c1, load64(p + lane));
		c2 = _mm_crc32_u64(c2, load64(p + 2 * lane));
	}
	c0 = _mm_crc32_u64(c0, load64(p));
	c1 = _mm_crc32_u64(c1, load64(p + lane));
	merge = shift_lane(c0, shift[1]) ^ shift_lane(c1, shift[0]);
	return _mm_crc32_u64(c2, load64(p + 2 * lane) ^ merge);
}

TARGET static uint32_t crc32c_sse42(uint32_t crc, const unsigned char *p, size_t n_bytes)
{
	uint64_t c = ~crc;

	for (; n_bytes && (uintptr_t)p % 8; n_bytes--)
		c = _mm_crc32_u8((uint32_t)c, *p++);
	for (; n_bytes >= 3 * LONG_LANE; n_bytes -= 3 * LONG_LANE, p += 3 * LONG_LANE)
		c = three_lanes(c, p, LONG_LANE, long_shift);
	for (; n_bytes >= 3 * SHORT_LANE; n_bytes -= 3 * SHORT_LANE, p += 3 * SHORT_LANE)
		c = three_lanes(c, p, SHORT_LANE, short_shift);
	for (; n_bytes >= 8; n_bytes -= 8, p += 8)
		c = _mm_crc32_u64(c, load64(p));
	for (; n_bytes; n_bytes--)
		c = _mm_crc32_u8((uint32_t)c, *p++);
	return ~(uint32_t)c;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
		return crc32c_sse42(crc, data, n_bytes);
#endif
	return crc32c_portable(crc, data, n_bytes);
}
