#ifndef BPS_SCHEDULER_BPSCTL_STEER_CLIENT_H
#define BPS_SCHEDULER_BPSCTL_STEER_CLIENT_H
/* The hand of bpsctl: asks the scheduler's control port to do one thing (bps-scheduler/steer.h has
 * the other end, and how to add a verb). With the master key, on the scheduler's host, or a key of
 * `bpsctl key derive ctl:NAME`, or a certificate of CN ctl:NAME; without a key on loopback only.
 * Blocking; any thread. */
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
		auth;   /* key_file "": of systemd's credentials, else STEER_KEY_FILE where it is */
	const char *as; /* NAME of ctl:NAME; "": the user's login name */
};

struct steer_arg {
	const char *name, *value; /* value "": as if it were not there */
};

/* The keys of conf. Returns 1, 0 when there are none; errors as keyring_load, -EINVAL certificates
 * are used instead. */
int steer_keys(const struct steer_conf *conf, struct keyring *ret_ring, struct err_text *err);
/* The file that `key rotate` and others write. Lent. */
const char *steer_key_path(const struct steer_conf *conf);

/* Ask for verb ("job kill") on target ("": nothing); answers within two seconds.
 * ret_text: what the scheduler says it has done. ret_json: its document, a new reference or NULL
 * when there is none; may be NULL itself.
 * Errors: the scheduler's code, or BPS_ENOSCHED nobody answers, BPS_ETIMEDOUT not in time,
 * BPS_EPROTO not understood, -errno of the key file; all with a sentence. */
int steer_call(const struct steer_conf *conf, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	struct err_text *err);
#endif
