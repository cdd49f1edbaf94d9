#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_EAGER_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_EAGER_H
/* Functions of fabric_eager.c: bytes that are sent with their offer. Thread: the data thread. */
#include "common/transport/fabric/fabric_impl.h"

/* Implement send_eager of common/transport/xport.h. */
int fabric_eager_send(struct xconn *c, const struct wire_msg *m, bool is_patient);
/* Return whether the bytes of one more offer may be posted. If is_patient, fewer than ahead_bytes
 * bytes may wait. */
bool fabric_eager_has_room(const struct fabric_conn *c, bool is_patient);
/* Account for sent eager bytes. */
void fabric_eager_sent(struct fabric_conn *c, uint32_t len);
/* Stop sending eager bytes of a segment that is being removed: a posted send cannot be withdrawn,
 * so close its connection. */
void fabric_eager_end_segment(struct fabric_xport *x, uint16_t segment);
/* Record a received message. Call this function before the owner gets the message, because the
 * owner may at once start a read that takes the message's bytes. Returns false for eager bytes that
 * lie outside the peer's segments or are too many, which is a protocol error. */
bool fabric_eager_record(struct fabric_conn *c, const struct wire_msg *m);
/* Find the offer whose bytes the read r can take. Returns NULL if the bytes must be requested. */
struct fabric_eager *fabric_eager_find(struct fabric_conn *c, const struct xport_read *r);
/* Post receives of eager bytes, in the order of the offers. */
void fabric_eager_post(struct fabric_conn *c);
/* Implement `decided` of struct xport_ops. */
void fabric_eager_decided(struct xconn *c, uint64_t n_messages);
/* Handle the completion of the first posted receive. rd: the read that takes the bytes; NULL: they
 * are discarded. offered: bytes of the offer; 0: unknown. len: bytes that have arrived. */
void fabric_eager_received(
	struct fabric_conn *c, struct peer_read *rd, uint32_t offered, size_t len);
/* Send the peer the waiting DISCARDED messages, as far as there is room. */
void fabric_eager_send_discarded(struct fabric_conn *c);
#endif
