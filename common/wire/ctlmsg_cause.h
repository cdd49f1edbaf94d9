#ifndef BPS_COMMON_WIRE_CTLMSG_CAUSE_H
#define BPS_COMMON_WIRE_CTLMSG_CAUSE_H
/* The worker that caused a failure, in messages that report the failure. Messages of the control
 * channel and of the trainers' socket contain the cause in addition to their text. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/codec.h"

struct ctl_cause {
	/* Rank of the worker, or CTL_NO_ID if the cause is the whole machine. The rank is not used
	 * when the field `host` is empty */
	uint32_t rank;
	const char *host; /* name of the worker's machine; "" or NULL if the cause is not known */
};

/* Return whether the message names a cause. Messages of older releases name no cause. */
static inline bool ctl_has_cause(const struct ctl_cause *cause)
{
	return cause->host && *cause->host;
}

/* Rows of a field table, for a struct S with a member `struct ctl_cause cause`. */
#define FIELD_CAUSE_(S) FIELD_U32_(S, cause.rank), FIELD_STR_(S, cause.host, CTL_NAME_MAX)
#endif
