/* Keeps the identity of this agent's cluster for the next process, in a separate ledger.
 * cluster_identity.h describes the use of the identity. Thread: the control thread. */
#include "bps-agent/handover/cluster_identity.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bps-agent/handover/ledger.h"
#include "common/base/log.h"

#define NAME           "cluster"
#define LEDGER_CLUSTER 1 /* the only type of record in this ledger */

struct cluster_record {
	uint8_t cluster_id[16];
	uint32_t member_id, unused;
};
struct cluster_live {
	/* Largest view that this agent has received. The upper half of a view is a term of the
	 * scheduler. The term in `view` is at most the field `term`. */
	_Atomic uint64_t view;
	_Atomic uint32_t term, unused;
};

static bool fdstore_has_jobs(const struct fdstore *s)
{
	unsigned long long number;
	char what;

	for (size_t i = 0; i < s->n; i++)
		if (s->fds[i].fd >= 0 && sscanf(s->fds[i].name, "j%llu.%c", &number, &what) == 2 &&
			what == 'l')
			return true;
	return false;
}

static int cluster_identity_read_ledger(struct cluster_identity *p, int fd, struct err_text *err)
{
	const struct cluster_record *fixed;
	struct ledger_record r;
	size_t at = 0;
	int rc = ledger_open(fd, &p->ledger, err);

	if (rc < 0)
		return rc;
	rc = ledger_next(p->ledger, &at, &r, err);
	if (rc < 0)
		return rc;
	fixed = rc ? r.fixed : NULL;
	if (!fixed || r.type != LEDGER_CLUSTER || r.n_fixed != sizeof(*fixed) ||
		r.n_live != sizeof(*p->live) || !fixed->member_id)
		return err_set(err, BPS_EPROTO,
			"the stored record does not hold the identity of a cluster");
	p->live = r.live;
	p->known.member_id = fixed->member_id;
	memcpy(p->known.cluster_id, fixed->cluster_id, sizeof(fixed->cluster_id));
	p->known.term = atomic_load_explicit(&p->live->term, memory_order_relaxed);
	p->known.view = atomic_load_explicit(&p->live->view, memory_order_relaxed);
	return 0;
}

void cluster_identity_take(struct cluster_identity *p, struct fdstore *s)
{
	int fd = fdstore_take(s, NAME);
	struct err_text err = {""};

	if (fd < 0)
		return;
	if (cluster_identity_read_ledger(p, fd, &err) < 0)
		log_warn("cannot restore the cluster's identity from the previous process: %s: "
			 "the agent waits for the scheduler",
			err.s);
	if (!p->live || !fdstore_has_jobs(s))
		cluster_identity_forget(p);
}

/* Remove the old ledger from the service manager. If two ledgers were stored under one name, the
 * next process would take the older one. */
static int cluster_identity_remove_ledger(struct cluster_identity *p)
{
	int rc = fdstore_remove(NAME);

	p->is_unsaid = rc == -EAGAIN;
	return p->is_unsaid ? rc : 0;
}

static int cluster_identity_begin_ledger(struct cluster_identity *p, const struct member_past *now)
{
	struct cluster_record fixed = {.member_id = now->member_id};
	struct err_text err;
	int rc = p->is_unsaid ? cluster_identity_remove_ledger(p) : 0;
	void *live;

	if (rc == 0)
		rc = ledger_new(&p->ledger, &err);
	if (rc < 0)
		return rc;
	memcpy(fixed.cluster_id, now->cluster_id, sizeof(fixed.cluster_id));
	rc = ledger_add(p->ledger, LEDGER_CLUSTER, &fixed, sizeof(fixed), sizeof(*p->live), &live);
	if (rc < 0)
		return rc;
	p->live = live;
	return fdstore_put_or_remove(NAME, ledger_fd(p->ledger));
}

void cluster_identity_note(struct cluster_identity *p, const struct member_past *now)
{
	int rc = p->ledger ? 0 : cluster_identity_begin_ledger(p, now);

	if (rc < 0) {
		log_rated(rc == -EAGAIN ? LOG_INFO : LOG_WARN,
			"the service manager has not stored the cluster's identity: %s: a "
			"restarted agent must wait for the scheduler",
			err_str(rc));
		cluster_identity_fini(p);
	}
	if (!p->live)
		return;
	atomic_store_explicit(&p->live->view, now->view, memory_order_relaxed);
	atomic_store_explicit(&p->live->term, now->term, memory_order_relaxed);
}

void cluster_identity_forget(struct cluster_identity *p)
{
	cluster_identity_fini(p);
	*p = (struct cluster_identity){0};
	cluster_identity_remove_ledger(p);
}

void cluster_identity_fini(struct cluster_identity *p)
{
	ledger_free(p->ledger);
	p->ledger = NULL;
	p->live = NULL;
}
