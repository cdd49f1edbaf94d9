#ifndef BPS_COMMON_DAEMON_NOTIFY_H
#define BPS_COMMON_DAEMON_NOTIFY_H
/* Messages to the service manager, in the form of sd_notify(3). $NOTIFY_SOCKET names the manager's
 * socket, a path or an abstract socket. Without this variable all calls do nothing and return 0.
 * Any thread may call the functions. No call blocks, except notify_send with may_wait.
 * Errors: -errno. Callers may ignore errors. */
#include <stdbool.h>
#include <stdint.h>

/* Return whether $NOTIFY_SOCKET is set. If $NOTIFY_SOCKET is not set, no service manager receives
 * the messages. */
bool notify_has_manager(void);

/* Send lines such as "READY=1\nSTATUS=...". fd: descriptor to send with the lines, for FDSTORE=1;
 * negative: no descriptor. may_wait: the message must not get lost, so wait up to 200 ms for a slow
 * manager. */
int notify_send(const char *lines, int fd, bool may_wait);

/* Send READY=1 with the status sentence `status`. If `status` is NULL, the service manager keeps
 * the previous sentence. Callers pass NULL after notify_reloading. */
int notify_ready(const char *status);
/* Send RELOADING=1 with the present time, as systemd's Type=notify-reload requires. Call
 * notify_ready when the reload is done. */
int notify_reloading(void);
/* Send STATUS= with a sentence for people (notify_status), STOPPING=1 (notify_stopping), or
 * WATCHDOG=1 (notify_watchdog). */
int notify_status(const char *status);
int notify_stopping(void);
int notify_watchdog(void);

/* Return the watchdog time in microseconds; 0: there is no watchdog. When no WATCHDOG=1 arrives for
 * this time, the service manager kills this process. Send WATCHDOG=1 at least twice in this
 * time. */
uint64_t notify_watchdog_us(void);
#endif
