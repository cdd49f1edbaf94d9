#ifndef BPS_TESTS_SIM_IO_THREADS_H
#define BPS_TESTS_SIM_IO_THREADS_H
/* I/O threads of an agent. In some histories, other threads than the core's own the agents'
 * connections. A message that the core sends waits in a queue of its connection, and leaves at a
 * random moment. A task runs at another random moment, and its end is reported later still. A
 * connection that the core closes goes down later. */
#include <stdbool.h>

#include "common/transport/xport.h"

/* number of tasks of xport_run that may run at the same time */
#define TASKS_MAX 2

struct sim;
struct sim_end;

/* Decide from the seed whether the agents of the history have I/O threads. */
void io_threads_draw(struct sim *s);
/* Send the messages that wait at this end of a connection, as far as the transport takes them. */
void io_threads_pump(struct sim_end *end);

/* Drop the messages that wait at an end that is down. Their tasks still run. */
void io_threads_drop(struct sim_end *end);

/* Functions of struct xport_ops. */
int io_threads_send(struct xconn *c, const struct wire_msg *m);
int io_threads_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient);
int io_threads_offer(
	struct xconn *c, const struct wire_msg *m, struct xport_task *task, bool is_eager);
void io_threads_run(struct xport *x, struct xport_task *task);
void io_threads_close(struct xconn *c, const char *why);
#endif
