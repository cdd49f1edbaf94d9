#ifndef BPS_SCHEDULER_BPSCTL_STEER_CLIENT_H
#define BPS_SCHEDULER_BPSCTL_STEER_CLIENT_H
/* The client for bpsctl's commands that change something: sends one order to the scheduler's
 * control port. The other end is bps-scheduler/steer.h, which describes how to add a verb. The
 * client's identity is the master key (on the scheduler's host), a key of `bpsctl key derive
 * ctl:NAME`, or a certificate of CN ctl:NAME. Without a key it works on loopback only. Blocking;
 * any thread. */
#include <jansson.h>
#include <stddef.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/daemon/auth.h"

#define STEER_KEY_FILE  "/etc/bps/cluster.key"
#define STEER_SCHEDULER "127.0.0.1:7300"

struct steer_conf {
	struct addr scheduler;
	struct auth_opts
		/* key_file "": the key from systemd's credentials, else STEER_KEY_FILE if it
		 * exists */
		auth;
	const char *as; /* NAME of ctl:NAME; "": the user's login name */
};

struct steer_arg {
	const char *name, *value; /* value "": same as absent */
};

/* Load the keys of conf. Returns 1, or 0 if there are none. Errors: as keyring_load; -EINVAL
 * certificates are used instead. */
int steer_keys(const struct steer_conf *conf, struct keyring *ret_ring, struct err_text *err);
/* Return the file that `key rotate` and others write. The string is borrowed. */
const char *steer_key_path(const struct steer_conf *conf);

/* Ask the scheduler for verb ("job kill") on target ("": nothing); answers within two seconds.
 * ret_text: what the scheduler did. ret_json: its document, a new reference, or NULL if there is
 * none; may be NULL itself. Errors: the scheduler's code, or BPS_ENOSCHED no scheduler answers,
 * BPS_ETIMEDOUT not in time, BPS_EPROTO an invalid answer, -errno of the key file; all with a
 * sentence. */
int steer_call(const struct steer_conf *conf, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	struct err_text *err);
#endif
