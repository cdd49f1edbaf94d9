#ifndef BPS_COMMON_DAEMON_SETTINGS_H
#define BPS_COMMON_DAEMON_SETTINGS_H
/* Settings of a program, from one table. A row has a setting's name, type, default, range and help,
 * and the place of its value in the program's own struct.
 *
 * The first source that has a value wins: the flag (`--name value` or `--name=value`; of several
 * the last), the environment (BPS_NAME, upper case, '-' becomes '_'), the INI file, the default.
 * The INI file is `name = value` (`_` may stand for '-'), followed by the files in FILE.d/ whose
 * names end in .conf, in the order of their names; the last value wins. A file may have one
 * section, with the program's name ([server] or [bps-server]); it has no effect. All values are
 * checked, the overridden ones too. An error text for a bad value or an unknown name gives its
 * source, the allowed values, and the nearest valid name.
 *
 * Five flags are built in: --help, --version, --check-config, --print-config, and --config FILE
 * (BPS_CONFIG; else the table's file, which may be missing). A sixth, --failpoints, exists where
 * the table enables it. --print-config writes an INI file with the source of each value after ';'.
 *
 * Files can be read again while the program runs; flags and environment stay as at its start. Rows
 * with is_live then take their new value, the others need a restart:
 *
 *   settings_load ──> settings_reread ──> settings_adopt, any number of times ──> settings_free
 *                          └─refused: nothing has changed
 *
 *   static const struct setting rows[] = {
 *           {"listen", SET_ADDR, SETTING_AT(struct opts, listen), .def = "127.0.0.1:9500",
 *                   .help = "where members connect"},
 *           {"dead-after", SET_DURATION, SETTING_AT(struct opts, dead_after_us), .def = "3s",
 *                   .min = 100 * SETTING_MS, .max = 60 * SETTING_S, .is_live = true, .help =
 * "..."},
 *   };
 *
 * Thread: the main thread; call settings_load before any other thread exists. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/addr.h"
#include "common/base/error.h"

enum setting_type {
	SET_BOOL,     /* bool: yes|no|true|false|on|off|1|0; a bare flag is yes */
	SET_INT,      /* int64_t */
	SET_SIZE,     /* uint64_t bytes: a number with B, KiB, MiB, GiB or TiB; none means bytes */
	SET_DURATION, /* uint64_t microseconds: a number with us, ms, s, min or h; 0 needs none */
	SET_STRING,   /* const char *, owned by struct settings; "" when unset */
	SET_FAULTS,   /* same as SET_STRING: text for failpoint_set (common/base/failpoint.h) */
	SET_ENUM,     /* unsigned: index into words */
	SET_ADDR,     /* struct addr; host "" when unset (only if that is the default) */
};

#define SETTING_US  ((int64_t)1)
#define SETTING_MS  ((int64_t)1000)
#define SETTING_S   ((int64_t)1000000)
#define SETTING_KIB ((int64_t)1 << 10)
#define SETTING_MIB ((int64_t)1 << 20)
#define SETTING_GIB ((int64_t)1 << 30)

struct setting {
	const char *name; /* lower case, words joined by '-' */
	enum setting_type type;
	size_t offset, bytes; /* by SETTING_AT */
	const char *def;      /* default, as text */
	/* Limits of the number, bytes or microseconds, or of a string's length; equal: only the
	 * type's */
	int64_t min, max;
	const char *const *words; /* SET_ENUM: NULL-terminated */
	uint16_t port;            /* SET_ADDR: port when the address has none; 0: required */
	bool is_live;             /* a new value can be applied while the program runs */
	const char *help;         /* one line, lower case, no full stop */
};
#define SETTING_AT(type, field) offsetof(type, field), sizeof(((type *)0)->field)

enum settings_args {
	SETTINGS_NO_ARGS, /* an argument that is not a flag is refused */
	/* The first argument that is not a flag ends the flags (a command line) */
	SETTINGS_ARGS_LAST,
	SETTINGS_ARGS_MIXED, /* flags before, between and after the arguments */
};

struct settings_spec {
	const char *program;     /* "bps-server" */
	const char *usage;       /* text after "[flags]" in the help, or NULL */
	const char *about;       /* one line, or NULL */
	const char *config_path; /* default INI file, or NULL */
	enum settings_args args;
	const struct setting *rows;
	size_t n_rows;
	unsigned
		/* Enum failpoint_owner: owners that --failpoints lists; 0: no such flag */
		failpoints;
	/* Check values against each other, each of which is valid alone; NULL: no check. values: a
	 * struct that the rows point into. */
	int (*check)(const void *values, struct err_text *err);
};

enum settings_verdict {
	SETTINGS_RUN,    /* all values are set */
	SETTINGS_DONE,   /* the answer was written to stdout; exit with 0 */
	SETTINGS_USAGE,  /* the command line is invalid; exit with 64 (EX_USAGE) */
	SETTINGS_CONFIG, /* file or environment is invalid; exit with 78 (EX_CONFIG) */
};

struct settings;

/* Read everything into values (the struct that the rows point into).
 * ret_settings: holds the strings that values points to, and the arguments. Free it after the last
 * use of both; set only with SETTINGS_RUN. argv must live as long. err: the sentence when the
 * verdict is USAGE or CONFIG. */
enum settings_verdict settings_load(struct settings **ret_settings,
	const struct settings_spec *spec, int argc, char *const *argv, void *values,
	struct err_text *err);

/* Read the files again and check all values, alone and together with those that will not change.
 * ret_fresh: for settings_values and settings_adopt, which frees it, or settings_free.
 * Errors: negative, with the sentence that settings_load would return; nothing has changed. */
int settings_reread(struct settings *s, struct settings **ret_fresh, struct err_text *err);

/* Return the struct that was given to settings_load. For fresh settings: the values that
 * settings_adopt will put in force; valid until then. */
const void *settings_values(const struct settings *s);

/* Copy the new values of live rows to the struct that was given to settings_load. Logs "NAME: OLD
 * -> NEW" for each, and warns of each other row that has a new value. Old strings stay valid until
 * settings_free(s). Frees fresh. Returns how many values have changed. */
unsigned settings_adopt(struct settings *s, struct settings *fresh);

/* Print all values with their sources, like --print-config, and the values that wait for a
 * restart. */
void settings_print(const struct settings *s, FILE *out);

/* Return the exit status of main for a verdict other than RUN; logs the sentence of a refusal. */
int settings_exit_status(enum settings_verdict verdict, const struct err_text *err);

/* Return the arguments that are not flags, NULL-terminated; they live as long as s and argv. */
char *const *settings_args(const struct settings *s, size_t *ret_count);

/* Return the source of a value: "default", "flag --x", "environment BPS_X",
 * "/etc/bps/server.conf:12". */
const char *settings_source(const struct settings *s, const char *name);

void settings_free(struct settings *s);
#endif
