#ifndef BPS_COMMON_TRANSPORT_PEER_READS_H
#define BPS_COMMON_TRANSPORT_PEER_READS_H
/* The reads of one connection, for all transports: which are in flight, which wait for the read
 * window, and how many of their bytes were requested and have arrived. Requesting the bytes is the
 * task of each transport. Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/transport/flow/read_window.h"
#include "common/transport/xport.h"

struct peer_read {
	struct xport_read *r;
	uint32_t issued, done; /* bytes requested, and bytes arrived */
	uint32_t crc; /* crc of the bytes that have arrived, if the transport computes it */
	int status;
	void *impl; /* data of the transport */
	/* Entry in the queue. The read is in it until all its bytes are requested. */
	TAILQ_ENTRY(peer_read) link;
};
TAILQ_HEAD(peer_read_list, peer_read);

struct peer_reads {
	struct read_window window;
	uint32_t n, n_queued; /* reads in flight, and those of them that are in the queue */
	uint32_t used;        /* bitmap of the elements of `all` that are in use */
	struct peer_read_list queue;
	struct peer_read all[READS_MAX];
};

/* Fill in the fields of p, which must be zeroed. least_bytes: smallest limit of the window. */
void peer_reads_init(struct peer_reads *p, uint32_t least_bytes);
/* Start the read r. Returns NULL when READS_MAX reads are in flight. */
struct peer_read *peer_reads_start(struct peer_reads *p, struct xport_read *r);
void peer_reads_enqueue(struct peer_reads *p, struct peer_read *rd);
void peer_reads_dequeue(struct peer_reads *p, struct peer_read *rd);
/* Return the length of the next piece to request, which belongs to *ret, the first queued read. 0:
 * no read is queued, or the window has no room. */
uint32_t peer_reads_next_piece(const struct peer_reads *p, struct peer_read **ret);
/* Record that the next len bytes of a queued read were requested. After its last byte, the read
 * leaves the queue. */
void peer_reads_requested(struct peer_reads *p, struct peer_read *rd, uint32_t len);
/* Record that a piece of len bytes has arrived, took_ns after its request. Returns whether the read
 * has all its bytes. */
bool peer_reads_arrived(struct peer_reads *p, struct peer_read *rd, uint32_t len, uint64_t took_ns);
/* End a read, and run its callback read_done. */
void peer_reads_finish(
	struct peer_reads *p, struct peer_read *rd, const struct xport *x, int status);
/* End all reads with -ECANCELED. */
void peer_reads_cancel(struct peer_reads *p, const struct xport *x);
#endif
