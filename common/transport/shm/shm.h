#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_H
/* Shared-memory back-end of common/transport/xport.h, for an agent and a server on the same host.
 * The two processes map each other's segments, and messages go through two rings
 * (common/transport/shm/shm_ring.h). A read is one memcpy. Instead of a read, the reader can borrow
 * the offered memory (xport_ops.borrow, a loan). With a loan nothing is copied. No network is
 * involved, so there is no crc.
 *
 * Rendezvous: each data thread of a server listens on a UNIX socket in a directory that agent and
 * server have in their settings. The name of the socket consists of the server's instance and the
 * thread. If an agent finds the socket, the agent is on the server's host, whatever the agent's
 * network namespace and host name are. Handshake, on SOCK_SEQPACKET:
 *
 *   server -> agent   challenge: a nonce
 *   agent -> server   ticket over that nonce (common/wire/ticket.h), and a nonce of its own
 *   server -> agent   proof over the agent's nonce, and the memfd of the rings
 *
 * The socket stays open. The sockets carry the memfds of segments. When the receiver sleeps, the
 * sender wakes it through the socket. If the peer's side of the socket is closed, the peer has died
 * or ended. (An eventfd is not used for wake-ups, because the peer could clear the eventfd's
 * O_NONBLOCK flag.) While both sides are awake, the only system call is a check of the sockets each
 * millisecond.
 *
 * Memory: memfds are sealed against shrinking and growing, so that a peer's memory never
 * disappears. The side that maps a memfd checks the seals. Each side has a word `is_over` in the
 * page of the rings. A side that closes a connection sets its `is_over` before it changes memory
 * that it had offered. A read is valid only if the peer's `is_over` is still zero after the last
 * byte was copied. A killed process does not set `is_over`, but it changes no memory either. A loan
 * may last longer than the connection (docs/reference/faults.md).
 *
 * A peer with a valid ticket cannot crash this process. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/transport/net.h"
#include "common/transport/xport.h"

/* Largest length of the directory's path in bytes. The path and the name of the socket must fit
 * into the address of a UNIX socket */
#define SHM_DIR_MAX 80
/* Largest number of connections of a data thread, including connections in the handshake */
#define SHM_CONNS_MAX 64

/* Counters of all data threads of a process. The data threads write them, any thread reads them. */
struct shm_counters {
	_Atomic uint64_t received_bytes, messages_in, messages_out, protocol_errors, refused;
	_Atomic uint32_t connections;
};

struct shm_config {
	const char *dir; /* directory of servers' sockets; at most SHM_DIR_MAX bytes */
	bool is_listener;
	/* Used only if is_listener is true: array of the sockets from shm_listen, indexed by data
	 * thread; NULL: each data thread makes its own socket */
	int *listen_fds;
	uint32_t my_id;
	uint64_t my_instance;
	uint32_t connect_timeout_ms; /* time limit of the handshake */
	uint32_t ping_ms, dead_ms;   /* as in struct net_config */
	/* Used only if is_listener is true: returns keys for tickets; called on the data thread */
	net_key_fn key_fn;
	void *key_ctx;
	struct shm_counters *counters; /* shared counters, which must outlive the xports */
};

/* Make the listening socket of data thread `thread` and return it. Call this before any agent
 * learns of this instance, because an agent that does not find the socket uses the network.
 * Owns: the caller puts the socket into cfg->listen_fds and owns the socket until an xport takes
 * the socket and sets the element to -1. shm_unlisten closes the sockets that were not taken.
 * Errors: -errno; err gets the text. */
int shm_listen(const struct shm_config *cfg, unsigned thread, struct err_text *err);
/* Close and unlink the listening sockets of data threads 0 to n - 1. Sockets that an xport has
 * taken stay open. */
void shm_unlisten(const struct shm_config *cfg, unsigned n);

/* Make the xport of data thread `thread`; cfg is copied. Call this function on any thread, before
 * the data thread starts using the xport.
 * Errors: -errno; err gets the text. */
int shm_xport_new(const struct shm_config *cfg, unsigned thread, const struct xport_events *ev,
	void *ctx, struct xport **ret, struct err_text *err);

/* Check that this process can make sockets in the directory. Also unlink the sockets of processes
 * that have ended. Returns 0, or -1 with errno set. */
int shm_unlink_dead_sockets(const char *dir);

/* Return whether the socket of data thread `thread` of the server with instance id peer_instance
 * exists on this host. Costs one system call. Only xport_ops.connect finds out whether that server
 * accepts a connection. */
bool shm_peer_is_on_host(const struct shm_config *cfg, uint64_t peer_instance, uint16_t thread);

/* Add a segment. `segment`: the id that the network transport of this thread has assigned to the
 * segment. `mem` and `bytes` are as for xport_ops.seg_add. Peers can map the segment after
 * xport_ops.seg_share. */
void shm_seg_set(struct xport *x, uint16_t segment, void *mem, size_t bytes);
#endif
