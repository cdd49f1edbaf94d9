#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_LISTENER_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_LISTENER_H
/* The process-wide object of the TCP transport, and its listener. The listener is a thread that
 * accepts connections, reads and checks their tickets, and passes the sockets to the data
 * threads. */
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "common/base/error.h"
#include "common/transport/flow/congestion.h"
#include "common/transport/net_shared.h"
#include "common/wire/ticket.h"

#define TCP_QUEUE_MAX 512 /* largest number of accepted sockets that wait for one data thread */

/* Accepted socket with a valid ticket. The listener queues this struct for the data thread that the
 * ticket names. */
struct tcp_accepted {
	int fd;
	struct ticket ticket;
	uint8_t key[TICKET_KEY_BYTES];
};

/* Accepted connection whose ticket has not arrived completely, or path probe (path_probe.h) that
 * the peer has not closed. */
struct tcp_pending {
	int fd; /* descriptor of the socket; -1: this entry is free */
	/* the connection is a path probe, and its head has arrived */
	bool is_probe;
	uint64_t since_ns;
	size_t n; /* number of received bytes, and then of those sent in answer to a probe */
	uint8_t ticket[TICKET_BYTES];
};
#define TCP_PENDING_MAX 64

struct tcp_listener {
	int listen_fd, epoll_fd, stop_fd;
	bool has_thread;
	pthread_t thread;
	struct tcp_pending pending[TCP_PENDING_MAX];
};

struct tcp_net {
	struct net base; /* first member, so a pointer to it can be cast to this struct */
	struct sockaddr_storage bind_addr;
	socklen_t bind_len;
	/* Congestion control of data sockets. An empty string keeps the system's default. */
	char congestion[CONGESTION_NAME_MAX + 1];
	struct tcp_listener listener;
};

/* Listen on net's address and start the listener's thread.
 * Errors: -errno; err gets the text. */
int tcp_listener_open(struct tcp_net *net, struct err_text *err);
/* Stop the thread and close the sockets. Call this also when tcp_listener_open has failed. */
void tcp_listener_close(struct tcp_net *net);
/* Send the peer the reason for refusing the connection. The peer logs the reason. Closes fd. word:
 * the reason, one of REFUSED_... */
void tcp_refuse_socket(int fd, const char *word);
/* Set the options that every data socket needs.
 * Errors: -errno. */
int tcp_tune_socket(const struct tcp_net *net, int fd);
#endif
