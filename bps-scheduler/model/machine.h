#ifndef BPS_SCHEDULER_MODEL_MACHINE_H
#define BPS_SCHEDULER_MODEL_MACHINE_H
/* Identifies the machine on which a member runs (rule C6 of docs/reference/faults.md). The host
 * name alone does not identify a machine, because two machines may have the same host name. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/ctlmsg.h"

/* Identity of a machine. The strings and the boot id belong to the member or message from which
 * machine_of_member or machine_of_hello took them. */
struct machine {
	const char *host;
	const char *domain;     /* domain of the host name; "": unknown */
	const uint8_t *boot_id; /* CTL_BOOT_ID_BYTES long; NULL: unknown */
};

/* Size of a text from machine_format_place: host, domain and address, and what stands between
 * them. */
#define MACHINE_PLACE_BYTES (3 * CTL_NAME_MAX + 20)

/* A process that the scheduler refused, because it has the name of a member and runs on another
 * machine with the same host name. */
struct machine_rival {
	uint64_t at_ns; /* when the scheduler last refused such a process */
	uint32_t pid;
	char place[MACHINE_PLACE_BYTES]; /* where it runs, from machine_format_place */
};
/* Time for which a refused process counts as present. A service manager starts the process again
 * after a few seconds. */
#define MACHINE_RIVAL_NS (UINT64_C(60) * 1000000000)

struct sched_member;

struct machine machine_of_member(const struct sched_member *m);
struct machine machine_of_hello(const struct ctl_hello *h);
/* Return whether `a` and `b` may be one machine. Unknown parts count as equal. */
bool machine_is_same(const struct machine *a, const struct machine *b);
/* Write where a process runs, such as "node.rack1.example at 10.0.0.1:7302". addr, port: from the
 * process's HELLO. */
void machine_format_place(
	const struct machine *m, const char *addr, uint16_t port, char ret[MACHINE_PLACE_BYTES]);
/* Store that the scheduler refused the process that sent `h` in favour of m. Returns true if no
 * such process was present before. */
bool machine_rival_note(struct sched_member *m, const struct ctl_hello *h, uint64_t now_ns);
/* Return the process that has lately been refused in favour of m; NULL: none. */
const struct machine_rival *machine_recent_rival(const struct sched_member *m, uint64_t now_ns);
#endif
