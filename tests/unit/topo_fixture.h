#ifndef BPS_TESTS_UNIT_TOPO_FIXTURE_H
#define BPS_TESTS_UNIT_TOPO_FIXTURE_H
/* A machine of tests/topologies as a folder that looks like sysfs. */
#include "bps-agent/executor/plan/strategy.h"
#include "bps-agent/executor/plan/topology.h"

struct topo_fixture {
	char root[64]; /* a temporary folder */
	unsigned n_devices, n_reports, n_odd;
	enum strategy expect;
	struct topo_report reports[TOPO_GPUS_MAX];
};

/* Names of all of them, NULL-terminated. */
extern const char *const topo_fixture_names[];

/* Make it; fails the test when it cannot. */
void topo_fixture_make(struct topo_fixture *f, const char *name);
/* Make an empty one, for a test that has its own lines. */
void topo_fixture_empty(struct topo_fixture *f);
void topo_fixture_line(struct topo_fixture *f, const char *line);
/* What topology_read makes of it, refined when it has reports. */
void topo_fixture_read(struct topo_fixture *f, struct topology *ret);
void topo_fixture_remove(struct topo_fixture *f);
#endif
