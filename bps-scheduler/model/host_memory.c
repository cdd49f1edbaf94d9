#include "bps-scheduler/model/host_memory.h"

#include "bps-scheduler/model/model.h"

struct host_memory *host_memory_new(const struct sched_core *c)
{
	struct host_memory *hosts = sched_alloc(c->n_hosts, sizeof(*hosts));

	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];
		struct host_memory *h = &hosts[m->host_idx];

		if (!sched_is_usable(m))
			continue;
		if (m->memory_bytes > h->bytes)
			h->bytes = m->memory_bytes;
		if (__builtin_add_overflow(h->promised_bytes, m->quota_bytes, &h->promised_bytes))
			h->promised_bytes = UINT64_MAX;
	}
	return hosts;
}

uint64_t host_memory_of(const struct host_memory *hosts, const struct sched_member *m)
{
	const struct host_memory *h = &hosts[m->host_idx];

	if (!h->bytes || h->promised_bytes <= h->bytes)
		return m->quota_bytes;
	return (uint64_t)((double)m->quota_bytes * ((double)h->bytes / (double)h->promised_bytes));
}
