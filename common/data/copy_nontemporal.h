#ifndef BPS_COMMON_DATA_COPY_NONTEMPORAL_H
#define BPS_COMMON_DATA_COPY_NONTEMPORAL_H
/* Memory copies. The functions keep no state and may be called on any thread. */
#include <stddef.h>

/* Copy as memcpy does, but bypass the CPU caches if the processor can. Use this for data that is
 * not read again soon. Each cache line of dst is written without being read first, and the caches
 * keep their content. The copy is ordered before later stores, as with memcpy. */
void copy_nontemporal(void *dst, const void *src, size_t n_bytes);
#endif
