#ifndef BPS_COMMON_DAEMON_NOTIFY_H
#define BPS_COMMON_DAEMON_NOTIFY_H
/* Messages to the service manager over $NOTIFY_SOCKET (sd_notify(3), without its library): a path
 * or an abstract socket. Without the variable all calls do nothing and return 0. Any thread; none
 * blocks, but notify_send_fds for a moment. Errors: -errno; nothing in the daemon depends on
 * them. */
#include <stdbool.h>
#include <stdint.h>

/* Does anybody listen? */
bool notify_is_heard(void);

/* One or more lines such as "READY=1\nSTATUS=..."; fd >= 0 goes along (FDSTORE=1), else -1. */
int notify_send(const char *lines, int fd);

/* For what must not get lost: with n_fds <= NOTIFY_FDS_MAX descriptors (FDSTORE=1, fdstore.h),
 * waiting up to 200 ms for a manager that is slow. */
#define NOTIFY_FDS_MAX 64
int notify_send_fds(const char *lines, const int *fds, unsigned n_fds);

/* READY=1 with a status sentence. Behind notify_reloading, status may be NULL: as it was. */
int notify_ready(const char *status);
/* RELOADING=1 with the time, for systemd's Type=notify-reload too; notify_ready ends it. */
int notify_reloading(void);
/* STATUS=, for a human; STOPPING=1; WATCHDOG=1. */
int notify_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int notify_stopping(void);
int notify_watchdog(void);

/* Microseconds between two WATCHDOG=1 after which this process is killed; 0: no watchdog. Feed it
 * at half of that. */
uint64_t notify_watchdog_us(void);
#endif
