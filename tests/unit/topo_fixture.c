/* Imitates the sysfs of a machine that tests/topologies describes. This code reads the description,
 * makes the folders, links and files in a temporary folder, and removes them afterwards. */
#include "tests/unit/topo_fixture.h"

#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

const char *const topo_fixture_names[] = {"one-gpu", "dgx", "two-switches-both", "two-switches-one",
	"two-switches-nvlink", "two-switches-roots", "card-down", "one-switch", "one-root",
	"nvlink-pairs", "unequal", "vm", "vm-nvlink", "mig", "broken", NULL};

/* Make all folders of a path, up to its last slash. */
static void make_folders(char *path)
{
	for (char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
		*s = '\0';
		mkdir(path, 0755);
		*s = '/';
	}
}

static void write_attr(const char *root, const char *device, const char *name, const char *value)
{
	char path[PATH_MAX];
	FILE *f;

	snprintf(path, sizeof(path), "%s/devices/%s/%s", root, device, name);
	make_folders(path);
	f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "%s\n", value);
	assert_int_equal(fclose(f), 0);
}

static void make_link(const char *root, const char *name, const char *target)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", root, name);
	make_folders(path);
	assert_int_equal(symlink(target, path), 0);
}

static void take_report(struct topo_fixture *f, const char *key, const char *value)
{
	struct topo_report *r = &f->reports[f->n_reports - 1];

	if (strcmp(key, "numa") == 0)
		r->numa = atoi(value);
	else if (strcmp(key, "links") == 0)
		r->links = strtoull(value, NULL, 0);
	else if (strcmp(key, "peers") == 0)
		r->peers = strtoull(value, NULL, 0);
	else
		fail_msg("no such attribute: %s", key);
}

static void begin_report(struct topo_fixture *f, const char *pci)
{
	struct topo_report *r = &f->reports[f->n_reports++];

	*r = (struct topo_report){.numa = -1};
	snprintf(r->pci, sizeof(r->pci), "%s", pci);
	snprintf(r->name, sizeof(r->name), "GPU of a test");
	memset(r->uuid, (int)f->n_reports, sizeof(r->uuid));
}

static void begin_device(struct topo_fixture *f, const char *path)
{
	char target[PATH_MAX];

	f->n_devices++;
	snprintf(target, sizeof(target), "../../../devices/%s", path);
	make_link(f->root, strrchr(path, '/') + 1, target);
}

static enum strategy strategy_of(const char *word)
{
	for (unsigned i = 0; strategy_words[i]; i++)
		if (strcmp(word, strategy_words[i]) == 0)
			return (enum strategy)i;
	fail_msg("no such strategy: %s", word);
	return STRATEGY_AUTO;
}

void topo_fixture_line(struct topo_fixture *f, const char *line)
{
	char text[4096], *save = NULL, *word, *subject;

	snprintf(text, sizeof(text), "%s", line);
	word = strtok_r(text, " \n", &save);
	subject = word ? strtok_r(NULL, " \n", &save) : NULL;
	if (!word || *word == '#')
		return;
	assert_non_null(subject);
	if (strcmp(word, "expect") == 0)
		f->expect = strategy_of(subject);
	else if (strcmp(word, "odd") == 0)
		f->n_odd = (unsigned)atoi(subject);
	else if (strcmp(word, "link") == 0)
		make_link(f->root, subject, strtok_r(NULL, " \n", &save));
	else if (strcmp(word, "report") == 0)
		begin_report(f, subject);
	else if (strcmp(word, "device") == 0)
		begin_device(f, subject);
	else
		fail_msg("no such word: %s", word);
	for (char *s = strtok_r(NULL, " \n", &save); s; s = strtok_r(NULL, " \n", &save)) {
		char *value = strchr(s, '=');

		assert_non_null(value);
		*value++ = '\0';
		if (strcmp(word, "report") == 0)
			take_report(f, s, value);
		else
			write_attr(f->root, subject, s, value);
	}
}

void topo_fixture_empty(struct topo_fixture *f)
{
	char path[PATH_MAX];

	memset(f, 0, sizeof(*f));
	snprintf(f->root, sizeof(f->root), "/tmp/topology.XXXXXX");
	assert_non_null(mkdtemp(f->root));
	snprintf(path, sizeof(path), "%s/bus/pci/devices/", f->root);
	make_folders(path);
}

void topo_fixture_make(struct topo_fixture *f, const char *name)
{
	char path[PATH_MAX], line[4096];
	FILE *in;

	topo_fixture_empty(f);
	snprintf(path, sizeof(path), "tests/topologies/%s.topo", name);
	in = fopen(path, "r");
	assert_non_null(in);
	while (fgets(line, sizeof(line), in))
		topo_fixture_line(f, line);
	fclose(in);
}

void topo_fixture_read(struct topo_fixture *f, struct topology *ret)
{
	struct err_text err = {""};

	if (topology_read(f->root, ret, &err) < 0)
		fail_msg("%s", err.s);
	if (f->n_reports)
		assert_int_equal(topology_refine(ret, f->reports, f->n_reports, &err), 0);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

void topo_fixture_remove(struct topo_fixture *f)
{
	assert_int_equal(nftw(f->root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}
