#ifndef BPS_COMMON_DAEMON_SETTINGS_IMPL_H
#define BPS_COMMON_DAEMON_SETTINGS_IMPL_H
/* Inside of common/daemon/settings.h: what its files share.
 *
 *   settings.c       sources and their order, reading again
 *   settings_type.c  types: text to value and back
 *   settings_file.c  INI files
 *   settings_help.c  names, and what goes to stdout */
#include <stdio.h>

#include "common/base/nearest_name.h"
#include "common/daemon/settings.h"

#define SETTINGS_NAME_BYTES   64
#define SETTINGS_SOURCE_BYTES 4200
#define SETTINGS_HINT_BYTES   NEAREST_HINT_BYTES

struct settings_entry {
	char *text;       /* as it was written */
	char *source;     /* NULL until a source named it */
	char *waiting;    /* what it would be after a restart, NULL: the same */
	const char *flag; /* argv's */
	unsigned file;    /* the last one that had it, counted from 1 */
	int line;         /* in that */
};

struct settings {
	const struct settings_spec *spec;
	void *values;    /* the program's */
	void *loaded;    /* as they were read: the program may put others into its own */
	void *effective; /* of a fresh one: what will be in force */
	struct settings_entry *entries; /* one per row */
	struct settings *older;         /* has strings that the program may still point to */
	int argc;
	char *const *argv;
	char **args;
	size_t n_args;
	const char *config_path;
	unsigned n_files; /* read so far */
	bool is_config_required, wants_help, wants_version, wants_check, wants_print;
	bool wants_failpoints;
};

/* ---- settings.c ---- */
/* Give row the text from source; the sentence of a refusal starts with the source. */
int settings_take(struct settings *s, const struct setting *row, const char *text,
	const char *source, struct err_text *err);
struct settings_entry *settings_entry(const struct settings *s, const struct setting *row);

/* ---- settings_type.c ---- */
/* Parse text into at. A string is not copied: at points to text. Errors: -EINVAL, -ERANGE, with a
 * sentence. */
int setting_parse(const struct setting *row, void *at, char *text, struct err_text *err);
/* Are the values at a and b the same? */
bool setting_is_same(const struct setting *row, const void *a, const void *b);
size_t setting_bytes(enum setting_type type);
/* What follows the name in the help: "=SIZE"; an enum's words, in buf. */
const char *setting_form(const struct setting *row, char *buf, size_t n_buf);
/* "1 to 64" into buf; false: the row has no limits, or none to tell. */
bool setting_range(const struct setting *row, char *buf, size_t n_buf);

/* ---- settings_file.c ---- */
/* Read the file of --config, or the default one, and its drop-ins. */
int settings_take_files(struct settings *s, struct err_text *err);
/* Take what the file holds into s->loaded; it stays open. path: for messages.
 * Errors: -EIO, and those of settings_take, with a sentence that starts with path. */
int settings_take_stream(struct settings *s, FILE *file, const char *path, struct err_text *err);

/* ---- settings_help.c ---- */
extern const char *const settings_builtins[];
#define SETTINGS_N_BUILTINS 6
bool settings_same_name(const char *written, size_t n_written, const char *name);
/* NULL: there is none. */
const struct setting *settings_find(const struct settings *s, const char *name, size_t n);

/* nearest_name_hint for a wrong name of a setting, or of a flag when prefix is not "". */
const char *settings_name_hint(const struct settings *s, const char *wrong, const char *prefix,
	char buf[static SETTINGS_HINT_BYTES]);
void settings_print_help(const struct settings *s);
#endif
