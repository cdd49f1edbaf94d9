#include "common/data/copy_nontemporal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROOM 4096

static void fill(unsigned char *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(i * 31 + i / 256 + seed);
}

/* The copy must be exact, and no byte outside of the destination may change, whatever the
 * alignments are. */
static void copy_is_that_of_memcpy(void **state)
{
	static const size_t sizes[] = {
		0, 1, 15, 63, 64, 65, 127, 128, 129, 191, 192, 1000, 2048, 3000};
	static _Alignas(64) unsigned char src[ROOM], dst[ROOM], want[ROOM];

	(void)state;
	fill(src, ROOM, 1);
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		for (size_t to = 0; to < 80; to++) {
			for (size_t from = 0; from < 80; from += 7) {
				fill(dst, ROOM, 2);
				memcpy(want, dst, ROOM);
				memcpy(want + to, src + from, sizes[k]);
				copy_nontemporal(dst + to, src + from, sizes[k]);
				assert_memory_equal(dst, want, ROOM);
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(copy_is_that_of_memcpy)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
