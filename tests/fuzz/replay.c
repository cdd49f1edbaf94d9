/* Runs a fuzz target on files and on all files in folders, so that a build with any compiler can
 * replay the corpus. Prints the number of inputs. Fails if there was no input. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static int read_file(const char *path, size_t n_bytes, uint8_t *buf)
{
	FILE *f = fopen(path, "rb");
	size_t n;

	if (!f)
		return -errno;
	n = fread(buf, 1, n_bytes, f);
	fclose(f);
	return n == n_bytes ? 0 : -EIO;
}

static int run_file(const char *path, size_t n_bytes)
{
	uint8_t *buf = malloc(n_bytes ? n_bytes : 1);
	int rc;

	if (!buf)
		return -ENOMEM;
	rc = read_file(path, n_bytes, buf);
	if (rc == 0)
		LLVMFuzzerTestOneInput(buf, n_bytes);
	free(buf);
	return rc;
}

static int run_path(const char *path, size_t *n_run);

static int run_dir(const char *path, size_t *n_run)
{
	char sub[PATH_MAX];
	struct dirent *e;
	DIR *d = opendir(path);
	int rc = 0;

	if (!d) {
		rc = -errno;
		fprintf(stderr, "cannot open '%s': %s\n", path, strerror(-rc));
		return rc;
	}
	while (rc == 0 && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name);
		rc = run_path(sub, n_run);
	}
	closedir(d);
	return rc;
}

/* Run the file or folder at path. Adds the number of inputs to *n_run. Prints an error on stderr if
 * the path cannot be read. */
static int run_path(const char *path, size_t *n_run)
{
	struct stat st;
	int rc;

	if (stat(path, &st))
		rc = -errno;
	else if (S_ISDIR(st.st_mode))
		return run_dir(path, n_run);
	else
		rc = run_file(path, (size_t)st.st_size);
	if (rc)
		fprintf(stderr, "cannot replay '%s': %s\n", path, strerror(-rc));
	else
		(*n_run)++;
	return rc;
}

int main(int argc, char **argv)
{
	size_t n_run = 0;

	for (int i = 1; i < argc; i++)
		if (run_path(argv[i], &n_run))
			return 1;
	printf("%s: %zu inputs\n", argv[0], n_run);
	if (n_run == 0)
		fprintf(stderr, "nothing to replay\n");
	return n_run == 0;
}
