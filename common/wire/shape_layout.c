/* The field table of a tensor's shape. */
#include "common/wire/shape_layout.h"

static const struct field tensor_shape_fields[] = {
	FIELD_U8_(tensor_shape, dtype),
	FIELD_U8_(tensor_shape, mode),
	FIELD_U8_(tensor_shape, owner),
	FIELD_U32_(tensor_shape, stale),
	FIELD_U64_(tensor_shape, n_values),
	FIELD_U64_(tensor_shape, digest),
};
const struct layout tensor_shape_layout = LAYOUT_(tensor_shape, tensor_shape_fields);
