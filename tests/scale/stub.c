/* Empty functions in place of checksums and sums. The simulator never uses the results of checksums
 * and sums. Options of the simulator set how long checksums and sums take. The linker prefers these
 * functions to the functions of the archives. */
#include "common/data/crc32c.h"
#include "common/data/reduce.h"

uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
	(void)crc, (void)data, (void)n_bytes;
	return 0;
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n_bytes)
{
	return crc32c(crc, data, n_bytes);
}

void reduce_fold(void *acc, const void *const *src, unsigned n_src, size_t n_elems,
	enum dtype dtype, enum op op, bool is_first)
{
	(void)acc, (void)src, (void)n_src, (void)n_elems, (void)dtype, (void)op, (void)is_first;
}

void reduce_finish(
	void *dst, const void *acc, size_t n_elems, enum dtype dtype, enum op op, uint32_t divisor)
{
	(void)dst, (void)acc, (void)n_elems, (void)dtype, (void)op, (void)divisor;
}

void reduce_all(void *dst, const void *const *src, unsigned n_src, size_t n_elems, enum dtype dtype,
	enum op op, uint32_t divisor)
{
	(void)dst, (void)src, (void)n_src, (void)n_elems, (void)dtype, (void)op, (void)divisor;
}

void reduce_means_fold(void *acc, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, bool is_first)
{
	(void)acc, (void)src, (void)weights, (void)n_src, (void)n_elems, (void)is_first;
}

void reduce_means_all(void *dst, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, uint32_t divisor)
{
	(void)dst, (void)src, (void)weights, (void)n_src, (void)n_elems, (void)divisor;
}
