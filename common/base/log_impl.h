#ifndef BPS_COMMON_BASE_LOG_IMPL_H
#define BPS_COMMON_BASE_LOG_IMPL_H
/* Internal declarations of common/base/log.h. */
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "common/base/log.h"

/* Return whether stderr, whose status is st, is the journal's, by JOURNAL_STREAM
 * (systemd.exec(5)). */
bool log_is_journal(const struct stat *st);
#define LOG_DATAGRAM_BYTES 8192
/* Build the datagram for an escaped line; returns its length. */
size_t log_datagram(char buf[static LOG_DATAGRAM_BYTES], int priority, enum log_id id,
	const char *text, size_t n);
/* Send an escaped line to the journal; false when the journal cannot be reached. Any thread. */
bool log_to_journal(int priority, enum log_id id, const char *text, size_t n);
#endif
