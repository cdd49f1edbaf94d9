#ifndef BPS_COMMON_WIRE_SHAPE_LAYOUT_H
#define BPS_COMMON_WIRE_SHAPE_LAYOUT_H
/* The field table of a tensor's shape (common/data/shape.h), for every message and record that has
 * a shape. */
#include "common/data/shape.h"
#include "common/wire/codec.h"

extern const struct layout tensor_shape_layout;

/* Row of a field table, for a struct S with a member `struct tensor_shape shape`. */
#define FIELD_SHAPE_(S) FIELD_STRUCT_(S, shape, &tensor_shape_layout)
#endif
