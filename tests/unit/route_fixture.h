#ifndef BPS_TESTS_UNIT_ROUTE_FIXTURE_H
#define BPS_TESTS_UNIT_ROUTE_FIXTURE_H
/* Routes by their name, for tests that drive the engine without a topology. In the product, a route
 * follows from a plan (bps-agent/executor/plan/choose.h). */
#include "bps-agent/executor/plan/route.h"

/* Make the route called `name` for n_members members. The name "" or "auto" selects the route "ce".
 * A single member has nothing to sum and always gets the route "copy". switches[i] identifies the
 * PCI switch above the GPU of member i. Only the routes "switch_sum" and "roots" use `switches`. If
 * `switches` is NULL, all GPUs are below one switch. Returns -EINVAL with an error text if the name
 * is unknown or there are too many members. */
int route_make(const char *name, unsigned n_members, const int *switches, struct route *ret,
	struct err_text *err);
#endif
