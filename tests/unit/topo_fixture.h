#ifndef BPS_TESTS_UNIT_TOPO_FIXTURE_H
#define BPS_TESTS_UNIT_TOPO_FIXTURE_H
/* A machine of tests/topologies as a folder in the form of sysfs. */
#include "bps-agent/executor/plan/strategy.h"
#include "bps-agent/executor/plan/topology.h"

struct topo_fixture {
	char root[64]; /* a temporary folder */
	unsigned n_devices, n_reports, n_odd;
	enum strategy expect;
	struct topo_report reports[TOPO_GPUS_MAX];
};

/* Names of all machines, NULL-terminated. */
extern const char *const topo_fixture_names[];

/* Make the folder; fails the test when it cannot. */
void topo_fixture_make(struct topo_fixture *f, const char *name);
/* Make an empty folder, for a test with lines of its own. */
void topo_fixture_empty(struct topo_fixture *f);
void topo_fixture_line(struct topo_fixture *f, const char *line);
/* Read it with topology_read, and refine the result when the machine has reports. */
void topo_fixture_read(struct topo_fixture *f, struct topology *ret);
void topo_fixture_remove(struct topo_fixture *f);
#endif
