/* Settings from INI files: the program's FILE, and the files in FILE.d whose names end in .conf.
 * settings_apply_text checks the values. Thread: main. */
#include "common/daemon/settings_impl.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

struct ini_read {
	struct settings *s;
	const char *path;
	FILE *file;
	int line;
	int rc;
	struct err_text *err;
};

/* Return whether a section has the name of this program. Other sections are not allowed, because a
 * file has only the settings of one program. */
static bool is_own_section(const struct settings *s, const char *name, size_t n)
{
	const char *program = s->spec->program;

	if (strlen(program) == n && strncmp(program, name, n) == 0)
		return true;
	if (strncmp(program, "bps-", 4) != 0)
		return false;
	return strlen(program + 4) == n && strncmp(program + 4, name, n) == 0;
}

static void ini_check_section(struct ini_read *r, const char *line)
{
	const char *end = strchr(line, ']'), *program = r->s->spec->program;

	if (line[0] != '[' || !end || is_own_section(r->s, line + 1, (size_t)(end - line - 1)))
		return;
	r->rc = err_set(r->err, -EINVAL,
		"%s:%d: unknown section '%.*s' (sections are not needed; only '[%s]' is allowed)",
		r->path, r->line, (int)(end - line + 1), line,
		strncmp(program, "bps-", 4) == 0 ? program + 4 : program);
}

/* Read one line for libinih. Count the lines here, because libinih does not pass line numbers to
 * its handler. Remove leading blanks, because libinih would treat an indented line as the
 * continuation of the previous line. */
static char *ini_read_next_line(char *buf, int n_bytes, void *arg)
{
	struct ini_read *r = arg;
	size_t blanks, n;

	if (r->rc || !fgets(buf, n_bytes, r->file))
		return NULL;
	r->line++;
	n = strlen(buf);
	if (n + 1 == (size_t)n_bytes && buf[n - 1] != '\n') {
		r->rc = err_set(r->err, -EINVAL, "%s:%d: the line is longer than %d characters",
			r->path, r->line, n_bytes - 2);
		return NULL;
	}
	blanks = strspn(buf, " \t");
	memmove(buf, buf + blanks, n - blanks + 1);
	ini_check_section(r, buf);
	return r->rc ? NULL : buf;
}

static int on_ini_setting(void *arg, const char *section, const char *name, const char *text)
{
	struct ini_read *r = arg;
	const struct setting *row = settings_find(r->s, name, strlen(name));
	struct settings_entry *e = row ? settings_entry(r->s, row) : NULL;
	char source[SETTINGS_SOURCE_BYTES], hint[SETTINGS_HINT_BYTES];

	(void)section;
	if (r->rc)
		return 0;
	snprintf(source, sizeof(source), "%s:%d", r->path, r->line);
	if (!row) {
		r->rc = err_set(r->err, -EINVAL, "%s: unknown setting '%s'%s", source, name,
			settings_name_hint(r->s, name, "", hint));
		return 0;
	}
	if (e->file == r->s->n_files) {
		r->rc = err_set(r->err, -EINVAL, "%s: '%s' is already set in line %d", source,
			row->name, e->line);
		return 0;
	}
	e->file = r->s->n_files;
	e->line = r->line;
	r->rc = settings_apply_text(r->s, row, text, source, r->err);
	return r->rc == 0;
}

int settings_take_stream(struct settings *s, FILE *file, const char *path, struct err_text *err)
{
	struct ini_read r = {.s = s, .path = path, .file = file, .err = err};
	int bad_line;

	s->n_files++;
	bad_line = ini_parse_stream(ini_read_next_line, &r, on_ini_setting, &r);
	if (!r.rc && ferror(file))
		r.rc = err_set(err, -EIO, "cannot read '%s': %s", path, strerror(errno));
	else if (!r.rc && bad_line)
		r.rc = err_set(err, -EINVAL,
			"%s:%d: the line is neither 'name = value' nor '[section]'", path,
			bad_line);
	return r.rc;
}

static int settings_apply_file(
	struct settings *s, const char *path, bool is_required, struct err_text *err)
{
	FILE *file = fopen(path, "re");
	int rc;

	if (!file && errno == ENOENT && !is_required)
		return 0;
	if (!file)
		return err_set(err, -errno, "cannot open '%s': %s", path, strerror(errno));
	rc = settings_take_stream(s, file, path, err);
	fclose(file);
	return rc;
}

/* Select files whose names end in .conf, because editors leave backup files with other names. */
static int dirent_is_drop_in(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return d->d_name[0] != '.' && n > 5 && strcmp(d->d_name + n - 5, ".conf") == 0;
}

static int dirent_compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int settings_apply_drop_ins(struct settings *s, struct err_text *err)
{
	char path[SETTINGS_SOURCE_BYTES];
	struct dirent **list = NULL;
	int n, rc = 0;

	snprintf(path, sizeof(path), "%s.d", s->config_path);
	n = scandir(path, &list, dirent_is_drop_in, dirent_compare_names);
	if (n < 0 && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	if (n < 0)
		return err_set(err, -errno, "cannot read '%s': %s", path, strerror(errno));
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s.d/%s", s->config_path, list[i]->d_name);
		if (!rc)
			rc = settings_apply_file(s, path, true, err);
		free(list[i]);
	}
	free(list);
	return rc;
}

int settings_take_files(struct settings *s, struct err_text *err)
{
	int rc;

	if (!s->config_path)
		return 0;
	rc = settings_apply_file(s, s->config_path, s->is_config_required, err);
	return rc ? rc : settings_apply_drop_ins(s, err);
}
