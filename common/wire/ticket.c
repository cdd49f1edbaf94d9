/* Tickets and proofs of data connections: seal, parse, verify, and detect replays. The transports
 * send the tickets and proofs. The scheduler gives out the keys. The functions keep no state of
 * their own. Only one thread may use a struct replay. */
#include "common/wire/ticket.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/base/error.h"

#define TICKET_MAGIC UINT32_C(0x54535042) /* the letters "BPST" */
#define MAC_BYTES    16

/* Flags of tickets and proofs. */
#define FLAG_CAN_TAKE_EAGER 1

/* Ticket and proof on the wire, little-endian. */
struct ticket_wire {
	uint32_t magic;
	uint16_t version, thread;
	uint32_t peer_id;
	uint16_t credits;
	uint8_t channel, flags;
	uint64_t instance, nonce;
	uint8_t mac[MAC_BYTES];
};
struct proof_wire {
	uint64_t instance;
	uint32_t peer_id;
	uint16_t credits, flags;
	uint64_t cookie;
	uint8_t mac[MAC_BYTES];
};
_Static_assert(sizeof(struct ticket_wire) == TICKET_BYTES, "ticket layout");
_Static_assert(sizeof(struct proof_wire) == PROOF_BYTES, "proof layout");

uint64_t ticket_random64(void)
{
	uint64_t v;

	/* getrandom always returns all 8 bytes, and blocks only while the system starts. */
	while (getrandom(&v, sizeof(v), 0) != sizeof(v))
		;
	return v;
}

/* Compute HMAC-SHA256 of `label`, `nonce` and `data`, and write the first n_out bytes of the HMAC
 * to ret. Each direction has its own label, so that a side cannot send back a received MAC as its
 * own. */
static void ticket_compute_mac(const void *key, const char *label, uint64_t nonce, const void *data,
	size_t n_bytes, void *ret, size_t n_out)
{
	uint8_t in[4 + 8 + TICKET_BYTES], out[EVP_MAX_MD_SIZE];
	unsigned n = sizeof(out);

	nonce = htole64(nonce);
	memcpy(in, label, 4);
	memcpy(in + 4, &nonce, 8);
	memcpy(in + 12, data, n_bytes);
	/* If HMAC fails, use random bytes, so that the MAC is not predictable. */
	if (!HMAC(EVP_sha256(), key, TICKET_KEY_BYTES, in, 12 + n_bytes, out, &n)) {
		for (size_t i = 0; i < sizeof(out); i += 8)
			memcpy(out + i, &(uint64_t){ticket_random64()}, 8);
	}
	memcpy(ret, out, n_out);
	OPENSSL_cleanse(out, sizeof(out));
}

void ticket_seal(const struct ticket *t, const void *key, uint8_t ret[TICKET_BYTES])
{
	struct ticket_wire w = {.magic = htole32(TICKET_MAGIC),
		.version = htole16(TICKET_VERSION),
		.thread = htole16(t->thread),
		.peer_id = htole32(t->peer_id),
		.credits = htole16(t->credits),
		.channel = t->channel,
		.flags = t->can_take_eager ? FLAG_CAN_TAKE_EAGER : 0,
		.instance = htole64(t->instance),
		.nonce = htole64(t->nonce)};

	ticket_compute_mac(key, "c2s", 0, &w, sizeof(w) - MAC_BYTES, w.mac, MAC_BYTES);
	memcpy(ret, &w, sizeof(w));
}

int ticket_parse(const void *buf, size_t n_bytes, struct ticket *ret)
{
	struct ticket_wire w;

	/* n_bytes may be larger than the ticket, because the provider `verbs` pads the data of a
	 * connect request with zeros */
	if (n_bytes < sizeof(w))
		return BPS_EPROTO;
	memcpy(&w, buf, sizeof(w));
	if (le32toh(w.magic) != TICKET_MAGIC)
		return BPS_EPROTO;
	ret->version = le16toh(w.version);
	if (ret->version != TICKET_VERSION)
		return BPS_EVERSION;
	if (w.channel > TICKET_SAME_HOST || w.flags & ~FLAG_CAN_TAKE_EAGER)
		return BPS_EPROTO;
	ret->thread = le16toh(w.thread);
	ret->peer_id = le32toh(w.peer_id);
	ret->credits = le16toh(w.credits);
	ret->channel = w.channel;
	ret->can_take_eager = w.flags & FLAG_CAN_TAKE_EAGER;
	ret->instance = le64toh(w.instance);
	ret->nonce = le64toh(w.nonce);
	return ret->credits >= TICKET_CREDITS_MIN ? 0 : BPS_EPROTO;
}

void ticket_explain_version(unsigned theirs, struct err_text *ret)
{
	char version[24] = "another version";

	if (theirs)
		snprintf(version, sizeof(version), "version %u", theirs);
	err_set(ret, 0,
		"the peer uses %s of the data protocol, but this release uses version %u: install "
		"the same release at both ends",
		version, TICKET_VERSION);
}

void ticket_format_refusal(const char *word, uint8_t ret[REFUSED_BYTES])
{
	const uint16_t version = htole16(TICKET_VERSION);

	memset(ret, 0, REFUSED_BYTES);
	memcpy(ret, word, strnlen(word, REFUSED_WORD_BYTES));
	memcpy(ret + REFUSED_WORD_BYTES, &version, sizeof(version));
}

bool ticket_refusal(const void *buf, size_t n_bytes, struct err_text *ret)
{
	static const struct {
		const char *word, *text;
	} refusals[] = {
		{REFUSED_TICKET, "the peer does not accept our ticket"},
		{REFUSED_VERSION, NULL},
		{REFUSED_FULL, "the peer's data thread has no room for more connections"},
		{REFUSED_BUSY, "the peer is short of resources"},
	};
	uint8_t b[REFUSED_BYTES] = {0};
	char word[REFUSED_WORD_BYTES + 1] = {0};
	struct err_text other;

	memcpy(b, buf, n_bytes < REFUSED_BYTES ? n_bytes : REFUSED_BYTES);
	memcpy(word, b, REFUSED_WORD_BYTES);
	ticket_explain_version(
		b[REFUSED_WORD_BYTES] | (unsigned)b[REFUSED_WORD_BYTES + 1] << 8, &other);
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		if (strcmp(word, refusals[i].word) != 0)
			continue;
		err_set(ret, 0, "refused: %s", refusals[i].text ? refusals[i].text : other.s);
		return true;
	}
	return false;
}

int ticket_verify(const void *buf, const void *key)
{
	uint8_t want[MAC_BYTES];
	const uint8_t *b = buf;

	ticket_compute_mac(key, "c2s", 0, b, TICKET_BYTES - MAC_BYTES, want, MAC_BYTES);
	return CRYPTO_memcmp(want, b + TICKET_BYTES - MAC_BYTES, MAC_BYTES) ? BPS_EAUTH : 0;
}

static struct replay_peer *replay_find_or_add_peer(struct replay *r, const struct ticket *t)
{
	uint16_t tag = (uint16_t)(t->nonce >> 16);
	uint64_t h =
		(t->instance ^ t->peer_id ^ (uint64_t)tag << 32) * UINT64_C(0x9e3779b97f4a7c15);
	struct replay_peer *set = r->peers[h >> 32 & (REPLAY_SETS - 1)], *oldest = set;

	for (unsigned i = 0; i < REPLAY_WAYS; i++) {
		struct replay_peer *p = &set[i];

		if (p->used_at && p->instance == t->instance && p->peer_id == t->peer_id &&
			p->tag == tag)
			return p;
		if (p->used_at < oldest->used_at)
			oldest = p;
	}
	*oldest = (struct replay_peer){.instance = t->instance, .peer_id = t->peer_id, .tag = tag};
	return oldest;
}

int replay_check(struct replay *r, const struct ticket *t)
{
	struct replay_peer *p = replay_find_or_add_peer(r, t);
	uint32_t n = (uint32_t)(t->nonce >> 32), behind;

	p->used_at = ++r->clock;
	if (n > p->last) {
		uint32_t ahead = n - p->last;

		p->window = ahead < REPLAY_WINDOW_BITS ? p->window << ahead : 0;
		p->window |= 1;
		p->last = n;
		return 0;
	}
	behind = p->last - n;
	if (behind >= REPLAY_WINDOW_BITS || p->window >> behind & 1 || n == 0)
		return BPS_EAUTH;
	p->window |= UINT64_C(1) << behind;
	return 0;
}

void proof_seal(const struct proof *p, uint64_t nonce, const void *key, uint8_t ret[PROOF_BYTES])
{
	struct proof_wire w = {.instance = htole64(p->instance),
		.peer_id = htole32(p->peer_id),
		.credits = htole16(p->credits),
		.flags = htole16(p->can_take_eager ? FLAG_CAN_TAKE_EAGER : 0),
		.cookie = htole64(p->cookie)};

	ticket_compute_mac(key, "s2c", nonce, &w, sizeof(w) - MAC_BYTES, w.mac, MAC_BYTES);
	memcpy(ret, &w, sizeof(w));
}

int proof_open(const void *buf, size_t n_bytes, uint64_t nonce, const void *key, struct proof *ret)
{
	struct proof_wire w;
	uint8_t want[MAC_BYTES];

	if (n_bytes < sizeof(w))
		return BPS_EPROTO;
	memcpy(&w, buf, sizeof(w));
	ticket_compute_mac(key, "s2c", nonce, &w, sizeof(w) - MAC_BYTES, want, MAC_BYTES);
	if (CRYPTO_memcmp(want, w.mac, MAC_BYTES))
		return BPS_EAUTH;
	ret->instance = le64toh(w.instance);
	ret->peer_id = le32toh(w.peer_id);
	ret->credits = le16toh(w.credits);
	ret->cookie = le64toh(w.cookie);
	ret->can_take_eager = le16toh(w.flags) & FLAG_CAN_TAKE_EAGER;
	if (le16toh(w.flags) & ~FLAG_CAN_TAKE_EAGER || ret->credits < TICKET_CREDITS_MIN)
		return BPS_EPROTO;
	return 0;
}

uint64_t ticket_cookie(uint64_t nonce, const void *key)
{
	uint64_t h;

	ticket_compute_mac(key, "tag", nonce, "", 0, &h, sizeof(h));
	return (le64toh(h) & ~UINT64_C(0xffff)) | (nonce & 0xffff);
}
