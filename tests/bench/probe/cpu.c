#include "tests/bench/probe/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/data/crc32c.h"

void probe_crc(size_t bytes, size_t part, double seconds)
{
	unsigned char *mem = probe_alloc(bytes);
	uint64_t done = 0;
	uint32_t crc = 0;
	double cpu, start;

	for (size_t i = 0; i < bytes; i++)
		mem[i] = (unsigned char)(i * 31);
	cpu = probe_cpu_s();
	for (start = probe_now_s(); probe_now_s() - start < seconds;)
		for (size_t at = 0; at < bytes; at += part, done += part)
			crc ^= crc32c(0, mem + at, bytes - at < part ? bytes - at : part);
	cpu = probe_cpu_s() - cpu;
	printf("{\"what\": \"crc\", \"bytes\": %zu, \"cpu_s_per_gb\": %.6f, \"crc\": %u}\n", bytes,
		cpu / ((double)done / 1e9), crc);
	free(mem);
}

static double spin(double seconds)
{
	double start = probe_now_s(), cpu = probe_cpu_s();

	while (probe_now_s() - start < seconds)
		continue;
	return (probe_cpu_s() - cpu) / (probe_now_s() - start);
}

void probe_cores(unsigned n, double seconds)
{
	double got = 0, one;
	int fds[2];

	if (pipe(fds) < 0)
		probe_fail("no pipe");
	for (unsigned i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid < 0)
			probe_fail("no process");
		if (pid > 0)
			continue;
		one = spin(seconds);
		_exit(write(fds[1], &one, sizeof(one)) != sizeof(one));
	}
	for (unsigned i = 0; i < n; i++) {
		int status;

		if (wait(&status) < 0 || status || read(fds[0], &one, sizeof(one)) != sizeof(one))
			probe_fail("a process failed");
		got += one;
	}
	close(fds[0]);
	close(fds[1]);
	printf("{\"what\": \"cores\", \"processes\": %u, \"cores\": %.4f}\n", n, got);
}
