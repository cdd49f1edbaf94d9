#ifndef BPS_COMMON_WIRE_TICKET_H
#define BPS_COMMON_WIRE_TICKET_H
/* Tickets and proofs: the two ends of a data connection prove to each other that they hold the key
 * that the scheduler gave to exactly these two instances. Pure; shared by all transports.
 *
 * The connecting side sends a ticket first. The proof is the answer; it covers the ticket's nonce,
 * so that it answers this connect only. */
#include <stddef.h>
#include <stdint.h>

/* 32 bytes of fields, 16 of MAC; verbs takes 55 bytes at most. */
#define TICKET_BYTES     48
#define PROOF_BYTES      40
#define TICKET_KEY_BYTES 32
/* With fewer, two CREDIT messages would answer each other endlessly */
#define TICKET_CREDITS_MIN 4
#define TICKET_NO_CREDITS  64 /* for a transport without credits: any valid value */
/* Reason for refusing a connect, sent to the peer: 8 bytes at most. */
#define REFUSED_TICKET  "NO"
#define REFUSED_VERSION "VERSION"
#define REFUSED_FULL    "FULL"
#define REFUSED_BUSY    "BUSY"
#define REFUSED_BYTES   8

#define REPLAY_SETS        512
#define REPLAY_WAYS        8
#define REPLAY_WINDOW_BITS 64

/* Channels of a connection: two over the network, one on the same host. */
enum channel { CHANNEL_OF_CONNECTING, CHANNEL_OF_ACCEPTING, N_CHANNELS };
#define TICKET_SAME_HOST N_CHANNELS

struct ticket {
	uint16_t version;
	uint16_t thread;
	uint32_t peer_id;
	uint16_t credits; /* receives that the connecting side grants at first */
	uint16_t channel;
	uint64_t instance;
	uint64_t nonce; /* ticket count of the sender << 32 | tag of the sender << 16 | slot */
};
struct proof {
	uint64_t instance;
	uint32_t peer_id;
	uint16_t credits;
	uint64_t cookie; /* for messages to the accepting side, where a transport needs one */
};

/* Connects seen per sender of a peer instance, as a sliding window over its count: bounded, and
 * without a clock. The tag keeps the senders of one instance (one per rail) apart. */
struct replay_peer {
	uint64_t instance, window, used_at;
	uint32_t peer_id, last;
	uint16_t tag;
};
struct replay {
	uint64_t clock;
	struct replay_peer peers[REPLAY_SETS][REPLAY_WAYS];
};

/* Write the ticket with its HMAC under key, of TICKET_KEY_BYTES. */
void ticket_seal(const struct ticket *t, const void *key, uint8_t ret[TICKET_BYTES]);
/* Read the fields without verifying them. Returns 0, BPS_EVERSION, or BPS_EPROTO (length, magic,
 * reserved bytes). */
int ticket_parse(const void *buf, size_t n_bytes, struct ticket *ret);
int ticket_verify(const void *buf, const void *key);
/* Explain a refusal to people; NULL: the word is unknown. n_bytes: how much of it was received. */
const char *ticket_refusal(const void *word, size_t n_bytes);
/* Record a verified ticket's nonce. Returns 0, or BPS_EAUTH when it was seen before or is too old
 * to decide. */
int replay_check(struct replay *r, const struct ticket *t);
void proof_seal(const struct proof *p, uint64_t nonce, const void *key, uint8_t ret[PROOF_BYTES]);
int proof_open(const void *buf, size_t n_bytes, uint64_t nonce, const void *key, struct proof *ret);
/* Derive the cookie for messages to the connecting side; both ends compute the same. */
uint64_t ticket_cookie(uint64_t nonce, const void *key);
/* Derive the nonce of a connection's channel from that of its first one. */
static inline uint64_t ticket_channel_nonce(uint64_t nonce, enum channel channel)
{
	return nonce + ((uint64_t)channel << 32);
}
/* Return eight unpredictable bytes. Never fails. */
uint64_t ticket_random64(void);
#endif
