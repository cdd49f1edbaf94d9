/* Prints what this installation has, for `bpsrun --check-build`. Starts only Python. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PYTHON_MS 20000

/* Print which frameworks Python finds. It looks only for their files, because their import takes
 * seconds. */
static const char python_program[] =
	"from importlib.util import find_spec\n"
	"print(f'  [{\"X\" if find_spec(\"bps\") else \" \"}] Python package bps')\n"
	"for name in ('numpy', 'torch', 'tensorflow', 'keras', 'jax', 'mxnet'):\n"
	"    print(f'  [{\"X\" if find_spec(name) else \" \"}] {name}')\n";

/* Return whether a program can be found. path: as daemons_program writes it. */
static bool program_is_found(const char *path)
{
	char dirs[8192], file[2 * 8192], *at = NULL;

	if (strchr(path, '/'))
		return access(path, X_OK) == 0;
	snprintf(dirs, sizeof(dirs), "%s", getenv("PATH") ? getenv("PATH") : "");
	for (char *d = strtok_r(dirs, ":", &at); d; d = strtok_r(NULL, ":", &at)) {
		snprintf(file, sizeof(file), "%s/%s", d, path);
		if (access(file, X_OK) == 0)
			return true;
	}
	return false;
}

static bool print_program(const struct bpsrun *r, const char *name, const char *missing)
{
	char path[PATH_MAX + 64];
	bool is_found;

	daemons_program(r, name, path, sizeof(path));
	is_found = program_is_found(path);
	printf("  [%s] %s%s%s\n", is_found ? "X" : " ", name, is_found ? "" : ": ",
		is_found ? "" : missing);
	return is_found;
}

static void print_frameworks(void)
{
	char *argv[] = {ARG("python3"), ARG("-c"), ARG(python_program), NULL};
	struct spawn_plan sp = {.argv = argv, .out = -1, .err = -1, .keep = -1};
	struct bpsrun_child c = {.pidfd = -1};
	struct pollfd p;

	fflush(stdout);
	if (child_spawn(&c, &sp) < 0)
		return;
	p = (struct pollfd){.fd = c.pidfd, .events = POLLIN};
	if (poll(&p, 1, PYTHON_MS) == 0)
		output_print_message("python3 does not end: stopping it");
	child_stop_all(&c, 1, 0);
}

int check_build_print(const struct bpsrun *r)
{
	static const char needed[] = "needed for a cluster of a job";
	bool is_complete;

	printf("bpsrun %s\n\nPrograms:\n", BPS_VERSION);
	is_complete = print_program(r, "bps-scheduler", needed);
	is_complete &= print_program(r, "bps-server", needed);
	is_complete &= print_program(r, "bps-agent", needed);
	print_program(r, "bps-agent-cuda", "needed for tensors in GPU memory");
	print_program(r, "bpsctl", "shows the state of a cluster");
	printf("\nFront-ends of python3:\n");
	print_frameworks();
	return is_complete ? 0 : 1;
}
