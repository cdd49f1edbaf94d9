#ifndef BPS_AGENT_QUOTA_QUOTA_REPORT_H
#define BPS_AGENT_QUOTA_QUOTA_REPORT_H
/* Reports the quotas, and how much of each is used, as metrics and JSON. Has no state.
 * Thread: any. */
#include <jansson.h>

#include "bps-agent/quota/quota.h"

struct evbuffer;

/* Write metrics for each kind of quota. The metrics have no label for a user or job, because the
 * number of users and jobs is not bounded. */
void quota_write_metrics(const struct quota_view *v, struct evbuffer *out);
/* Return the use and the limit of each account, as {"machine": [..], "user": [..], "job": [..]}. A
 * limit of 0 means no limit. The caller owns the returned reference. */
json_t *quota_view_to_json(const struct quota_view *v);
#endif
