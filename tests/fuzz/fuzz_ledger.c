/* Fuzz the reader of a ledger (bps-agent/handover/ledger.h). The input is the memory that an agent
 * gets after a restart. Whatever the memory contains, no record may extend beyond the end of the
 * memory. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bps-agent/handover/ledger.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Read every byte of the record, so that a sanitizer detects a record that extends beyond the end
 * of the ledger's memory. */
static void look_at(const struct ledger_record *r)
{
	volatile unsigned char sum = 0;

	for (size_t i = 0; i < r->n_fixed; i++)
		sum ^= ((const unsigned char *)r->fixed)[i];
	for (size_t i = 0; i < r->n_live; i++)
		sum ^= ((const unsigned char *)r->live)[i];
	(void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct ledger_record r;
	struct ledger *l;
	struct err_text err;
	size_t at = 0, was = 0;

	if (fd < 0)
		return 0;
	if (write(fd, data, n_bytes) != (ssize_t)n_bytes || ledger_open(dup(fd), &l, &err) < 0) {
		close(fd);
		return 0;
	}
	while (ledger_next(l, &at, &r, &err) > 0) {
		if (at <= was || at > n_bytes)
			abort();
		was = at;
		look_at(&r);
	}
	ledger_free(l);
	close(fd);
	return 0;
}
