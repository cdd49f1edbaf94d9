#ifndef BPS_TESTS_UNIT_FAKE_DEVICE_H
#define BPS_TESTS_UNIT_FAKE_DEVICE_H
/* Back-end "fake", for tests of code that drives devices. Nothing runs by itself: queued work waits
 * until the test lets a queue do its next piece, in any order of queues. Any call can be made to
 * fail. Single-threaded; its arithmetic is that of the back-end "host". */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_fake;

enum fake_call {
	FAKE_COPY,
	FAKE_POST,
	FAKE_COLLECTIVE,
	FAKE_CLIQUE_POLL,
	FAKE_QUEUE_POLL,
	FAKE_QUEUE_OPEN,
	FAKE_CLIQUE_OPEN,
	FAKE_PIN,
	FAKE_CALLS
};

/* Set how many GPUs the next open finds. */
void fake_device_set_gpus(int n);
/* Let the n-th call from now on (1: the next), and `times` calls from there, return rc. */
void fake_device_inject(
	struct device *dev, enum fake_call call, unsigned n, unsigned times, int rc);
/* Return the number of calls of that kind so far. */
unsigned fake_device_calls(const struct device *dev, enum fake_call call);
/* Return how many queues are open. */
unsigned fake_device_queues(const struct device *dev);
/* Let the i-th open queue do its next piece of work. False: it has none, or waits for another
 * queue. */
bool fake_device_step(struct device *dev, unsigned i);
/* Run until no queue can go on. */
void fake_device_run(struct device *dev);
/* Return how many objects exist that were not dropped or closed. */
unsigned fake_device_objects(const struct device *dev);
bool fake_device_was_aborted(const struct device *dev);
/* Return a text with a letter for each piece of work done: U up, D down, P between GPUs, p post, s
 * scatter, g gather, r reduce, b broadcast. Long histories are cut. */
const char *fake_device_history(const struct device *dev);
#endif
