#ifndef BPS_COMMON_DAEMON_PROCESS_METRICS_H
#define BPS_COMMON_DAEMON_PROCESS_METRICS_H
/* Metrics from /proc/self: CPU time and memory of this process, and run time and run-queue time of
 * its threads. The functions keep no state and may be called on any thread. */
struct evbuffer;

/* Write process_cpu_seconds_total and process_resident_memory_bytes. Prometheus's own libraries use
 * the same names. Also write bps_thread_busy_seconds_total and bps_thread_runqueue_seconds_total,
 * both with the labels `thread` and `kind`. Label `thread` is the thread's name. The times of
 * threads with the same name are added. Label `kind` is main, data or other. Values that the kernel
 * does not provide are left out. */
void process_metrics(struct evbuffer *out);
#endif
