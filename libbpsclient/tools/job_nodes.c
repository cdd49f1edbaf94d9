/* The nodes of a job that has a cluster of its own. The head starts the scheduler and answers the
 * others; the others wait for it. When a node fails, the workers of all nodes get the job's error
 * from their agents. Workers that do not end by it are stopped. Without the head, there is no
 * scheduler, so all nodes end. In a job that may shrink, only the end of the head ends the others.
 *
 *   head     begin ── scheduler ── meet ── workers ── await_leave ── daemons, then scheduler stop
 *   member   begin ─────────────── meet ── workers ── daemons stop ── leave
 *
 * One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"

/* The nodes have passed the barrier at the end of the job. They only need the time to stop. */
#define LEAVE_MS 10000

/* ---- meet ---- */

static int head_meet(struct bpsrun *r)
{
	struct meeting_answer a = {.rank = 0};
	int rc = trainers_choose_port(r);

	if (rc < 0)
		return rc;
	snprintf(a.scheduler, sizeof(a.scheduler), "%s", r->scheduler);
	snprintf(a.http, sizeof(a.http), "%s", r->scheduler_http);
	a.rendezvous_port = (unsigned)strtoul(r->meeting_port, NULL, 10);
	meeting_begin(r->meeting, &a);
	if (r->place.nnodes > 1)
		r->join_deadline_ms = clock_now_ms() + r->o.start_timeout_ms;
	return 0;
}

static int member_meet(struct bpsrun *r)
{
	static const struct cluster_key no_key;
	struct meeting_node own = job_nodes_describe(r);
	struct meeting_answer a;
	struct addr head;
	struct err_text err;
	int rc = meeting_member_join(&r->member, &r->place.head, r->has_key ? &r->key : &no_key,
		&own, clock_now_ms() + r->o.start_timeout_ms, r->signal_fd, &a);

	if (rc < 0)
		return rc;
	r->place.node_rank = a.rank;
	job_nodes_name_daemons(r);
	snprintf(r->scheduler, sizeof(r->scheduler), "%s", a.scheduler);
	snprintf(r->scheduler_http, sizeof(r->scheduler_http), "%s", a.http);
	if (a.rendezvous_port && addr_parse(&head, a.scheduler, 0, &err) == 0) {
		snprintf(r->meeting_host, sizeof(r->meeting_host), "%s", head.host);
		snprintf(r->meeting_port, sizeof(r->meeting_port), "%u", a.rendezvous_port);
	}
	return 0;
}

int job_nodes_meet(struct bpsrun *r)
{
	if (!r->has_nodes)
		return 0;
	return r->is_head ? head_meet(r) : member_meet(r);
}

/* ---- while the workers run ---- */

int job_nodes_descriptor(const struct bpsrun *r)
{
	if (r->meeting)
		return meeting_descriptor(r->meeting);
	return r->has_nodes && !r->is_head && r->scheduler[0] ? r->member.lines.fd : -1;
}

uint64_t job_nodes_deadline_ms(const struct bpsrun *r)
{
	if (r->is_stopping)
		return 0;
	return r->peer_deadline_ms ? r->peer_deadline_ms : r->join_deadline_ms;
}

/* Stop the workers because of another node. */
static void stop_for_peer(struct bpsrun *r, int code)
{
	if (!r->result)
		r->result = code > 0 ? code : EXIT_OWN;
	trainers_stop(r, SIGTERM);
	if (r->kill_ms > clock_now_ms() + LOST_GRACE_MS)
		r->kill_ms = clock_now_ms() + LOST_GRACE_MS;
}

/* At the head: handle the failure of another node. */
static void head_handle_failure(struct bpsrun *r, const struct meeting_failure *f)
{
	if (f->code >= 0)
		output_print_message(
			"node %u at %s has ended with exit code %d", f->rank, f->peer, f->code);
	else
		output_print_message("node %u at %s is lost", f->rank, f->peer);
	if (r->may_shrink) {
		r->peer_deadline_ms = UINT64_MAX;
		return;
	}
	r->peer_deadline_ms = clock_now_ms() + PEER_FAILED_MS;
	meeting_report_failure(r->meeting, f->rank, f->code);
}

/* At another node: handle what the head has reported, or the end of the head. */
static void member_handle_failure(struct bpsrun *r)
{
	const struct meeting_failure *f = &r->member.failure;
	bool is_headless = r->member.lines.fd < 0;

	if (!is_headless && (r->may_shrink || r->peer_deadline_ms))
		return;
	if (is_headless)
		output_print_message(
			"the head at %s has ended, and with it the scheduler: stopping "
			"the workers of this node",
			r->place.head.host);
	else
		output_print_message("node %u has failed", f->rank);
	r->peer_deadline_ms = clock_now_ms() + (is_headless ? 0 : PEER_FAILED_MS);
}

/* At the head: check whether all nodes are there. */
static void head_check_joined(struct bpsrun *r)
{
	unsigned n = meeting_count_joined(r->meeting);

	if (!r->join_deadline_ms)
		return;
	if (n == r->place.nnodes) {
		r->join_deadline_ms = 0;
		if (meeting_count_servers(r->meeting))
			return;
		output_print_message("no node has a server: --servers-on names none of them");
	} else if (clock_now_ms() >= r->join_deadline_ms) {
		output_print_message("only %u of %u nodes have come within %u s "
				     "(--start-timeout): stopping the job",
			n, r->place.nnodes, r->o.start_timeout_ms / 1000);
	} else {
		return;
	}
	r->join_deadline_ms = 0;
	stop_for_peer(r, EXIT_OWN);
}

static void head_serve(struct bpsrun *r)
{
	const struct meeting_failure *f = meeting_first_failure(r->meeting);

	meeting_serve(r->meeting);
	head_check_joined(r);
	if (r->peer_deadline_ms)
		return;
	if (f->has_failed) {
		head_handle_failure(r, f);
	} else if (r->result && !r->may_shrink) {
		meeting_report_failure(r->meeting, 0, r->result);
		r->peer_deadline_ms = UINT64_MAX; /* this node stops by itself */
	}
}

void job_nodes_serve(struct bpsrun *r)
{
	if (r->meeting) {
		head_serve(r);
	} else if (job_nodes_descriptor(r) >= 0) {
		meeting_member_serve(&r->member);
		if (r->member.failure.has_failed)
			member_handle_failure(r);
	}
	if (r->peer_deadline_ms && clock_now_ms() >= r->peer_deadline_ms && !r->is_stopping)
		stop_for_peer(r, r->meeting ? meeting_first_failure(r->meeting)->code
					    : r->member.failure.code);
}

/* ---- the end ---- */

/* Wait for the nodes that have not come yet. The workers of this node need not open a job, so they
 * may have ended before another node has started. Without the head, that node could not start. */
static void head_await_late_nodes(struct bpsrun *r, struct pollfd p[static 2])
{
	while (!r->result && meeting_count_joined(r->meeting) < r->place.nnodes && !p[1].revents &&
		poll(p, 2, poll_timeout_left_ms(r->join_deadline_ms)) > 0)
		meeting_serve(r->meeting);
}

void job_nodes_await_leave(struct bpsrun *r)
{
	struct pollfd p[] = {{.fd = job_nodes_descriptor(r), .events = POLLIN},
		{.fd = r->signal_fd, .events = POLLIN}};
	/* A job that may shrink goes on without the workers of this node */
	bool goes_on = r->may_shrink && r->result && r->result < 128 && !r->is_lost;
	uint64_t deadline;
	unsigned n;

	if (!r->meeting || r->is_lost)
		return;
	if (goes_on && meeting_count_present(r->meeting))
		output_print_message(
			"the workers of this node have failed; the scheduler stays for "
			"the other nodes");
	head_serve(r);
	head_await_late_nodes(r, p);
	deadline = goes_on ? 0 : clock_now_ms() + LEAVE_MS;
	while ((n = meeting_count_present(r->meeting)) > 0) {
		if (poll(p, 2, poll_timeout_left_ms(deadline)) == 0) {
			output_print_message("%u node%s still run%s after %d s: ending the cluster",
				n, plural_suffix_of(n), verb_suffix_of(n), LEAVE_MS / 1000);
			return;
		}
		if (p[1].revents)
			return;
		meeting_serve(r->meeting);
	}
}

void job_nodes_leave(struct bpsrun *r)
{
	if (r->meeting) {
		meeting_close(r->meeting);
		r->meeting = NULL;
	} else if (job_nodes_descriptor(r) >= 0) {
		meeting_member_leave(&r->member, r->result);
	}
}
