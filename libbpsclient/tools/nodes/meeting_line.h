#ifndef BPS_TOOLS_MEETING_LINE_H
#define BPS_TOOLS_MEETING_LINE_H
/* The lines that the bpsruns of a job's nodes exchange over TCP. Each line ends with a newline.
 *
 *   head    bpsrun 1 NONCE                                    to each connection
 *   node    join NNODES WORKERS RANK SERVER NONCE MAC         RANK 4294967295: the head chooses
 *   head    node RANK SCHEDULER HTTP PORT MAC                 or: refused TEXT
 *   head    failed RANK CODE                                  a node has failed, or the head itself
 *   node    end CODE                                          then the node closes the connection
 *
 * A MAC proves that the sender has the cluster key. It covers its line and both nonces, so that an
 * old line is useless. Without a key, the addresses are loopback, and the key is all zeros. The
 * functions run on bpsrun's only thread. */
#include <stddef.h>
#include <stdint.h>

#include "common/base/key.h"

#define MEETING_VERSION     1
#define MEETING_LINE_BYTES  1024
#define MEETING_NONCE_BYTES (2 * 16 + 1)

/* The receiving half of a connection. */
struct meeting_lines {
	int fd; /* -1: closed */
	size_t n;
	char buf[MEETING_LINE_BYTES];
};

/* Read the next line, without its newline and without waiting. Returns 1, or 0 if there is no
 * complete line yet. Errors: -ECONNRESET: the peer has closed the connection, or sent too long a
 * line; -errno. */
int meeting_lines_read(struct meeting_lines *l, char ret_line[static MEETING_LINE_BYTES]);
/* Send a text without waiting. Errors: -errno; -EAGAIN also if only a part was sent. */
int meeting_text_send(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Make a nonce. Errors: -EIO. */
int meeting_make_nonce(char ret[static MEETING_NONCE_BYTES]);
/* Compute the MAC of a line, as hex digits. Errors: those of key_compute_mac. */
int meeting_sign_line(const struct cluster_key *key, const char *head_nonce, const char *node_nonce,
	const char *line, char ret_hex[static KEY_HEX_BYTES]);
/* Make the kernel detect within 11 s that the peer's machine is gone. */
void meeting_watch_peer(int fd);
#endif
