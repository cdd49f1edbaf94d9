#ifndef BPS_SCHEDULER_MODEL_COMPARE_H
#define BPS_SCHEDULER_MODEL_COMPARE_H
/* Compares two numbers for qsort: the result is negative if x comes before y, positive if x comes
 * after y, and 0 if both are equal. A difference of the numbers would overflow. Thread: any. */
#include <stdint.h>

static inline int compare_u64(uint64_t x, uint64_t y)
{
	return (x > y) - (x < y);
}
#endif
