/* Metrics of this process and its threads, from /proc/self. Each request reads all files again,
 * because requests are rare, and threads start and end between two requests. The functions keep no
 * state and may be called on any thread. */
#include "common/daemon/process_metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/first_line.h"
#include "common/daemon/metrics.h"

#define THREAD_NAMES_MAX 64
#define THREAD_NAME_MAX  16 /* kernel's limit for a thread's name, including the NUL byte */

struct thread_times {
	char name[THREAD_NAME_MAX];
	bool is_main;
	uint64_t busy_ns, runqueue_ns;
};

struct thread_list {
	struct thread_times t[THREAD_NAMES_MAX];
	unsigned n;
};

/* Read the first line of a file in the thread's /proc folder into buf. Returns false when the
 * thread has ended. */
static bool thread_read_proc_line(const char *tid, const char *file, char *buf, size_t room)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%.16s/%s", tid, file);
	return first_line_read(path, buf, room);
}

static void thread_list_add_times(struct thread_list *l, const char *tid)
{
	struct thread_times t = {.is_main = strtol(tid, NULL, 10) == (long)getpid()};
	char line[96];
	unsigned i = 0;

	if (!thread_read_proc_line(tid, "schedstat", line, sizeof(line)) ||
		sscanf(line, "%" SCNu64 " %" SCNu64, &t.busy_ns, &t.runqueue_ns) != 2 ||
		!thread_read_proc_line(tid, "comm", t.name, sizeof(t.name)))
		return;
	while (i < l->n && (l->t[i].is_main || t.is_main || strcmp(l->t[i].name, t.name) != 0))
		i++;
	if (i == THREAD_NAMES_MAX)
		return;
	if (i == l->n) {
		l->t[l->n++] = t;
		return;
	}
	l->t[i].busy_ns += t.busy_ns;
	l->t[i].runqueue_ns += t.runqueue_ns;
}

static void thread_list_read_all(struct thread_list *l)
{
	DIR *dir = opendir("/proc/self/task");
	const struct dirent *e;

	l->n = 0;
	if (!dir)
		return;
	while ((e = readdir(dir)))
		if (e->d_name[0] != '.')
			thread_list_add_times(l, e->d_name);
	closedir(dir);
}

static void thread_append_sample(
	struct evbuffer *out, const char *metric, const struct thread_times *t, uint64_t ns)
{
	const char *kind = t->is_main                         ? "main"
			   : strncmp(t->name, "data", 4) == 0 ? "data"
							      : "other";

	metric_append_value(out, metric, (double)ns / 1e9, "thread", t->is_main ? "main" : t->name,
		"kind", kind, NULL);
}

static void thread_metrics(struct evbuffer *out)
{
	struct thread_list l;

	thread_list_read_all(&l);
	metric_append_header(out, "bps_thread_busy_seconds_total", "counter",
		"time that threads ran on a processor");
	for (unsigned i = 0; i < l.n; i++)
		thread_append_sample(out, "bps_thread_busy_seconds_total", &l.t[i], l.t[i].busy_ns);
	metric_append_header(out, "bps_thread_runqueue_seconds_total", "counter",
		"time that threads waited for a processor, ready to run");
	for (unsigned i = 0; i < l.n; i++)
		thread_append_sample(
			out, "bps_thread_runqueue_seconds_total", &l.t[i], l.t[i].runqueue_ns);
}

/* Return the bytes of resident memory; 0: unknown. */
static double resident_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	uint64_t pages = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%*u %" SCNu64, &pages) != 1)
		pages = 0;
	fclose(f);
	return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

void process_metrics(struct evbuffer *out)
{
	double resident = resident_bytes();
	struct timespec t;

	if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0)
		metric_append_single(out, "process_cpu_seconds_total", "counter",
			"user and system time of this process",
			(double)t.tv_sec + (double)t.tv_nsec / 1e9);
	if (resident > 0)
		metric_append_single(out, "process_resident_memory_bytes", "gauge",
			"resident memory, shared memory included", resident);
	thread_metrics(out);
}
