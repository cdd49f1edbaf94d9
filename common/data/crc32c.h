#ifndef BPS_COMMON_DATA_CRC32C_H
#define BPS_COMMON_DATA_CRC32C_H
/* CRC-32C (Castagnoli, RFC 3720 appendix B.4). At run time, crc32c chooses CPU instructions that
 * compute the CRC. On a CPU without such instructions, crc32c uses tables. A CRC detects accidental
 * corruption only, not attacks. Any thread may call the functions. */
#include <stddef.h>
#include <stdint.h>

/* Return the CRC of a sequence: first some earlier bytes, then the n_bytes bytes at `data`. crc:
 * CRC of the earlier bytes, or 0 if there are no earlier bytes. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes);

/* Return the same result as crc32c, but use tables only. crc32c calls crc32c_portable on a CPU
 * without the necessary instructions. A test compares the results of crc32c and crc32c_portable. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n_bytes);
#endif
