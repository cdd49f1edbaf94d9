#ifndef BPS_TESTS_UNIT_HEX_H
#define BPS_TESTS_UNIT_HEX_H
/* Golden bytes in tests are written as pairs of lower-case hexadecimal digits. Spaces may separate
 * pairs. */
#include <stddef.h>
#include <stdint.h>

static inline unsigned hex_nibble(char c)
{
	return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* Parse a text and return the number of bytes. Fails the test when there are more than `room`
 * bytes. Include this file after cmocka.h. */
static inline size_t hex_parse(const char *hex, uint8_t *ret, size_t room)
{
	size_t n = 0;

	while (*hex) {
		if (*hex == ' ') {
			hex++;
			continue;
		}
		assert_true(n < room);
		ret[n++] = (uint8_t)(hex_nibble(hex[0]) << 4 | hex_nibble(hex[1]));
		hex += 2;
	}
	return n;
}
#endif
