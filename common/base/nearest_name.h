#ifndef BPS_COMMON_BASE_NEAREST_NAME_H
#define BPS_COMMON_BASE_NEAREST_NAME_H
/* The right name that is nearest to a wrong one, for refusals: " (did you mean 'x'?)". Any
 * thread. */
#include <stddef.h>

#define NEAREST_NAME_BYTES 64
#define NEAREST_HINT_BYTES 128

struct nearest_name {
	const char *name;
	size_t distance;
};
#define NEAREST_NONE                                                                               \
	(struct nearest_name)                                                                      \
	{                                                                                          \
		NULL, NEAREST_NAME_BYTES                                                           \
	}
/* Keep candidate if it is nearer to wrong than what there is. */
void nearest_name_try(struct nearest_name *best, const char *wrong, const char *candidate);
/* The hint into buf, or nothing when no name is near: more than a third of it differs. */
const char *nearest_name_hint(
	const struct nearest_name *best, const char *prefix, char buf[static NEAREST_HINT_BYTES]);
#endif
