#ifndef BPS_COMMON_OS_SECRET_H
#define BPS_COMMON_OS_SECRET_H
/* Files that hold a secret: the key file and the private key of a certificate. What others could
 * read or replace is refused. Any thread. */
#include <stdbool.h>
#include <stddef.h>

#include "common/base/error.h"

/* Read all of it. Refused when it is no plain file, a symbolic link, owned by somebody else than
 * this process's user or root, or open to the group or others.
 * what: "key file", for the sentence. is_credential: the service manager made the file for this
 * process; where it can, it lets us in by an access list, which shows as permission of the group.
 * Returns the number of bytes, of a larger file room. Errors: -errno, -EPERM or -EINVAL, with a
 * sentence. */
int secret_read(const char *path, const char *what, bool is_credential, void *ret_buf, size_t room,
	struct err_text *err);

/* Would secret_read take the file? One below $CREDENTIALS_DIRECTORY is a credential. Errors: as
 * it. */
int secret_check(const char *path, const char *what, struct err_text *err);

/* The path of a credential that the service manager hands over; false when there is none. */
bool secret_credential(const char *name, char *ret_path, size_t room);
#endif
