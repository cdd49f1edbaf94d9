#ifndef BPS_TESTS_SIM_EAGER_H
#define BPS_TESTS_SIM_EAGER_H
/* Bytes that go with an offer, unasked (xport_send_eager). They leave the sender's memory piece by
 * piece, whoever reads; come to the receiver at a moment of their own, and wait there for the
 * message that offers them and no longer: a read that it started takes them, else they are thrown
 * away. Unlike our own sockets these keep no order among each other, which nobody is promised. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/wire.h"

struct sim_end;
struct sim_eager;
struct sim_read;
struct sim;

/* By the seed: how many may be leaving an end at a time, 0: the transport has none. */
void eager_draw(struct sim *s);
/* May the bytes of another offer leave now? */
bool eager_takes(const struct sim_end *from, bool is_patient);
/* The message of that number, which is on its way, has its bytes behind it. */
void eager_send(struct sim_end *from, const struct wire_msg *m, uint64_t number);
/* A message that was sent to this end is here: its bytes need not wait for it, and those of older
 * offers of the same memory are not what is offered now. */
void eager_heard(struct sim_end *to, const struct wire_msg *m, uint64_t number);
/* The bytes that rd reads come unasked: it takes them. False: it has to ask. */
bool eager_takes_read(struct sim_read *rd);
/* Its read is over: what is still to come is thrown away. */
void eager_forget(struct sim_eager *e);
#endif
