#ifndef BPS_COMMON_BASE_NEAREST_NAME_H
#define BPS_COMMON_BASE_NEAREST_NAME_H
/* Find the valid name that is nearest to an unknown name, for error texts: " (did you mean 'x'?)".
 * Any thread may call the functions. */
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
/* Replace the best name by `candidate` if `candidate` is nearer to the unknown name `wrong`. */
void nearest_name_try(struct nearest_name *best, const char *wrong, const char *candidate);
/* Write the hint with the best name into buf and return buf. prefix: text before the name, such as
 * "--". The hint is empty when the edit distance exceeds 1 + a third of the best name's length. */
const char *nearest_name_hint(
	const struct nearest_name *best, const char *prefix, char buf[static NEAREST_HINT_BYTES]);
#endif
