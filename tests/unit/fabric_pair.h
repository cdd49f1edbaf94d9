#ifndef BPS_TESTS_UNIT_FABRIC_PAIR_H
#define BPS_TESTS_UNIT_FABRIC_PAIR_H
/* Two connected ends for the tests of libfabric's provider tcp. */
#include "common/transport/fabric/fabric_impl.h"
#include "tests/unit/eager_rig.h"

/* Select the provider for the tests of a program. A setup function of cmocka. */
int fabric_pair_use_tcp(void **state);

struct fabric_conn *fabric_conn_of(const struct net_node *n);
/* Return whether this version of libfabric can send eager bytes. */
bool fabric_has_eager(const struct net_node *n);

/* Open both ends and connect them. Each end gets memory of that many bytes. */
void fabric_pair_open(struct offer_pair *p, size_t bytes);
/* Connect the two ends of an open rig. */
void fabric_pair_connect(struct offer_pair *p, size_t bytes);
void fabric_pair_close(struct offer_pair *p);

/* Skip a test of eager bytes if this version of libfabric cannot send them. */
#define NEED_EAGER(p)                                                                              \
	do {                                                                                       \
		if (!fabric_has_eager(&(p)->r.server)) {                                           \
			fabric_pair_close(p);                                                      \
			skip();                                                                    \
		}                                                                                  \
	} while (0)
#endif
