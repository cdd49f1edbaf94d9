#ifndef BPS_COMMON_DAEMON_SETTINGS_H
#define BPS_COMMON_DAEMON_SETTINGS_H
/* Settings of a program, from one table. A row has a setting's name, type, default, range and help
 * text, and the offset of its value in the program's own struct.
 *
 * A value comes from the first of these sources that sets it: the flag (`--name value` or
 * `--name=value`), the environment (BPS_NAME, upper case, '-' becomes '_'), the INI files, the
 * default. If a flag is repeated, the last value counts. An INI file has lines `name = value` ('_'
 * may replace '-'). After an INI file FILE, the files in FILE.d/ whose names end in .conf are read
 * in the order of their names; the last value counts. A file may have a section with the program's
 * name ([server] or [bps-server]), which has no effect. All values are checked, including values
 * that another source overrides. The error text for a bad value or an unknown name contains the
 * source, the allowed values, and the nearest valid name.
 *
 * Five flags are built in: --help, --version, --check-config, --print-config and --config FILE.
 * Without --config, BPS_CONFIG names the file. Without BPS_CONFIG, the table names the file, which
 * need not exist. A table can enable a sixth flag, --failpoints. --print-config writes an INI file
 * with the source of each value after ';'.
 *
 * The files can be read again while the program runs. Flags and environment stay as they were when
 * the program started. When the files are read again, rows with is_live take their new values.
 * Other rows keep their values until a restart:
 *
 *   settings_load ──> (settings_reread ──> settings_adopt), any number of times ──> settings_free
 *                           └─refused: nothing has changed
 *
 *   static const struct setting rows[] = {
 *           {"listen", SET_ADDR, SETTING_AT(struct opts, listen), .def = "127.0.0.1:9500",
 *                   .help = "where members connect"},
 *           {"dead-after", SET_DURATION, SETTING_AT(struct opts, dead_after_us), .def = "3s",
 *                   .min = 100 * SETTING_MS, .max = 60 * SETTING_S, .is_live = true,
 *                   .help = "..."},
 *   };
 *
 * Thread: the main thread; call settings_load before any other thread exists. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/addr.h"
#include "common/base/error.h"

/* Type of a setting. Each comment begins with the C type of the value. */
enum setting_type {
	SET_BOOL, /* bool: yes|no|true|false|on|off|1|0; a flag without a value means yes */
	SET_INT,  /* int64_t */
	/* uint64_t bytes: a number with the unit B, KiB, MiB, GiB or TiB. A number without a unit
	 * means bytes */
	SET_SIZE,
	/* uint64_t microseconds: a number with the unit us, ms, s, min or h. Only the number 0
	 * needs no unit */
	SET_DURATION,
	SET_STRING, /* const char *, owned by struct settings; "" when unset */
	SET_FAULTS, /* like SET_STRING; syntax: see failpoint_set (common/base/failpoint.h) */
	SET_ENUM,   /* `unsigned`: index of the word in setting.words */
	/* struct addr. The setting may be empty only if "" is the default. If the setting is empty,
	 * the field `host` is "" */
	SET_ADDR,
};

#define SETTING_US  ((int64_t)1)
#define SETTING_MS  ((int64_t)1000)
#define SETTING_S   ((int64_t)1000000)
#define SETTING_KIB ((int64_t)1 << 10)
#define SETTING_MIB ((int64_t)1 << 20)
#define SETTING_GIB ((int64_t)1 << 30)

struct setting {
	const char *name; /* name of the setting: lower case, words joined by '-' */
	enum setting_type type;
	size_t offset, bytes; /* place and size of the value in the program's struct (SETTING_AT) */
	const char *def;      /* default, as text */
	/* Smallest and largest allowed number, size in bytes, duration in microseconds, or length
	 * of a string. If min == max, only the type limits the value */
	int64_t min, max;
	const char *const *words; /* SET_ENUM: the allowed words, NULL-terminated */
	/* SET_ADDR: default port for an address without a port; 0: the address must have a port */
	uint16_t port;
	bool is_live;     /* a new value can be applied while the program runs */
	const char *help; /* help text: one line, lower case, no full stop */
};
#define SETTING_AT(type, field) offsetof(type, field), sizeof(((type *)0)->field)

enum settings_args {
	SETTINGS_NO_ARGS, /* an argument that is not a flag is refused */
	/* The flags end at the first word that is not a flag. This word and all later words are
	 * arguments, such as a command to run */
	SETTINGS_ARGS_LAST,
	SETTINGS_ARGS_MIXED, /* flags may stand before, between and after the arguments */
};

struct settings_spec {
	const char *program;     /* name of the program, such as "bps-server" */
	const char *usage;       /* text after "[flags]" in the help, or NULL */
	const char *about;       /* one line about the program for the help, or NULL */
	const char *config_path; /* default INI file, or NULL */
	enum settings_args args;
	const struct setting *rows;
	size_t n_rows;
	/* Bits of enum failpoint_owner. The flag --failpoints lists the failpoints of these owners.
	 * 0: the program does not have this flag */
	unsigned failpoints;
	/* Check whether the values are consistent with each other. Each single value has already
	 * been checked. values: the struct with the values of the rows. If check is NULL, all
	 * combinations of values are allowed. */
	int (*check)(const void *values, struct err_text *err);
};

enum settings_verdict {
	SETTINGS_RUN,    /* all values are valid; run the program */
	SETTINGS_DONE,   /* a flag such as --help has done its work; exit with 0 */
	SETTINGS_USAGE,  /* the command line is invalid; exit with 64 (EX_USAGE) */
	SETTINGS_CONFIG, /* a file or the environment is invalid; exit with 78 (EX_CONFIG) */
};

struct settings;

/* Read all sources, and write the values of all rows into the struct `values`. ret_settings: set
 * only when the verdict is SETTINGS_RUN. *ret_settings owns the strings in `values` and the list of
 * arguments, so free *ret_settings only after the last use of the strings and the list. argv: must
 * live as long as *ret_settings. err: gets the text when the verdict is SETTINGS_USAGE or
 * SETTINGS_CONFIG. */
enum settings_verdict settings_load(struct settings **ret_settings,
	const struct settings_spec *spec, int argc, char *const *argv, void *values,
	struct err_text *err);

/* Read the files again and check all values. Also check that the values after the reload would be
 * consistent: the new values of rows with is_live, and the present values of all other rows.
 * *ret_fresh contains the new values. Pass *ret_fresh to settings_adopt, which takes ownership, or
 * free *ret_fresh with settings_free.
 * Errors: a negative code; err gets a text, as in settings_load. The old values stay. */
int settings_reread(struct settings *s, struct settings **ret_fresh, struct err_text *err);

/* Return the struct that was passed to settings_load. If s comes from settings_reread, return a
 * struct with the values that settings_adopt will put in force. That struct is valid until
 * settings_adopt is called. */
const void *settings_values(const struct settings *s);

/* Copy the new values of rows with is_live to the struct that was passed to settings_load. Logs
 * "NAME: OLD -> NEW" for each changed value. Logs a warning for each row without is_live whose new
 * value differs. Old strings stay valid until settings_free(s). The caller must no longer use
 * `fresh`. Returns how many values have changed. */
unsigned settings_adopt(struct settings *s, struct settings *fresh);

/* Print all values with their sources, as --print-config does. Also print the values that a restart
 * will put in force. */
void settings_print(const struct settings *s, FILE *out);

/* Width of a terminal, for --help. */
#define SETTINGS_HELP_COLUMNS 80
/* Print `text` after `head`, in lines of at most `columns` columns. Further lines begin in the
 * column in which `text` begins. Lines are broken at blanks. If a line has no blank in its second
 * half, it is broken inside a word. `head` must be shorter than `columns`. */
void settings_print_wrapped(FILE *out, const char *head, const char *text, size_t columns);

/* Return the exit status of main for a verdict other than SETTINGS_RUN. If the verdict is an error,
 * log err. */
int settings_exit_status(enum settings_verdict verdict, const struct err_text *err);

/* Return the arguments that are not flags, as a NULL-terminated list that lives as long as s and
 * argv. */
char *const *settings_args(const struct settings *s, size_t *ret_count);

/* Return the source of a value: "default", "flag --x", "environment BPS_X",
 * "/etc/bps/server.conf:12". */
const char *settings_source(const struct settings *s, const char *name);

void settings_free(struct settings *s);
#endif
