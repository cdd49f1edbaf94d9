#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_SOCKET_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_SOCKET_H
/* Functions of fabric_socket.c: the sockets of the connections. Thread: the data thread. */
#include "common/transport/fabric/fabric_impl.h"

/* Return the socket of an endpoint of provider tcp. The endpoint still owns the socket. Returns -1
 * when this version of libfabric does not return the socket, or when the endpoint has no socket. */
int fabric_socket_of(const struct fabric *f, struct fid_ep *ep);
/* Count n bytes received on a channel, and adapt the receive window of all connections. */
void fabric_socket_measure(struct fabric_conn *c, enum channel channel, size_t n);
/* Set how many bytes must arrive on fabric_arrival_channel before the kernel wakes the thread. Call
 * this function before the thread sleeps, after each change of the expected bytes. */
void fabric_socket_set_lowat(struct fabric_conn *c);
/* Set the windows and the pacing of all sockets. */
void fabric_socket_set_windows(struct fabric_xport *x);
/* Set the options of an endpoint's socket, which exists as soon as fi_endpoint has returned. */
void fabric_socket_tune(struct fabric_conn *c, enum channel channel);
#endif
