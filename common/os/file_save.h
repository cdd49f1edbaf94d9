#ifndef BPS_COMMON_OS_FILE_SAVE_H
#define BPS_COMMON_OS_FILE_SAVE_H
/* Writes a whole file, so that a reader finds the old file or the whole new one. The functions may
 * be called on any thread. */
#include <stddef.h>

/* Write the file by way of a temporary file beside it. A device or a pipe is written directly.
 * from: a file whose bytes are copied, from its start; -1: write the n bytes at `bytes`.
 * Errors: -errno. */
int file_save(const char *path, int from, const void *bytes, size_t n);
#endif
