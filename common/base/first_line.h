#ifndef BPS_COMMON_BASE_FIRST_LINE_H
#define BPS_COMMON_BASE_FIRST_LINE_H
/* Reads small files of the kernel, such as files in /proc and sysfs. Any thread may call the
 * function. */
#include <stdbool.h>
#include <stddef.h>

/* Read the first line of the file into ret, without the newline. A line that does not fit into ret
 * is cut. Returns false when the file cannot be opened or read, or is empty. */
bool first_line_read(const char *path, char *ret, size_t room);
#endif
