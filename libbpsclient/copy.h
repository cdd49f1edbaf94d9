#ifndef BPSCLIENT_COPY_H
#define BPSCLIENT_COPY_H
/* Copies between the caller's memory and a tensor's buffers. */
#include <stddef.h>

struct bps_tensor;

/* Copy like memcpy. If tensor t is large, bypass the CPU caches. dst may be equal to src. */
void tensor_copy_bytes(const struct bps_tensor *t, void *dst, const void *src, size_t n_bytes);

/* Set *ret to the tensor's last result. what: name of the caller's operation, for the error.
 * Errors: -EINVAL if no round is complete. Sets bps_last_error. */
int tensor_find_output(const struct bps_tensor *t, const char *what, const char **ret);
#endif
