#ifndef BPS_AGENT_QUOTA_QUOTA_REPORT_H
#define BPS_AGENT_QUOTA_QUOTA_REPORT_H
/* Reports quotas and their use in metrics and JSON. Stateless; the thread that owns the buffer. */
#include <jansson.h>

#include "bps-agent/quota/quota.h"

struct evbuffer;

/* Write metrics by kind of quota, never by user or job: their number is not bounded. */
void quota_metrics(const struct quota_view *v, struct evbuffer *out);
/* Return {"machine": [..], "user": [..], "job": [..]}: use and limit of each; a limit of 0 is
 * none. */
json_t *quota_json(const struct quota_view *v);
#endif
