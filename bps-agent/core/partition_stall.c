/* Finds out what a round waits for: counts the partitions without a sum, and describes the
 * partition that has waited longest. Thread: the core's thread. */
#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/link.h"

/* If `part` has no sum yet, count `part` in ret->n_open. If `part` is the first partition without a
 * sum, or has waited longer than the partition in *ret, describe `part` in *ret. */
static void stall_record_part(const struct agt_part *part, struct agt_stall *ret)
{
	const struct agt_core *core = part->tensor->job->core;
	uint64_t since_ns = part->sent_ns, ns;
	enum agt_stall_kind kind;

	if (part->state == PART_IDLE)
		return;
	ret->n_open++;
	if (part->state == PART_OFFERED || part->state == PART_FETCHING) {
		kind = AGT_STALL_READ;
		since_ns = part->offered_ns;
	} else if (part->is_staging) {
		kind = AGT_STALL_DEVICE;
	} else if (!part->link) {
		kind = AGT_STALL_NOWHERE;
	} else if (part->link->state != LINK_UP) {
		kind = AGT_STALL_LINK;
		since_ns = part->link->down_since_ns;
	} else if (part->state == PART_READY && !part->sent_ns) {
		kind = AGT_STALL_QUEUE;
	} else {
		kind = AGT_STALL_SENT;
	}
	ns = since_ns && core->now_ns > since_ns ? core->now_ns - since_ns : 0;
	if (ret->n_open > 1 && ns <= ret->ns)
		return;
	ret->kind = kind;
	ret->part = part->index;
	ret->server = part->link && !part->is_staging ? part->link->server : 0;
	ret->ns = ns;
}

bool agt_tensor_find_stall(const struct agt_tensor *t, struct agt_stall *ret)
{
	*ret = (struct agt_stall){.n_parts = t->n_parts};
	if (t->job->is_local)
		return false;
	for (uint32_t i = 0; i < t->n_parts; i++)
		stall_record_part(&t->parts[i], ret);
	return ret->n_open > 0;
}
