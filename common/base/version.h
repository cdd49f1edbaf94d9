#ifndef BPS_COMMON_BASE_VERSION_H
#define BPS_COMMON_BASE_VERSION_H
/* Which release this is, and of which commit it was built; for people and for metrics, never for
 * decisions (those are made by CTL_PROTO and its like). BPS_VERSION comes from the Makefile. */

/* Twelve hexadecimal digits, or "unknown" where it was not built from a repository. */
const char *bps_commit(void);
#endif
