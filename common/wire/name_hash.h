#ifndef BPS_COMMON_WIRE_NAME_HASH_H
#define BPS_COMMON_WIRE_NAME_HASH_H
/* Hash of a tensor's name, for tables and for messages that name a tensor without its text. */
#include <stdint.h>

/* Return the 64-bit FNV-1a hash of the name. */
static inline uint64_t name_hash(const char *name)
{
	uint64_t h = UINT64_C(14695981039346656037);

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * UINT64_C(1099511628211);
	return h;
}
#endif
