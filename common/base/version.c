#include "common/base/version.h"

#ifndef BPS_COMMIT /* the Makefile defines BPS_COMMIT for this file only */
#define BPS_COMMIT "unknown"
#endif

const char *bps_commit(void)
{
	return BPS_COMMIT;
}
