#ifndef BPS_AGENT_QUOTA_QUOTA_REPORT_H
#define BPS_AGENT_QUOTA_QUOTA_REPORT_H
/* Reports quotas and their use in metrics and JSON. Has no state. Thread: any. */
#include <jansson.h>

#include "bps-agent/quota/quota.h"

struct evbuffer;

/* Write metrics per kind of quota. They have no label for users or jobs, because the number of
 * those is not bounded. */
void quota_metrics(const struct quota_view *v, struct evbuffer *out);
/* Return {"machine": [..], "user": [..], "job": [..]}: use and limit of each account; a limit of 0
 * means no limit. The caller owns the reference. */
json_t *quota_json(const struct quota_view *v);
#endif
