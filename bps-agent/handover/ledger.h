#ifndef BPS_AGENT_HANDOVER_LEDGER_H
#define BPS_AGENT_HANDOVER_LEDGER_H
/* A ledger: records that survive a restart. The records are stored in sequence in a memfd, whose
 * descriptor the service manager keeps (common/daemon/fdstore.h). Records are appended and never
 * moved or removed. So if the process is killed at any instruction, all complete records are still
 * valid. A record has a fixed part, which is written once and has a crc, and a live part, which the
 * record's owner updates in place. The owner is responsible for the order of the updates.
 *
 *   head: magic, version, used      record: bytes, type, n_fixed, n_live, crc | fixed | live
 *
 * When a record is complete, `used` is increased by the record's size. Besides the agent, only the
 * service manager has the descriptor. The data is checked nevertheless when it is read: ledger.c
 * checks sizes and crc, and the callers check the fields.
 *
 * Thread: any, but only one at a time. */
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define LEDGER_VERSION 6
#define LEDGER_ALIGN   64 /* alignment of live parts */

struct ledger;

/* Create a ledger. Errors: -errno, and err gets the text. */
int ledger_new(struct ledger **ret, struct err_text *err);
/* Open the ledger of a previous process. Owns: the function takes fd, even if the call fails.
 * Errors: BPS_EVERSION: the ledger's version is not LEDGER_VERSION. BPS_EPROTO: the file is damaged
 * or not a ledger. -errno. For each error, err gets the text. */
int ledger_open(int fd, struct ledger **ret, struct err_text *err);
/* Unmap the ledger and close this process's descriptor. The service manager keeps its own copy of
 * the descriptor. NULL is allowed. */
void ledger_free(struct ledger *l);
/* Return the ledger's descriptor. The ledger still owns the descriptor. */
int ledger_fd(const struct ledger *l);

/* Append a record. *ret_live gets the address of the record's live part: n_live bytes, zeroed and
 * aligned. The address is valid until ledger_free. ret_live may be NULL when n_live is 0. Errors:
 * -errno, such as -ENOMEM. After an error, nothing was appended. */
int ledger_add(struct ledger *l, uint32_t type, const void *fixed, size_t n_fixed, size_t n_live,
	void **ret_live);

/* A record that ledger_next has read. */
struct ledger_record {
	uint32_t type;
	const void *fixed; /* fixed part of the record, aligned to 8 bytes */
	size_t n_fixed;
	void *live;
	size_t n_live;
};
/* Read the record at offset *at into *ret, and advance *at to the next record. Start with *at = 0.
 * Returns 1, or 0 after the last record. Errors: BPS_EPROTO: the ledger is damaged; err gets the
 * text. */
int ledger_next(
	const struct ledger *l, size_t *at, struct ledger_record *ret, struct err_text *err);
#endif
