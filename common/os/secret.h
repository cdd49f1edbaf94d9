#ifndef BPS_COMMON_OS_SECRET_H
#define BPS_COMMON_OS_SECRET_H
/* Files that hold a secret: the key file and the private key of a certificate. A file that other
 * users could read or replace is refused. Any thread may call the functions. */
#include <stdbool.h>
#include <stddef.h>

#include "common/base/error.h"

/* Read the whole file into ret_buf. Refuse a file that is not a regular file, or that belongs to a
 * user other than root and this process's user. Also refuse a symbolic link, and a file that the
 * group or others can access.
 * `what` is the name of the file's kind in error texts, such as "key file". Set is_credential if
 * the service manager made the file for this process. The group may access such a file, because
 * the service manager may grant access by an access list (ACL). stat shows the ACL as group
 * permission.
 * Returns the number of bytes read, which is `room` if the file is larger than the buffer.
 * Errors: -errno, -EPERM or -EINVAL; err gets a text that advises what to do. */
int secret_read(const char *path, const char *what, bool is_credential, void *ret_buf, size_t room,
	struct err_text *err);

/* Check whether secret_read would accept the file. The function applies the rules of is_credential
 * to a file below $CREDENTIALS_DIRECTORY.
 * Errors: those of secret_read. */
int secret_check(const char *path, const char *what, struct err_text *err);

/* Write the path of the credential that the service manager provides under this name. Returns false
 * when there is no such credential. */
bool secret_credential(const char *name, char *ret_path, size_t room);
#endif
