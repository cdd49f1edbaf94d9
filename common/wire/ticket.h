#ifndef BPS_COMMON_WIRE_TICKET_H
#define BPS_COMMON_WIRE_TICKET_H
/* Tickets and proofs of data connections. The scheduler gives each key to two instances only. With
 * a ticket and a proof, the two ends of a connection prove to each other that they have this key.
 * The functions keep no state and make no system call except for random numbers. All transports
 * use these functions.
 *
 * The connecting side first sends a ticket. The accepting side answers with a proof. The proof's
 * MAC includes the ticket's nonce, so that the proof is valid for this ticket only. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define TICKET_VERSION 4
/* Size of a ticket: 32 bytes of fields and 16 bytes of MAC. With the provider `verbs`, a connect
 * request carries at most 55 bytes of data. */
#define TICKET_BYTES     48
#define PROOF_BYTES      40
#define TICKET_KEY_BYTES 32
/* Smallest number of credits that a side may grant. With fewer credits, each CREDIT message would
 * cause another CREDIT message in answer, without end */
#define TICKET_CREDITS_MIN 4
/* Value that a transport without credits sends; the receiver does not use the value */
#define TICKET_NO_CREDITS 64
/* A refusal is sent to the peer: one of these words, padded with zeros to REFUSED_WORD_BYTES, then
 * TICKET_VERSION of the sender (u16). Earlier releases send only the word. */
#define REFUSED_TICKET     "NO"
#define REFUSED_VERSION    "VERSION"
#define REFUSED_FULL       "FULL"
#define REFUSED_BUSY       "BUSY"
#define REFUSED_WORD_BYTES 8
#define REFUSED_BYTES      (REFUSED_WORD_BYTES + 2)

#define REPLAY_SETS        512
#define REPLAY_WAYS        8
#define REPLAY_WINDOW_BITS 64

/* Channels of a connection, in the order in which they are opened. A connection over the network
 * has two channels. A connection over shared memory has only one channel, TICKET_SAME_HOST. */
enum channel { CHANNEL_FIRST, CHANNEL_SECOND, N_CHANNELS };
#define TICKET_SAME_HOST N_CHANNELS

struct ticket {
	uint16_t version;
	uint16_t thread;
	uint32_t peer_id;
	/* Initial number of credits that the connecting side grants to the accepting side */
	uint16_t credits;
	uint8_t channel;
	/* The sender can receive the bytes of offers without a request. Used only over libfabric,
	 * where this depends on the version */
	bool can_take_eager;
	uint64_t instance;
	/* Three fields, from the highest to the lowest bits: the serial number that the sender gave
	 * the ticket (32 bits), the sender's random tag (16 bits), the connection's slot in the
	 * sender's table (16 bits) */
	uint64_t nonce;
};
struct proof {
	uint64_t instance;
	uint32_t peer_id;
	uint16_t credits;
	bool can_take_eager; /* as in struct ticket */
	/* Cookie for messages to the accepting side, in transports that need one */
	uint64_t cookie;
};

/* Sliding window of the tickets' serial numbers received from one sender: bit i of `window` stands
 * for the serial number `last` - i. The window needs bounded memory and does not depend on the
 * time. A sender is identified by its instance, its peer_id and its tag. The tag is part of the
 * sender's nonces. */
struct replay_peer {
	uint64_t instance, window, used_at;
	uint32_t peer_id, last;
	uint16_t tag;
};
struct replay {
	uint64_t clock;
	struct replay_peer peers[REPLAY_SETS][REPLAY_WAYS];
};

/* Write the ticket and its HMAC. The key of the HMAC is TICKET_KEY_BYTES long. */
void ticket_seal(const struct ticket *t, const void *key, uint8_t ret[TICKET_BYTES]);
/* Read the fields of a ticket without checking its HMAC. Errors: BPS_EVERSION if the version
 * differs, which then is the only field of ret that is set; BPS_EPROTO if the length, the magic or
 * a field is invalid. */
int ticket_parse(const void *buf, size_t n_bytes, struct ticket *ret);
/* Check the HMAC of a ticket. Returns 0 or BPS_EAUTH. */
int ticket_verify(const void *buf, const void *key);
/* Encode a refusal. word: one of REFUSED_... */
void ticket_format_refusal(const char *word, uint8_t ret[REFUSED_BYTES]);
/* Explain a refusal. buf: the n_bytes that were received from the peer. Returns whether these bytes
 * begin with a word REFUSED_... above; if so, ret gets the sentence. */
bool ticket_refusal(const void *buf, size_t n_bytes, struct err_text *ret);
/* Write a sentence which states that the peer uses the version `theirs` of the data protocol, and
 * this release TICKET_VERSION. theirs: 0 if unknown. */
void ticket_explain_version(unsigned theirs, struct err_text *ret);
/* Record the nonce of a verified ticket. Returns 0, or BPS_EAUTH when the nonce was received
 * before, or is so old that it lies before the window. */
int replay_check(struct replay *r, const struct ticket *t);
/* Write the proof for the ticket with this nonce. The last field of the proof is an HMAC of the
 * nonce and the other fields. */
void proof_seal(const struct proof *p, uint64_t nonce, const void *key, uint8_t ret[PROOF_BYTES]);
/* Check a proof for the ticket with this nonce, and read the proof's fields. Returns 0, BPS_EAUTH
 * or BPS_EPROTO. */
int proof_open(const void *buf, size_t n_bytes, uint64_t nonce, const void *key, struct proof *ret);
/* Derive the cookie for messages to the connecting side. Both ends compute the same value. */
uint64_t ticket_cookie(uint64_t nonce, const void *key);
/* Derive the nonce of a channel from the nonce of the connection's first channel. */
static inline uint64_t ticket_channel_nonce(uint64_t nonce, enum channel channel)
{
	return nonce + ((uint64_t)channel << 32);
}
/* Return eight unpredictable bytes. Never fails. */
uint64_t ticket_random64(void);
#endif
