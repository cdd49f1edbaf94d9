#ifndef BPS_SCHEDULER_STATELOG_H
#define BPS_SCHEDULER_STATELOG_H
/* Stores the scheduler's durable state in one append-only file, `state.log`, in a folder of its
 * own.
 *
 *   file    8 bytes "BPSSTATE", u32 version, u32 0; then records
 *   record  u32 length of the body, u32 crc32c of the body, body (common/wire/codec.h,
 *           bps-scheduler/model/state.h)
 *
 * Numbers are little-endian. A record is valid when it is complete and synced. A process that died
 * while it wrote leaves an incomplete last record. The contents of that record were sent to no
 * member, so the record is removed. If a broken record is followed by valid records, the disk has
 * lost data that it had reported as synced. In that case the log cannot be opened: the broken
 * record is never skipped.
 *
 * A log of more than STATELOG_COMPACT_BYTES is replaced by a snapshot. The snapshot is written to a
 * new file, synced, and renamed over the log. The file `lock` in the same folder prevents a second
 * scheduler from using the folder. All functions block. The caller must always use the same
 * thread. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/state.h"
#include "common/base/error.h"

#define STATELOG_VERSION       2
#define STATELOG_COMPACT_BYTES ((uint64_t)4 << 20)

struct statelog;

/* Open the log in the folder `dir`. Creates the folder and the log if they do not exist. Passes
 * every record to the function `fn`, in order. If `fn` returns an error, the log counts as broken.
 * err: a sentence with the next step for the operator.
 * Errors: -EBUSY: another scheduler uses the folder; BPS_EVERSION: the log has a format that this
 * release does not read; -EBADMSG: the log is broken; -errno. */
int statelog_open(struct statelog **ret, const char *dir,
	int (*fn)(void *ctx, const struct state_record *rec, struct err_text *err), void *ctx,
	struct err_text *err);

/* Append a record. The record is durable when the function returns 0. After an error the log is
 * unchanged, and the caller may try again. Errors: -errno, -E2BIG. */
int statelog_append(struct statelog *l, const struct state_record *rec);

/* Return whether the log should be compacted: the log is larger than STATELOG_COMPACT_BYTES and
 * more than twice as large as after the last compaction. */
bool statelog_is_long(const struct statelog *l);

/* Replace the log by a new file with the record `rec`, which must contain the whole state; NULL: no
 * record. After an error the log has either its earlier records or only `rec`. Errors: -errno,
 * -E2BIG. */
int statelog_compact(struct statelog *l, const struct state_record *rec);

/* Return the size of the file in bytes. */
uint64_t statelog_bytes(const struct statelog *l);
/* Return the duration of the last sync in nanoseconds. */
uint64_t statelog_sync_ns(const struct statelog *l);

void statelog_close(struct statelog *l);
#endif
