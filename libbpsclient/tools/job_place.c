/* Finds the place of this node in a job on several nodes, before it meets the others: the
 * launcher's variables, the key, the head and the own address. job_nodes.c has the rest. One
 * thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/os/machine.h"
#include "libbpsclient/tools/nodes/address.h"
#include "libbpsclient/tools/nodes/nodelist.h"

#define RESOLVE_RETRY_MS 200

/* ---- before the guard ---- */

/* Check a job that uses the agents which run on its nodes. */
static int plan_running_agents(struct bpsrun *r)
{
	if (r->place.nnodes > 1 && !r->o.job && r->place.job[0])
		r->o.job = r->place.job;
	if (r->place.nnodes > 1 && !r->o.job) {
		output_print_message("a job on several nodes that uses their agents needs --job, "
				     "with the same name on each node");
		return -EINVAL;
	}
	if (r->place.nnodes > 1 && r->place.node_rank == PLACE_RANK_UNKNOWN) {
		output_print_message("a job on several nodes that uses their agents needs "
				     "--node-rank");
		return -EINVAL;
	}
	return 0;
}

int job_nodes_plan(struct bpsrun *r)
{
	bool is_private = r->o.has_agents || r->o.has_servers, has_head;
	int rc = place_find(r->o.nnodes, r->o.node_rank, r->o.head, !is_private, &r->place);

	if (rc < 0)
		return rc;
	has_head = r->o.head || (r->place.nnodes > 1 && r->place.head.host[0]);
	if (r->place.nnodes > 1 && !has_head && !r->o.job && !r->place.job[0]) {
		output_print_message(
			"a job on several nodes needs --job, with the same name on each "
			"node, or --head, for a cluster of its own");
		return -EINVAL;
	}
	r->o.agent = daemons_choose(&r->o, has_head);
	r->has_nodes = !r->o.agent && has_head;
	r->is_head = r->has_server = !r->o.agent;
	snprintf(r->own_host, sizeof(r->own_host), "127.0.0.1");
	if (!r->o.agent && r->place.nnodes > 1 && !has_head) {
		output_print_message(
			"a job on several nodes needs a running agent on each node: set "
			"--agent or BPS_AGENT_SOCKET, or --head HOST for a cluster of "
			"its own");
		return -EINVAL;
	}
	if (!r->has_nodes) {
		unsetenv(CLUSTER_KEY_ENV);
		return plan_running_agents(r);
	}
	rc = r->has_key ? 1 : cluster_key_load(r->o.key_file, &r->key);
	r->has_key = rc > 0;
	return rc < 0 ? rc : 0;
}

/* ---- begin ---- */

/* Wait, and return false if a signal has arrived. */
static bool pause_unless_signal(const struct bpsrun *r, int ms)
{
	struct pollfd p = {.fd = r->signal_fd, .events = POLLIN};

	return poll(&p, 1, ms) == 0;
}

/* Resolve the head's name. The name of a pod may not exist before the pod runs. */
static int resolve_head(const struct bpsrun *r, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	uint64_t deadline = clock_now_ms() + r->o.start_timeout_ms;
	struct err_text err;
	int rc;

	while ((rc = addr_resolve_host(&r->place.head, ret, ret_len, &err)) < 0) {
		if (clock_now_ms() >= deadline) {
			output_print_message("the head: %s (--start-timeout)", err.s);
			return rc;
		}
		if (!pause_unless_signal(r, RESOLVE_RETRY_MS))
			return -EINTR;
	}
	if (r->has_key || sockaddr_is_loopback((struct sockaddr *)ret))
		return 0;
	output_print_message("a cluster on several machines needs a key, and there is none: run "
			     "`export BPS_CLUSTER_KEY=$(bpsctl key new)` once, and start bpsrun on "
			     "all nodes with this variable");
	return -EPERM;
}

/* Decide whether this node is the head. */
static int decide_head(struct bpsrun *r, const struct sockaddr *head)
{
	if (r->place.node_rank != PLACE_RANK_UNKNOWN) {
		r->is_head = r->place.node_rank == 0;
		return 0;
	}
	if (sockaddr_is_loopback(head)) {
		output_print_message(
			"each node has the head's address %s: set --node-rank", r->place.head.host);
		return -EINVAL;
	}
	r->is_head = address_is_own(head);
	if (r->is_head)
		r->place.node_rank = 0;
	return 0;
}

/* Return whether this node gets a server. */
static bool wants_server(const struct bpsrun *r)
{
	const char *on = r->o.servers_on;
	char host[ADDR_HOST_BYTES];

	if (!on || strcmp(on, "all") == 0)
		return true;
	if (strcmp(on, "head") == 0)
		return r->is_head;
	for (unsigned long i = 0; nodelist_get_name(on, i, host, sizeof(host)) == 0; i++)
		if (address_host_is_own(host))
			return true;
	return false;
}

void job_nodes_name_daemons(struct bpsrun *r)
{
	char host[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES];

	machine_host_name(host, domain);
	/* with the rank, because containers may have equal host names */
	snprintf(r->node_name, sizeof(r->node_name), "%.50s.%u", host, r->place.node_rank);
}

struct meeting_node job_nodes_describe(const struct bpsrun *r)
{
	return (struct meeting_node){.nnodes = r->place.nnodes,
		.rank = r->place.node_rank,
		.workers = r->o.size || r->o.daemons_only ? 0 : r->o.n,
		.has_server = r->has_server};
}

/* Listen where the others connect: at the head's address, or behind a translation of addresses. */
static int listen_for_others(struct bpsrun *r, const struct sockaddr *head, socklen_t len)
{
	struct meeting_node own = job_nodes_describe(r);
	struct sockaddr_storage at;
	struct err_text err;
	int rc = 0;

	memcpy(&at, head, len);
	if (!address_is_own(head))
		rc = address_toward(head, len, &at, &err);
	if (at.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&at)->sin6_port = htons(r->place.head.port);
	else
		((struct sockaddr_in *)&at)->sin_port = htons(r->place.head.port);
	if (!rc)
		rc = meeting_open(&r->meeting, (struct sockaddr *)&at, len,
			r->has_key ? &r->key : NULL, &own, &err);
	if (rc < 0)
		output_print_message("%s", err.s);
	return rc;
}

int job_nodes_begin(struct bpsrun *r)
{
	struct sockaddr_storage head, own;
	struct err_text err;
	socklen_t len;
	int rc;

	if (!r->has_nodes)
		return 0;
	rc = resolve_head(r, &head, &len);
	if (rc < 0)
		return rc;
	rc = r->o.interface ? address_of_interface(r->o.interface, head.ss_family, &own, &err)
			    : address_toward((struct sockaddr *)&head, len, &own, &err);
	if (rc < 0) {
		output_print_message("%s", err.s);
		return rc;
	}
	address_write_host((struct sockaddr *)&own, r->own_host, sizeof(r->own_host));
	rc = decide_head(r, (struct sockaddr *)&head);
	r->has_server = wants_server(r);
	if (rc < 0 || !r->is_head)
		return rc;
	job_nodes_name_daemons(r);
	return listen_for_others(r, (struct sockaddr *)&head, len);
}
