/* Fuzz the parser of settings files. The parser must either accept a file, with every value in its
 * range, or refuse the file with an error message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/daemon/settings_impl.h"

struct fuzz_opts {
	bool verbose;
	int64_t threads;
	uint64_t window_bytes;
	uint64_t dead_after_us;
	const char *name;
	unsigned mode;
	struct addr listen;
};

static const char *const mode_words[] = {"abort", "shrink", NULL};
static const struct setting rows[] = {
	{"verbose", SET_BOOL, SETTING_AT(struct fuzz_opts, verbose), .def = "no", .help = ""},
	{"threads", SET_INT, SETTING_AT(struct fuzz_opts, threads), .def = "2", .min = -4,
		.max = 64, .help = ""},
	{"window", SET_SIZE, SETTING_AT(struct fuzz_opts, window_bytes), .def = "4MiB",
		.min = SETTING_KIB, .max = SETTING_GIB, .help = ""},
	{"dead-after", SET_DURATION, SETTING_AT(struct fuzz_opts, dead_after_us), .def = "3s",
		.min = SETTING_MS, .max = 60 * SETTING_S, .help = ""},
	{"name", SET_STRING, SETTING_AT(struct fuzz_opts, name), .def = "", .max = 8, .help = ""},
	{"mode", SET_ENUM, SETTING_AT(struct fuzz_opts, mode), .def = "abort", .words = mode_words,
		.help = ""},
	{"listen", SET_ADDR, SETTING_AT(struct fuzz_opts, listen), .def = "127.0.0.1:1",
		.help = ""},
};
static const struct settings_spec spec = {
	.program = "fuzz", .rows = rows, .n_rows = sizeof(rows) / sizeof(rows[0])};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_ranges(const struct fuzz_opts *o)
{
	if (o->threads < -4 || o->threads > 64 || o->window_bytes < 1024 ||
		o->window_bytes > (uint64_t)SETTING_GIB || o->dead_after_us < 1000 ||
		o->dead_after_us > 60000000 || strlen(o->name) > 8 || o->mode > 1 ||
		!*o->listen.host)
		abort();
}

/* Return a stream that reads from memory. With real files, the kernel would take nine tenths of the
 * time. */
static FILE *open_bytes(const uint8_t *data, size_t n_bytes)
{
	FILE *file = fmemopen(NULL, n_bytes + 1, "w+");

	if (!file || fwrite(data, 1, n_bytes, file) != n_bytes || fflush(file))
		abort();
	rewind(file);
	return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	char program[] = "fuzz";
	char *argv[] = {program, NULL};
	struct err_text err = {""};
	struct settings *s;
	struct fuzz_opts opts;
	FILE *file = open_bytes(data, n_bytes);

	if (settings_load(&s, &spec, 1, argv, &opts, &err) != SETTINGS_RUN)
		abort();
	if (settings_take_stream(s, file, "fuzz.conf", &err) == 0)
		check_ranges(s->loaded);
	else if (!err.s[0])
		abort();
	fclose(file);
	settings_free(s);
	return 0;
}
