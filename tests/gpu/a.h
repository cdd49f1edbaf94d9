#ifndef BPS_TESTS_GPU_A_H
#define BPS_TESTS_GPU_A_H
/* The test items of `tests/gpu/run A`. Each item uses two processes. */
#include "tests/gpu/gpu.h"
#include "tests/gpu/sides.h"

extern const struct gpu_pair a_share[], a_rely[], a_speed[];
extern const size_t a_share_count, a_rely_count, a_speed_count;
#endif
