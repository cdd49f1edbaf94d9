#ifndef BPS_AGENT_CARRIER_H
#define BPS_AGENT_CARRIER_H
/* Reports which network interfaces have a carrier, at once when the kernel reports a change
 * (netlink). Thread: the control loop's. */
#include <stdint.h>

#include "common/base/error.h"

#define CARRIER_NAMES_MAX 32

struct carrier_watch;
struct event_base;
/* cards: a bit for each interface that is up and has a carrier. */
typedef void (*carrier_fn)(void *ctx, uint32_t cards);

/* Watch n interfaces, and call fn for each change. An interface without a name counts as one that
 * always has a carrier. Errors: a negative code; err gets the text. */
int carrier_watch_new(struct event_base *base, const char *const *names, unsigned n, carrier_fn fn,
	void *ctx, struct carrier_watch **ret, struct err_text *err);
/* Return the present carriers. */
uint32_t carrier_watch_read(const struct carrier_watch *w);
/* NULL is allowed. */
void carrier_watch_free(struct carrier_watch *w);
#endif
