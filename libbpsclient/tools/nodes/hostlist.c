/* Reads and divides the hosts of -H. Starts nothing. One thread. */
#include "libbpsclient/tools/nodes/hostlist.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libbpsclient/tools/nodes/nodelist.h"
#include "libbpsclient/tools/process/output.h"

#define SLOTS_MAX 1024 /* workers of one node */

char *hostlist_read_file(const char *path)
{
	const size_t room = (size_t)HOSTLIST_MAX * 288;
	char line[512], host[ADDR_HOST_BYTES], *text = calloc(1, room);
	FILE *f = text ? fopen(path, "re") : NULL;
	size_t used = 0;
	unsigned slots;

	if (!f) {
		output_print_message("cannot read the hosts from '%s': %s", path, strerror(errno));
		free(text);
		return NULL;
	}
	while (fgets(line, sizeof(line), f) && used < room - sizeof(line)) {
		line[strcspn(line, "#\r\n")] = 0;
		if (sscanf(line, "%255s", host) != 1)
			continue;
		used += (size_t)snprintf(text + used, room - used, "%s%s", used ? "," : "", host);
		if (sscanf(line, "%*s slots=%u", &slots) == 1)
			used += (size_t)snprintf(text + used, room - used, ":%u", slots);
	}
	fclose(f);
	return text;
}

/* Split "HOST:SLOTS". The host stays in text. Returns false if the number is invalid. */
static bool split_slots(char *text, unsigned *ret)
{
	char *colon = strrchr(text, ':'), *end;

	*ret = 1;
	if (!colon)
		return true;
	*colon++ = 0;
	*ret = (unsigned)strtoul(colon, &end, 10);
	return end > colon && !*end && *ret >= 1 && *ret <= SLOTS_MAX && *text;
}

int hostlist_parse(const char *list, struct hostlist_entry **ret, unsigned *ret_n)
{
	long count = nodelist_count_names(list);
	struct hostlist_entry *hosts;

	if (count < 1 || count > HOSTLIST_MAX) {
		output_print_message("-H '%s' is not a list of 1 to %d hosts, such as a:8,b:8",
			list, HOSTLIST_MAX);
		return -EINVAL;
	}
	hosts = calloc((size_t)count, sizeof(*hosts));
	if (!hosts)
		return -ENOMEM;
	for (unsigned i = 0; i < (unsigned)count; i++) {
		struct hostlist_entry *h = &hosts[i];

		if (nodelist_get_name(list, i, h->name, sizeof(h->name)) == 0 &&
			split_slots(h->name, &h->slots))
			continue;
		output_print_message("-H '%s': the host number %u is not HOST or HOST:N, with N "
				     "workers from 1 to %d",
			list, i + 1, SLOTS_MAX);
		free(hosts);
		return -EINVAL;
	}
	*ret = hosts;
	*ret_n = (unsigned)count;
	return 0;
}

int hostlist_divide(
	struct hostlist_entry *hosts, unsigned *n_hosts, bool is_one_each, unsigned *n_workers)
{
	unsigned all = 0, left, n = 0;

	for (unsigned i = 0; i < *n_hosts; i++)
		all += is_one_each ? 1 : hosts[i].slots;
	left = *n_workers && !is_one_each ? *n_workers : all;
	if (left > all) {
		output_print_message("the hosts have room for %u workers, not for %u: write the "
				     "number of each, as in -H a:8,b:8",
			all, left);
		return -EINVAL;
	}
	*n_workers = left;
	for (; left; n++) {
		unsigned slots = is_one_each ? 1 : hosts[n].slots;

		hosts[n].n = left < slots ? left : slots;
		left -= hosts[n].n;
	}
	*n_hosts = n;
	return 0;
}
