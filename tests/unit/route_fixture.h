#ifndef BPS_TESTS_UNIT_ROUTE_FIXTURE_H
#define BPS_TESTS_UNIT_ROUTE_FIXTURE_H
/* Routes by name, for tests that drive the engine without a topology. In the product a route
 * follows from a plan (bps-agent/executor/plan/choose.h). */
#include "bps-agent/executor/plan/route.h"

/* Make the route of that name for n members. switches: number of the PCI switch above each member's
 * GPU, for switch_sum and roots; NULL: all under one. "" or "auto": copy for one member, else ce.
 * One member has nothing to sum and always gets copy.
 * Errors: -EINVAL with a sentence: no such name, or too many members. */
int route_make(const char *name, unsigned n_members, const int *switches, struct route *ret,
	struct err_text *err);
#endif
