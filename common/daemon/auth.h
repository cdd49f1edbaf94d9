#ifndef BPS_COMMON_DAEMON_AUTH_H
#define BPS_COMMON_DAEMON_AUTH_H
/* Authentication settings for both ends of the control channel: a cluster key (`auth = psk`) or
 * certificates (`auth = cert`). auth_load reads the credentials that the settings name
 * (common/control/tls.h).
 *
 * The functions keep no state and may be called on any thread. */
#include "common/base/error.h"
#include "common/control/tls.h"
#include "common/daemon/settings.h"

enum auth_kind { AUTH_PSK, AUTH_CERT };
extern const char *const auth_words[];

struct auth_opts {
	unsigned kind; /* value of enum auth_kind */
	const char *key_file;
	const char *cert, *key, *ca; /* paths of PEM files */
};

/* Rows of a settings table. S is the program's struct of options. m is the member of S that has
 * the type struct auth_opts. */
#define AUTH_SETTINGS(S, m, key_file_help)                                                         \
	{"auth", SET_ENUM, SETTING_AT(S, m.kind), .def = "psk", .words = auth_words,               \
		.help = "how daemons authenticate: psk (cluster key) or cert (certificates)"},     \
		{"key-file", SET_STRING, SETTING_AT(S, m.key_file), .def = "", .is_live = true,    \
			.help = key_file_help},                                                    \
		{"tls-cert", SET_STRING, SETTING_AT(S, m.cert), .def = "",                         \
			.help = "certificate (PEM, with its chain) whose CN is ROLE:NAME"},        \
		{"tls-key", SET_STRING, SETTING_AT(S, m.key), .def = "",                           \
			.help = "private key of tls-cert (PEM)"},                                  \
	{                                                                                          \
		"tls-ca", SET_STRING, SETTING_AT(S, m.ca),                                         \
			.def = "",                                                                 \
			.help = "authorities that sign certificates, and their revocation lists "  \
				"(PEM)"                                                            \
	}

/* Read the key or the certificates that the settings name. Returns 1 when the credentials were
 * read. Returns 0 when the settings name no credentials; then only loopback addresses are allowed.
 * The strings in *ret belong to o.
 * Errors: -errno or -EINVAL; err gets the text. */
int auth_load(struct tls_conf *ret, const struct auth_opts *o, struct err_text *err);

/* Return whether a and b have the same credentials. */
bool auth_is_equal(const struct tls_conf *a, const struct tls_conf *b);
#endif
