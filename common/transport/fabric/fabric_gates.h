#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_GATES_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_GATES_H
/* Properties of the versions of libfabric: which versions are accepted, and what this transport can
 * do with each version. Versions are the numbers that fi_version returns. The numbers do not
 * distinguish revisions, such as 1.17.0 and 1.17.1. The functions are pure. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

/* The versions that fabric_gates_check accepts. */
#define FABRIC_VERSIONS_TEXT "1.17, or any version from 1.19 on"

/* Properties of one provider in one version of libfabric. */
struct fabric_gates {
	/* If the endpoint of an arriving read closes or fails, provider `tcp` of libfabric 1.17.0
	 * and 1.17.1 frees the entry of the read two times. libfabric's commit a74ea0fcd fixes this
	 * error in 1.18.0. See fabric_mark_spoiled. */
	bool is_spoiled_by_cut_reads;
	/* Provider `tcp` has FI_GET_FD, with which fi_control returns the socket of an endpoint.
	 * libfabric has had FI_GET_FD since commit 54253b517 (libfabric 2.2). */
	bool has_get_fd;
	/* An endpoint of provider `tcp` can have receives of its own, and throws away the bytes of
	 * a message that do not fit into its receive. libfabric 1.17 closes the endpoint instead.
	 * See fabric_eager.c. */
	bool has_eager;
	/* The data threads read the event queues of their connections. In libfabric 1.17, provider
	 * `tcp` reads the handshakes of new clients, and the bytes of all data threads, while it
	 * reads any event queue. From libfabric 1.19 on, it reads only the bytes of the data thread
	 * that owns the queue. */
	bool has_own_events;
	/* Largest number of connections of a data thread. In libfabric 1.17, provider `tcp` visits
	 * every endpoint in each poll. From libfabric 1.19 on, the cost of a poll does not depend
	 * on the number of endpoints. With provider `verbs`, the network adapter limits the number
	 * of connections, because each connection needs two of the adapter's queue pairs. */
	uint32_t conns_max;
	/* Smallest limit of requested bytes on a connection (read_window.h). With provider `tcp` of
	 * libfabric 1.17, a request costs so much processor time that 4 + 4 hosts on 2 processors
	 * reach 83 % of the sockets' goodput at 1 Gbit/s with 128 KiB, and 85 to 87 % with 512 KiB.
	 * From libfabric 1.19 on, most bytes are sent without a request. The limit can be large
	 * then: with 128 KiB at 1 Gbit/s, the peer has sent a piece of 64 KiB before the request
	 * for the next piece arrives. */
	uint32_t read_least_bytes;
};

/* Check that this version can be used.
 * Errors: -ENOSYS for versions older than 1.17 and for 1.18; err gets the text. With 1.18 an idle
 * thread never sleeps; libfabric's commit 9057c4c95 fixes this error in 1.19. */
int fabric_gates_check(uint32_t version, struct err_text *err);
/* Return the properties of an accepted version. */
struct fabric_gates fabric_gates_of(uint32_t version, bool is_verbs);
#endif
