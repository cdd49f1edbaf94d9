/* Declares tensors: checks declarations, finds tensors by their names, and requests them from the
 * agent. Thread: any; a mutex guards the table of names. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/shape.h"
#include "common/wire/name_hash.h"
#include "libbpsclient/average.h"
#include "libbpsclient/last_error.h"

_Static_assert(BPS_OWNER_ALL == (int)OWNER_ALL && BPS_OWNER_SHARDS == (int)OWNER_SHARDS,
	"public and internal owners");
_Static_assert(BPS_I8 == (int)DTYPE_I8 && BPS_U8 == (int)DTYPE_U8 && BPS_I32 == (int)DTYPE_I32 &&
		       BPS_I64 == (int)DTYPE_I64 && BPS_F16 == (int)DTYPE_F16 &&
		       BPS_F32 == (int)DTYPE_F32 && BPS_F64 == (int)DTYPE_F64 &&
		       BPS_BF16 == (int)DTYPE_BF16 && BPS_Q8 == (int)DTYPE_Q8 &&
		       BPS_Q4 == (int)DTYPE_Q4 && BPS_SIGN == (int)DTYPE_SIGN,
	"public and internal element types");

#define NAME_MAX_BYTES 255
/* Smallest size in bytes of a declaration, that of the first release with this struct, and largest
 * size of any release */
#define DECL_BYTES_MIN (offsetof(struct bps_decl, digest) + sizeof(uint64_t))
#define DECL_BYTES_MAX 4096

/* ---- table ---- */

static struct bps_tensor **tensor_table_get_bucket(struct bps *b, const char *name)
{
	return &b->buckets[name_hash(name) % CLIENT_BUCKETS];
}

static struct bps_tensor *tensor_table_find(struct bps *b, const char *name)
{
	struct bps_tensor *t = *tensor_table_get_bucket(b, name);

	while (t && strcmp(t->name, name) != 0)
		t = t->next;
	return t;
}

static void tensor_table_remove_and_free(struct bps_tensor *t)
{
	struct bps_tensor **link = tensor_table_get_bucket(t->b, t->name);

	while (*link != t)
		link = &(*link)->next;
	*link = t->next;
	client_tensor_free(t);
}

static struct bps_tensor *tensor_table_add_new(struct bps *b, const struct tensor_decl *d)
{
	struct bps_tensor *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->name = strdup(d->name);
	if (!t->name) {
		free(t);
		return NULL;
	}
	t->b = b;
	t->shape = d->shape;
	t->bytes = shape_bytes(&d->shape);
	t->next = *tensor_table_get_bucket(b, t->name);
	*tensor_table_get_bucket(b, t->name) = t;
	return t;
}

void client_tensor_free(struct bps_tensor *t)
{
	average_free(t);
	free(t->own_slots);
	free(t->name);
	free(t);
}

/* ---- declaration ---- */

int tensor_check_ret(struct bps_tensor *const *ret)
{
	return ret ? 0 : last_error_set(-EINVAL, "declare: ret is NULL");
}

int tensor_check_decl(const struct tensor_decl *d)
{
	struct err_text why;
	size_t n_name;

	n_name = d->name ? strnlen(d->name, NAME_MAX_BYTES + 1) : 0;
	if (!n_name || n_name > NAME_MAX_BYTES)
		return last_error_set(-EINVAL, "declare: a tensor's name must have 1 to %d bytes",
			NAME_MAX_BYTES);
	if (shape_check(&d->shape, INT64_MAX / 4, &why) < 0)
		return last_error_set(-EINVAL, "tensor '%s': %s", d->name, why.s);
	if (!strncmp(d->name, CLIENT_RESERVED, strlen(CLIENT_RESERVED)))
		return last_error_set(-EINVAL,
			"tensor '%s': names that begin with '%s' are reserved", d->name,
			CLIENT_RESERVED);
	return 0;
}

static int check_declaration_agrees(
	const struct bps_tensor *t, const struct tensor_decl *d, const struct tensor_place *place)
{
	bool is_same_place = t->region == (place ? place->region : 0) &&
			     (!place || t->region_offset == place->offset);

	if (shape_is_equal(&t->shape, &d->shape) && is_same_place)
		return 0;
	last_error_tensor(t->name);
	if (!is_same_place)
		return last_error_set(BPS_EMISMATCH,
			"rank %d declares tensor '%s' again, but in other memory: use another name",
			t->b->rank, d->name);
	return last_error_set(BPS_EMISMATCH,
		"rank %d declares tensor '%s' as %s, but declared it before as %s: use another "
		"name",
		t->b->rank, d->name, shape_text(&d->shape).s, shape_text(&t->shape).s);
}

/* Find each declared tensor in the table of tensors, or add the tensor to the table. The list
 * `pending` receives the added tensors. If a tensor is already in the table, its type, number of
 * elements and memory must agree with the new declaration. place: the device memory of the tensors,
 * or NULL for host memory. Errors: -ENOMEM, BPS_EMISMATCH. Sets bps_last_error. */
static int find_or_add_tensors(struct bps *b, const struct tensor_decl *decls,
	const struct tensor_place *place, size_t n, struct bps_tensor **ret,
	struct bps_tensor **pending, size_t *n_pending)
{
	struct bps_tensor *t;
	int rc;

	for (size_t i = 0; i < n; i++) {
		t = tensor_table_find(b, decls[i].name);
		if (t && (rc = check_declaration_agrees(t, &decls[i], place)) < 0)
			return rc;
		if (!t) {
			t = tensor_table_add_new(b, &decls[i]);
			if (!t)
				return last_error_set(-ENOMEM, "declare: out of memory");
			if (place) {
				t->region = place->region;
				t->region_offset = place->offset;
			}
			pending[(*n_pending)++] = t;
		}
		ret[i] = t;
	}
	return 0;
}

static int tensor_adopt_slot(struct bps_tensor *t, const struct session_slot *slot)
{
	if (slot->code) {
		last_error_tensor(t->name);
		last_error_cause(&(struct ctl_cause){slot->cause_rank, slot->cause_host});
	}
	if (slot->code && strstr(slot->text.s, t->name))
		return last_error_set(slot->code, "%s", slot->text.s);
	if (slot->code)
		return last_error_set(slot->code, "tensor '%s' in job '%s': %s", t->name,
			t->b->options.job, slot->text.s);
	t->idx = slot->tensor;
	t->in = slot->in;
	t->out[0] = slot->out[0];
	t->out[1] = slot->out[1];
	t->entry = &t->b->session.entries[slot->tensor];
	/* If the agent has already completed rounds of this tensor for this process, continue with
	 * the next round number. */
	t->round = atomic_load_explicit(&t->entry->done_round, memory_order_acquire);
	return 0;
}

/* Declare n tensors in one request to the agent, and store their buffers. Stops at the first tensor
 * that the agent refuses, and returns the error code of the refusal. The refused tensor and the
 * tensors after it get no entry, so tensor_declare removes them. */
static int declare_chunk_at_agent(struct bps *b, struct bps_tensor **tensors, uint32_t n)
{
	struct local_decl decls[LOCAL_DECLARE_MAX];
	uint64_t bytes[LOCAL_DECLARE_MAX];
	struct session_slot *slots = calloc(n, sizeof(*slots));
	int rc;

	if (!slots)
		return last_error_set(-ENOMEM, "declare: out of memory");
	for (uint32_t i = 0; i < n; i++) {
		decls[i] = (struct local_decl){.name = tensors[i]->name,
			.shape = tensors[i]->shape,
			.region = tensors[i]->region,
			.region_offset = tensors[i]->region_offset};
		bytes[i] = tensors[i]->bytes;
	}
	rc = session_declare(&b->session, decls, bytes, n, slots, last_error_text());
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = tensor_adopt_slot(tensors[i], &slots[i]);
	free(slots);
	return rc;
}

static int declare_tensors_in_job(struct bps *b, struct bps_tensor **tensors, size_t n)
{
	uint32_t chunk;
	int rc = 0;

	if (b->is_single) {
		for (size_t i = 0; !rc && i < n; i++)
			rc = single_worker_declare(tensors[i]);
		return rc < 0 ? last_error_set(rc, "declare: out of memory") : 0;
	}
	for (size_t done = 0; !rc && done < n; done += chunk) {
		chunk = n - done < LOCAL_DECLARE_MAX ? (uint32_t)(n - done) : LOCAL_DECLARE_MAX;
		rc = declare_chunk_at_agent(b, tensors + done, chunk);
	}
	return rc;
}

int tensor_declare(struct bps *b, const struct tensor_decl *decls, const struct tensor_place *place,
	size_t n, struct bps_tensor **ret)
{
	struct bps_tensor **pending = calloc(n ? n : 1, sizeof(struct bps_tensor *));
	struct bps_tensor **found = calloc(n ? n : 1, sizeof(struct bps_tensor *));
	size_t n_pending = 0;
	uint32_t nth;
	int rc;

	if (!pending || !found) {
		rc = last_error_set(-ENOMEM, "declare: out of memory");
		goto out;
	}
	pthread_mutex_lock(&b->declare_mutex);
	rc = find_or_add_tensors(b, decls, place, n, found, pending, &n_pending);
	if (!rc)
		rc = declare_tensors_in_job(b, pending, n_pending);
	for (size_t i = 0; i < n_pending; i++) {
		if (!pending[i]->entry) {
			tensor_table_remove_and_free(pending[i]);
			continue;
		}
		nth = b->n_declared++;
		pending[i]->auto_priority =
			nth < CLIENT_PRIORITY_MAX ? (uint16_t)(CLIENT_PRIORITY_MAX - nth) : 1;
	}
	pthread_mutex_unlock(&b->declare_mutex);
	if (!rc)
		memcpy(ret, found, n * sizeof(struct bps_tensor *));
out:
	free(found);
	free(pending);
	return rc;
}

int tensor_redeclare(struct bps *b, struct bps_tensor **tensors, size_t n)
{
	int rc;

	pthread_mutex_lock(&b->declare_mutex);
	rc = declare_tensors_in_job(b, tensors, n);
	pthread_mutex_unlock(&b->declare_mutex);
	return rc;
}

/* Copy the element i of an array of declarations of a program that was compiled with this or
 * another release. A later release appends fields. If one of those is set, it has an effect that
 * this release does not have. */
static int copy_public_declaration(const struct bps_decl *decls, size_t i, struct bps_decl *ret)
{
	const uint8_t *from = (const uint8_t *)decls + i * decls->size;
	size_t known = decls->size < sizeof(*ret) ? decls->size : sizeof(*ret);
	bool is_newer;

	memset(ret, 0, sizeof(*ret));
	if (decls->size < DECL_BYTES_MIN || decls->size > DECL_BYTES_MAX)
		return last_error_set(-EINVAL,
			"declare: the field `size` of a declaration must be sizeof(struct "
			"bps_decl), not %zu",
			decls->size);
	memcpy(ret, from, known);
	if (ret->size != decls->size)
		return last_error_set(-EINVAL,
			"declare: the field `size` of declaration %zu is %zu, but that of the "
			"first one is %zu",
			i, ret->size, decls->size);
	is_newer = ret->reserved != 0;
	for (size_t byte = known; byte < decls->size; byte++)
		is_newer |= from[byte] != 0;
	if (!is_newer)
		return 0;
	return last_error_set(-EINVAL,
		"declare: the declaration sets a field that this library does not have: install "
		"the release with which the program was compiled");
}

/* Check that the options of the job allow the tensor. Errors: -EINVAL. Sets bps_last_error. */
static int decl_check_options(const struct bps *b, const struct tensor_decl *d)
{
	const struct shape_job options = {.is_deterministic = b->options.is_deterministic,
		.is_elastic = b->options.is_elastic,
		.may_shrink = b->options.may_shrink,
		.has_backup = b->options.backup > 0};
	struct err_text why;
	int rc = shape_check_job(&d->shape, &options, &why);

	if (rc == 0)
		rc = shape_check_shards(&d->shape, (uint32_t)b->size, &why);
	return rc < 0 ? last_error_set(rc, "tensor '%s': %s", d->name, why.s) : 0;
}

static int read_public_declarations(
	const struct bps *b, const struct bps_decl *decls, size_t n, struct tensor_decl *ret)
{
	struct bps_decl d;
	int rc;

	for (size_t i = 0; i < n; i++) {
		rc = copy_public_declaration(decls, i, &d);
		if (rc < 0)
			return rc;
		ret[i] = (struct tensor_decl){
			d.name, shape_from_dtype_and_count((unsigned)d.dtype, d.n_values)};
		ret[i].shape.digest = d.digest;
		ret[i].shape.mode = (unsigned)d.mode < UINT8_MAX ? (uint8_t)d.mode : UINT8_MAX;
		ret[i].shape.stale = d.stale;
		ret[i].shape.owner = (unsigned)d.owner < UINT8_MAX ? (uint8_t)d.owner : UINT8_MAX;
		rc = tensor_check_decl(&ret[i]);
		if (rc == 0)
			rc = decl_check_options(b, &ret[i]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int bps_declare_group(
	struct bps *b, const struct bps_decl *decls, size_t n, struct bps_tensor **ret)
{
	struct tensor_decl *known;
	int rc = client_check_is_open(b);

	if (rc || !n)
		return rc;
	if (!decls)
		return last_error_set(-EINVAL, "declare: decls is NULL");
	rc = tensor_check_ret(ret);
	if (rc < 0)
		return rc;
	known = calloc(n, sizeof(*known));
	if (!known)
		return last_error_set(-ENOMEM, "declare: out of memory");
	rc = read_public_declarations(b, decls, n, known);
	if (!rc)
		rc = tensor_declare(b, known, NULL, n, ret);
	free(known);
	return rc;
}

int bps_declare(struct bps *b, const char *name, enum bps_dtype dtype, uint64_t n_values,
	struct bps_tensor **ret)
{
	struct bps_decl d = {.size = sizeof(d), .name = name, .dtype = dtype, .n_values = n_values};

	return bps_declare_group(b, &d, 1, ret);
}
