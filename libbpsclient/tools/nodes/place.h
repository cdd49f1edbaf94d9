#ifndef BPS_TOOLS_PLACE_H
#define BPS_TOOLS_PLACE_H
/* The place of this node among the nodes of a job: how many there are, which one this is, and where
 * the head is. It comes from the command line, else from the variables of the launcher that runs
 * bpsrun on each node. The functions run on bpsrun's only thread. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/addr.h"

#define PLACE_PORT         7300 /* of the head, unless --head or Slurm's job gives another one */
#define PLACE_RANK_UNKNOWN UINT32_MAX
#define PLACE_NODES_MAX    65536

struct place {
	unsigned nnodes;    /* 1: the job has one node */
	uint32_t node_rank; /* PLACE_RANK_UNKNOWN: the head chooses it */
	struct addr head;   /* host "": not known */
	char job[64];       /* name of the launcher's job; "": none */
};

/* Find the place. given: the values of the command line: nnodes 0, node_rank PLACE_RANK_UNKNOWN and
 * head NULL if it has none. uses_environment: false if the command line asks for daemons of this
 * machine alone. Errors: -EINVAL; the error was printed. */
int place_find(unsigned nnodes, uint32_t node_rank, const char *head, bool uses_environment,
	struct place *ret);
#endif
