#ifndef BPS_COMMON_DAEMON_PROCESS_METRICS_H
#define BPS_COMMON_DAEMON_PROCESS_METRICS_H
/* CPU time and memory of this process, and of its threads the time on a processor and the time in the
 * run queue, from /proc/self. Stateless; any thread. */
struct evbuffer;

/* process_cpu_seconds_total and process_resident_memory_bytes, as Prometheus's own libraries call them;
 * bps_thread_busy_seconds_total and bps_thread_runqueue_seconds_total{thread,kind}: thread is its name,
 * threads of one name are added up; kind is main, data or other. What the kernel does not tell is left
 * out. */
void process_metrics(struct evbuffer *out);
#endif
