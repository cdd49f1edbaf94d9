#ifndef BPS_COMMON_BASE_LOG_IMPL_H
#define BPS_COMMON_BASE_LOG_IMPL_H
/* Internal declarations of common/base/log.h. */
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "common/base/log.h"

/* Return whether stderr is connected to the journal. In this case JOURNAL_STREAM names the device
 * and inode of stderr (systemd.exec(5)). st: status of stderr. */
bool log_is_journal(const struct stat *st);
#define LOG_DATAGRAM_BYTES 8192
/* Write the datagram for an escaped line into buf. Returns its length. */
size_t log_format_datagram(char buf[static LOG_DATAGRAM_BYTES], int priority, enum log_id id,
	const char *text, size_t n);
/* Send an escaped line to the journal. Returns false when the journal cannot be reached. Any thread
 * may call this function. */
bool log_to_journal(int priority, enum log_id id, const char *text, size_t n);
#endif
