#ifndef BPS_COMMON_BASE_VERSION_H
#define BPS_COMMON_BASE_VERSION_H
/* Release and commit of this build, for people and metrics, never for decisions (CTL_PROTO and the
 * other protocol numbers are for these). BPS_VERSION comes from the Makefile. */

/* Return twelve hexadecimal digits, or "unknown" for a build outside a repository. */
const char *bps_commit(void);
#endif
