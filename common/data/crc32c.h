#ifndef BPS_COMMON_DATA_CRC32C_H
#define BPS_COMMON_DATA_CRC32C_H
/* CRC-32C (Castagnoli, RFC 3720 appendix B.4). crc32c uses CPU instructions, which it chooses at
 * run time. On a CPU without them it uses tables. A CRC detects accidental corruption only, not
 * attacks. Any thread may call the functions. */
#include <stddef.h>
#include <stdint.h>

/* Return the CRC of some earlier bytes followed by data. crc: CRC of the earlier bytes; 0: there
 * are no earlier bytes. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes);

/* Return the same result as crc32c, but use tables only. crc32c calls crc32c_portable on a CPU
 * without the necessary instructions. A test compares the results of crc32c and crc32c_portable. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n_bytes);
#endif
