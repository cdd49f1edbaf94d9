/* Writes the agent's figures as metrics (figures.h). Thread: the control thread. */
#include "bps-agent/figures.h"

#include <event2/buffer.h>
#include <stdio.h>

#include "common/daemon/metrics.h"

static void write_io_metrics(const struct agent_figures *f, struct evbuffer *out)
{
	metric_append_single(out, "bps_agent_io_threads",
		"I/O threads of this agent; 0: the data thread does all work", f->io.n_threads);
	metric_append_single(out, "bps_agent_io_threads_running",
		"I/O threads that work at present; 0: the data thread does all work",
		f->io.is_running ? f->io.n_threads : 0);
	metric_append_header(
		out, "bps_agent_io_busy_seconds_total", "time in which an I/O thread had work");
	for (unsigned i = 0; i < f->io.n_threads; i++) {
		char thread[12];

		snprintf(thread, sizeof(thread), "%u", i);
		metric_append_value(out, "bps_agent_io_busy_seconds_total",
			(double)f->io.busy_ns[i] / 1e9, "thread", thread, NULL);
	}
}

static void write_step_metrics(const struct agent_figures *f, struct evbuffer *out)
{
	static const char name[] = "bps_agent_step_seconds_total";

	metric_append_header(out, name,
		"time of the steps of the 16 oldest jobs, by where it went: computing, or a phase "
		"in which the workers waited");
	for (uint32_t i = 0; i < f->n_step_jobs; i++) {
		const struct agent_job_steps *s = &f->steps[i];
		char id[12];

		snprintf(id, sizeof(id), "%u", s->id);
		metric_append_value(out, name, (double)s->computing_ns / 1e9, "bps_job", s->name,
			"id", id, "class", "computing", NULL);
		for (int p = 0; p < N_PHASES; p++)
			metric_append_value(out, name, (double)s->phase_ns[p] / 1e9, "bps_job",
				s->name, "id", id, "class", round_phase_name(p), NULL);
	}
}

void agent_figures_write_metrics(
	const struct agent_figures *f, const struct net_stats *net, struct evbuffer *out)
{
	metric_append_single(out, "bps_agent_received_bytes_total", "bytes received from servers",
		(double)net->rx_bytes);
	metric_append_single(out, "bps_agent_discarded_bytes_total",
		"bytes sent with an offer and discarded, because no read of the offer was open",
		(double)net->discarded_bytes);
	metric_append_single(out, "bps_agent_sent_bytes_total",
		"bytes sent to servers, or offered to them for reading",
		(double)agent_sent_bytes(&f->core, net));
	metric_append_single(out, "bps_agent_inflight_bytes",
		"bytes of contributions whose sums have not arrived",
		(double)f->core.inflight_bytes);
	metric_append_single(out, "bps_agent_repush_total", "contributions sent again",
		(double)f->core.repushes);
	metric_append_single(out, "bps_agent_reconnects_total", "data connections lost",
		(double)f->core.reconnects);
	metric_append_single(out, "bps_agent_crc_errors_total", "payloads with a wrong crc",
		(double)f->core.crc_errors);
	metric_append_single(
		out, "bps_agent_rounds_total", "tensor rounds completed", (double)f->core.rounds);
	metric_append_histogram(out, "bps_agent_push_seconds",
		"time from sending a contribution to the offer of its sum", &f->core.push);
	metric_append_histogram(out, "bps_agent_pull_seconds",
		"time from the offer of a sum until the sum has been read", &f->core.pull);
	metric_append_single(out, "bps_agent_data_busy_seconds_total",
		"time in which the data thread had work", (double)f->data_busy_ns / 1e9);
	write_io_metrics(f, out);
	metric_append_single(out, "bps_agent_jobs", "jobs with trainers on this machine", f->jobs);
	metric_append_single(out, "bps_agent_trainers", "trainers connected", f->trainers);
	metric_append_single(out, "bps_agent_executors",
		"executors: processes that drive the GPUs of jobs", f->executors);
	metric_append_single(out, "bps_agent_executor_failures_total",
		"executors that ended before their job, or did not start",
		(double)f->executor_failures);
	metric_append_single(out, "bps_agent_shared_bytes", "memory shared with trainers",
		(double)f->shared_bytes);
	write_step_metrics(f, out);
}
