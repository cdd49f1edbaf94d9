#include "common/base/version.h"

#ifndef BPS_COMMIT /* the Makefile's, for this file alone */
#define BPS_COMMIT "unknown"
#endif

const char *bps_commit(void)
{
	return BPS_COMMIT;
}
