/* Expands lists of hosts with brackets. Only one name is written at a time, so a list needs no
 * memory. */
#include "libbpsclient/tools/nodes/nodelist.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A range of numbers, such as 001-003. width: least number of digits. */
struct number_range {
	unsigned long low, high;
	int width;
};

/* Parse the range at *at, and set *at to its end. Returns false if there is none. */
static bool parse_number_range(const char **at, struct number_range *ret)
{
	char *end;

	if (**at < '0' || **at > '9')
		return false;
	ret->low = ret->high = strtoul(*at, &end, 10);
	ret->width = (int)(end - *at);
	*at = end;
	if (*end != '-')
		return ret->low < NODELIST_HOSTS_MAX * 1024UL;
	if (end[1] < '0' || end[1] > '9')
		return false;
	ret->high = strtoul(end + 1, &end, 10);
	*at = end;
	return ret->low <= ret->high && ret->high - ret->low < NODELIST_HOSTS_MAX;
}

/* Parse a bracket, from behind its '['. ret: its n-th number as text; NULL: only count. *at is set
 * behind the ']'. Returns how many numbers the bracket has, 0 if it is malformed. */
static unsigned long parse_bracket(const char **at, unsigned long n, char *ret, size_t room)
{
	struct number_range r;
	unsigned long count = 0, here;

	do {
		if (!parse_number_range(at, &r))
			return 0;
		here = r.high - r.low + 1;
		if (ret && n >= count && n - count < here)
			snprintf(ret, room, "%0*lu", r.width, r.low + (n - count));
		count += here;
	} while (*(*at)++ == ',');
	return (*at)[-1] == ']' && count <= NODELIST_HOSTS_MAX ? count : 0;
}

/* Count the names of the list's first element, and find its end: a comma or the end of the text.
 * Returns 0 if the element is malformed. */
static unsigned long count_element(const char *at, const char **ret_end)
{
	unsigned long total = 1, n;
	const char *from = at;

	while (*at && *at != ',') {
		if (*at == ']')
			return 0;
		if (*at++ != '[')
			continue;
		n = parse_bracket(&at, 0, NULL, 0);
		if (!n || total * n > NODELIST_HOSTS_MAX)
			return 0;
		total *= n;
	}
	*ret_end = at;
	return at > from ? total : 0;
}

/* Write the n-th of the `total` names of a well-formed element. */
static int write_element(
	const char *at, unsigned long n, unsigned long total, char *ret, size_t room)
{
	char name[256], number[24];
	size_t used = 0, len;
	unsigned long here;
	const char *part, *look;

	while (*at && *at != ',') {
		part = at;
		len = 1;
		at++;
		if (*part == '[') {
			look = at;
			here = parse_bracket(&look, 0, NULL, 0);
			total /= here;
			parse_bracket(&at, n / total, number, sizeof(number));
			n %= total;
			part = number;
			len = strlen(number);
		}
		if (used + len >= sizeof(name) || used + len >= room)
			return -ENAMETOOLONG;
		memcpy(name + used, part, len);
		used += len;
	}
	memcpy(ret, name, used);
	ret[used] = 0;
	return 0;
}

int nodelist_get_name(const char *list, unsigned long n, char *ret, size_t room)
{
	const char *end;
	unsigned long here;

	for (;;) {
		here = count_element(list, &end);
		if (!here)
			return -EINVAL;
		if (n < here)
			return write_element(list, n, here, ret, room);
		n -= here;
		if (!*end)
			return -ENOENT;
		list = end + 1;
	}
}

long nodelist_count_names(const char *list)
{
	unsigned long total = 0, here;
	const char *end;

	do {
		here = count_element(list, &end);
		total += here;
		if (!here || total > NODELIST_HOSTS_MAX)
			return -EINVAL;
		list = end + 1;
	} while (*end);
	return (long)total;
}
