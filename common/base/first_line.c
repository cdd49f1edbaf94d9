#include "common/base/first_line.h"

#include <stdio.h>
#include <string.h>

bool first_line_read(const char *path, char *ret, size_t room)
{
	FILE *f = fopen(path, "re");
	bool is_read = f && fgets(ret, (int)room, f);

	if (f)
		fclose(f);
	if (is_read)
		ret[strcspn(ret, "\n")] = '\0';
	return is_read;
}
