#ifndef BPS_COMMON_DATA_COPY_NONTEMPORAL_H
#define BPS_COMMON_DATA_COPY_NONTEMPORAL_H
/* Copies. Pure. */
#include <stddef.h>

/* As memcpy, past the caches where the processor can: for what is used only when the caches hold
 * other things again. Whole lines of memory are not read before they are written, and what is in the
 * caches stays.
 * Seen by other threads as what memcpy writes. */
void copy_nontemporal(void *dst, const void *src, size_t n_bytes);
#endif
