/* Pure functions of the fake NCCL for elements of NCCL's types. They convert elements to and from
 * doubles or 64-bit integers, and reduce elements. */
#include "tests/gpu/fake/elem.h"

#include <stdint.h>
#include <string.h>

#include "tests/unit/half.h"

union value {
	int64_t i;
	double f;
};

size_t elem_bytes(ncclDataType_t type)
{
	switch ((int)type) {
	case ncclInt8:
	case ncclUint8:
		return 1;
	case ncclFloat16:
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	}
	return 0;
}

static int is_float(ncclDataType_t type)
{
	return type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 ||
	       type == ncclBfloat16;
}

static float bf16_value(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Round a finite number to the nearest bf16. A tie goes to the even number. */
static uint16_t bf16_round(double v)
{
	float f = (float)v;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define LOAD(type, p)                                                                              \
	({                                                                                         \
		type x_;                                                                           \
		memcpy(&x_, p, sizeof(x_));                                                        \
		x_;                                                                                \
	})
#define STORE(type, p, v)                                                                          \
	do {                                                                                       \
		type x_ = (type)(v);                                                               \
		memcpy(p, &x_, sizeof(x_));                                                        \
	} while (0)

static union value load(const char *p, ncclDataType_t type)
{
	switch ((int)type) {
	case ncclInt8:
		return (union value){.i = LOAD(int8_t, p)};
	case ncclUint8:
		return (union value){.i = LOAD(uint8_t, p)};
	case ncclInt32:
		return (union value){.i = LOAD(int32_t, p)};
	case ncclUint32:
		return (union value){.i = LOAD(uint32_t, p)};
	case ncclFloat16:
		return (union value){.f = half_value(LOAD(uint16_t, p))};
	case ncclBfloat16:
		return (union value){.f = (double)bf16_value(LOAD(uint16_t, p))};
	case ncclFloat32:
		return (union value){.f = (double)LOAD(float, p)};
	case ncclFloat64:
		return (union value){.f = LOAD(double, p)};
	default:
		return (union value){.i = LOAD(int64_t, p)};
	}
}

static void store(char *p, ncclDataType_t type, union value v)
{
	switch ((int)type) {
	case ncclInt8:
	case ncclUint8:
		STORE(uint8_t, p, v.i);
		break;
	case ncclInt32:
	case ncclUint32:
		STORE(uint32_t, p, v.i);
		break;
	case ncclFloat16:
		STORE(uint16_t, p, half_round(v.f));
		break;
	case ncclBfloat16:
		STORE(uint16_t, p, bf16_round(v.f));
		break;
	case ncclFloat32:
		STORE(float, p, v.f);
		break;
	case ncclFloat64:
		STORE(double, p, v.f);
		break;
	default:
		STORE(int64_t, p, v.i);
	}
}

static int64_t fold_int(int64_t a, int64_t b, ncclRedOp_t op)
{
	switch ((int)op) {
	case ncclProd:
		return (int64_t)((uint64_t)a * (uint64_t)b);
	case ncclMax:
		return a > b ? a : b;
	case ncclMin:
		return a < b ? a : b;
	default:
		return (int64_t)((uint64_t)a + (uint64_t)b);
	}
}

static double fold_float(double a, double b, ncclRedOp_t op)
{
	switch ((int)op) {
	case ncclProd:
		return a * b;
	case ncclMax:
		return fmax(a, b);
	case ncclMin:
		return fmin(a, b);
	default:
		return a + b;
	}
}

/* Multiply by 1 / n, as NCCL does with each value of a rank before it adds for ncclAvg. The product
 * has the element's type. */
static double share_of(double v, int n, ncclDataType_t type)
{
	char rounded[8];

	store(rounded, type, (union value){.f = v / n});
	return load(rounded, type).f;
}

void elem_reduce(
	void *dst, void *const *src, int n_src, size_t n, ncclDataType_t type, ncclRedOp_t op)
{
	size_t size = elem_bytes(type);

	for (size_t i = 0; i < n; i++) {
		union value acc = {0};

		for (int s = 0; s < n_src; s++) {
			union value v = load((const char *)src[s] + i * size, type);

			if (is_float(type) && op == ncclAvg)
				v.f = share_of(v.f, n_src, type);
			if (s == 0)
				acc = v;
			else if (is_float(type))
				acc.f = fold_float(acc.f, v.f, op);
			else
				acc.i = fold_int(acc.i, v.i, op);
		}
		store((char *)dst + i * size, type, acc);
	}
}
