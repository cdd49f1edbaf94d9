#ifndef BPS_TESTS_INVARIANTS_INVARIANTS_H
#define BPS_TESTS_INVARIANTS_INVARIANTS_H
/* Functions that check all invariants of a core: objects are reachable, counters and lists agree,
 * states fit together. The simulator and the unit tests call these functions after events. The
 * daemons do not contain the functions. The functions do not change the core. sched_check
 * allocates memory and frees this memory before it returns. The other functions allocate no memory.
 * Call the functions between events on the core's thread. The cost of a call is proportional to the
 * number of objects.
 *
 * Each function returns 0, or a negative number. With a negative number, err names the broken
 * invariant. */
#include "common/base/error.h"

struct agt_core;
struct engine;
struct sched_core;
struct srv_core;

int agt_core_check(const struct agt_core *core, struct err_text *err);
int engine_check(const struct engine *e, struct err_text *err);
int sched_check(const struct sched_core *c, struct err_text *err);
int srv_core_check(const struct srv_core *core, struct err_text *err);
#endif
