#ifndef BPS_COMMON_DATA_COPY_NONTEMPORAL_H
#define BPS_COMMON_DATA_COPY_NONTEMPORAL_H
/* Memory copies. Pure; any thread. */
#include <stddef.h>

/* Copy like memcpy, but bypass the caches where the processor can. Use it for data that is read
 * only after the caches have been refilled. Whole cache lines are not read before they are written,
 * and the caches keep their content. Other threads see the bytes in the same order as after
 * memcpy. */
void copy_nontemporal(void *dst, const void *src, size_t n_bytes);
#endif
