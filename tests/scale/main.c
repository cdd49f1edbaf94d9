/* sim-scale: predicts the duration of a model's training step on given machines. See scale.h. */
#include "tests/scale/scale.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/data/dtype.h"

enum kind {
	KIND_NUMBER,
	KIND_U32,
	KIND_BYTES,
	KIND_BYTES32,
	KIND_FLAG,
	KIND_NO,
	KIND_TEXT,
	KIND_DTYPE
};

static const struct option_def {
	const char *name;
	enum kind kind;
	size_t at;
	const char *help;
} defs[] = {
#define AT(field) offsetof(struct scale_options, field)
	{"trace", KIND_TEXT, AT(trace), "file with the model's tensors (tests/traces/)"},
	{"label", KIND_TEXT, AT(label), "text in the first column of a row"},
	{"agents", KIND_U32, AT(agents), "number n of machines that train"},
	{"servers", KIND_U32, AT(servers), "number k of machines with only a server"},
	{"no-colocated", KIND_NO, AT(is_colocated), "start no server on the agents' machines"},
	{"threads", KIND_U32, AT(threads), "number of a server's data threads"},
	{"beside-threads", KIND_U32, AT(beside_threads),
		"data threads of a server on an agent's machine; 0: as --threads"},
	{"rate", KIND_NUMBER, AT(rate_gbps),
		"Gbit/s of payload of a network card, in each direction"},
	{"slow-agents", KIND_U32, AT(slow_agents),
		"number of agents' machines that have --slow-rate"},
	{"slow-servers", KIND_U32, AT(slow_servers),
		"number of servers' machines that have --slow-rate"},
	{"slow-rate", KIND_NUMBER, AT(slow_gbps), "Gbit/s of the slow machines"},
	{"local-rate", KIND_NUMBER, AT(local_gbps), "Gbit/s between agent and server of a host"},
	{"latency-us", KIND_NUMBER, AT(latency_us), "latency from card to card"},
	{"header", KIND_BYTES32, AT(header_bytes), "bytes of the header of each message"},
	{"quantum", KIND_BYTES32, AT(quantum),
		"bytes that a card sends before it turns to the next connection"},
	{"part-bytes", KIND_BYTES32, AT(part_bytes), "partition size; 0: the scheduler chooses it"},
	{"window", KIND_BYTES, AT(window), "an agent's window of contributions; 0: no limit"},
	{"peer-window", KIND_BYTES, AT(peer_window), "a server's window of reads from one agent"},
	{"read-window", KIND_BYTES32, AT(read_window),
		"window of a connection's reads; 0: adapts, as in the daemons"},
	{"asking", KIND_FLAG, AT(is_asking),
		"request all bytes, as with verbs; default: send eager bytes, as over TCP"},
	{"socket-window", KIND_BYTES32, AT(socket_window),
		"bytes in flight of a connection over TCP; 0: no limit"},
	{"sum-gbs", KIND_NUMBER, AT(sum_gbs), "GB/s of operands that a thread sums; 0: no time"},
	{"crc-gbs", KIND_NUMBER, AT(crc_gbs), "GB/s whose CRC a thread checks; 0: no time"},
	{"agent-cpu", KIND_NUMBER, AT(agent_cpu),
		"CPU seconds of the kernel per GB that an agent sends or receives"},
	{"server-cpu", KIND_NUMBER, AT(server_cpu), "the same of a server's data thread"},
	{"agent-threads", KIND_U32, AT(agent_threads),
		"data threads of an agent: one thread that is so many times as fast"},
	{"compute-ms", KIND_NUMBER, AT(compute_ms),
		"time of the forward and backward pass of a step; 0: no computing"},
	{"gpus", KIND_U32, AT(gpus), "number of accelerators of a machine"},
	{"gpu-gbs", KIND_NUMBER, AT(gpu_gbs),
		"GB/s of the ring all-reduce inside a machine; 0: no time"},
	{"batch", KIND_U32, AT(batch), "samples per step and accelerator"},
	{"dtype", KIND_DTYPE, AT(dtype), "type of the gradients: f16, f32, ..."},
	{"fifo", KIND_FLAG, AT(is_fifo),
		"send tensors in the order of submission, without priorities"},
	{"steps", KIND_U32, AT(steps), "number of measured steps"},
	{"bucket", KIND_BYTES, AT(bucket_bytes), "bucket size of the all-reduce to compare with"},
};

void scale_options_default(struct scale_options *o)
{
	*o = (struct scale_options){.trace = "tests/traces/bert-large.tsv",
		.agents = 32,
		.servers = 32,
		.is_colocated = true,
		.threads = 4,
		.rate_gbps = 100,
		.slow_gbps = 50,
		.local_gbps = 180,
		.latency_us = 5,
		.header_bytes = 64,
		.quantum = 64u << 10,
		.peer_window = 8u << 20,
		.socket_window = 384u << 10,
		.sum_gbs = 46,
		.crc_gbs = 20,
		.agent_cpu = 0.17,
		.server_cpu = 0.17,
		.agent_threads = 1,
		.compute_ms = 373.1,
		.gpus = 8,
		.gpu_gbs = 130,
		.batch = 64,
		.dtype = DTYPE_F16,
		.steps = 3,
		.bucket_bytes = 64u << 20};
}

/* ---- options ---- */

static int usage(void)
{
	puts("sim-scale [options]: predict the time of a training step on many machines\n"
	     "  --check                run the cases that `make test` runs\n"
	     "  --json                 print a JSON object instead of text\n"
	     "  --row                  print a row of a table; --head: print the table's head\n"
	     "  --step-only            do not measure the communication without computing");
	for (size_t i = 0; i < sizeof(defs) / sizeof(defs[0]); i++)
		printf("  --%-20s %s\n", defs[i].name, defs[i].help);
	return 0;
}

static int parse_bytes(const char *text, double *ret)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB"};
	char *end;
	double v = strtod(text, &end);

	if (end == text || v < 0)
		return -1;
	for (size_t i = 0; i < 4; i++) {
		if (strcmp(end, units[i]) == 0) {
			*ret = v * pow(1024, (double)i);
			return 0;
		}
	}
	return -1;
}

static int parse_dtype(const char *text, uint8_t *ret)
{
	for (uint8_t d = 0; d < UINT8_MAX; d++) {
		if (dtype_bytes(d) && strcmp(dtype_name(d), text) == 0) {
			*ret = d;
			return 0;
		}
	}
	return -1;
}

static int set(struct scale_options *o, const struct option_def *d, const char *text)
{
	void *at = (char *)o + d->at;
	double v = 0;

	if (d->kind == KIND_FLAG || d->kind == KIND_NO) {
		*(bool *)at = d->kind == KIND_FLAG;
		return 0;
	}
	if (d->kind == KIND_TEXT) {
		*(const char **)at = text;
		return 0;
	}
	if (d->kind == KIND_DTYPE)
		return parse_dtype(text, at);
	if (parse_bytes(text, &v) < 0)
		return -1;
	if (d->kind == KIND_NUMBER)
		*(double *)at = v;
	else if (v > (d->kind == KIND_BYTES ? 0x1p53 : 0x1p31))
		return -1;
	else if (d->kind == KIND_BYTES)
		*(uint64_t *)at = (uint64_t)v;
	else
		*(uint32_t *)at = (uint32_t)v;
	return 0;
}

static const struct option_def *find(const char *name)
{
	for (size_t i = 0; i < sizeof(defs) / sizeof(defs[0]); i++)
		if (strcmp(defs[i].name, name) == 0)
			return &defs[i];
	return NULL;
}

/* Parse one option. Return the number of arguments that it used, or -1. */
static int option(struct scale_options *o, char **argv)
{
	const struct option_def *d = strncmp(argv[0], "--", 2) == 0 ? find(argv[0] + 2) : NULL;
	bool has_value = d && d->kind != KIND_FLAG && d->kind != KIND_NO;

	if (!d) {
		fprintf(stderr, "sim-scale: unknown option %s (--help lists all)\n", argv[0]);
		return -1;
	}
	if ((has_value && !argv[1]) || set(o, d, argv[1]) < 0) {
		fprintf(stderr, "sim-scale: %s has no value or an invalid one\n", argv[0]);
		return -1;
	}
	return has_value ? 2 : 1;
}

/* ---- output ---- */

static const char *model(const struct scale_options *o)
{
	const char *slash = strrchr(o->trace, '/');

	return slash ? slash + 1 : o->trace;
}

static double samples_per_s(const struct scale_options *o, const struct scale_result *r)
{
	return (double)o->batch * o->gpus * o->agents / r->step_s;
}

static void print_text(const struct scale_options *o, const struct scale_result *r)
{
	double formula = r->optimum_s > 0 ? bound_formula_s(o, 1) : 0;

	printf("%s, %u machines with %u accelerators each, %u machines with only a server, %.4g "
	       "Gbit/s, %s, %s\n",
		model(o), o->agents, o->gpus, o->servers, o->rate_gbps, dtype_name(o->dtype),
		o->is_fifo ? "without priorities" : "with priorities");
	printf("step %.3f ms, computing %.3f ms: scaling efficiency %.2f %%, %.0f samples/s\n",
		r->step_s * 1e3, r->compute_s * 1e3, r->efficiency * 100, samples_per_s(o, r));
	printf("lower bound of a step for any schedule: %.3f ms (%.2f %%)\n", r->bound_s * 1e3,
		r->compute_s / r->bound_s * 100);
	if (r->comm_s > 0)
		printf("communication without computing %.3f ms, overlap %.1f %%; optimum %.3f ms "
		       "(%s), which is %.1f %% less\n",
			r->comm_s * 1e3, r->overlap * 100, r->optimum_s * 1e3,
			formula > 0 ? "t_opt" : "unequal machines",
			(1 - r->optimum_s / r->comm_s) * 100);
	printf("ring all-reduce: without computing %.3f ms, step %.3f ms (%.2f %%)\n",
		r->ring_s * 1e3, r->ring_step_s * 1e3, r->ring_efficiency * 100);
	printf("MB per step of the busiest card: %.1f sent, %.1f received by a machine that "
	       "trains; %.1f sent, %.1f received by a machine with only a server\n",
		(double)r->agent.tx / 1e6, (double)r->agent.rx / 1e6, (double)r->server.tx / 1e6,
		(double)r->server.rx / 1e6);
	printf("%.1f MB sent eagerly, %.1f MB of them discarded\n", (double)r->unasked / 1e6,
		(double)r->thrown / 1e6);
	printf("%llu partitions, %.2e events in %.1f s\n", (unsigned long long)r->n_parts,
		(double)r->events, r->wall_s);
}

static void print_json(const struct scale_options *o, const struct scale_result *r)
{
	printf("{\"model\": \"%s\", \"agents\": %u, \"servers\": %u, \"gpus\": %u, \"rate_gbps\": "
	       "%g, \"dtype\": \"%s\", \"priority\": %s, \"part_bytes\": %u, ",
		model(o), o->agents, o->servers, o->gpus, o->rate_gbps, dtype_name(o->dtype),
		o->is_fifo ? "false" : "true", o->part_bytes);
	printf("\"step_ms\": %.6f, \"compute_ms\": %.6f, \"efficiency\": %.6f, \"overlap\": %.6f, "
	       "\"samples_per_s\": %.3f, \"bound_ms\": %.6f, ",
		r->step_s * 1e3, r->compute_s * 1e3, r->efficiency, r->overlap, samples_per_s(o, r),
		r->bound_s * 1e3);
	printf("\"communication_ms\": %.6f, \"optimum_ms\": %.6f, \"ring_ms\": %.6f, "
	       "\"ring_step_ms\": %.6f, \"ring_efficiency\": %.6f, ",
		r->comm_s * 1e3, r->optimum_s * 1e3, r->ring_s * 1e3, r->ring_step_s * 1e3,
		r->ring_efficiency);
	printf("\"agent_tx_bytes\": %llu, \"agent_rx_bytes\": %llu, \"server_tx_bytes\": %llu, "
	       "\"server_rx_bytes\": %llu, \"unasked_bytes\": %llu, \"thrown_bytes\": %llu, "
	       "\"partitions\": %llu, \"events\": %llu}\n",
		(unsigned long long)r->agent.tx, (unsigned long long)r->agent.rx,
		(unsigned long long)r->server.tx, (unsigned long long)r->server.rx,
		(unsigned long long)r->unasked, (unsigned long long)r->thrown,
		(unsigned long long)r->n_parts, (unsigned long long)r->events);
}

static void print_head(void)
{
	puts("| | n x GPUs | k | Gbit/s | step ms | over bound | efficiency | ring's | alone ms | "
	     "over optimum | over ring | MB out, in: trains | sums only |");
	puts("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

static const char *percent(double v, char ret[16])
{
	ret[0] = '\0';
	if (v > 0)
		snprintf(ret, 16, "%.1f %%", v * 100);
	return ret;
}

static const char *ratio(double a, double b, char ret[16])
{
	ret[0] = '\0';
	if (a > 0 && b > 0)
		snprintf(ret, 16, "%.3f", a / b);
	return ret;
}

static void print_row(const struct scale_options *o, const struct scale_result *r)
{
	bool has_step = o->compute_ms > 0;
	char t[5][16], alone[16] = "";

	printf("| %.*s | %u x %u | %u | %.4g | ", o->label ? 80 : (int)strcspn(model(o), "."),
		o->label ? o->label : model(o), o->agents, o->gpus, o->servers, o->rate_gbps);
	if (has_step)
		printf("%.1f ", r->step_s * 1e3);
	if (r->comm_s > 0)
		snprintf(alone, sizeof(alone), "%.2f", r->comm_s * 1e3);
	printf("| %s | %s | %s | %s | %s | %s | ",
		has_step ? ratio(r->step_s, r->bound_s, t[0]) : "", percent(r->efficiency, t[1]),
		has_step ? percent(r->ring_efficiency, t[2]) : "", alone,
		ratio(r->comm_s, r->optimum_s, t[3]), ratio(r->comm_s, r->ring_s, t[4]));
	printf("%.0f, %.0f | %.0f, %.0f |\n", (double)r->agent.tx / 1e6, (double)r->agent.rx / 1e6,
		(double)r->server.tx / 1e6, (double)r->server.rx / 1e6);
}

int main(int argc, char **argv)
{
	void (*print)(const struct scale_options *, const struct scale_result *) = print_text;
	struct scale_options o;
	struct scale_result r;
	bool is_step_only = false;

	(void)argc;
	scale_options_default(&o);
	log_set_level(LOG_WARN);
	for (argv++; *argv;) {
		int n = 1;

		if (strcmp(*argv, "--help") == 0)
			return usage();
		if (strcmp(*argv, "--check") == 0)
			return check_all();
		if (strcmp(*argv, "--head") == 0) {
			print_head();
			return 0;
		}
		if (strcmp(*argv, "--json") == 0)
			print = print_json;
		else if (strcmp(*argv, "--row") == 0)
			print = print_row;
		else if (strcmp(*argv, "--step-only") == 0)
			is_step_only = true;
		else
			n = option(&o, argv);
		if (n < 0)
			return 2;
		argv += n;
	}
	if (scale_measure(&o, is_step_only, &r) < 0)
		return 1;
	print(&o, &r);
	return 0;
}
