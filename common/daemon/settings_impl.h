#ifndef BPS_COMMON_DAEMON_SETTINGS_IMPL_H
#define BPS_COMMON_DAEMON_SETTINGS_IMPL_H
/* Internal declarations for the files that implement common/daemon/settings.h:
 *
 *   settings.c       sources and their order, and reading the sources again
 *   settings_type.c  conversion of text to a value of a type, and back
 *   settings_file.c  INI files
 *   settings_help.c  names, and the output to stdout */
#include <stdio.h>

#include "common/base/nearest_name.h"
#include "common/daemon/settings.h"

#define SETTINGS_NAME_BYTES   64
#define SETTINGS_SOURCE_BYTES 4200
#define SETTINGS_HINT_BYTES   NEAREST_HINT_BYTES

struct settings_entry {
	char *text;   /* the value as text, as written in its source */
	char *source; /* source of the value; NULL until a source sets the value */
	/* Value that a restart will put in force, with its source; NULL: the present value stays */
	char *waiting;
	const char *flag; /* value of the flag, in argv; NULL: no flag */
	unsigned file;    /* number of the last file that set the value; the first file is 1 */
	int line;         /* number of the line that set the value */
};

struct settings {
	const struct settings_spec *spec;
	void *values; /* the program's struct with the values of the settings */
	/* Values as they were read from the sources. The program may change `values`, but it does
	 * not change `loaded` */
	void *loaded;
	/* Set by settings_reread: the values that settings_adopt will put in force */
	void *effective;
	struct settings_entry *entries; /* one entry per row of the settings table */
	/* List of the settings from earlier rereads. They are kept because the program may still
	 * point to their strings. */
	struct settings *older;
	int argc;
	char *const *argv;
	char **args;
	size_t n_args;
	const char *config_path;
	unsigned n_files; /* number of files read so far */
	bool is_config_required, wants_help, wants_version, wants_check, wants_print;
	bool wants_failpoints;
};

/* ---- settings.c ---- */
/* Parse `text` and set the value of a row. source: name of the source of `text`. Error texts start
 * with this name. */
int settings_apply_text(struct settings *s, const struct setting *row, const char *text,
	const char *source, struct err_text *err);
struct settings_entry *settings_entry(const struct settings *s, const struct setting *row);

/* ---- settings_type.c ---- */
/* Parse the string `text` and write the value to `at`. For a setting of a string type, write the
 * pointer `text`, not a copy of the string.
 * Errors: -EINVAL, -ERANGE. On an error, write the error text to err. */
int setting_parse(const struct setting *row, void *at, char *text, struct err_text *err);
/* Return whether the values at a and b are equal. */
bool setting_is_same(const struct setting *row, const void *a, const void *b);
size_t setting_bytes(enum setting_type type);
/* Return the text, such as "=SIZE", that the help prints after the name of a flag. For an enum, the
 * text is a list of its words, written to buf. */
const char *setting_value_form(const struct setting *row, char *buf, size_t n_buf);
/* Write the limits of a row, such as "1 to 64", into buf. Returns false when the row has no
 * limits. */
bool setting_format_range(const struct setting *row, char *buf, size_t n_buf);

/* ---- settings_file.c ---- */
/* Read the INI file FILE and the .conf files in FILE.d. FILE is the value of --config or of
 * BPS_CONFIG, or the default. */
int settings_take_files(struct settings *s, struct err_text *err);
/* Read an open INI file into s->loaded. The file stays open. path: name of the file, for error
 * texts. Errors: -EIO, -EINVAL, and the errors of settings_apply_text. The text in err contains the
 * name. */
int settings_take_stream(struct settings *s, FILE *file, const char *path, struct err_text *err);

/* ---- settings_help.c ---- */
extern const char *const settings_builtins[];
#define SETTINGS_N_BUILTINS 6
bool settings_same_name(const char *written, size_t n_written, const char *name);
/* Find a row by its name. Returns NULL when no row has this name. */
const struct setting *settings_find(const struct settings *s, const char *name, size_t n);

/* Return a hint with the nearest valid name for the unknown name `wrong`. prefix: "" for a setting
 * in a file, "--" for a flag. */
const char *settings_name_hint(const struct settings *s, const char *wrong, const char *prefix,
	char buf[static SETTINGS_HINT_BYTES]);
void settings_print_help(const struct settings *s);
#endif
