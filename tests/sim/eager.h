#ifndef BPS_TESTS_SIM_EAGER_H
#define BPS_TESTS_SIM_EAGER_H
/* Eager bytes: bytes sent with an offer and without a request (xport_send_eager). They leave the
 * sender's memory piece by piece, whether or not a read takes them. They arrive at a random moment
 * and wait until their offer arrives. If the receiver then reads the offer, the read takes the
 * bytes. Otherwise the bytes are discarded. Bytes of different offers may overtake each other. Our
 * own sockets keep the order of offers, but the transport interface does not guarantee an order. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/wire.h"

struct sim_end;
struct sim_eager;
struct sim_read;
struct sim;

/* Draw from the seed how many eager offers one end of a connection may have in progress. 0: the
 * transport has no eager bytes. */
void eager_draw(struct sim *s);
/* Return whether the connection end `from` may send one more offer with eager bytes now. The limit
 * of offers in progress is lower for a patient sender than for an impatient one. */
bool eager_takes(const struct sim_end *from, bool is_patient);
/* Send the bytes that message m offers. number: the message's number on this connection. */
void eager_send(struct sim_end *from, const struct wire_msg *m, uint64_t number);
/* Record that the connection end `to` has received message m. The eager bytes of m may arrive from
 * now on. Bytes of earlier offers of the same memory are out of date. */
void eager_heard(struct sim_end *to, const struct wire_msg *m, uint64_t number);
/* Let the read rd take its bytes from an eager offer. If no eager offer has these bytes, return
 * false. The read then has to request the bytes. */
bool eager_takes_read(struct sim_read *rd);
/* Discard the bytes of offer e that arrive from now on. Call this function when the read that was
 * chosen to take these bytes has ended. */
void eager_forget(struct sim_eager *e);
#endif
