#ifndef BPS_COMMON_BASE_VERSION_H
#define BPS_COMMON_BASE_VERSION_H
/* Release and commit of this build, for people and metrics. Code must not depend on these texts.
 * Code that depends on a version uses protocol numbers like CTL_PROTO. The Makefile defines
 * BPS_VERSION. */

/* Return the commit as twelve hexadecimal digits; "unknown" for a build outside a repository. */
const char *bps_commit(void);
#endif
