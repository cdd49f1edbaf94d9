#include "common/local/local_gpu.h"

#include "common/wire/ctlmsg.h"

#define VERSION_MAX 63

static const struct field memory_fields[] = {
	FIELD_U16_(gpu_memory, version),
	FIELD_U16_(gpu_memory, kind),
	FIELD_BLOB_(gpu_memory, uuid, GPU_UUID_BYTES),
	FIELD_U64_(gpu_memory, bytes),
	FIELD_U64_(gpu_memory, chunk_bytes),
	FIELD_U64_(gpu_memory, offset),
	FIELD_U64_(gpu_memory, buffer_id),
	FIELD_BLOB_(gpu_memory, handle, GPU_HANDLE_BYTES),
};
static const struct layout memory_layout = LAYOUT_(gpu_memory, memory_fields);

static const struct field hello_fields[] = {
	FIELD_U16_(gpu_hello, abi),
	FIELD_STR_(gpu_hello, version, VERSION_MAX),
	FIELD_BLOB_(gpu_hello, uuid, GPU_UUID_BYTES),
};
static const struct field welcome_fields[] = {
	FIELD_U32_(gpu_welcome, code),
	FIELD_STR_(gpu_welcome, text, CTL_TEXT_MAX),
	FIELD_STR_(gpu_welcome, backend, GPU_WORD_MAX),
	FIELD_STR_(gpu_welcome, route, GPU_WORD_MAX),
	FIELD_BLOB_(gpu_welcome, uuid, GPU_UUID_BYTES),
	FIELD_U32_(gpu_welcome, n_slots),
	FIELD_U64_(gpu_welcome, bytes),
};
static const struct field alloc_fields[] = {
	FIELD_U64_(gpu_alloc, bytes),
};
static const struct field import_fields[] = {
	FIELD_LIST_(gpu_import, memory, 1, &memory_layout),
};
static const struct field region_fields[] = {
	FIELD_U32_(gpu_region, code),
	FIELD_STR_(gpu_region, text, CTL_TEXT_MAX),
	FIELD_U32_(gpu_region, region),
	FIELD_LIST_(gpu_region, memory, 1, &memory_layout),
};
static const struct field release_fields[] = {
	FIELD_U32_(gpu_release, code),
	FIELD_STR_(gpu_release, text, CTL_TEXT_MAX),
	FIELD_U32_(gpu_release, region),
};
static const struct field text_fields[] = {
	FIELD_U32_(gpu_text, code),
	FIELD_STR_(gpu_text, text, CTL_TEXT_MAX),
};
static const struct field start_fields[] = {
	FIELD_U16_(gpu_start, abi),
	FIELD_STR_(gpu_start, version, VERSION_MAX),
	FIELD_STR_(gpu_start, job, CTL_JOB_NAME_MAX),
	FIELD_U32_(gpu_start, n_workers),
	FIELD_U32_(gpu_start, n_slots),
	FIELD_STR_(gpu_start, route, GPU_WORD_MAX),
	FIELD_STR_(gpu_start, sysfs, GPU_PATH_MAX),
};
static const struct field trainer_fields[] = {
	FIELD_U32_(gpu_trainer, worker),
	FIELD_U32_(gpu_trainer, pid),
};
static const struct field route_fields[] = {
	FIELD_STR_(gpu_route, route, GPU_WORD_MAX),
	FIELD_U32_(gpu_route, n_inputs),
	FIELD_U32_(gpu_route, sum_node),
	FIELD_BLOB_(gpu_route, input_nodes, GPU_NODES_BYTES),
	FIELD_BLOB_(gpu_route, input_workers, GPU_NODES_BYTES),
};
static const struct field arena_fields[] = {
	FIELD_U32_(gpu_arena, id),
	FIELD_U64_(gpu_arena, bytes),
};

#define ROW(type, S, table) [GPU_##type - GPU_TYPE_FIRST] = {"GPU_" #type, LAYOUT_(S, table)}
const struct local_row gpu_rows[GPU_TYPE_END - GPU_TYPE_FIRST] = {
	ROW(HELLO, gpu_hello, hello_fields),
	ROW(WELCOME, gpu_welcome, welcome_fields),
	ROW(ALLOC, gpu_alloc, alloc_fields),
	ROW(IMPORT, gpu_import, import_fields),
	ROW(REGION, gpu_region, region_fields),
	ROW(RELEASE, gpu_release, release_fields),
	ROW(RELEASED, gpu_release, release_fields),
	ROW(FAILED, gpu_text, text_fields),
	ROW(START, gpu_start, start_fields),
	ROW(READY, gpu_text, text_fields),
	ROW(TRAINER, gpu_trainer, trainer_fields),
	ROW(ROUTE, gpu_route, route_fields),
	ROW(ARENA, gpu_arena, arena_fields),
	ROW(END, gpu_text, text_fields),
};
