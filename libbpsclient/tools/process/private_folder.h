#ifndef BPS_TOOLS_PRIVATE_FOLDER_H
#define BPS_TOOLS_PRIVATE_FOLDER_H
/* A temporary folder that only this user can enter. guard_remove_folder removes it. Any thread may
 * call the function. */
#include <stddef.h>

/* Longest path of the folder, with its zero byte. It is short, because the path of a Unix socket in
 * the folder has at most 107 bytes. */
#define PRIVATE_FOLDER_BYTES 96

/* Create a folder whose name begins with `name`, in $XDG_RUNTIME_DIR, /tmp or /dev/shm: the first
 * that can be written. Containers with a read-only root have /dev/shm. Errors: -errno; ret is "",
 * and the error was printed. */
int private_folder_create(const char *name, char ret[static PRIVATE_FOLDER_BYTES]);
#endif
