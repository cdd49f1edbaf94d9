/* Lower bounds for the bandwidth simulator, and the time of a ring all-reduce. No placement of sums
 * and no order of sending can be faster than a lower bound. This file has formulas only and no
 * state. */
#include "tests/scale/scale.h"

#include <math.h>

#define GBIT 125e6 /* bytes per second */

static double agent_rate(const struct scale_options *o, uint32_t i)
{
	return GBIT * (i < o->slow_agents ? o->slow_gbps : o->rate_gbps);
}

static double server_rate(const struct scale_options *o, uint32_t i)
{
	return GBIT * (i < o->slow_servers ? o->slow_gbps : o->rate_gbps);
}

/* Return the number of the model's bytes that all servers together can sum within t seconds. The
 * network cards set the limit. M is the size of the model (parameter `bytes`), n the number of
 * agents, and x the number of bytes that one server sums. The card of a machine with an agent and a
 * server carries M + (n-2)x bytes. The card of a machine with only a server carries n*x bytes. */
static double capacity(const struct scale_options *o, double bytes, double t)
{
	double n = o->agents, sum = 0;

	for (uint32_t i = 0; o->is_colocated && i < o->agents; i++) {
		double free = t * agent_rate(o, i) - bytes;

		if (free >= 0)
			sum += n > 2 ? free / (n - 2) : bytes;
	}
	for (uint32_t i = 0; i < o->servers; i++)
		sum += t * server_rate(o, i) / n;
	return sum;
}

double bound_push_pull_s(const struct scale_options *o, double bytes)
{
	double low = 0, high;

	for (uint32_t i = 0; i < o->agents; i++)
		low = fmax(low, bytes / agent_rate(o, i));
	if (capacity(o, bytes, low) >= bytes)
		return low;
	for (high = low; capacity(o, bytes, high) < bytes;)
		high *= 2;
	for (int i = 0; i < 60; i++) {
		double mid = (low + high) / 2;

		if (capacity(o, bytes, mid) >= bytes)
			high = mid;
		else
			low = mid;
	}
	return high;
}

double bound_formula_s(const struct scale_options *o, double bytes)
{
	double n = o->agents, k = o->servers;

	if (o->slow_agents || o->slow_servers || !o->is_colocated || n < 2 || k > n)
		return 0;
	return 2 * n * (n - 1) * bytes / ((n * n + k * n - 2 * k) * GBIT * o->rate_gbps);
}

double bound_ring_s(const struct scale_options *o, double bytes)
{
	double n = o->agents, rate = GBIT * o->rate_gbps;

	for (uint32_t i = 0; i < o->agents; i++)
		rate = fmin(rate, agent_rate(o, i));
	return 2 * (n - 1) * (bytes / n / rate + o->latency_us * 1e-6);
}

double bound_step_s(const struct scale_options *o, const struct scale_trace *t)
{
	double compute = o->compute_ms / 1e3, per_byte = bound_push_pull_s(o, t->bytes) / t->bytes;
	double worst = fmax(compute, bound_push_pull_s(o, t->bytes));
	/* done: share of the computing time that the layers before layer i take. bytes: bytes of
	 * layers 0 to i. */
	double done = 0, bytes = 0;

	for (uint32_t i = 0; i < t->n_layers; i++) {
		double backward = compute * 2 / 3 * (1 - done), forward = compute / 3 * (1 - done);

		bytes += t->layers[i].bytes;
		worst = fmax(worst, backward + bytes * per_byte + forward);
		done += t->layers[i].share;
	}
	return worst;
}

/* Return the time in which a ring over the accelerators inside one machine reduces `bytes` bytes.
 * Every way of summing over machines starts with this step. */
static double machine_ns(const struct scale_options *o, double bytes)
{
	return o->gpus > 1 && o->gpu_gbs > 0 ? bytes / o->gpu_gbs * (o->gpus - 1) / o->gpus : 0;
}

double bound_ring_step_s(const struct scale_options *o, const struct scale_trace *t)
{
	double now = 0, ready[STEP_MAX * 16], full = 0, net = 0, reduced = 0, start = 0, step = 0;
	uint32_t bucket_of_layer[STEP_MAX * 16], n_buckets = 0;

	if (t->n_layers > sizeof(ready) / sizeof(ready[0]))
		return 0;
	for (int k = 0; k < 4; k++) { /* by the 4th step, the duration of a step is stable */
		n_buckets = 0;
		full = 0;
		for (uint32_t i = t->n_layers; i-- > 0;) {
			now += 2 * t->layers[i].forward_ns;
			reduced = fmax(reduced, now) + machine_ns(o, t->layers[i].bytes);
			full += t->layers[i].bytes;
			bucket_of_layer[i] = n_buckets;
			if (full < (double)o->bucket_bytes && i > 0)
				continue;
			net = fmax(net, reduced) + bound_ring_s(o, full) * 1e9;
			ready[n_buckets++] = net + machine_ns(o, full);
			full = 0;
		}
		for (uint32_t i = 0; i < t->n_layers; i++) {
			now = fmax(now, ready[bucket_of_layer[i]]);
			if (i == 0) {
				step = now - start;
				start = now;
			}
			now += t->layers[i].forward_ns;
		}
	}
	return step / 1e9;
}
