/* Run A: tests of two processes on one GPU. docs/guides/gpu-tests.md explains each item. */
#include <stdio.h>
#include <string.h>

#include "tests/gpu/a.h"

static bool run(const struct gpu_pair *pairs, size_t n, const char *only)
{
	bool is_ok = true;

	for (size_t i = 0; i < n; i++)
		if (!only || strcmp(only, pairs[i].item) == 0)
			is_ok &= pair_run(&pairs[i]);
	return is_ok;
}

/* Run all items, or only the item that the argument names. */
int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;
	bool is_ok = run(a_share, a_share_count, only);

	is_ok &= run(a_rely, a_rely_count, only);
	is_ok &= run(a_speed, a_speed_count, only);
	return is_ok ? 0 : 1;
}
