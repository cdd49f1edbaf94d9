#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_H
/* Shared-memory back-end of common/transport/xport.h, for an agent and a server on the same host.
 * They map each other's segments, and messages go through two rings
 * (common/transport/shm/shm_ring.h). A read is one memcpy, and an offer can be borrowed, so that
 * nothing is copied. No network is involved, so there is no crc.
 *
 * Rendezvous: each data thread of a server listens on a UNIX socket in a directory that both know,
 * named by its instance and thread. A process that finds it there is on the same host, whatever the
 * network namespaces and host names are. Handshake, on SOCK_SEQPACKET:
 *
 *   server -> agent   challenge: a nonce
 *   agent -> server   ticket over that nonce (common/wire/ticket.h), and a nonce of its own
 *   server -> agent   proof over the agent's nonce, and the memfd of the rings
 *
 * The socket stays open. It carries the segments' memfds and the wake-ups for a sleeper; its end
 * reports the peer's death. (The peer of an eventfd could clear its O_NONBLOCK.) While both sides
 * are awake, the only system call is a check of the sockets each millisecond.
 *
 * Memory: sealed against shrinking and growing, which the mapping side checks, so that a peer's
 * memory never disappears. A closing side sets its word in the rings' page before it changes what
 * it had offered. A read counts only when that word is still zero after the last byte was copied. A
 * killed process changes nothing any more. Loans outlive the connection: see
 * docs/reference/faults.md.
 *
 * A peer with a valid ticket cannot crash us. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/transport/net.h"
#include "common/transport/xport.h"

#define SHM_DIR_MAX   80 /* limit, so that it fits into an address with a socket's name */
#define SHM_CONNS_MAX 64 /* connections of a data thread, including handshakes */

/* Counters of all data threads of a process; written by them, read by any. */
struct shm_counters {
	_Atomic uint64_t received_bytes, messages_in, messages_out, protocol_errors, refused;
	_Atomic uint32_t connections;
};

struct shm_config {
	const char *dir; /* directory of servers' sockets; at most SHM_DIR_MAX bytes */
	bool is_listener;
	/* Listener: one per thread, from shm_listen; NULL: each thread makes its own */
	int *listen_fds;
	uint32_t my_id;
	uint64_t my_instance;
	uint32_t connect_timeout_ms; /* limit of the handshake */
	uint32_t ping_ms, dead_ms;   /* same as in struct net_config */
	net_key_fn key_fn;           /* listener: called on the data thread */
	void *key_ctx;
	struct shm_counters *counters; /* must outlive the xports */
};

/* Make the listening socket of data thread `thread`. Make it before any agent learns of this
 * instance, because an agent that does not find it uses the network.
 * Owns: the caller, until an xport takes it out of listen_fds (-1 then); shm_unlisten ends it.
 * Returns it.
 * Errors: -errno, with a sentence. */
int shm_listen(const struct shm_config *cfg, unsigned thread, struct err_text *err);
/* Close and remove those sockets of n threads that no xport has taken. */
void shm_unlisten(const struct shm_config *cfg, unsigned n);

/* Make the xport of data thread `thread`; cfg is copied. Thread: any, before that thread starts
 * using it.
 * Errors: -errno, with a sentence. */
int shm_xport_new(const struct shm_config *cfg, unsigned thread, const struct xport_events *ev,
	void *ctx, struct xport **ret, struct err_text *err);

/* Check that sockets can be made in that directory, and remove those of dead processes. Returns 0,
 * or -1 with errno. */
int shm_sweep(const char *dir);

/* Return whether this server has a socket here. xport_ops.connect finds out more; this costs one
 * system call. */
bool shm_is_here(const struct shm_config *cfg, uint64_t peer_instance, uint16_t thread);

/* Set the segment number that another transport of this thread has assigned; mem same as in
 * xport_ops.seg_add. Peers can map it after xport_ops.seg_share. */
void shm_seg_set(struct xport *x, uint16_t segment, void *mem, size_t bytes);
#endif
