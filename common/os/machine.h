#ifndef BPS_COMMON_OS_MACHINE_H
#define BPS_COMMON_OS_MACHINE_H
/* The identity of this machine: its host name, and the id of its present boot. The kernel draws the
 * boot id at random at each boot. Containers on one kernel share the boot id, unless their manager
 * mounts another one. Any thread may call the functions. */
#include <stdbool.h>
#include <stdint.h>

#define MACHINE_BOOT_ID_BYTES 16
/* Size of a host name without its domain, and of a domain, with the terminating zero byte. */
#define MACHINE_NAME_BYTES 64

/* Read the id of the machine's present boot. Returns false if the kernel does not report the id, or
 * if the process may not read it. Writes ret only on success. */
bool machine_boot_id(uint8_t ret[MACHINE_BOOT_ID_BYTES]);
/* Convert an id from the form that the kernel writes: 32 hex digits with hyphens between them.
 * Returns false if `text` has another form. Writes ret only on success. */
bool machine_boot_id_parse(const char *text, uint8_t ret[MACHINE_BOOT_ID_BYTES]);

/* Get the parts of this machine's host name. If the host name cannot be read, the host is
 * "localhost". */
void machine_host_name(char ret_host[MACHINE_NAME_BYTES], char ret_domain[MACHINE_NAME_BYTES]);
/* Split a host name at its first dot: "node.rack1.example" has the host "node" and the domain
 * "rack1.example". The domain of a name without a dot is "". Longer parts are cut. */
void machine_host_name_split(
	const char *name, char ret_host[MACHINE_NAME_BYTES], char ret_domain[MACHINE_NAME_BYTES]);
#endif
