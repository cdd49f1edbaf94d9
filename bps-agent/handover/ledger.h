#ifndef BPS_AGENT_HANDOVER_LEDGER_H
#define BPS_AGENT_HANDOVER_LEDGER_H
/* Memory that outlives the process: records, one behind the other, in a memfd that the service
 * manager keeps (common/daemon/fdstore.h). It grows and is never rewritten, so that a kill at any
 * instruction leaves all records that were there. A record has a fixed part, written once, with a
 * crc, and a live part, which its owner writes as it goes; in which order is the owner's care.
 *
 *   head: magic, version, used      record: bytes, type, n_fixed, n_live, crc | fixed | live
 *
 * `used` moves past a record when that is complete. Nobody but agents has the descriptor; what is
 * read back is checked all the same: sizes, crc, and by the reader what the fields say.
 *
 * Thread: one at a time. */
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define LEDGER_VERSION 3
#define LEDGER_ALIGN   64 /* of live parts */

struct ledger;

/* Errors: -errno with a sentence. */
int ledger_new(struct ledger **ret, struct err_text *err);
/* Open the ledger of a process before this one. Owns: takes fd, also when it fails. Errors:
 * BPS_EVERSION, BPS_EPROTO it is none or damaged, -errno; with a sentence. */
int ledger_open(int fd, struct ledger **ret, struct err_text *err);
/* Unmap and close; who keeps the descriptor still has it. NULL is allowed. */
void ledger_free(struct ledger *l);
/* Lent. */
int ledger_fd(const struct ledger *l);

/* Append a record. *ret_live: n_live zeroed bytes, aligned, until ledger_free; may be NULL when
 * n_live is 0. Errors: -errno: no memory, nothing is there. */
int ledger_add(struct ledger *l, uint32_t type, const void *fixed, size_t n_fixed, size_t n_live,
	void **ret_live);

/* One record that is there. */
struct ledger_record {
	uint32_t type;
	const void *fixed; /* aligned to 8 */
	size_t n_fixed;
	void *live;
	size_t n_live;
};
/* The record at *at, which starts at 0 and moves on. 1; 0 behind the last one. Errors: BPS_EPROTO
 * with a sentence: it is damaged. */
int ledger_next(
	const struct ledger *l, size_t *at, struct ledger_record *ret, struct err_text *err);
#endif
