#ifndef BPS_TESTS_UNIT_FAKE_DEVICE_H
#define BPS_TESTS_UNIT_FAKE_DEVICE_H
/* The back-end "fake", for tests of code that drives devices. Nothing runs by itself: queued work
 * waits until the test runs the next piece of work of a queue. The test chooses the order of the
 * queues. Each call can be made to fail. Collectives use the functions of the back-end "host". Only
 * one thread may use the back-end. */
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
/* Inject the result rc into consecutive calls of the kind `call`. `times` is the number of these
 * calls. The first of these calls is the n-th call of this kind from now on, counted from 1. */
void fake_device_inject(
	struct device *dev, enum fake_call call, unsigned n, unsigned times, int rc);
/* Return the number of calls of the kind `call` so far. */
unsigned fake_device_calls(const struct device *dev, enum fake_call call);
/* Return how many queues are open. */
unsigned fake_device_queues(const struct device *dev);
/* Let the i-th open queue do its next piece of work. Returns false if the queue has no work, or
 * waits for another queue. */
bool fake_device_step(struct device *dev, unsigned i);
/* Let the queues work until none can continue. */
void fake_device_run(struct device *dev);
/* Return the number of objects that exist. Tests use it to find leaks. */
unsigned fake_device_objects(const struct device *dev);
bool fake_device_was_aborted(const struct device *dev);
/* Return the history as a text with a letter for each piece of work: U copy up, D copy down, P copy
 * between GPUs, p post, s scatter, g gather, r reduce, b broadcast. A long history is cut off. */
const char *fake_device_history(const struct device *dev);
#endif
