/* Writes the agent's records for the next process. Gives the service manager the descriptors that
 * belong to the records. handover_write.h describes the names of the descriptors, and the order of
 * the steps. handover_read.c reads the records. Thread: the data thread. */
#include "bps-agent/handover/handover_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bps-agent/handover/ledger.h"
#include "bps-agent/handover/ledger_records.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#define RESEND_NS      UINT64_C(50000000)
#define UNSENT_WARN_NS UINT64_C(5000000000)

/* ---- a slow service manager ---- */

/* A request that the service manager has not accepted yet: to store a descriptor, or to remove all
 * descriptors with a given name. Requests are sent in the order of the list. */
struct unsent_fd {
	STAILQ_ENTRY(unsent_fd) next;
	/* duplicate of the descriptor to store; -1: the manager is to remove all descriptors with
	 * this name */
	int fd;
	char name[FDSTORE_NAME_BYTES];
};

static void unsent_fd_free(struct unsent_fd *l)
{
	if (l->fd >= 0)
		close(l->fd);
	free(l);
}

static int unsent_fd_enqueue(struct agent *a, const char *name, int fd)
{
	struct unsent_fd *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (fd >= 0 && l->fd < 0) {
		int rc = -errno;

		free(l);
		return rc;
	}
	snprintf(l->name, sizeof(l->name), "%s", name);
	if (STAILQ_EMPTY(&a->unsent)) {
		a->unsent_since_ns = clock_now_ns();
		a->unsent_due_ns = a->unsent_since_ns + RESEND_NS;
		log_info("will repeat the request to store or remove the descriptor %s, because "
			 "the service manager is slow",
			name);
	}
	STAILQ_INSERT_TAIL(&a->unsent, l, next);
	return 0;
}

static void warn_lost_descriptor(const char *name, int rc)
{
	log_rated(LOG_WARN,
		"the service manager has not stored the descriptor %s, so a restart of this agent "
		"loses the trainer or job that the descriptor belongs to: %s",
		name, strerror(-rc));
}

/* Store a descriptor with the service manager, or queue it. A failure is logged. The agent
 * then continues, but a restart of the agent loses the descriptor. */
static void handover_store_fd(struct agent *a, const char *name, int fd)
{
	int rc;

	if (fd < 0 || !a->cfg.can_hand_over)
		return;
	rc = STAILQ_EMPTY(&a->unsent) ? fdstore_put(name, fd) : -EAGAIN;
	if (rc == -EAGAIN)
		rc = unsent_fd_enqueue(a, name, fd);
	if (rc < 0)
		warn_lost_descriptor(name, rc);
}

/* Remove the queue's entries with the name `name`. Returns whether any entry was removed. */
static bool unsent_fd_remove_named(struct agent *a, const char *name)
{
	struct unsent_fd *l, *next;
	bool had_some = false;

	for (l = STAILQ_FIRST(&a->unsent); l; l = next) {
		next = STAILQ_NEXT(l, next);
		if (strcmp(l->name, name) != 0)
			continue;
		STAILQ_REMOVE(&a->unsent, l, unsent_fd, next);
		unsent_fd_free(l);
		had_some = true;
	}
	return had_some;
}

/* Remove the descriptors with the name `name` from the queue and from the manager. is_of_many:
 * several descriptors have the name (the arenas of a job). In that case, some of the descriptors
 * may be with the manager while the others are in the queue. */
static void handover_remove_fds(struct agent *a, const char *name, bool is_of_many)
{
	if (unsent_fd_remove_named(a, name) && !is_of_many)
		return;
	if (!STAILQ_EMPTY(&a->unsent) || fdstore_remove(name) == -EAGAIN)
		unsent_fd_enqueue(a, name, -1);
}

/* Remove the first entry l from the queue. If rc is 0, the manager has accepted the entry. If rc is
 * negative, the entry is lost. */
static void unsent_fd_dequeue(struct agent *a, struct unsent_fd *l, int rc)
{
	if (rc < 0)
		warn_lost_descriptor(l->name, rc);
	STAILQ_REMOVE_HEAD(&a->unsent, next);
	unsent_fd_free(l);
}

uint64_t handover_write_tick(struct agent *a, uint64_t now_ns)
{
	struct unsent_fd *l;

	if (STAILQ_EMPTY(&a->unsent))
		return UINT64_MAX;
	if (now_ns < a->unsent_due_ns)
		return a->unsent_due_ns;
	while ((l = STAILQ_FIRST(&a->unsent))) {
		int rc = fdstore_put_or_remove(l->name, l->fd);

		if (rc == -EAGAIN)
			break;
		unsent_fd_dequeue(a, l, rc);
	}
	if (!l) {
		log_info("the service manager has accepted all waiting descriptors");
		return UINT64_MAX;
	}
	if (now_ns - a->unsent_since_ns > UNSENT_WARN_NS)
		log_rated(LOG_WARN,
			"descriptors have waited for the service manager for %.0f s: a restart of "
			"this agent now would lose the trainers and jobs that these descriptors "
			"belong to: first_descriptor=%s",
			(double)(now_ns - a->unsent_since_ns) / 1e9, l->name);
	return a->unsent_due_ns = now_ns + RESEND_NS;
}

void handover_write_end(struct agent *a)
{
	struct unsent_fd *l;
	int rc = 0;

	while ((l = STAILQ_FIRST(&a->unsent))) {
		if (rc == 0)
			rc = l->fd >= 0 ? fdstore_put(l->name, l->fd) : fdstore_remove(l->name);
		unsent_fd_dequeue(a, l, rc);
	}
}

/* Store a descriptor under the name <kind><number>.<part>, see handover_write.h. */
static void handover_store_part_fd(struct agent *a, char kind, uint64_t number, char part, int fd)
{
	char name[FDSTORE_NAME_BYTES];

	snprintf(name, sizeof(name), "%c%" PRIu64 ".%c", kind, number, part);
	handover_store_fd(a, name, fd);
}

static void handover_remove_part_fds(struct agent *a, char kind, uint64_t number, const char *parts)
{
	char name[FDSTORE_NAME_BYTES];

	for (; *parts; parts++) {
		snprintf(name, sizeof(name), "%c%" PRIu64 ".%c", kind, number, *parts);
		handover_remove_fds(a, name, *parts == 'm');
	}
}

/* Add a record whose fixed part consists of n bytes at `fixed`, followed by the string `text`. */
static int ledger_add_with_text(struct ledger *l, enum ledger_type type, const void *fixed,
	size_t n, const char *text, size_t n_live, void **ret_live)
{
	size_t n_text = strlen(text) + 1;
	char *both = malloc(n + n_text);
	int rc;

	if (!both)
		return -ENOMEM;
	memcpy(both, fixed, n);
	memcpy(both + n, text, n_text);
	rc = ledger_add(l, type, both, n + n_text, n_live, ret_live);
	free(both);
	return rc;
}

/* ---- trainers ---- */

void handover_write_socket(struct trainer *t)
{
	if (t->has_kept_socket && t->agent->cfg.can_hand_over)
		return;
	t->has_kept_socket = true;
	/* Store the pidfd first, because a process that restores the socket expects the pidfd,
	 * too. */
	handover_store_part_fd(t->agent, 't', t->number, 'p', t->pidfd);
	handover_store_part_fd(t->agent, 't', t->number, 's', t->sock);
}

int handover_write_trainer(
	struct trainer *t, uint32_t hello_seq, int control_fd, struct err_text *err)
{
	struct ledger_trainer k = {.number = t->number,
		.control_bytes = t->control_bytes,
		.hello_seq = hello_seq,
		.asked_rank = t->asked_rank,
		.part_bytes = t->part_bytes,
		.join_seq = t->join_seq,
		.sq_entries = t->sq_entries,
		.max_tensors = t->max_tensors,
		.machine_size = t->machine_size};
	void *live;
	int rc;

	handover_store_part_fd(t->agent, 't', t->number, 'e', t->efd);
	handover_store_part_fd(t->agent, 't', t->number, 'c', control_fd);
	rc = ledger_add(t->job->ledger, LEDGER_TRAINER, &k, sizeof(k),
		sizeof(struct ledger_trainer_live), &live);
	if (rc < 0)
		return err_set(err, rc, "the agent is out of memory");
	t->live = live;
	return 0;
}

void handover_forget_trainer(const struct trainer *t)
{
	if (t->has_kept_socket && t->agent->cfg.can_hand_over)
		handover_remove_part_fds(t->agent, 't', t->number, t->live ? "spec" : "sp");
}

/* ---- jobs ---- */

int handover_write_job(struct job *job, struct err_text *err)
{
	struct ledger_job k = {.number = job->number,
		.uid = job->uid,
		.size = job->size,
		.flags = job->flags,
		.backup = job->backup,
		.grace_ms = job->grace_ms,
		.max_size = job->max_size,
		.has_token = job->has_token};
	int rc = ledger_new(&job->ledger, err);

	if (rc < 0)
		return rc;
	memcpy(k.token, job->token, sizeof(k.token));
	memcpy(k.name, job->name, sizeof(k.name));
	rc = ledger_add(job->ledger, LEDGER_JOB, &k, sizeof(k), 0, NULL);
	if (rc < 0)
		return err_set(err, rc, "the agent is out of memory");
	handover_store_part_fd(job->agent, 'j', job->number, 'l', ledger_fd(job->ledger));
	return 0;
}

int handover_write_running(struct job *job, const struct ctl_job *m, uint16_t my_member)
{
	struct {
		struct ledger_running head;
		struct ledger_rank ranks[];
	} *k = calloc(1, sizeof(*k) + job->n_workers * sizeof(k->ranks[0]));
	int rc;

	if (!k)
		return -ENOMEM;
	k->head = (struct ledger_running){.id = m->job,
		.n_members = m->n_members,
		.my_member = my_member,
		.n_ranks = job->n_workers};
	for (uint32_t w = 0; w < job->n_workers; w++) {
		k->ranks[w].rank = job->ranks[w];
		k->ranks[w].trainer = job->by_worker[w] ? job->by_worker[w]->number : 0;
	}
	rc = ledger_add(job->ledger, LEDGER_RUNNING, k,
		sizeof(*k) + job->n_workers * sizeof(k->ranks[0]), 0, NULL);
	free(k);
	return rc;
}

static int handover_add_arena(struct job *job, struct arena *arena, bool is_gpu)
{
	struct ledger_arena k = {.bytes = arena->bytes,
		.id = arena->id,
		.kind = (uint8_t)arena->kind,
		.is_gpu = is_gpu,
		.node = (uint16_t)arena->node};
	struct stat st;
	void *live;
	int rc;

	if (fstat(arena->fd, &st) < 0)
		return -errno;
	k.inode = st.st_ino;
	handover_store_part_fd(job->agent, 'j', job->number, 'm', arena->fd);
	rc = ledger_add(job->ledger, LEDGER_ARENA, &k, sizeof(k), sizeof(uint64_t), &live);
	if (rc == 0)
		arena->kept_used = live;
	return rc;
}

int handover_write_arena(void *ctx, struct arena *arena)
{
	return handover_add_arena(ctx, arena, false);
}

int handover_write_staging(struct job *job, struct arena *arena)
{
	return handover_add_arena(job, arena, true);
}

int handover_write_executor(struct executor_link *g)
{
	struct ledger_executor k = {.pid = (uint32_t)g->pid};

	handover_store_part_fd(g->agent, 'j', g->job->number, 'p', g->pidfd);
	handover_store_part_fd(g->agent, 'j', g->job->number, 'x', g->sock);
	g->is_handed_over = g->agent->cfg.can_hand_over;
	return ledger_add(g->job->ledger, LEDGER_EXECUTOR, &k, sizeof(k), 0, NULL);
}

int handover_write_route(const struct executor_link *g)
{
	struct ledger_route k = {.n_inputs = g->n_inputs, .sum_node = g->sum_node};

	memcpy(k.input_nodes, g->input_nodes, sizeof(k.input_nodes));
	memcpy(k.input_workers, g->input_workers, sizeof(k.input_workers));
	memcpy(k.route, g->route, sizeof(k.route));
	return ledger_add(g->job->ledger, LEDGER_ROUTE, &k, sizeof(k), 0, NULL);
}

void handover_forget_executor(struct executor_link *g)
{
	if (g->is_handed_over && g->job)
		handover_remove_part_fds(g->agent, 'j', g->job->number, "xp");
	g->is_handed_over = false;
}

void handover_forget_job(const struct job *job)
{
	if (job->agent->cfg.can_hand_over)
		handover_remove_part_fds(job->agent, 'j', job->number, "lm");
}

/* ---- tensors ---- */

static int handover_write_tensor(struct tensor *tensor)
{
	struct ledger_tensor k = {.shape = tensor->shape,
		.out_offset = {tensor->out[0].offset, tensor->out[1].offset},
		.out_arena = tensor->out_arena->id,
		.gpu_id = tensor->device ? tensor->device->id : 0,
		.is_gpu = tensor->device != NULL};
	struct job *job = tensor->job;
	void *live;
	int rc;

	if (tensor->idx != CTL_NO_ID)
		return 0;
	rc = ledger_add_with_text(job->ledger, LEDGER_TENSOR, &k, sizeof(k), tensor->name,
		sizeof(struct ledger_tensor_live), &live);
	if (rc < 0)
		return rc;
	tensor->live = live;
	tensor->idx = job->n_kept++;
	/* the tensor failed while it waited for memory, before it had a record */
	if (tensor->failed)
		handover_write_refused(tensor);
	return 0;
}

static int handover_write_inputs(struct tensor *tensor)
{
	struct {
		struct ledger_inputs head;
		struct ledger_range ranges[LOCAL_GPUS_MAX];
	} k = {{tensor->idx, tensor->device->executor->n_inputs}, {{0}}};
	struct device_tensor *d = tensor->device;
	int rc;

	if (d->has_kept_inputs)
		return 0;
	for (uint32_t i = 0; i < k.head.n; i++)
		k.ranges[i] = (struct ledger_range){d->in[i].offset, d->in_arena[i]->id, 0};
	rc = ledger_add(tensor->job->ledger, LEDGER_INPUTS, &k,
		sizeof(k.head) + k.head.n * sizeof(k.ranges[0]), 0, NULL);
	d->has_kept_inputs = rc == 0;
	return rc;
}

static void handover_record_staging(struct tensor *tensor)
{
	struct ledger_tensor_live *live = tensor->live;

	if (!tensor->staging.mem || live->staging_arena)
		return;
	live->staging_offset = tensor->staging.offset;
	live->staging_arena = tensor->staging_arena->id + 1;
}

static int handover_write_worker(struct tensor *tensor, uint32_t worker)
{
	struct tensor_worker *tw = &tensor->workers[worker];
	struct ledger_declared k = {.tensor = tensor->idx, .worker = worker, .index = tw->index};
	void *live;
	int rc;

	if (tensor->device) {
		k.in_offset = tensor->device->workers[worker].offset;
		k.in_arena = tensor->device->workers[worker].region;
	} else {
		k.in_offset = tw->in.offset;
		k.in_arena = tw->in_arena->id;
	}
	rc = ledger_add(tensor->job->ledger, LEDGER_DECLARED, &k, sizeof(k),
		sizeof(struct ledger_worker_live), &live);
	if (rc == 0)
		tw->live = live;
	return rc;
}

int handover_write_declared(struct tensor *tensor, uint32_t worker)
{
	int rc = handover_write_tensor(tensor);

	if (rc == 0 && tensor->device)
		rc = handover_write_inputs(tensor);
	if (rc == 0)
		rc = handover_write_worker(tensor, worker);
	if (rc == 0)
		handover_record_staging(tensor);
	return rc;
}

struct agt_kept_part *handover_write_parts(
	void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts)
{
	struct tensor *tensor = tensor_user;
	struct ledger_parts k = {
		.tensor = tensor->idx, .id = id, .part_elems = part_elems, .n_parts = n_parts};
	void *live;

	(void)ctx;
	/* After a restart the state may already exist. The state is valid only if the plan has not
	 * changed. */
	if (tensor->parts)
		return tensor->kept_id == id && tensor->part_elems == part_elems &&
				       tensor->n_parts == n_parts
			       ? tensor->parts
			       : NULL;
	if (ledger_add(tensor->job->ledger, LEDGER_PARTS, &k, sizeof(k),
		    n_parts * sizeof(struct agt_kept_part), &live) < 0)
		return NULL;
	tensor->parts = live;
	tensor->kept_id = id;
	tensor->part_elems = part_elems;
	tensor->n_parts = n_parts;
	return tensor->parts;
}

void handover_write_refused(const struct tensor *tensor)
{
	struct ledger_refused k = {.tensor = tensor->idx, .code = tensor->failed};

	if (tensor->idx != CTL_NO_ID)
		ledger_add_with_text(tensor->job->ledger, LEDGER_REFUSED, &k, sizeof(k),
			tensor->fail_text ? tensor->fail_text : "", 0, NULL);
}
