#ifndef BPS_SCHEDULER_BPSCTL_STEER_CLIENT_H
#define BPS_SCHEDULER_BPSCTL_STEER_CLIENT_H
/* The client for those bpsctl commands that change something. The client sends one request (STEER)
 * to the scheduler's control port. bps-scheduler/steer.h describes how the scheduler handles
 * requests and how to add a verb. The client proves its identity with the master key (on the
 * scheduler's host), with a key that `bpsctl key derive ctl:NAME` printed, or with a certificate
 * whose CN is ctl:NAME. Without any of these the client works on loopback only. The functions
 * block; any thread may call them. */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/daemon/auth.h"

#define STEER_KEY_FILE  "/etc/bps/cluster.key"
#define STEER_SCHEDULER "127.0.0.1:7300"

struct steer_conf {
	struct addr scheduler;
	struct auth_opts
		/* auth.key_file "": use the key from systemd's credentials, or else STEER_KEY_FILE
		 * if this file exists */
		auth;
	const char *as; /* NAME in the identity ctl:NAME; "": the user's login name is used */
};

struct steer_arg {
	const char *name, *value; /* if `value` is empty, the argument is left out */
};

/* Load the keys that conf selects. Returns 1 if keys were loaded, or 0 if there are no keys.
 * Errors: those of keyring_load; -EINVAL if conf selects certificates instead of keys. */
int steer_load_keyring(
	const struct steer_conf *conf, struct keyring *ret_ring, struct err_text *err);
/* Return the path of the key file, which `key rotate` and other commands write. The caller must not
 * free the string. */
const char *steer_key_path(const struct steer_conf *conf);

/* Send a request to the scheduler, and wait at most two seconds for the answer. verb: such as "job
 * kill". target: the object that the verb changes; "": none. ret_text: what the scheduler did.
 * *ret_json: a new reference to the document in the scheduler's answer, or NULL if the answer has
 * no document. *ret_is_answer: whether the scheduler has answered; written also on an error. The
 * parameters ret_json and ret_is_answer may be NULL. Errors: the code in the scheduler's answer, of
 * which -EINVAL means that an argument is wrong; -EMSGSIZE: an argument is too long; BPS_EAUTH or
 * -EINVAL without an answer: the keys or certificates are wrong; BPS_ENOSCHED: no scheduler
 * answers; BPS_ETIMEDOUT: the answer came too late; BPS_EPROTO: the answer is invalid; -errno: the
 * key file cannot be read. On each error, err explains the error. */
int steer_call(const struct steer_conf *conf, const char *verb, const char *target,
	const struct steer_arg *args, size_t n_args, struct err_text *ret_text, json_t **ret_json,
	bool *ret_is_answer, struct err_text *err);
#endif
