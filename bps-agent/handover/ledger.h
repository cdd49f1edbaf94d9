#ifndef BPS_AGENT_HANDOVER_LEDGER_H
#define BPS_AGENT_HANDOVER_LEDGER_H
/* Memory that survives a restart: records in sequence, in a memfd that the service manager keeps
 * (common/daemon/fdstore.h). It grows and is never rewritten, so that a kill at any instruction
 * leaves all existing records. A record has a fixed part, written once, with a crc, and a live
 * part, which its owner updates. The owner is responsible for the order of these updates.
 *
 *   head: magic, version, used      record: bytes, type, n_fixed, n_live, crc | fixed | live
 *
 * `used` moves past a record when the record is complete. Only agents have the descriptor. All data
 * that is read back is checked all the same: here sizes and crc, by the reader the fields.
 *
 * Thread: one at a time. */
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define LEDGER_VERSION 3
#define LEDGER_ALIGN   64 /* of live parts */

struct ledger;

/* Create a ledger. Errors: -errno with a text. */
int ledger_new(struct ledger **ret, struct err_text *err);
/* Open the ledger of a previous process. Owns: takes fd, also when it fails. Errors: BPS_EVERSION,
 * BPS_EPROTO not a ledger or damaged, -errno; with a text. */
int ledger_open(int fd, struct ledger **ret, struct err_text *err);
/* Unmap and close it; other holders of the descriptor still have it. NULL is allowed. */
void ledger_free(struct ledger *l);
/* Return its descriptor; lent. */
int ledger_fd(const struct ledger *l);

/* Append a record. *ret_live: n_live zeroed bytes, aligned, valid until ledger_free; may be NULL
 * when n_live is 0. Errors: -errno: no memory, nothing was appended. */
int ledger_add(struct ledger *l, uint32_t type, const void *fixed, size_t n_fixed, size_t n_live,
	void **ret_live);

/* An existing record. */
struct ledger_record {
	uint32_t type;
	const void *fixed; /* aligned to 8 */
	size_t n_fixed;
	void *live;
	size_t n_live;
};
/* Return the record at *at, which starts at 0 and is advanced. 1; 0 after the last one. Errors:
 * BPS_EPROTO with a text: the ledger is damaged. */
int ledger_next(
	const struct ledger *l, size_t *at, struct ledger_record *ret, struct err_text *err);
#endif
