#include "common/base/nearest_name.h"

#include <stdio.h>
#include <string.h>

/* Compute the Levenshtein distance by the one-row form of Wagner and Fischer's algorithm (JACM
 * 21(1), 1974). */
static size_t edit_distance(const char *a, const char *b)
{
	size_t row[NEAREST_NAME_BYTES + 1], n_b = strlen(b), diagonal, above;

	if (n_b > NEAREST_NAME_BYTES)
		return NEAREST_NAME_BYTES;
	for (size_t j = 0; j <= n_b; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		diagonal = row[0];
		row[0] = i + 1;
		for (size_t j = 1; j <= n_b; j++) {
			above = row[j];
			row[j] = diagonal + (a[i] != b[j - 1]);
			if (above + 1 < row[j])
				row[j] = above + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			diagonal = above;
		}
	}
	return row[n_b];
}

void nearest_name_try(struct nearest_name *best, const char *wrong, const char *candidate)
{
	size_t d = edit_distance(wrong, candidate);

	if (d < best->distance) {
		best->distance = d;
		best->name = candidate;
	}
}

const char *nearest_name_hint(
	const struct nearest_name *best, const char *prefix, char buf[static NEAREST_HINT_BYTES])
{
	buf[0] = '\0';
	if (best->name && best->distance <= 1 + strlen(best->name) / 4)
		snprintf(buf, NEAREST_HINT_BYTES, " (did you mean '%s%s'?)", prefix, best->name);
	return buf;
}
