/* Traces: a model's tensors and layers, read from tests/traces. A malformed line is an error that
 * states the number of the line. */
#include "tests/scale/scale.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/dtype.h"

#define ROWS_MAX 65536

static int read_row(char *line, struct scale_tensor_def *t)
{
	char *elems = strchr(line, '\t'), *end;

	if (!elems || elems == line)
		return -1;
	*elems++ = 0;
	errno = 0;
	t->elems = strtoull(elems, &end, 10);
	if (end == elems || *end != '\t' || errno || !t->elems)
		return -1;
	elems = end + 1;
	t->macs = strtoull(elems, &end, 10);
	if (end == elems || (*end && *end != '\n') || errno)
		return -1;
	t->name = strdup(line);
	return t->name ? 0 : -1;
}

static int read_rows(struct scale_trace *t, FILE *f, const char *path)
{
	char line[1024];
	unsigned number = 0;

	while (fgets(line, sizeof(line), f)) {
		number++;
		if (line[0] == '#' || !strncmp(line, "name\t", 5))
			continue;
		if (t->n_tensors == ROWS_MAX || read_row(line, &t->tensors[t->n_tensors]) < 0) {
			fprintf(stderr,
				"sim-scale: %s:%u: the line needs name, elements and macs "
				"with tabs between them\n",
				path, number);
			return -1;
		}
		t->n_tensors++;
	}
	if (!t->n_tensors)
		fprintf(stderr, "sim-scale: %s has no tensors\n", path);
	return t->n_tensors ? 0 : -1;
}

static void make_layers(struct scale_trace *t, const struct scale_options *o)
{
	struct scale_layer *layer = NULL;
	double macs = 0;

	for (uint32_t i = 0; i < t->n_tensors; i++)
		macs += (double)t->tensors[i].macs;
	for (uint32_t i = 0; i < t->n_tensors; i++) {
		struct scale_tensor_def *d = &t->tensors[i];

		d->bytes = dtype_elems(o->dtype, d->elems) * dtype_bytes(o->dtype);
		if (!layer || d->macs) {
			layer = &t->layers[t->n_layers++];
			layer->first = i;
			layer->share = macs > 0 ? (double)d->macs / macs : 0;
			layer->forward_ns = o->compute_ms * 1e6 / 3 * layer->share;
		}
		layer->n++;
		layer->bytes += (double)d->bytes;
		t->bytes += (double)d->bytes;
	}
}

int trace_read(struct scale_trace *t, const struct scale_options *o)
{
	FILE *f = fopen(o->trace, "r");
	int rc = -1;

	*t = (struct scale_trace){0};
	if (!f) {
		fprintf(stderr, "sim-scale: cannot read %s: %s\n", o->trace, strerror(errno));
		return -1;
	}
	t->tensors = calloc(ROWS_MAX, sizeof(*t->tensors));
	if (t->tensors)
		rc = read_rows(t, f, o->trace);
	fclose(f);
	if (rc == 0) {
		t->layers = calloc(t->n_tensors, sizeof(*t->layers));
		rc = t->layers ? 0 : -1;
	}
	if (rc == 0)
		make_layers(t, o);
	else
		trace_free(t);
	return rc;
}

void trace_free(struct scale_trace *t)
{
	for (uint32_t i = 0; t->tensors && i < t->n_tensors; i++)
		free(t->tensors[i].name);
	free(t->tensors);
	free(t->layers);
	*t = (struct scale_trace){0};
}
