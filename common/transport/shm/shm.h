#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_H
/* Shared-memory back-end of common/transport/xport.h, for an agent and a server on the same host:
 * they map each other's segments, messages go through two rings (common/transport/shm/shm_ring.h),
 * a read is one memcpy, and an offer can be borrowed, so that nothing is copied at all. No network
 * is involved, and so no crc.
 *
 * Rendezvous: each data thread of a server listens on a UNIX socket in a directory that both know,
 * named by its instance and thread. Who finds it there is on the same host, whatever the network
 * namespaces and host names say. Handshake, on SOCK_SEQPACKET:
 *
 *   server -> agent   challenge: a nonce
 *   agent -> server   ticket over that nonce (common/wire/ticket.h), and a nonce of its own
 *   server -> agent   proof over the agent's nonce, and the memfd of the rings
 *
 * The socket stays: segments' memfds go over it, wake-ups for a sleeper (not an eventfd: its
 * O_NONBLOCK would be the peer's to take away), and its end is the peer's death. While both sides
 * are awake there is no system call but a look at the sockets each millisecond.
 *
 * Memory: sealed against shrinking and growing, which the mapping side checks, so that a peer's
 * memory is never missing. A closing side sets its word in the rings' page before it changes what
 * it had offered; a read counts only when that word is still zero after the last byte was copied.
 * A killed process changes nothing any more. Loans outlive the connection: see
 * docs/reference/faults.md.
 *
 * A peer that passed cannot crash us. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/transport/net.h"
#include "common/transport/xport.h"

#define SHM_DIR_MAX   80 /* a socket's name and this fit into an address */
#define SHM_CONNS_MAX 64 /* connections of a data thread, handshakes too */

/* Of all data threads of a process; written by them, read by any. */
struct shm_counters {
	_Atomic uint64_t received_bytes, messages_in, messages_out, protocol_errors, refused;
	_Atomic uint32_t connections;
};

struct shm_config {
	const char *dir; /* where servers' sockets lie; at most SHM_DIR_MAX bytes */
	bool is_listener;
	int *listen_fds; /* listener: of each thread, from shm_listen; NULL: each makes its own */
	uint32_t my_id;
	uint64_t my_instance;
	uint32_t connect_timeout_ms; /* of the handshake */
	uint32_t ping_ms, dead_ms;   /* as in struct net_config */
	net_key_fn key_fn;           /* listener: called on the data thread */
	void *key_ctx;
	struct shm_counters *counters; /* outlive the xports */
};

/* The listening socket of data thread `thread`: to be made before anybody hears of this instance,
 * since who does not find it goes through the network. Owns: the caller, until an xport takes it
 * out of listen_fds (-1 then); shm_unlisten ends it.
 * Returns it. Errors: -errno, with a sentence. */
int shm_listen(const struct shm_config *cfg, unsigned thread, struct err_text *err);
/* Close and remove those of n threads that no xport has taken. */
void shm_unlisten(const struct shm_config *cfg, unsigned n);

/* The xport of data thread `thread`; cfg is copied.
 * Thread: any, before that thread starts using it.
 * Errors: -errno, with a sentence. */
int shm_xport_new(const struct shm_config *cfg, unsigned thread, const struct xport_events *ev,
	void *ctx, struct xport **ret, struct err_text *err);

/* Can sockets be made in that directory? Those that dead processes left there are removed.
 * Returns 0, or -1 with errno. */
int shm_sweep(const char *dir);

/* Is there a socket of this server here? xport_ops.connect says more; this costs one system
 * call. */
bool shm_is_here(const struct shm_config *cfg, uint64_t peer_instance, uint16_t thread);

/* Take the segment number that another transport of this thread has given: mem as in
 * xport_ops.seg_add. Shared with peers from xport_ops.seg_share on. */
void shm_seg_set(struct xport *x, uint16_t segment, void *mem, size_t bytes);
#endif
