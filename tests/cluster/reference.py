"""A simple reference for reductions over workers, and the error that a result may have.

Integers must be exact: sums and products wrap around, and averages are the floor of the exact mean.
Floats are compared with a sum of doubles. u is the unit roundoff of the type.

sum, avg: there are two stages, the agent and the server. Each stage adds in an accumulator with
unit roundoff ua. For f16 and bf16 the accumulator is f32; for other types, the accumulator has
the operands' type. Then the stage rounds once to the operands' type. For averages of f16, an agent
rounds the mean of its machine. The terms x are the workers' values, and W is their count. In any
order, additions have an error of at most (W - 1) ua sum|x|. Each of the two roundings adds at most
u times its operand, whose absolute value is at most sum|x| (1 + u). For avg, there is also a
division in the accumulator. So
    |error| <= ((W + 1) ua + 2 u (1 + u)) sum|x|   (/ W for avg),
plus half the smallest subnormal number per rounding.
prod: there are W - 1 products. Each of at most W agents rounds once, and the server rounds once.
Each product changes the result by an error factor of at most 1 + ua, and each rounding by an error
factor of at most 1 + u. The product of all these error factors bounds the error:
    |error| <= ((1 + ua)^W (1 + u)^(W + 1) - 1) |p|,
where p is the exact product.
max, min, and the bitwise operations on integers: exact. The relative error of the double reference
itself is below 2^-50.
"""

import numpy as np

UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}
# Long contributions repeat, because random numbers and the reference would cost most of a test's
# processor time. Pieces of a tensor begin at multiples of powers of two. The period is a prime, so
# two pieces that change places are noticed.
PERIOD = 65537
SELECT = {
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
INT = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64}


def bf16_to_double(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def double_to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def values(dtype, op, n, rank, seed):
    """Return the contribution of a rank. Calls with the same arguments return the same values.

    Long contributions repeat after PERIOD elements.
    """
    return np.resize(first_values(dtype, op, n, rank, seed), n)


def first_values(dtype, op, n, rank, seed):
    """Return at most the first PERIOD elements of values()."""
    rng = np.random.default_rng([seed, rank, n, sum(map(ord, dtype + op))])
    n = min(n, PERIOD)
    if dtype in INT:
        info = np.iinfo(INT[dtype])
        return rng.integers(info.min, info.max, n, dtype=INT[dtype], endpoint=True)
    x = rng.uniform(0.5, 1.5, n) if op == "prod" else rng.standard_normal(n)
    if dtype == "f16" and op == "avg":
        # the sum of two such values is often too large for f16
        x = rng.uniform(-60000, 60000, n)
    if dtype == "bf16":
        return double_to_bf16(x)
    return x.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])


def to_double(dtype, x):
    return bf16_to_double(x) if dtype == "bf16" else x.astype(np.float64)


def reduce_int(op, all_values):
    with np.errstate(over="ignore"):
        total = all_values[0].copy()
        for x in all_values[1:]:
            if op == "sum":
                total += x
            elif op == "prod":
                total *= x
            else:
                total = SELECT[op](total, x)
    return total


def floor_mean(all_values, dtype):
    """Return the floor of the exact mean, element by element."""
    # use Python's integers (type `object`) for i64, because they do not overflow
    exact = object if dtype == "i64" else np.int64
    return (sum(x.astype(exact) for x in all_values) // len(all_values)).astype(INT[dtype])


def check(out, dtype, op, n, size, seed, what):
    all_values = [first_values(dtype, op, n, r, seed) for r in range(size)]
    if dtype in INT:
        want = floor_mean(all_values, dtype) if op == "avg" else reduce_int(op, all_values)
        want = np.resize(want, n)
        bad = np.flatnonzero(out != want)
        assert bad.size == 0, f"{what}: element {bad[0]} is {out[bad[0]]}, not {want[bad[0]]}"
        return
    x = np.stack([to_double(dtype, v) for v in all_values])
    got = to_double(dtype, out)
    u, ua = UNIT[dtype], min(UNIT[dtype], UNIT["f32"])
    if op in ("sum", "avg"):
        want, bound = x.sum(axis=0), ((size + 1) * ua + 2 * u * (1 + u)) * np.abs(x).sum(axis=0)
        if op == "avg":
            want, bound = want / size, bound / size
        bound += SMALLEST[dtype]
    elif op == "prod":
        want = x.prod(axis=0)
        bound = ((1 + ua) ** size * (1 + u) ** (size + 1) - 1) * np.abs(want) + SMALLEST[dtype]
    else:
        want, bound = (x.max if op == "max" else x.min)(axis=0), 0.0
    want, bound = np.resize(want, n), np.resize(bound, n)
    bad = np.flatnonzero(~(np.abs(got - want) <= bound))
    assert bad.size == 0, f"{what}: element {bad[0]} is {got[bad[0]]}, not {want[bad[0]]}"


def same_everywhere(results):
    """Check that all ranks returned the same, and return it."""
    for other in results[1:]:
        assert other == results[0], "workers hold different bytes"
    return results[0]
