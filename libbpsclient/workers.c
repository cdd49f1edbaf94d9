/* Functions that fetch information from the agent. bps_workers(3) fetches the list of the job's
 * workers, in several pages. bps_traffic(3) fetches the agent's network traffic, and bps_trace(3) a
 * trace of the last rounds. The library stores none of this information. Thread: any. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libbpsclient/average.h"
#include "libbpsclient/last_error.h"

struct worker_list {
	struct bps_worker *ret;
	size_t room;
	uint32_t n_seen, n_all;
	uint64_t view;
	bool is_end;
};

static void worker_list_append_page(void *ctx, const struct local_people *page)
{
	struct worker_list *f = ctx;

	f->view = page->view;
	f->n_all = page->n_all;
	f->is_end = !page->n_people || f->n_seen + page->n_people >= page->n_all;
	for (uint32_t i = 0; i < page->n_people; i++, f->n_seen++) {
		const struct local_person *p = &page->people[i];
		struct bps_worker *w = f->n_seen < f->room ? &f->ret[f->n_seen] : NULL;

		if (!w)
			continue;
		*w = (struct bps_worker){.rank = (int32_t)p->rank,
			.is_lost = p->is_lost,
			.is_new = p->is_new,
			.is_missing = p->is_missing};
		snprintf(w->host, sizeof(w->host), "%s", p->host);
		snprintf(w->why, sizeof(w->why), "%s", p->why);
	}
}

/* Read all pages of the list. If the list changes between two pages, start again from the first
 * page. */
static int worker_list_request_pages(struct bps *b, uint32_t tensor, struct worker_list *f)
{
	int rc = 0;

	while (rc == 0 && !f->is_end) {
		uint64_t view = f->view;

		rc = session_workers(&b->session, tensor, f->n_seen, worker_list_append_page, f,
			last_error_text());
		if (rc == 0 && view && f->view != view) {
			f->n_seen = 0;
			f->view = 0;
			f->is_end = false;
		}
	}
	return rc < 0 ? rc : (int)f->n_all;
}

static int single_worker_list(struct worker_list *f)
{
	static const struct bps_worker self = {.rank = 0};

	if (f->room)
		f->ret[0] = self;
	return 1;
}

int bps_workers(struct bps *b, struct bps_worker *ret, size_t n, uint64_t *ret_view)
{
	struct worker_list f = {.ret = ret, .room = ret ? n : 0};
	int rc = client_check_is_open(b);

	if (rc < 0)
		return rc;
	rc = b->is_single ? single_worker_list(&f) : worker_list_request_pages(b, UINT32_MAX, &f);
	if (rc >= 0 && ret_view)
		*ret_view = f.view;
	return rc;
}

int bps_traffic(struct bps *b, struct bps_traffic *ret)
{
	struct local_traffic traffic = {0};
	int rc = client_check_is_open(b);

	if (rc == 0 && !ret)
		rc = last_error_set(-EINVAL, "traffic: ret is NULL");
	if (rc == 0 && !b->is_single)
		rc = session_traffic(&b->session, &traffic, last_error_text());
	if (rc < 0)
		return rc;
	ret->instance = traffic.instance;
	ret->sent_bytes = traffic.sent_bytes;
	ret->received_bytes = traffic.received_bytes;
	return 0;
}

static int client_write_trace(struct bps *b, const char *path, const struct local_ask_trace *ask)
{
	int fd = -1, rc = 0;

	/* a job of one worker has no agent, and its trace has no rounds */
	if (!b->is_single)
		rc = session_trace(&b->session, ask, &fd, last_error_text());
	if (rc < 0)
		return rc;
	rc = trace_file_save(path, fd);
	if (fd >= 0)
		close(fd);
	return rc < 0 ? last_error_set(
				rc, "trace: cannot write the file '%s': %s", path, strerror(-rc))
		      : 0;
}

int bps_trace(struct bps *b, const char *path, uint64_t since_ns)
{
	const struct local_ask_trace ask = {.since_ns = since_ns};
	int rc = client_check_is_open(b);

	if (rc == 0 && (!path || !*path))
		rc = last_error_set(-EINVAL, "trace: the path is missing");
	return rc < 0 ? rc : client_write_trace(b, path, &ask);
}

void trace_write_planned(struct bps *b)
{
	struct trace_plan *plan = &b->trace;

	/* Other threads may come here for the same round. */
	if (!*plan->path || atomic_exchange(&plan->is_written, true))
		return;
	trace_plan_make_folder(plan);
	/* The next call that fails replaces the text of this error. */
	if (client_write_trace(b, plan->path, &plan->ask) < 0)
		fprintf(stderr, "libbpsclient: warning: no trace is written: %s\n",
			bps_last_error());
}

/* Return the tensor whose sum has the values of t's last round. The result is t itself, or t's
 * companion (libbpsclient/average.h). */
static const struct bps_tensor *tensor_last_sum_carrier(const struct bps_tensor *t)
{
	const struct bps_tensor *wide = average_carrier(t, t->round, NULL);

	return wide ? wide : t;
}

int bps_contributor_list(struct bps_tensor *t, struct bps_worker *ret, size_t n)
{
	struct worker_list f = {.ret = ret, .room = ret ? n : 0};
	int rc = t ? client_check_is_open(t->b)
		   : last_error_set(-EINVAL, "contributor_list: the tensor is NULL");

	if (rc < 0)
		return rc;
	return t->b->is_single
		       ? single_worker_list(&f)
		       : worker_list_request_pages(t->b, tensor_last_sum_carrier(t)->idx, &f);
}
