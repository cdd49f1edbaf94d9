#ifndef BPSCLIENT_COPY_H
#define BPSCLIENT_COPY_H
/* Copies bytes between the caller's memory and a tensor's buffers. */
#include <stddef.h>

struct bps_tensor;

/* Copy like memcpy. If tensor t is large, bypass the CPU caches. dst may be equal to src. */
void tensor_copy_bytes(const struct bps_tensor *t, void *dst, const void *src, size_t n_bytes);
#endif
