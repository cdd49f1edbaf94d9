#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_IMPL_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_IMPL_H
/* Internal declarations of the transport over shared memory (common/transport/shm/shm.h). Only the
 * transport's source files, its unit test and its fuzzer include this header.
 *
 *   shm.c       struct shm_xport, which the data thread uses, and the poll loop
 *   shm_conn.c  connections: handshake, up, down, pings
 *   shm_io.c    messages, reads, loans
 *   shm_seg.c   own segments, mappings of peers' segments
 *
 * The states are those of peer_conn.h. The connecting side goes UP when it receives the welcome.
 * The accepting side goes UP when it receives a valid ticket. A DOOMED connection is closed in the
 * same poll, and its memory is freed in the next poll.
 *
 * All this code and its objects belong to the data thread. */
#include <sys/queue.h>
#include <sys/types.h>

#include "common/base/clock.h"
#include "common/transport/peer_conn.h"
#include "common/transport/peer_reads.h"
#include "common/transport/shm/shm.h"
#include "common/transport/shm/shm_ring.h"
#include "common/wire/ticket.h"

#define SHM_PATH_BYTES 108 /* size of the path in the address of a UNIX socket */
#define SHM_STRANGERS  16  /* largest number of accepted connections with no valid ticket yet */
#define SHM_PER_USER   8   /* like SHM_STRANGERS, but for the connections of one user */
#define SHM_LOOK_NS    UINT64_C(1000000)
#define SHM_MAGIC      UINT32_C(0x48535042) /* the letters "BPSH" */
#define SHM_VERSION    1
#define SHM_PAGE       4096
#define SHM_AREA_BYTES (SHM_PAGE + 2 * (size_t)RING_BYTES)
/* Largest number of bytes that one poll copies for one connection. The copy takes about 0.1 ms */
#define SHM_COPY_SLICE   ((size_t)512 << 10)
#define SHM_RX_BATCH     64
#define SHM_NOTE_ROOM    128 /* largest size of a SEG_ADD or SEG_DEL message in the ring */
#define SHM_SOCK_FULL_NS UINT64_C(1000000)
#define SHM_SEGS_MAX     4096
#define SHM_BUF_BYTES    (((size_t)WIRE_SEND_MAX + 63) & ~(size_t)63)

enum shm_side { SHM_AGENT, SHM_SERVER }; /* sides of a connection; each side writes into one ring */

/* First page of the memfd of the rings; the bytes of both rings follow. */
struct shm_page {
	struct ring_shared dir[2]; /* index: enum shm_side of the producer */
	/* [i]: not 0 if side i (enum shm_side) has closed the connection. After the close, side i
	 * may change the memory that it had offered */
	_Alignas(64) _Atomic uint32_t is_over[2];
};
_Static_assert(sizeof(struct shm_page) <= SHM_PAGE, "the rings' page");

/* Messages on the socket, in little-endian byte order. All hosts that can share memory are
 * little-endian. */
struct shm_challenge {
	uint32_t magic;
	uint16_t version, zero;
	uint64_t nonce;
};
struct shm_hello {
	/* Sealed ticket. Its nonce is the nonce of the challenge, and its channel is
	 * TICKET_SAME_HOST. */
	uint8_t ticket[TICKET_BYTES];
	uint64_t nonce;
};
struct shm_welcome { /* sent with the memfd of the rings */
	uint8_t proof[PROOF_BYTES];
};
enum shm_note_type { SHM_WAKE = 1, SHM_SEGMENT = 2 };
struct shm_note {
	uint16_t type, segment, zero[2];
	/* SHM_SEGMENT: size of the segment, whose memfd is sent with this message */
	uint64_t bytes;
};

/* Segment of a peer, mapped into this process. */
struct shm_map {
	/* Number of references from the connection's table, from reads and from loans */
	uint32_t refs;
	bool is_withdrawn;
	const uint8_t *mem;
	size_t bytes;
};

struct shm_conn {
	struct peer_conn base; /* first member, so a pointer to it can be cast to this struct */
	enum shm_side side;
	int sock;
	uid_t uid;             /* user of the peer, for the log and for SHM_PER_USER */
	struct shm_page *page; /* mapping of SHM_AREA_BYTES, which exists while the state is UP */
	struct ring_end tx, rx;
	bool is_challenged, has_want, has_pong, is_sock_full;
	uint64_t sock_retry_ns;
	struct peer_reads reads; /* all are queued; impl: the struct shm_map of the bytes */
	uint32_t n_dirty;
	/* Bitmap of own segments whose addition or removal was not yet sent to the peer */
	uint64_t dirty[SHM_SEGS_MAX / 64];
	struct shm_map *maps[SHM_SEGS_MAX];
	TAILQ_ENTRY(shm_conn) gone;
};

struct shm_seg {
	void *mem;
	size_t bytes;
	int fd; /* memfd of the segment, or -1 if the segment is not shared */
};

struct shm_xport {
	struct peer_xport base; /* first member, so a pointer to it can be cast to this struct */
	struct shm_config cfg;
	char path[SHM_PATH_BYTES]; /* path of the listener's socket */
	int listen_fd;
	bool is_armed; /* this thread has set the flags `sleeps` in the rings */
	uint64_t looked_ns;
	struct shm_conn *conns[SHM_CONNS_MAX];
	TAILQ_HEAD(, shm_conn) gone;
	struct shm_seg *segs; /* own segments, an array of SHM_SEGS_MAX elements */
	_Alignas(8) uint8_t rx_buf[SHM_BUF_BYTES];
	_Alignas(8) uint8_t tx_buf[SHM_BUF_BYTES];
};

static inline struct shm_xport *shm_xport_of_conn(const struct shm_conn *c)
{
	return (struct shm_xport *)c->base.pub.x;
}
static inline void shm_counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Functions of shm_conn.c. */
int shm_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread, uint32_t peer_id,
	uint64_t peer_instance, const void *key, void *user, struct xconn **ret_conn);
/* Accept a connection from the listening socket. */
void shm_accept_waiting(struct shm_xport *x);
/* Handle an event of the connection's socket. events: the events that epoll_wait(2) returned. */
void shm_conn_socket(struct shm_conn *c, uint32_t events);
/* Implement `close` of struct xport_ops: end the reads, then run the down callback. */
void shm_conn_tear_down(struct xconn *conn, const char *why);
void shm_protocol_error(struct shm_conn *c, const char *what);
/* Send the due pings. If a handshake or the answer to a ping is overdue, mark the connection as
 * failed. */
void shm_tick_all_conns(struct shm_xport *x);
void shm_socket_path(
	const struct shm_config *cfg, uint64_t instance, unsigned thread, char *ret, size_t room);

/* Functions of shm_io.c. */
int shm_send(struct xconn *c, const struct wire_msg *m);
int shm_start_read(struct xport_read *r);
int shm_borrow(
	struct xconn *c, uint16_t segment, uint64_t offset, uint32_t len, struct xport_loan *ret);
/* Put a message into the ring to the peer, and wake the peer if it sleeps.
 * Errors: -EAGAIN: the ring has no room; -ENOTCONN: the connection has failed (DOOMED). */
int shm_put_message(struct shm_conn *c, const struct wire_msg *m);
/* Handle received messages, copy bytes of started reads, and send pending messages. Returns 0 when
 * there was nothing to do, else a positive number. */
int shm_conn_run_turn(struct shm_conn *c);
void shm_conn_cancel_reads(struct shm_conn *c);
void shm_send_wakeup(struct shm_conn *c);

/* Functions of shm_seg.c. */
/* Send a message of n bytes with a descriptor.
 * Owns: the caller keeps fd.
 * Errors: -errno. */
int shm_send_fd(int sock, const void *buf, size_t n, int fd);
/* Receive a message of at most `room` bytes and the descriptor sent with the message. *ret_fd gets
 * the descriptor, which the caller then owns, or -1 if the message has no descriptor. A message can
 * have two descriptors, because CMSG_SPACE rounds up on 64-bit machines. In this case the function
 * closes both descriptors and sets *ret_fd to -1. Returns the length of the message. Returns 0 also
 * if the peer has closed the socket.
 * Errors: -EAGAIN, -errno; -EMSGSIZE: the message is longer than `room`, or has more descriptors
 * than the kernel could pass. */
ssize_t shm_recv_fd(int sock, void *buf, size_t room, int *ret_fd);
int shm_seg_share(struct xport *x, uint16_t segment, int fd);
int shm_seg_add(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment);
void shm_seg_del(struct xport *x, uint16_t segment);
void shm_segs_free(struct shm_xport *x);
/* Mark all shared segments, so that shm_announce_dirty sends them to a new peer. */
void shm_mark_all_segments(struct shm_conn *c);
/* Send the peer a message for each own segment that was added or removed since the last call.
 * Returns 0, or -EAGAIN when the ring or the socket is full. */
int shm_announce_dirty(struct shm_conn *c);
/* Handle a SEG_ADD or SEG_DEL message of the peer. */
void shm_apply_segment_message(struct shm_conn *c, const struct wire_msg *m);
/* Find the mapping that contains `len` bytes of the peer's segment, starting at `offset`. Take a
 * reference to the mapping.
 * Errors: BPS_EPROTO: the segment is unknown, or the bytes are outside of the segment. */
int shm_map_get(
	struct shm_conn *c, uint16_t segment, uint64_t offset, uint32_t len, struct shm_map **ret);
/* Release a reference to a struct shm_map. The last release unmaps the memory. */
void shm_map_put(void *map);
void shm_maps_drop(struct shm_conn *c);
/* Map a memfd that a peer sent. flags: flags of mmap(2) in addition to MAP_SHARED.
 * Owns: the function closes fd, also after an error. Returns NULL when the memfd is not sealed or
 * is too small, or when mmap fails. */
void *shm_map_sealed_fd(int fd, size_t bytes, int prot, int flags);
#endif
