#ifndef BPS_COMMON_DATA_CRC32C_H
#define BPS_COMMON_DATA_CRC32C_H
/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), hardware-assisted with run-time dispatch and a
 * portable table fallback. Detects accidental corruption only. Any thread. */
#include <stddef.h>
#include <stdint.h>

/* Return the CRC of data appended to bytes whose CRC is crc (0 for none). */
uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes);

/* Compute the same without CPU instructions: the fallback of crc32c, and the reference of its
 * test. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n_bytes);
#endif
