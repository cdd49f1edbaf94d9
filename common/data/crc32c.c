/* CRC-32C in three versions: with tables, with the CRC instruction of the CPU, and with wide
 * carry-less multiplication. crc32c selects a version by the CPU and by the number of bytes. The
 * functions keep no state and may be called on any thread. */
#include "common/data/crc32c.h"

#include <pthread.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define POLY_REFLECTED 0x82f63b78u

/* tables[k][b] is the value of the CRC register after byte b and k zero bytes. With these tables,
 * eight independent look-ups process eight bytes (M. E. Kounavis, F. L. Berry: A systematic
 * approach to building high performance software-based CRC generators, ISCC 2005).
 * crc32c_fill_tables writes the tables once. */
static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void crc32c_fill_tables(void)
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

	pthread_once(&tables_once, crc32c_fill_tables);
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

/* Sizes of a lane in bytes. Three adjacent lanes are processed at the same time, because a crc
 * instruction has a latency of three cycles. Long lanes make the cost of merging negligible. Short
 * lanes process the remaining bytes. */
#define LONG_LANE  4096
#define SHORT_LANE 256

/* Factors that shift a crc by one and by two lanes: x^(8n - 33) mod P with reflected bits, where n
 * is the number of bytes of one or of two lanes. A shift by n bytes multiplies by x^(8n). The
 * exponent is 33 less than 8n for two reasons. The carry-less product of reflected 32-bit numbers
 * has an additional factor x. The crc instruction multiplies the product by x^32 (V. Gopal et al.:
 * Fast CRC computation for iSCSI polynomial using CRC32 instruction, Intel 323405, 2011). */
static const uint32_t long_shift[2] = {0x82f89c77, 0x54a86326};
static const uint32_t short_shift[2] = {0xb9e02b86, 0xdd7e3b0c};

static inline uint64_t crc32c_load_u64(const unsigned char *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

TARGET static inline uint64_t crc32c_shift_lane(uint64_t crc, uint32_t by)
{
	__m128i product = _mm_clmulepi64_si128(
		_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)by), 0);

	return (uint64_t)_mm_cvtsi128_si64(product);
}

/* Compute the crc of three lanes of `lane` bytes each at p. Shift the crcs of the first two lanes,
 * XOR them with the last word of the third lane, and continue the third lane's crc with the
 * resulting word. */
TARGET static inline uint64_t crc32c_three_lanes(
	uint64_t crc, const unsigned char *p, size_t lane, const uint32_t shift[2])
{
	uint64_t c0 = crc, c1 = 0, c2 = 0, merge;
	const unsigned char *last = p + lane - 8;

	for (; p < last; p += 8) {
		c0 = _mm_crc32_u64(c0, crc32c_load_u64(p));
		c1 = _mm_crc32_u64(c1, crc32c_load_u64(p + lane));
		c2 = _mm_crc32_u64(c2, crc32c_load_u64(p + 2 * lane));
	}
	c0 = _mm_crc32_u64(c0, crc32c_load_u64(p));
	c1 = _mm_crc32_u64(c1, crc32c_load_u64(p + lane));
	merge = crc32c_shift_lane(c0, shift[1]) ^ crc32c_shift_lane(c1, shift[0]);
	return _mm_crc32_u64(c2, crc32c_load_u64(p + 2 * lane) ^ merge);
}

#define TARGET_WIDE __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))
/* Smallest number of bytes for which crc32c calls crc32c_wide. For fewer bytes, crc32c_sse42 is as
 * fast as crc32c_wide. */
#define WIDE_MIN 1024

/* Factors that move a 128-bit value by d bits, where d is the number in the name. A move multiplies
 * the low half of the value by x^(d + 32) mod P, and the high half by x^(d - 32) mod P. The
 * constants are these two factors times x, with reflected bits. */
static const uint64_t move_2048[2] = {0xdcb17aa4, 0xb9e02b86};
static const uint64_t move_1536[2] = {0xa87ab8a8, 0xab7aff2a};
static const uint64_t move_1024[2] = {0x6992cea2, 0x0d3b6092};
static const uint64_t move_512[2] = {0x740eef02, 0x9e4addf8};
static const uint64_t move_384[2] = {0x1c291d04, 0x1d82c63da};
static const uint64_t move_256[2] = {0x1384aa63a, 0xba4fc28e};
static const uint64_t move_128[2] = {0xf20c0dfe, 0x14cd00bd6};

/* Move each of the four 128-bit parts of v: multiply the low half of the part with `by[0]`, and the
 * high half with `by[1]`. Then XOR the two products and the corresponding part of `onto`. */
TARGET_WIDE static inline __m512i crc32c_fold_512_bits(
	__m512i v, const uint64_t by[2], __m512i onto)
{
	__m512i k = _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)by[1], (int64_t)by[0]));

	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(v, k, 0x00),
		_mm512_clmulepi64_epi128(v, k, 0x11), onto, 0x96);
}

TARGET_WIDE static inline __m128i crc32c_fold_128_bits(__m128i v, const uint64_t by[2])
{
	__m128i k = _mm_set_epi64x((int64_t)by[1], (int64_t)by[0]);

	return _mm_xor_si128(_mm_clmulepi64_si128(v, k, 0x00), _mm_clmulepi64_si128(v, k, 0x11));
}

/* Compute the crc by folding (Gopal et al., Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction, Intel 323102, 2009). Each step moves 256 bytes and adds them to the next
 * 256 bytes. The last steps reduce the result to 16 bytes, whose crc equals the crc of all bytes.
 * n_bytes is a multiple of 64 and at least 256. */
TARGET_WIDE static uint32_t crc32c_wide(uint32_t crc, const unsigned char *p, size_t n_bytes)
{
	const unsigned char *end = p + n_bytes;
	__m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64),
		c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
	uint64_t r;
	__m128i v;

	a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
	for (p += 256; end - p >= 256; p += 256) {
		a = crc32c_fold_512_bits(a, move_2048, _mm512_loadu_si512(p));
		b = crc32c_fold_512_bits(b, move_2048, _mm512_loadu_si512(p + 64));
		c = crc32c_fold_512_bits(c, move_2048, _mm512_loadu_si512(p + 128));
		d = crc32c_fold_512_bits(d, move_2048, _mm512_loadu_si512(p + 192));
	}
	d = crc32c_fold_512_bits(c, move_512, d);
	d = crc32c_fold_512_bits(b, move_1024, d);
	d = crc32c_fold_512_bits(a, move_1536, d);
	for (; p < end; p += 64)
		d = crc32c_fold_512_bits(d, move_512, _mm512_loadu_si512(p));
	v = _mm512_extracti32x4_epi32(d, 3);
	v = _mm_xor_si128(v, crc32c_fold_128_bits(_mm512_extracti32x4_epi32(d, 0), move_384));
	v = _mm_xor_si128(v, crc32c_fold_128_bits(_mm512_extracti32x4_epi32(d, 1), move_256));
	v = _mm_xor_si128(v, crc32c_fold_128_bits(_mm512_extracti32x4_epi32(d, 2), move_128));
	r = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(v));
	r = _mm_crc32_u64(r, (uint64_t)_mm_extract_epi64(v, 1));
	return ~(uint32_t)r;
}

TARGET static uint32_t crc32c_sse42(uint32_t crc, const unsigned char *p, size_t n_bytes)
{
	uint64_t c = ~crc;

	for (; n_bytes && (uintptr_t)p % 8; n_bytes--)
		c = _mm_crc32_u8((uint32_t)c, *p++);
	for (; n_bytes >= 3 * LONG_LANE; n_bytes -= 3 * LONG_LANE, p += 3 * LONG_LANE)
		c = crc32c_three_lanes(c, p, LONG_LANE, long_shift);
	for (; n_bytes >= 3 * SHORT_LANE; n_bytes -= 3 * SHORT_LANE, p += 3 * SHORT_LANE)
		c = crc32c_three_lanes(c, p, SHORT_LANE, short_shift);
	for (; n_bytes >= 8; n_bytes -= 8, p += 8)
		c = _mm_crc32_u64(c, crc32c_load_u64(p));
	for (; n_bytes; n_bytes--)
		c = _mm_crc32_u8((uint32_t)c, *p++);
	return ~(uint32_t)c;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
#ifdef __x86_64__
	if (n_bytes >= WIDE_MIN && __builtin_cpu_supports("vpclmulqdq") &&
		__builtin_cpu_supports("avx512f")) {
		size_t n_wide = n_bytes & ~(size_t)63;

		crc = crc32c_wide(crc, data, n_wide);
		data = (const unsigned char *)data + n_wide;
		n_bytes -= n_wide;
	}
	if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
		return crc32c_sse42(crc, data, n_bytes);
#endif
	return crc32c_portable(crc, data, n_bytes);
}
