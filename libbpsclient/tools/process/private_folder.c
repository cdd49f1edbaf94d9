#include "libbpsclient/tools/process/private_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libbpsclient/tools/process/output.h"

#define BASE_BYTES 60 /* longest path of the folder in which the new folder is */

int private_folder_create(const char *name, char ret[static PRIVATE_FOLDER_BYTES])
{
	const char *bases[] = {getenv("XDG_RUNTIME_DIR"), "/tmp", "/dev/shm"}, *base = bases[1];
	int rc;

	for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++)
		if (bases[i] && *bases[i] && strlen(bases[i]) <= BASE_BYTES &&
			access(bases[i], W_OK) == 0) {
			base = bases[i];
			break;
		}
	snprintf(ret, PRIVATE_FOLDER_BYTES, "%s/%s-XXXXXX", base, name);
	if (mkdtemp(ret))
		return 0;
	rc = -errno;
	output_print_message("cannot create the folder '%s': %s (set XDG_RUNTIME_DIR to a folder "
			     "that this user can write)",
		ret, strerror(-rc));
	ret[0] = 0;
	return rc;
}
