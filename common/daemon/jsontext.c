#include "common/daemon/jsontext.h"

#include <stdlib.h>
#include <string.h>

json_t *json_text_sanitized(const char *s)
{
	json_t *j = json_string(s ? s : "");
	char *copy;

	if (j)
		return j;
	copy = s ? strdup(s) : NULL;
	for (char *p = copy; p && *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	j = copy ? json_string(copy) : NULL;
	free(copy);
	return j;
}
