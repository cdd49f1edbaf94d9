#include "common/local/cause_file.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Return whether the path leads to a file that bpsrun has made. In a container, or after the end of
 * bpsrun, the same path may lead to a file of another process. */
static bool cause_file_is_of_bpsrun(const char *path)
{
	char target[sizeof(CAUSE_FILE_LINK)];
	ssize_t n = readlink(path, target, sizeof(target));

	return n >= (ssize_t)sizeof(CAUSE_FILE_LINK) - 1 &&
	       memcmp(target, CAUSE_FILE_LINK, sizeof(CAUSE_FILE_LINK) - 1) == 0;
}

/* Return whether bpsrun has given this worker the value of the variable. */
static bool env_variable_has_value(const char *variable, const char *value)
{
	const char *given = getenv(variable);

	return given && strcmp(given, value) == 0;
}

void cause_file_set(const char *job, uint32_t own_rank, uint32_t cause)
{
	const char *path = secure_getenv(CAUSE_FILE_ENV);
	char rank[16];
	int fd = -1;

	snprintf(rank, sizeof(rank), "%u", (unsigned)own_rank);
	if (path && env_variable_has_value("BPS_JOB", job) &&
		env_variable_has_value("BPS_RANK", rank) && cause_file_is_of_bpsrun(path))
		fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	dprintf(fd, "%-10u\n", (unsigned)cause);
	close(fd);
}
