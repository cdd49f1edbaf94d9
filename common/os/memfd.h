#ifndef BPS_COMMON_OS_MEMFD_H
#define BPS_COMMON_OS_MEMFD_H
/* Memory that processes of one host share: a memfd of fixed size. Any thread may call the
 * functions. */
#include <fcntl.h>
#include <stdint.h>

/* Seals that fix the size. Without these seals, access to a memfd that another process has shrunk
 * would raise SIGBUS. */
#define MEMFD_FIXED_SIZE (F_SEAL_SHRINK | F_SEAL_GROW)

/* Make a memfd of `bytes` bytes. The memfd is close-on-exec and, on Linux 6.3 and later, not
 * executable. Its pages are allocated when they are first used. seals: F_SEAL_* to set now. More
 * seals can be added later unless `seals` contains F_SEAL_SEAL.
 * Owns: *ret_fd belongs to the caller.
 * Errors: -errno. */
int memfd_create_sealed(const char *name, uint64_t bytes, int seals, int *ret_fd);
#endif
