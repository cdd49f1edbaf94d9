#ifndef BPS_TOOLS_FDSTORE_SERVER_H
#define BPS_TOOLS_FDSTORE_SERVER_H
/* Stores the descriptors of an agent for the agent's next process, as systemd does with FDSTORE=1.
 * The functions run on the only thread of bpsrun or bps-keep. */
#include <stdbool.h>

struct fdstore_server;

/* Create the server. path: path at which the server creates its socket. The agent gets this path as
 * $NOTIFY_SOCKET. Call limits_raise before. Errors: -ENOMEM, -errno; the error was printed. */
int fdstore_server_open(const char *path, struct fdstore_server **ret);
/* Close the server and all stored descriptors. k may be NULL. */
void fdstore_server_close(struct fdstore_server *k);
/* Return the server's socket, for use with poll(2). Returns -1 if k is NULL. */
int fdstore_server_socket(const struct fdstore_server *k);
/* Handle the messages that have arrived. Does not wait. Messages that are invalid, and descriptors
 * for which there is no room, are dropped. */
void fdstore_server_receive(struct fdstore_server *k);
/* Return whether the agent has sent READY=1 or WATCHDOG=1 since the last call. Both restart the
 * watchdog's time, as with systemd. */
bool fdstore_server_take_watchdog(struct fdstore_server *k);
/* Return the number of stored descriptors. */
unsigned fdstore_server_count(const struct fdstore_server *k);
/* Return the number of stored descriptors. *ret_fds: the descriptors, which the server still owns.
 * *ret_names: their names, separated by ':'. The caller frees both arrays unless the result is 0. k
 * may be NULL. */
unsigned fdstore_server_fds(const struct fdstore_server *k, int **ret_fds, char **ret_names);
#endif
