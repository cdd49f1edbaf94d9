#ifndef BPS_COMMON_DATA_SHAPE_H
#define BPS_COMMON_DATA_SHAPE_H
/* The shape of a tensor: what a worker declares about a tensor besides its name. All workers of a
 * job must declare equal shapes. The library, the agents, the scheduler and the servers, their
 * messages and their files all hold this struct. The functions are pure. */
#include <stdbool.h>
#include <stdint.h>

#include "common/data/dtype.h"

struct err_text;

/* The use that a round makes of the contributions. */
enum tensor_mode {
	MODE_SUM,   /* reduces them; each round has a result of its own */
	MODE_VALUE, /* adds them to a value, which servers keep from round to round */
};
/* The workers that get the result of a round. */
enum tensor_owner {
	OWNER_ALL,    /* every worker gets all of it */
	OWNER_SHARDS, /* it is cut into as many equal shards as the job has workers; the worker of
	               * rank r gets only shard r, see O1 of docs/reference/shards.md */
};
/* Value of `stale` without a bound: no worker waits for another one after the first round. */
#define STALE_UNBOUNDED UINT32_MAX

struct tensor_shape {
	uint8_t dtype;     /* enum dtype */
	uint8_t mode;      /* enum tensor_mode */
	uint8_t owner;     /* enum tensor_owner */
	uint32_t stale;    /* MODE_VALUE: number of rounds by which a worker may be ahead of another
	                    * one that it does not wait for, see V1 of docs/reference/values.md */
	uint64_t n_values; /* number of values that a worker contributes, at least 1 */
	/* Digest of what the workers store in the tensor, for example the names and the sizes of
	 * the gradients in a bucket. 0: the worker has given no digest, which differs from every
	 * digest. */
	uint64_t digest;
};

/* Size of the text of a shape in bytes, with its zero byte */
#define SHAPE_TEXT_BYTES 128
struct shape_text {
	char s[SHAPE_TEXT_BYTES];
};

/* Return the shape of a tensor of n_values values, without a digest. dtype: enum dtype, or any
 * other number, which shape_check then refuses. */
struct tensor_shape shape_from_dtype_and_count(unsigned dtype, uint64_t n_values);
/* Return the number of elements of type s->dtype. */
uint64_t shape_elems(const struct tensor_shape *s);
/* Return the size of all elements in bytes. s: a shape that shape_check accepts. */
uint64_t shape_bytes(const struct tensor_shape *s);
/* Return the number of shards of a tensor: 1, or the job's number of workers. */
uint32_t shape_shards(const struct tensor_shape *s, uint32_t job_size);
/* The partitions of a tensor. Each shard has partitions of its own. part_elems: number of elements,
 * at least 1, in every partition except the last one of each shard, which may have fewer. n_shards:
 * see shape_shards. `part` is the index of a partition. The functions return the number of
 * partitions; the number of elements of a partition; its first element; and its shard. */
uint64_t shape_partition_count(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems);
uint32_t shape_part_elems(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems, uint32_t part);
uint64_t shape_part_first(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems, uint32_t part);
uint32_t shape_part_shard(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems, uint32_t part);
bool shape_is_equal(const struct tensor_shape *a, const struct tensor_shape *b);
/* Check that s is a shape that this release can sum. bytes_max: largest size in bytes. Errors:
 * -EINVAL: the type, the mode, the owner or the staleness is unknown, or there are no values;
 * BPS_EQUOTA: the tensor is larger than bytes_max. err gets the text. */
int shape_check(const struct tensor_shape *s, uint64_t bytes_max, struct err_text *err);
/* Check that a tensor in shards can be cut into n_shards equal parts. Another tensor always passes.
 * Errors: -EINVAL; err gets the text. */
int shape_check_shards(const struct tensor_shape *s, uint32_t n_shards, struct err_text *err);
/* The options of a job that exclude some shapes. */
struct shape_job {
	bool is_deterministic, is_elastic, may_shrink, has_backup;
};
/* Check that the job may have such a tensor. The deltas of a value are added in the order of their
 * arrival, and none is left out. Only the owner of a shard has its sums, so the job must end if an
 * owner is lost, and each worker must have its shard from the beginning. Errors: -EINVAL; err gets
 * the text. */
int shape_check_job(
	const struct tensor_shape *s, const struct shape_job *job, struct err_text *err);
/* Return the text of a shape for messages, such as "f32 x 1000" or "f32 x 1000 (layout 1f)". */
struct shape_text shape_text(const struct tensor_shape *s);
#endif
