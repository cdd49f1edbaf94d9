#ifndef BPS_TOOLS_NODELIST_H
#define BPS_TOOLS_NODELIST_H
/* Lists of hosts in the form of Slurm: names with commas between them, and brackets for numbers, as
 * in "login,n[001-003,007],rack[1-2]-node[3,5]". A name with several brackets counts like a number,
 * the last bracket fastest. Numbers have as many digits as the first number of their range. The
 * functions keep no state. */
#include <stddef.h>

#define NODELIST_HOSTS_MAX 65536

/* Write the n-th name of the list, counted from 0. Writes ret only on success.
 * Errors: -ENOENT: the list has n names or fewer; -EINVAL: the list is malformed, or names more
 * than NODELIST_HOSTS_MAX hosts; -ENAMETOOLONG: the name does not fit. */
int nodelist_get_name(const char *list, unsigned long n, char *ret, size_t room);
/* Return the number of names. Errors: -EINVAL. */
long nodelist_count_names(const char *list);
#endif
