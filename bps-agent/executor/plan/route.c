#include "bps-agent/executor/plan/route.h"

#define ALIGN 256

uint64_t route_block_bytes(uint64_t chunk_bytes, unsigned n)
{
	return chunk_bytes / n / ALIGN * ALIGN;
}

void route_piece_range(
	uint64_t chunk_bytes, unsigned n, unsigned i, uint64_t *ret_first, uint64_t *ret_bytes)
{
	uint64_t block = route_block_bytes(chunk_bytes, n);

	*ret_first = block * i;
	*ret_bytes = i + 1 == n ? chunk_bytes - *ret_first : block;
}

bool route_has_cliques(const struct route *s)
{
	return s->up != UP_COPY;
}
