#ifndef BPS_COMMON_DAEMON_NOTIFY_H
#define BPS_COMMON_DAEMON_NOTIFY_H
/* Messages to the service manager over $NOTIFY_SOCKET (sd_notify(3), without its library): a path
 * or an abstract socket. Without the variable all calls do nothing and return 0. Any thread; no
 * call blocks, except notify_send_fds for up to 200 ms.
 * Errors: -errno; nothing in the daemon depends on them. */
#include <stdbool.h>
#include <stdint.h>

/* Return whether a service manager listens. */
bool notify_is_heard(void);

/* Send lines such as "READY=1\nSTATUS=..."; fd >= 0 is sent along (FDSTORE=1), -1: none. */
int notify_send(const char *lines, int fd);

/* Send a message that must not get lost, with n_fds <= NOTIFY_FDS_MAX descriptors (FDSTORE=1,
 * fdstore.h). Waits up to 200 ms for a slow manager. */
#define NOTIFY_FDS_MAX 64
int notify_send_fds(const char *lines, const int *fds, unsigned n_fds);

/* Send READY=1 with a status sentence. After notify_reloading, status may be NULL: unchanged. */
int notify_ready(const char *status);
/* Send RELOADING=1 with the time, as systemd's Type=notify-reload requires; notify_ready ends
 * it. */
int notify_reloading(void);
/* Send STATUS=, for people; STOPPING=1; WATCHDOG=1. */
int notify_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int notify_stopping(void);
int notify_watchdog(void);

/* Return the longest time in microseconds between two WATCHDOG=1, after which this process is
 * killed; 0: no watchdog. Send it at half of that. */
uint64_t notify_watchdog_us(void);
#endif
