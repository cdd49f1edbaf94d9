#include "common/base/duration.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t duration_parse_ms(const char *text, uint64_t max_ms)
{
	static const struct {
		const char *unit;
		uint64_t ms;
	} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000},
		{"d", 86400000}};
	unsigned long long n;
	char *end;

	if (*text < '0' || *text > '9')
		return 0;
	errno = 0;
	n = strtoull(text, &end, 10);
	for (size_t i = 0; !errno && i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(end, units[i].unit) == 0 && n <= max_ms / units[i].ms)
			return n * units[i].ms;
	return 0;
}
