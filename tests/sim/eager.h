#ifndef BPS_TESTS_SIM_EAGER_H
#define BPS_TESTS_SIM_EAGER_H
/* Eager bytes: bytes sent with an offer and without a request (xport_send_eager). They leave the
 * sender's memory piece by piece, with or without a read. They arrive at a random moment and wait
 * for their offer, no longer: a read that the offer started takes them, otherwise they are
 * discarded. Unlike our own sockets these keep no order among each other, since the interface
 * promises none. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/wire.h"

struct sim_end;
struct sim_eager;
struct sim_read;
struct sim;

/* Draw from the seed how many offers may be leaving an end at a time. 0: the transport has no eager
 * bytes. */
void eager_draw(struct sim *s);
/* Return whether the bytes of another offer may leave now. */
bool eager_takes(const struct sim_end *from, bool is_patient);
/* Send the bytes of the message with that number, which is on its way. */
void eager_send(struct sim_end *from, const struct wire_msg *m, uint64_t number);
/* A message has arrived at this end. Its bytes need not wait for it, and bytes of older offers of
 * the same memory are outdated. */
void eager_heard(struct sim_end *to, const struct wire_msg *m, uint64_t number);
/* Let rd take its bytes from an eager offer. False: it has to request them. */
bool eager_takes_read(struct sim_read *rd);
/* The read is over: discard what is still to come. */
void eager_forget(struct sim_eager *e);
#endif
