#ifndef BPS_SCHEDULER_STATELOG_H
#define BPS_SCHEDULER_STATELOG_H
/* The scheduler's durable state: one append-only file `state.log` in a folder of its own.
 *
 *   file    8 bytes "BPSSTATE", u32 version, u32 0; then records
 *   record  u32 length of the body, u32 crc32c of the body, body (common/wire/codec.h,
 *           bps-scheduler/model/state.h)
 *
 * Numbers are little-endian. A record counts once it is whole and synced. A writer that died
 * leaves a torn last record: it was sent to no member and is cut off. A record that is
 * broken with others behind it means that the disk lost what it had promised: that is an error,
 * never skipped.
 *
 * A log of more than STATELOG_COMPACT_BYTES is replaced by a snapshot: written beside it,
 * synced, renamed over it. `lock` in the same folder keeps a second scheduler out. Blocking; one
 * thread. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/state.h"
#include "common/base/error.h"

#define STATELOG_VERSION       1
#define STATELOG_COMPACT_BYTES ((uint64_t)4 << 20)

struct statelog;

/* Open (or begin) the log in dir, which is made when it is missing, and hand every record to fn
 * in their order; an error of fn ends the opening with it. Errors: -EBUSY another scheduler has
 * it; BPS_EVERSION a newer release wrote it; -EBADMSG it is broken; -errno. All with a sentence
 * that says what to do. */
int statelog_open(struct statelog **ret, const char *dir,
	int (*fn)(void *ctx, const struct state_record *rec, struct err_text *err), void *ctx,
	struct err_text *err);

/* Durable when this returns 0. After an error the log is as it was; try again.
 * Errors: -errno, -E2BIG. */
int statelog_append(struct statelog *l, const struct state_record *rec);

/* True when the log should be compacted: it is large, and at least twice what it was after the
 * last time. */
bool statelog_is_long(const struct statelog *l);

/* Replace all records by this one. After an error the log is as it was. Errors: -errno, -E2BIG. */
int statelog_compact(struct statelog *l, const struct state_record *rec);

/* Size of the file in bytes. */
uint64_t statelog_bytes(const struct statelog *l);
/* Duration of the last sync. */
uint64_t statelog_sync_ns(const struct statelog *l);

void statelog_close(struct statelog *l);
#endif
