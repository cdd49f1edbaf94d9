#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_GATES_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_GATES_H
/* Properties of the versions of libfabric: which ones are accepted, and what this transport can do
 * with each. Versions are numbers of fi_version, which have no revision. Pure. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

#define FABRIC_OLDEST_TEXT "1.17"

/* Properties of a provider in a version. */
struct fabric_gates {
	/* tcp of 1.17.0 and 1.17.1 frees the entry of an arriving read twice when its endpoint
	 * closes or fails. a74ea0fcd mends it in 1.18.0. See fabric_spoil. */
	bool is_spoiled_by_cut_reads;
	/* tcp has FI_GET_FD: fi_control returns the socket of an endpoint (54253b517, 2.2). */
	bool has_get_fd;
	/* Connections of a data thread. tcp of 1.17 visits every endpoint in each poll; from 1.19
	 * on, a poll costs the same for any number. For verbs the limit is not the library's: each
	 * connection has two queue pairs of the adapter. */
	uint32_t conns_max;
};

/* Check that this version can be used.
 * Errors: -ENOSYS, with a sentence: older than 1.17; 1.18, in which an idle thread never sleeps
 * (9057c4c95 mends it in 1.19). */
int fabric_gates_check(uint32_t version, struct err_text *err);
/* Return the properties of an accepted version. */
struct fabric_gates fabric_gates_of(uint32_t version, bool is_verbs);
#endif
