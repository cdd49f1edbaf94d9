#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bps-server/thread_count.h"

static void server_alone_takes_half_of_the_processors_up_to_eight(void **state)
{
	(void)state;
	assert_int_equal(count_default_threads(1, false), 1);
	assert_int_equal(count_default_threads(2, false), 1);
	assert_int_equal(count_default_threads(6, false), 3);
	assert_int_equal(count_default_threads(16, false), 8);
	assert_int_equal(count_default_threads(256, false), 8);
}

static void server_beside_an_agent_takes_a_quarter_of_that(void **state)
{
	(void)state;
	assert_int_equal(count_default_threads(1, true), 1);
	assert_int_equal(count_default_threads(8, true), 1);
	for (unsigned cpus = 8; cpus <= 256; cpus++)
		assert_int_equal(
			count_default_threads(cpus, true), count_default_threads(cpus, false) / 4);
}

static void agent_is_found_by_its_socket_alone(void **state)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	char dir[] = "/tmp/bps-count-XXXXXX";
	int fd;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s/agent.sock", dir);
	assert_false(count_sees_agent(""));
	assert_false(count_sees_agent(sun.sun_path));
	fd = open(sun.sun_path, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_false(count_sees_agent(sun.sun_path));
	unlink(sun.sun_path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	assert_true(count_sees_agent(sun.sun_path));
	close(fd);
	unlink(sun.sun_path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(server_alone_takes_half_of_the_processors_up_to_eight),
		cmocka_unit_test(server_beside_an_agent_takes_a_quarter_of_that),
		cmocka_unit_test(agent_is_found_by_its_socket_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
