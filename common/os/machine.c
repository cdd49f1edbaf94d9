#include "common/os/machine.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/first_line.h"

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"

bool machine_boot_id_parse(const char *text, uint8_t ret[MACHINE_BOOT_ID_BYTES])
{
	uint8_t id[MACHINE_BOOT_ID_BYTES];
	unsigned v;

	for (size_t i = 0; i < sizeof(id); i++) {
		text += *text == '-';
		if (!isxdigit((unsigned char)text[0]) || !isxdigit((unsigned char)text[1]) ||
			sscanf(text, "%2x", &v) != 1)
			return false;
		id[i] = (uint8_t)v;
		text += 2;
	}
	if (*text)
		return false;
	memcpy(ret, id, sizeof(id));
	return true;
}

bool machine_boot_id(uint8_t ret[MACHINE_BOOT_ID_BYTES])
{
	char line[64];

	return first_line_read(BOOT_ID_PATH, line, sizeof(line)) &&
	       machine_boot_id_parse(line, ret);
}

void machine_host_name_split(
	const char *name, char ret_host[MACHINE_NAME_BYTES], char ret_domain[MACHINE_NAME_BYTES])
{
	size_t n = strcspn(name, ".");

	snprintf(ret_domain, MACHINE_NAME_BYTES, "%s", name[n] ? name + n + 1 : "");
	snprintf(ret_host, MACHINE_NAME_BYTES, "%.*s", (int)n, name);
}

void machine_host_name(char ret_host[MACHINE_NAME_BYTES], char ret_domain[MACHINE_NAME_BYTES])
{
	/* gethostname(2) fails if the host name does not fit. */
	char name[HOST_NAME_MAX + 1];

	if (gethostname(name, sizeof(name)) < 0)
		snprintf(name, sizeof(name), "localhost");
	machine_host_name_split(name, ret_host, ret_domain);
}
