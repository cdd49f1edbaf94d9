#ifndef BPS_COMMON_WIRE_TENSOR_TITLE_H
#define BPS_COMMON_WIRE_TENSOR_TITLE_H
/* How texts for people name a tensor. The library makes tensors of its own, whose names no user
 * knows. */
#include <stdio.h>
#include <string.h>

/* Prefix of the names of the library's own tensors, which its collectives use. */
#define CTL_OWN_TENSORS "__bps."
/* Prefix of the name of a companion: the library averages the tensor of integers behind it. */
#define CTL_COMPANIONS "__bps_avg."

#define TENSOR_TITLE_BYTES 264

/* Write the name in quotes or, for a tensor of the library, what it is for: "a barrier". */
static inline const char *tensor_title(const char *name, char buf[static TENSOR_TITLE_BYTES])
{
	if (strcmp(name, CTL_OWN_TENSORS "barrier") == 0)
		return "a barrier";
	if (strncmp(name, CTL_OWN_TENSORS, strlen(CTL_OWN_TENSORS)) == 0)
		return "a broadcast or gather";
	if (strncmp(name, CTL_COMPANIONS, strlen(CTL_COMPANIONS)) == 0)
		name += strlen(CTL_COMPANIONS);
	snprintf(buf, TENSOR_TITLE_BYTES, "'%.255s'", name);
	return buf;
}
#endif
