/* Scheduler, servers and agents: thin shells around the real cores. Setting them up takes no
 * virtual time. Control messages are function calls: a message that the scheduler sends is
 * processed before the scheduler continues. */
#include "tests/scale/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/dtype.h"

#define STAGING_BYTES (UINT64_C(256) << 20) /* default of a server's setting staging-memory */
#define SUMS_BYTES    (UINT64_C(64) << 30)
#define RETRY_NS      (2 * S)
#define AGAIN_NS      (2 * MS)

/* The number of a connection to the scheduler is the agent's index, or o.agents plus the server's
 * index. */
static struct scale_agent *agent_of(struct scale_world *w, uint32_t conn)
{
	return conn < w->o.agents ? &w->agents[conn] : NULL;
}

static struct scale_server *server_of(struct scale_world *w, uint32_t conn)
{
	return &w->servers[conn - w->o.agents];
}

static struct scale_server *server_by_id(const struct scale_world *w, uint32_t id)
{
	for (uint32_t i = 0; i < w->n_servers; i++)
		if (w->servers[i].id == id)
			return &w->servers[i];
	return NULL;
}

/* ---- cores' environments ---- */

static int env_segment(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct scale_node *n = ctx;

	if (bytes > n->w->memory_bytes)
		return -1;
	*ret_mem = n->w->memory;
	*ret_segment = (uint16_t)n->n_segments++;
	return 0;
}

static void env_fail(void *ctx, uint32_t job, int code, const char *text)
{
	(void)ctx;
	fatal("job %u has failed: %s: %s", job, err_str(code), text);
}

static int env_connect(
	void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn)
{
	struct scale_agent *a = ctx;
	struct scale_server *srv = server_by_id(a->w, server);

	if (!srv)
		return -1;
	*ret_conn = scale_net_connect(&a->node, &srv->threads[thread], a->id, server, link);
	return 0;
}

static void env_done(void *ctx, void *user, uint64_t round, int status, uint32_t workers)
{
	struct scale_agent *a = ctx;

	if (status < 0 || workers != a->w->o.agents)
		fatal("round %llu failed or misses workers: %s", (unsigned long long)round,
			err_str(status));
	scale_trainer_sum(user, round);
}

static uint64_t env_random(void *ctx)
{
	(void)ctx;
	/* The number does not matter. Only reconnections use it, and no simulated connection is
	 * lost. */
	return 4;
}

static double per_byte_ns(double gbs)
{
	return gbs > 0 ? 1 / gbs : 0;
}

static double agent_cost(struct scale_node *n)
{
	struct agt_stats s;
	double ns;

	agt_core_stats(n->core, &s);
	ns = (double)(s.pushed_bytes - n->charged_a + s.pulled_bytes - n->charged_b) *
	     per_byte_ns(n->w->o.crc_gbs);
	n->charged_a = s.pushed_bytes;
	n->charged_b = s.pulled_bytes;
	return ns;
}

static double server_cost(struct scale_node *n)
{
	struct srv_stats s;
	double ns;

	srv_core_stats(n->core, &s);
	ns = (double)(s.bytes_summed - n->charged_a) * per_byte_ns(n->w->o.sum_gbs) +
	     (double)(n->read_bytes - n->charged_b) * per_byte_ns(n->w->o.crc_gbs);
	n->charged_a = s.bytes_summed;
	n->charged_b = n->read_bytes;
	return ns;
}

static bool agent_work(void *core)
{
	return agt_core_run_queued_work(core);
}

static uint64_t agent_tick(void *core, uint64_t now_ns)
{
	return agt_core_run_timers(core, now_ns);
}

static bool server_work(void *core)
{
	return srv_core_sum_slice(core);
}

static uint64_t server_tick(void *core, uint64_t now_ns)
{
	return srv_core_run_deadlines(core, now_ns);
}

/* ---- messages of the scheduler ---- */

static void agent_job(struct scale_agent *a, const struct ctl_job *msg)
{
	const struct scale_trace *trace = a->w->trace;
	struct agt_mem mem = {a->w->memory, 0, 0}, out[2] = {mem, mem};
	struct tensor_shape shape;
	uint16_t member = 0;

	while (msg->members[member].agent != a->id)
		member++;
	if (agt_job_new(a->node.core, msg, member, &a->job) < 0)
		fatal("out of memory");
	for (uint32_t i = 0; i < trace->n_tensors; i++) {
		a->tensors[i] = (struct scale_tensor){.agent = a, .idx = i};
		/* each tensor has its own segment number, so that offers differ */
		mem.segment = (uint16_t)i;
		shape = shape_from_dtype_and_count(a->w->o.dtype, trace->tensors[i].elems);
		if (agt_tensor_new(
			    a->job, &shape, &mem, NULL, out, &a->tensors[i], &a->tensors[i].t) < 0)
			fatal("out of memory");
	}
}

/* Plans arrive nearly in the order of declaration, so start the search after the tensor that was
 * found last. */
static struct agt_tensor *tensor_named(struct scale_agent *a, const char *name)
{
	const struct scale_trace *t = a->w->trace;

	for (uint32_t i = 0; i < t->n_tensors; i++) {
		uint32_t at = (a->plan_at + i) % t->n_tensors;

		if (strcmp(t->tensors[at].name, name) == 0) {
			a->plan_at = at + 1;
			return a->tensors[at].t;
		}
	}
	fatal("the scheduler sends a plan for the undeclared tensor '%s'", name);
}

static void agent_plan(struct scale_agent *a, const struct ctl_plan *msg)
{
	for (uint32_t i = 0; i < msg->n_tensors; i++) {
		const struct ctl_tensor *p = &msg->tensors[i];

		if (agt_tensor_plan(tensor_named(a, p->name), p) < 0)
			fatal("the agent rejects the plan of tensor '%s'", p->name);
		if (a->idx == 0)
			a->w->n_parts += shape_partition_count(&p->shape, 1, p->part_elems);
	}
	agt_job_apply_placement(a->job, msg->runs, msg->n_runs);
}

static void tell_agent(struct scale_agent *a, const struct ctl_msg *msg)
{
	if (msg->type == CTL_WELCOME)
		a->id = msg->welcome.member_id;
	else if (msg->type == CTL_JOB)
		agent_job(a, &msg->job);
	else if (msg->type == CTL_PLAN)
		agent_plan(a, &msg->plan);
	else if (msg->type == CTL_JOINED && msg->joined.code)
		fatal("a worker is refused: %s", msg->joined.text);
	else if (msg->type == CTL_TENSOR_FAIL)
		fatal("a tensor is refused: %s", msg->tensor_fail.text);
}

static void tell_server(struct scale_server *srv, const struct ctl_msg *msg)
{
	if (msg->type == CTL_WELCOME)
		srv->id = msg->welcome.member_id;
	for (uint32_t i = 0; i < srv->n_threads; i++) {
		struct scale_node *n = &srv->threads[i];

		if (msg->type == CTL_JOB && srv_core_apply_job(n->core, &msg->job) < 0)
			fatal("out of memory");
		if (msg->type == CTL_PLAN)
			srv_core_apply_plan(n->core, &msg->plan);
	}
}

static void sched_says(void *ctx, uint32_t conn, const struct ctl_msg *msg)
{
	struct scale_world *w = ctx;
	struct scale_agent *a = agent_of(w, conn);

	if (msg->type == CTL_REFUSE)
		fatal("a member is refused: %s", msg->refuse.text);
	if (a)
		tell_agent(a, msg);
	else
		tell_server(server_of(w, conn), msg);
}

static void sched_drops(void *ctx, uint32_t conn, const char *why)
{
	(void)ctx;
	fatal("member %u is dropped: %s", conn, why);
}

static int sched_persists(void *ctx, const struct state_record *rec)
{
	(void)ctx, (void)rec;
	return 0;
}

static void sched_random(void *ctx, void *ret, size_t n_bytes)
{
	(void)ctx;
	memset(ret, 4, n_bytes);
}

static void sched_key(void *ctx, const uint8_t secret[STATE_SECRET_BYTES], uint64_t agent,
	uint64_t server, uint8_t ret_key[CTL_KEY_BYTES])
{
	(void)ctx, (void)secret, (void)agent, (void)server;
	memset(ret_key, 0, CTL_KEY_BYTES);
}

/* ---- set-up ---- */

static const struct xport_ops *xport_ops(const struct scale_world *w)
{
	return w->o.is_asking ? &scale_asking_ops : &scale_eager_ops;
}

static void agent_new(struct scale_world *w, uint32_t i)
{
	struct scale_agent *a = &w->agents[i];
	struct agt_config cfg = {.window_bytes = w->o.window ? w->o.window : SIZE_MAX,
		.retry_ns = RETRY_NS,
		.again_ns = AGAIN_NS,
		.lead_bytes = AGT_LEAD_BYTES,
		.turn_bytes = AGT_TURN_BYTES};
	struct agt_env env = {.ctx = a,
		.connect = env_connect,
		.done = env_done,
		.fail = env_fail,
		.random = env_random};
	struct agt_core *core;

	a->w = w;
	a->idx = i;
	a->host = &w->hosts[i];
	a->tensors = scale_alloc(w, w->trace->n_tensors * sizeof(*a->tensors));
	scale_node_init(w, &a->node, a->host);
	if (agt_core_new(&cfg, &env, &a->node.x, &core) < 0)
		fatal("out of memory");
	a->node.core = core;
	a->node.work = agent_work;
	a->node.tick = agent_tick;
	a->node.cost = agent_cost;
	a->node.cpu_ns = w->o.agent_cpu;
	a->node.speed = w->o.agent_threads;
	a->node.x = (struct xport){.ops = xport_ops(w), .ev = &agt_core_events, .ctx = core};
	agt_core_run_timers(core, 0);
}

static void server_new(struct scale_world *w, uint32_t i, struct scale_host *host)
{
	struct scale_server *srv = &w->servers[i];

	srv->w = w;
	srv->host = host;
	srv->n_threads =
		host->idx < w->o.agents && w->o.beside_threads ? w->o.beside_threads : w->o.threads;
	srv->threads = scale_alloc(w, srv->n_threads * sizeof(*srv->threads));
	for (uint32_t k = 0; k < srv->n_threads; k++) {
		struct scale_node *n = &srv->threads[k];
		struct srv_config cfg = {.server_id = i + 1,
			.instance = w->o.agents + i + 1,
			.thread = (uint16_t)k,
			.sums_bytes = SUMS_BYTES,
			.staging_bytes = STAGING_BYTES / srv->n_threads,
			.segment_bytes = POOL_SEGMENT_BYTES,
			.peer_window_bytes = w->o.peer_window,
			.retry_ns = RETRY_NS};
		struct srv_env env = {.ctx = n, .segment = env_segment, .fail = env_fail};
		struct srv_core *core;

		scale_node_init(w, n, host);
		if (srv_core_new(&cfg, &env, &core) < 0)
			fatal("out of memory");
		n->core = core;
		n->work = server_work;
		n->tick = server_tick;
		n->cost = server_cost;
		n->cpu_ns = w->o.server_cpu;
		n->x = (struct xport){.ops = xport_ops(w), .ev = &srv_core_events, .ctx = core};
		srv_core_run_deadlines(core, 0);
	}
}

static void hello(struct scale_world *w, uint32_t conn, enum role role, const struct scale_host *h,
	uint32_t threads)
{
	char name[32], addr[] = "192.0.2.1";
	double gbps = 8 / h->tx_ns;
	struct ctl_msg msg = {.type = CTL_HELLO};

	snprintf(name, sizeof(name), "m%u", h->idx);
	msg.hello = (struct ctl_hello){.proto = CTL_PROTO,
		.role = (uint8_t)role,
		.instance = conn + 1,
		.name = name,
		.host = name,
		.version = "",
		.addr = addr,
		.port = 1,
		.threads = (uint16_t)threads,
		.nic_mbps = (uint64_t)(gbps * 1000 + 0.5),
		.quota_bytes = SUMS_BYTES,
		.provider = "sockets"};
	sched_conn_open(w->sched, conn, 0);
	sched_receive_message(w->sched, conn, &msg, 0);
}

static void join(struct scale_world *w, const struct scale_agent *a)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = 1,
			.job = "scale",
			.rank = a->idx,
			.size = w->o.agents,
			.pid = 1,
			.part_bytes = w->o.part_bytes}};

	sched_receive_message(w->sched, a->idx, &msg, 0);
}

static void declare(struct scale_world *w, const struct scale_agent *a)
{
	struct ctl_decl *decls = calloc(CTL_LIST_MAX, sizeof(*decls));
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {.job = 1, .tensors = decls}};

	if (!decls)
		fatal("out of memory");
	for (uint32_t i = 0; i < w->trace->n_tensors; i++) {
		const struct scale_tensor_def *t = &w->trace->tensors[i];

		decls[msg.declare.n_tensors++] = (struct ctl_decl){
			a->idx, t->name, shape_from_dtype_and_count(w->o.dtype, t->elems), 0};
		if (msg.declare.n_tensors < CTL_LIST_MAX && i + 1 < w->trace->n_tensors)
			continue;
		sched_receive_message(w->sched, a->idx, &msg, 0);
		msg.declare.n_tensors = 0;
	}
	free(decls);
}

static void members_new(struct scale_world *w)
{
	const struct scale_options *o = &w->o;

	w->agents = calloc(o->agents, sizeof(*w->agents));
	w->n_servers = o->servers + (o->is_colocated ? o->agents : 0);
	w->servers = calloc(w->n_servers, sizeof(*w->servers));
	if (!w->agents || !w->servers)
		fatal("out of memory");
	for (uint32_t i = 0; i < o->agents; i++)
		agent_new(w, i);
	for (uint32_t i = 0; i < w->n_servers; i++)
		server_new(w, i, &w->hosts[i < o->servers ? o->agents + i : i - o->servers]);
}

void cluster_start(struct scale_world *w)
{
	struct sched_config cfg;
	struct sched_env env = {.ctx = w,
		.send = sched_says,
		.drop = sched_drops,
		.persist = sched_persists,
		.random = sched_random,
		.pair_key = sched_key};

	members_new(w);
	sched_config_default(&cfg);
	w->sched = sched_new(&cfg, &env);
	if (sched_start(w->sched, 0) < 0)
		fatal("the scheduler's core cannot start");
	for (uint32_t i = 0; i < w->n_servers; i++)
		hello(w, w->o.agents + i, ROLE_SERVER, w->servers[i].host, w->servers[i].n_threads);
	for (uint32_t i = 0; i < w->o.agents; i++)
		hello(w, i, ROLE_AGENT, w->agents[i].host, 0);
	for (uint32_t i = 0; i < w->o.agents; i++)
		join(w, &w->agents[i]);
	for (uint32_t i = 0; i < w->o.agents; i++)
		declare(w, &w->agents[i]);
	for (uint32_t i = 0; i < w->o.agents; i++)
		scale_node_kick(&w->agents[i].node);
	for (uint32_t i = 0; i < w->o.agents; i++)
		scale_trainer_start(&w->agents[i]);
}

static void released(void *ctx)
{
	(void)ctx;
}

void cluster_stop(struct scale_world *w)
{
	scale_net_end(w);
	for (uint32_t i = 0; i < w->o.agents; i++) {
		agt_job_free(w->agents[i].job, released, NULL);
		agt_core_free(w->agents[i].node.core);
	}
	for (uint32_t i = 0; i < w->n_servers; i++)
		for (uint32_t k = 0; k < w->servers[i].n_threads; k++)
			srv_core_free(w->servers[i].threads[k].core);
	sched_free(w->sched);
	free(w->agents);
	free(w->servers);
}
