#ifndef BPS_COMMON_BASE_LOG_IMPL_H
#define BPS_COMMON_BASE_LOG_IMPL_H
/* Inside of common/base/log.h. */
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "common/base/log.h"

/* Is stderr, whose status st is, the journal's? By JOURNAL_STREAM (systemd.exec(5)). */
bool log_is_journal(const struct stat *st);
#define LOG_DATAGRAM_BYTES 8192
/* The datagram for a clean line; returns its length. */
size_t log_datagram(char buf[static LOG_DATAGRAM_BYTES], int priority, enum log_id id,
	const char *text, size_t n);
/* Send a clean line to the journal; false: it cannot be reached. Any thread. */
bool log_to_journal(int priority, enum log_id id, const char *text, size_t n);
#endif
