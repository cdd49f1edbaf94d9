#ifndef BPS_AGENT_QUOTA_QUOTA_REPORT_H
#define BPS_AGENT_QUOTA_QUOTA_REPORT_H
/* Quotas and their use for people and machines. Stateless; the thread that owns the buffer. */
#include <jansson.h>

#include "bps-agent/quota/quota.h"

struct evbuffer;

/* By kind of quota, never by user or job: there may be any number of those. */
void quota_metrics(const struct quota_view *v, struct evbuffer *out);
/* {"machine": [..], "user": [..], "job": [..]}: use and limit of each; a limit of 0 is none. */
json_t *quota_json(const struct quota_view *v);
#endif
