#ifndef BPS_SCHEDULER_BPSCTL_PATHS_PATH_TEXT_H
#define BPS_SCHEDULER_BPSCTL_PATHS_PATH_TEXT_H
/* Describes the results of paths.h for operators. The functions are pure. */
#include "bps-scheduler/bpsctl/paths/paths.h"

struct path_text {
	char what[512];
	char action[512]; /* what the operator should do, "" for nothing */
};

void path_describe(const struct checked_path *p, struct path_text *ret);
#endif
