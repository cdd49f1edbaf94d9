/* The ring of a peer on the same host (common/transport/shm/shm_ring.h) with arbitrary content.
 * Input: u64 position of the consumer, u64 position that the peer claims to have written, then the
 * bytes of the ring from the consumer's position on. Each message that the ring returns must be
 * complete, fit the buffer, and be within the claimed part. The message is then decoded. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/transport/shm/shm_impl.h"
#include "common/transport/shm/shm_ring.h"
#include "common/wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void put_bytes(uint8_t *ring, uint64_t at, const uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ring[(at + i) % RING_BYTES] = data[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static uint64_t entry[SHM_BUF_BYTES / 8];
	struct ring_shared shared = {0};
	struct ring_end r;
	struct err_text err;
	struct wire_msg m;
	uint64_t start, ahead;
	uint8_t *ring;
	int n;

	if (n_bytes < 16 || n_bytes - 16 > RING_BYTES)
		return 0;
	memcpy(&start, data, 8);
	memcpy(&ahead, data + 8, 8);
	ring = calloc(1, RING_BYTES);
	if (!ring)
		abort();
	start = start % (2 * RING_BYTES) / 8 * 8;
	put_bytes(ring, start, data + 16, n_bytes - 16);
	ring_init(&r, &shared, ring);
	r.mine = r.theirs = start;
	atomic_store(&shared.tail, start + ahead);
	while ((n = ring_get(&r, entry, sizeof(entry))) > 0) {
		if ((size_t)n > sizeof(entry) || r.mine > start + ahead ||
			r.mine - start > RING_BYTES)
			abort();
		wire_decode(entry, (size_t)n, &m, &err);
		ring_release_consumed(&r);
	}
	free(ring);
	return 0;
}
