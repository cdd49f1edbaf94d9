/* The queue between the data thread and an I/O thread: order, sizes, and wake-ups. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bps-agent/io/io_queue.h"

#define RECORDS 200000u

struct queued_number {
	struct io_head head;
	uint32_t number, n_more;
	uint8_t more[];
};

static void put_number(struct io_queue *q, uint32_t number, uint32_t n_more)
{
	struct queued_number *r = io_queue_put(q, sizeof(*r) + n_more);

	assert_int_equal((uintptr_t)r % 8, 0);
	r->number = number;
	r->n_more = n_more;
	memset(r->more, (int)(number & 0xff), n_more);
}

static void records_arrive_only_after_they_are_published(void **state)
{
	struct io_queue q;

	(void)state;
	assert_int_equal(io_queue_init(&q), 0);
	put_number(&q, 1, 5);
	assert_null(io_queue_next(&q));
	io_queue_publish(&q);
	put_number(&q, 2, 100000); /* larger than the first batch */
	io_queue_publish(&q);
	assert_int_equal(((struct queued_number *)io_queue_next(&q))->number, 1);
	put_number(&q, 3, 0);
	assert_int_equal(((struct queued_number *)io_queue_next(&q))->n_more, 100000);
	assert_null(io_queue_next(&q));
	io_queue_publish(&q);
	assert_int_equal(((struct queued_number *)io_queue_next(&q))->number, 3);
	io_queue_fini(&q);
}

static bool is_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void only_a_reader_that_sleeps_is_woken(void **state)
{
	struct io_queue q;

	(void)state;
	assert_int_equal(io_queue_init(&q), 0);
	put_number(&q, 1, 0);
	io_queue_publish(&q);
	assert_false(is_readable(q.wake_fd));
	assert_false(io_queue_may_sleep(&q)); /* there is a record */
	assert_non_null(io_queue_next(&q));
	assert_true(io_queue_may_sleep(&q));
	io_queue_publish(&q); /* nothing new */
	assert_false(is_readable(q.wake_fd));
	put_number(&q, 2, 0);
	io_queue_publish(&q);
	assert_true(is_readable(q.wake_fd));
	io_queue_awake(&q);
	assert_false(is_readable(q.wake_fd));
	assert_non_null(io_queue_next(&q));
	io_queue_wake(&q); /* the reader is awake */
	assert_false(is_readable(q.wake_fd));
	assert_true(io_queue_may_sleep(&q));
	io_queue_wake(&q);
	assert_true(is_readable(q.wake_fd));
	io_queue_fini(&q);
}

static void *write_all(void *arg)
{
	struct io_queue *q = arg;
	unsigned seed = 7;

	for (uint32_t i = 0; i < RECORDS; i++) {
		put_number(q, i, (uint32_t)rand_r(&seed) % 200);
		if (rand_r(&seed) % 8 == 0)
			io_queue_publish(q);
	}
	io_queue_publish(q);
	return NULL;
}

static void reader_that_sleeps_misses_no_record(void **state)
{
	struct io_queue q;
	pthread_t writer;
	uint32_t n = 0;

	(void)state;
	assert_int_equal(io_queue_init(&q), 0);
	assert_int_equal(pthread_create(&writer, NULL, write_all, &q), 0);
	while (n < RECORDS) {
		const struct queued_number *r = io_queue_next(&q);
		struct pollfd p = {.fd = q.wake_fd, .events = POLLIN};

		if (r) {
			assert_int_equal(r->number, n);
			if (r->n_more)
				assert_int_equal(r->more[r->n_more - 1], n & 0xff);
			n++;
		} else if (io_queue_may_sleep(&q)) {
			assert_int_equal(poll(&p, 1, 10000), 1);
			io_queue_awake(&q);
		}
	}
	pthread_join(writer, NULL);
	io_queue_fini(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_arrive_only_after_they_are_published),
		cmocka_unit_test(only_a_reader_that_sleeps_is_woken),
		cmocka_unit_test(reader_that_sleeps_misses_no_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
