"""bps.tensorflow: the front-end for TensorFlow.

Every worker of a job runs these tests in the same order (tests/frontends/run.py).
"""

import re

import coded
import jobs
import numpy as np
import pytest
import tensorflow as tf
import timelines

import bps.tensorflow as bps
from bps import _core, _group


@pytest.fixture(scope="session", autouse=True)
def job():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    bps.barrier()
    tf.random.set_seed(bps.rank())


TYPES = [tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64]
MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def ranks():
    return range(bps.size())


def total(value=lambda rank: rank + 1):
    return sum(map(value, ranks()))


def run(mode, function, *args):
    return function(*args) if mode == "eager" else tf.function(function)(*args)


def full(shape, value, dtype=tf.float32):
    return tf.cast(tf.fill(shape, value), dtype)


def near(a, b, tolerance=1e-6):
    return np.allclose(np.array(a), np.array(b), rtol=0, atol=tolerance)


def same_everywhere(tensor):
    all_ = bps.allgather(tf.reshape(tf.convert_to_tensor(tensor), [1, -1])).numpy()
    return all(np.array_equal(all_[0], row) for row in all_)


# ---- timelines ----


def test_a_timeline_has_the_rounds_between_start_and_stop(tmp_path):
    def reduced(name):
        bps.allreduce(tf.ones(3), name=name)

    timelines.check_between_start_and_stop(bps, tmp_path, reduced)
    timelines.check_what_is_refused(bps)


# ---- place ----


@MODES
def test_place_is_that_of_the_launcher(mode):
    assert sorted(bps.allgather_object(bps.rank())) == list(ranks())
    place = run(mode, lambda: [bps.rank_op(), bps.size_op(), bps.local_rank_op()])
    assert [int(p) for p in place] == [bps.rank(), bps.size(), bps.local_rank()]
    assert int(bps.local_size_op()) == bps.local_size()


# ---- allreduce ----


@MODES
@pytest.mark.parametrize("dtype", [*TYPES, tf.bfloat16, tf.int16, tf.uint16])
@pytest.mark.parametrize("shape", [(17,), (3, 5, 7)])
def test_allreduce_sums_every_type_and_shape(mode, dtype, shape):
    out = run(mode, lambda x: bps.allreduce(x, op=bps.Sum), full(shape, bps.rank() + 1, dtype))
    assert out.dtype == dtype and out.shape == shape
    assert (out.numpy() == total()).all()


@MODES
def test_allreduce_averages_by_default(mode):
    out = run(mode, bps.allreduce, full((5,), float(bps.rank())))
    assert near(out, full((5,), sum(ranks()) / bps.size()))


@pytest.mark.parametrize(("op", "fold"), [(bps.Min, min), (bps.Max, max)])
def test_allreduce_takes_the_least_and_the_most(op, fold):
    out = bps.allreduce(tf.constant([bps.rank(), -bps.rank()]), op=op)
    assert out.numpy().tolist() == [fold(ranks()), fold(-r for r in ranks())]


def test_allreduce_multiplies():
    out = bps.allreduce(full((3,), float(bps.rank() + 2)), op=bps.Product)
    assert near(out, full((3,), float(np.prod([r + 2 for r in ranks()]))))


@MODES
def test_allreduce_scales_before_and_after(mode):
    def scaled(x):
        return bps.allreduce(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0)

    assert near(run(mode, scaled, full((4,), bps.rank() + 1)), full((4,), 2.0 * total()))


@MODES
def test_integers_are_scaled_in_64_bits_and_rounded_towards_zero(mode):
    def scaled(x):
        return bps.allreduce(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=3.0)

    n = 2**25 + 1
    out = run(mode, scaled, full((3,), 2 * n, tf.int64))
    assert out.numpy().tolist() == [3 * n * bps.size()] * 3
    out = run(mode, lambda x: bps.allreduce(x, postscale_factor=0.5), full((2,), -5, tf.int32))
    assert out.numpy().tolist() == [-2, -2]
    with pytest.raises(ValueError, match="bools"):
        bps.allreduce(tf.constant([True]), prescale_factor=2.0)


def test_allreduce_takes_variables_numbers_and_nothing():
    own = bps.rank() + 1.0
    out = bps.allreduce(tf.Variable([2.0 * own, 3.0 * own]), op=bps.Sum)
    assert near(out, [2.0 * total(), 3.0 * total()])
    assert float(bps.allreduce(2.0 * bps.rank())) == bps.size() - 1
    assert bps.allreduce(tf.zeros([0, 3])).shape == (0, 3)


@MODES
def test_allreduce_of_a_shape_that_the_graph_does_not_know(mode):
    def some(x):
        return bps.allreduce(tf.boolean_mask(x, x > 1.0) + float(bps.rank()), op=bps.Sum)

    out = run(mode, some, tf.constant([1.0, 2.0, 3.0]))
    assert out.numpy().tolist() == [total(lambda r: 2.0 + r), total(lambda r: 3.0 + r)]


def test_results_stay_as_they_are_when_later_ones_come():
    step = tf.function(lambda a, b: bps.grouped_allreduce([a, b], op=bps.Sum, name="stay"))
    own = [float(bps.rank() + i) for i in range(6)]
    held = [step(full((1000,), x), full((20,), -x)) for x in own]
    for i, (a, b) in enumerate(held):
        want = total(lambda r, i=i: float(r + i))
        assert near(a, full((1000,), want)) and near(b, full((20,), -want))


def test_operations_in_a_function_keep_the_order_of_the_program():
    @tf.function
    def many(x):
        return [bps.allreduce(x + float(i), op=bps.Sum) for i in range(40)]

    for _ in range(2):
        outputs = many(full((9,), float(bps.rank())))
        for i, out in enumerate(outputs):
            assert near(out, full((9,), total(lambda r, i=i: float(r + i))))


def test_operations_run_in_loops_and_branches_of_a_function():
    @tf.function
    def loop(x, n):
        for i in tf.range(n):
            if i % 2 == 0:
                x = bps.allreduce(x, op=bps.Sum)
        return x

    out = loop(full((3,), bps.rank() + 1.0), 5)
    assert near(out, full((3,), float(total() * bps.size() ** 2)))


def test_a_name_may_come_back_with_another_shape():
    for n in (3, 5, 3):
        out = bps.allreduce(full((n,), bps.rank() + 1.0), name="shapes", op=bps.Sum)
        assert out.numpy().tolist() == [float(total())] * n


def test_shapes_that_differ_between_workers_are_an_error_at_all():
    with pytest.raises(bps.Error, match="differ"):
        bps.allreduce(tf.ones(3 + 100 * bps.rank()), name="differ")


@pytest.mark.parametrize("name", [None, "same size"])
@pytest.mark.parametrize("what", ["allreduce", "grouped", "broadcast", "variables"])
def test_equal_sizes_that_differ_are_an_error_that_names_both(what, name):
    others = [tf.ones((3, 4)), tf.ones((2, 6), tf.int32)]
    for i, (other, text) in enumerate(zip(others, ["float32 [3, 4]", "int32 [2, 6]"])):
        if what in ("allreduce", "grouped") and name is None and i == 1:
            continue  # the values that were sent in vain would be in flight for ever
        mine = other if bps.rank() else tf.ones((2, 6))
        one = None if name is None else f"{name} {what} {i}"
        calls = {
            "allreduce": lambda x=mine, n=one: bps.allreduce(x, name=n),
            "grouped": lambda x=mine, n=one: bps.grouped_allreduce([tf.ones(2), x], name=n),
            "broadcast": lambda x=mine: bps.broadcast(x, 0),
            "variables": lambda x=mine: bps.broadcast_variables(
                [tf.Variable(tf.ones(2)), tf.Variable(x, name="kernel")]
            ),
        }
        with pytest.raises(bps.Error, match=r"rank 0 has float32 \[2, 6\]") as caught:
            calls[what]()
        assert f"has {text}" in str(caught.value)
        assert "kernel" in str(caught.value) or what != "variables"
    assert (bps.allreduce(tf.ones(2), op=bps.Sum).numpy() == bps.size()).all()


def test_gradients_of_other_layers_are_not_added():
    sizes = (4, 2) if bps.rank() else (2, 4)
    a, b = (tf.Variable(tf.ones(n), name=name) for n, name in zip(sizes, "ab"))
    with bps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(a) + tf.reduce_sum(b)
    match = r"tensor 'a(:0)?': rank 0 has float32 \[2\], rank 1 has float32 \[4\]"
    with pytest.raises(bps.Error, match=match):
        tape.gradient(loss, [a, b])


def test_types_that_differ_are_an_error_of_tensorflow_in_a_function():
    step = tf.function(lambda x: bps.allreduce(x, name="types"))
    with pytest.raises(tf.errors.UnknownError, match="types"):
        step(tf.ones(8, tf.float64 if bps.rank() else tf.float32))


def test_adasum_and_unknown_operations_are_refused():
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.allreduce(tf.ones(3), op=bps.Adasum)
    with pytest.raises(ValueError, match="exclude"):
        bps.allreduce(tf.ones(3), average=True, op=bps.Sum)


def test_types_that_cannot_be_summed_are_refused_in_words():
    with pytest.raises(TypeError, match="complex64 cannot be summed"):
        bps.allreduce(tf.ones(3, tf.complex64))


def test_xla_is_refused_in_words():
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        tf.function(bps.allreduce, jit_compile=True)(tf.ones(3))


@MODES
@pytest.mark.parametrize("kind", [bps.Compression.fp16, bps.Compression.bf16])
def test_compression_changes_the_type_on_the_wire_only(mode, kind):
    def small(x):
        return bps.allreduce(x, compression=kind, op=bps.Sum)

    out = run(mode, small, full((8,), 0.5 + bps.rank()))
    assert out.dtype == tf.float32 and near(out, full((8,), total(lambda r: 0.5 + r)))
    cast, context = kind.compress(tf.ones(2))
    assert cast.dtype == kind.wire and kind.decompress(cast, context).dtype == tf.float32


@MODES
def test_grouped_allreduce_returns_all_outputs(mode):
    group = [full((n,), float(bps.rank())) for n in (1, 100, 10_000)]
    outputs = run(mode, lambda *g: bps.grouped_allreduce(g, op=bps.Sum), *group)
    assert [len(o) for o in outputs] == [1, 100, 10_000]
    assert all((o.numpy() == sum(ranks())).all() for o in outputs)


@MODES
def test_push_pull_has_byteps_defaults(mode):
    x = full((6,), float(bps.rank()))
    assert near(run(mode, bps.push_pull, x), full((6,), sum(ranks()) / bps.size()))
    total_ = run(mode, lambda x: bps.push_pull(x, "scope", average=False), x)
    assert near(total_, full((6,), sum(ranks())))
    assert any("scope" in name for name in _core.runtime().groups)
    with pytest.raises(NotImplementedError, match="enable_async"):
        bps.push_pull(x, enable_async=True)


@MODES
def test_rows_of_indexed_slices_are_averaged(mode):
    def reduce(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([10, 2], tf.int64))
        out = bps.allreduce(slices)
        return tf.convert_to_tensor(out)

    out = run(mode, reduce, full((2, 2), bps.rank() + 1.0), tf.constant([bps.rank(), 9], tf.int64))
    assert near(out[9], full((2,), total() / bps.size()))
    assert near(out[: bps.size(), 0], [(r + 1) / bps.size() for r in ranks()])


@MODES
def test_rows_of_indexed_slices_are_scaled_and_compressed(mode):
    def reduce(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([4, 2], tf.int64))
        options = {"op": bps.Sum, "prescale_factor": 10.0, "postscale_factor": 0.5}
        total_ = bps.allreduce(slices, compression=bps.Compression.fp16, **options)
        return total_.values

    out = run(mode, reduce, full((1, 2), 1.0 + 2.0**-12), tf.constant([1], tf.int64))
    assert out.numpy().tolist() == [[5.0 * bps.size()] * 2]  # f16 has no digit for 2^-12


@MODES
@pytest.mark.parametrize("n_rows", [100_000, 40, None])
def test_sums_of_indexed_slices_have_each_row_once(mode, n_rows):
    """The workers send indices, bitmaps, and indices. Rank 1 has no rows."""
    shape = None if n_rows is None else tf.constant([n_rows, 3], tf.int64)
    index = np.array([] if bps.rank() == 1 else [30, bps.rank(), 30], np.int64)

    def reduce(values, indices):
        out = bps.allreduce(tf.IndexedSlices(values, indices, shape), op=bps.Sum)
        return out.values, out.indices

    for _ in range(2):
        values = np.repeat(index[:, None] + 1.0, 3, 1).astype(np.float32)
        rows, found = run(mode, reduce, tf.constant(values), tf.constant(index))
        others = [r for r in ranks() if r != 1]
        assert found.numpy().tolist() == [*others, 30]
        assert rows.numpy()[:, 0].tolist() == [*(r + 1.0 for r in others), 62.0 * len(others)]
        assert same_everywhere(rows)


BLOCKS = pytest.mark.parametrize(("compression", "levels"), coded.KINDS)


@MODES
@BLOCKS
def test_large_tensors_are_sent_in_blocks(mode, compression, levels):
    x = tf.constant(coded.values(bps.rank(), (200, 100)))
    small = full((5,), float(bps.rank()))
    options = {"compression": compression}
    for name in (None, f"blocks.{levels}"):
        coded.check(run(mode, lambda x: bps.allreduce(x, name=name, **options), x), levels)
    group = [x, tf.cast(x, tf.float16), small]
    outputs = run(mode, lambda *g: bps.grouped_allreduce(g, **options), *group)
    coded.check(outputs[0], levels)
    assert outputs[1].dtype == tf.float16 and near(outputs[1], coded.mean(x.shape), 2 / levels)
    assert near(outputs[2], full((5,), sum(ranks()) / bps.size()))
    rows = run(mode, lambda x: bps.reducescatter(x, **options), x)
    coded.check(bps.allgather(rows), levels)


@MODES
@BLOCKS
def test_a_tape_sends_blocks_with_residuals(mode, compression, levels):
    v = tf.Variable(tf.zeros([coded.N]))
    grad = tf.constant(coded.values(bps.rank()))
    local = tf.Variable(tf.zeros([3]))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * grad) + tf.reduce_sum(local)
        options = {"compression": compression.with_residual(), "groups": [[v]]}
        return bps.DistributedGradientTape(tape, **options).gradient(loss, [v, local])

    step = tf.function(step) if mode == "graph" else step
    first, rest = step()
    coded.check(first, levels)
    assert near(rest, tf.ones(3))
    steps = [first] + [step()[0] for _ in range(7)]
    errors = [np.abs(g.numpy() - coded.mean()).mean() for g in (first, sum(steps) / 8)]
    assert errors[1] < errors[0]
    coded.check_residual("grad.0", levels)


@MODES
def test_rows_of_indexed_slices_are_not_sent_in_blocks(mode):
    def reduce(values):
        slices = tf.IndexedSlices(values, tf.range(200), tf.constant([200, 100], tf.int64))
        return bps.allreduce(slices, op=bps.Sum, compression=bps.Compression.int8).values

    out = run(mode, reduce, tf.constant(coded.values(bps.rank(), (200, 100))))
    assert near(out, tf.constant(sum(coded.values(r, (200, 100)) for r in ranks())))


@MODES
def test_blocks_are_refused_where_they_make_no_sense(mode):
    x = tf.zeros([coded.N])
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(errors, match="max needs the values themselves"):
        run(mode, lambda x: bps.allreduce(x, op=bps.Max, compression=bps.Compression.int8), x)
    kind = bps.Compression.int4.with_residual()
    with pytest.raises(errors, match="needs the argument name"):
        run(mode, lambda x: bps.allreduce(x, compression=kind), x)
    if coded.shares_a_machine():
        with pytest.raises(errors, match=r"use Compression\.int4"):
            options = {"name": "sign", "compression": bps.Compression.sign}
            run(mode, lambda x: bps.allreduce(x, **options), x)


class Doubling:
    """A compressor of a script for Horovod."""

    @staticmethod
    def compress(tensor):
        return tf.cast(tensor * 2, tf.float64), tensor.dtype

    @staticmethod
    def decompress(tensor, context):
        return tf.cast(tensor / 4, context)


class DoublingByInheritance(Doubling, bps.Compression.none):
    """A compressor that is derived from one of this package."""


@MODES
@pytest.mark.parametrize("kind", [Doubling, DoublingByInheritance])
def test_a_compressor_of_the_script_is_called(mode, kind):
    out = run(mode, lambda x: bps.allreduce(x, op=bps.Sum, compression=kind), full((3,), 1.0))
    assert out.dtype == tf.float32 and near(out, full((3,), bps.size() / 2))
    out = run(mode, lambda x: bps.reducescatter(x, compression=kind), tf.ones([bps.size()]))
    assert near(out, [0.5])
    v = tf.Variable([2.0])
    with tf.GradientTape() as tape:
        loss = v[0] * 3.0
    assert near(bps.DistributedGradientTape(tape, compression=kind).gradient(loss, v), [1.5])
    with pytest.raises(TypeError, match="not a compressor"):
        bps.allreduce(tf.ones(2), compression=object())


@pytest.mark.parametrize("call", [bps.allgather, bps.alltoall])
def test_the_name_of_a_call_is_in_the_texts_of_errors(call):
    x = tf.ones([bps.size(), 1 + (bps.rank() == 1)])
    with pytest.raises(bps.Error, match="'my_rows'"):
        call(x, name="my_rows")


@MODES
def test_name_scopes_are_part_of_names_in_graphs_only(mode):
    def both(x):
        with tf.name_scope("outer"):
            a = bps.allreduce(x, name="scoped", op=bps.Sum)
            return a + bps.allreduce(x, name="scoped", op=bps.Sum, ignore_name_scope=True)

    run(mode, both, tf.ones(3))
    names = bps.allgather_object(sorted(n for n in _core.runtime().groups if "scoped" in n))
    assert names[0] == (["scoped"] if mode == "eager" else ["outer/scoped", "scoped"])


# ---- gradients ----


def gradient(mode, function, x, weight):
    def compute(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) * weight)
        return tape.gradient(loss, x)

    return run(mode, compute, x, weight)


@MODES
@pytest.mark.parametrize("op", [bps.Sum, bps.Average])
def test_the_gradient_of_allreduce_is_reduced_alike(mode, op):
    weight = full((5,), float(bps.rank() + 1))
    grad = gradient(mode, lambda x: bps.allreduce(x, op=op), tf.ones(5), weight)
    assert near(grad, full((5,), total() / (bps.size() if op == bps.Average else 1)))


def test_the_gradient_of_a_group_is_reduced_alike():
    def grouped(x):
        a, b = bps.grouped_allreduce([x, 2.0 * x], op=bps.Sum)
        return a + b

    grad = gradient("graph", grouped, tf.ones(5), full((5,), float(bps.rank() + 1)))
    assert near(grad, full((5,), 3.0 * total()))


@MODES
def test_the_gradient_of_broadcast_is_the_average_at_root(mode):
    grad = gradient(mode, lambda x: bps.broadcast(x, 1), tf.ones(4), full((4,), bps.rank() + 1.0))
    assert near(grad, full((4,), total() / bps.size() if bps.rank() == 1 else 0.0))


@MODES
def test_the_gradient_of_allgather_is_the_average_of_its_rows(mode):
    n = bps.rank() + 1
    weight = tf.cast(tf.reshape(tf.range(total()), [-1, 1]), tf.float32) * (bps.rank() + 1)
    grad = gradient(mode, bps.allgather, tf.ones([n, 2]), weight)
    first = sum(r + 1 for r in range(bps.rank()))
    rows = (first + np.arange(n)) * total() / bps.size()
    assert near(grad, np.repeat(rows[:, None], 2, 1))


@MODES
def test_the_gradient_of_alltoall_goes_back(mode):
    splits = [r + 1 for r in ranks()]
    weight = full((bps.size() * (bps.rank() + 1),), float(bps.rank()))
    grad = gradient(mode, lambda x: bps.alltoall(x, splits)[0], tf.ones(total()), weight)
    assert grad.numpy().tolist() == [float(r) for r in ranks() for _ in range(r + 1)]


@MODES
def test_the_gradient_of_reducescatter_is_gathered(mode):
    weight = full((2, 3), float(bps.rank() + 1))
    x = tf.ones([2 * bps.size(), 3])
    grad = gradient(mode, lambda x: bps.reducescatter(x, op=bps.Sum), x, weight)
    assert grad[:, 0].numpy().tolist() == [r + 1.0 for r in ranks() for _ in range(2)]


# ---- broadcast, allgather, alltoall, reducescatter ----


@MODES
@pytest.mark.parametrize("dtype", [*TYPES, tf.bool])
def test_broadcast_gives_every_worker_roots_values(mode, dtype):
    root = bps.size() - 1
    out = run(mode, lambda x: bps.broadcast(x, root), full((3, 4), bps.rank(), dtype))
    assert out.dtype == dtype and (out.numpy() == full((3, 4), root, dtype).numpy()).all()


@MODES
def test_variables_are_broadcast_in_one_call(mode):
    variables = [tf.Variable(full((n,), float(bps.rank()))) for n in (3, 50)]
    variables.append(tf.Variable(bps.rank(), dtype=tf.int64))
    run(mode, lambda: bps.broadcast_variables(variables, 1))
    assert all((v.numpy() == 1).all() for v in variables)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        bps.broadcast_global_variables(0)


@MODES
@pytest.mark.parametrize("dtype", [*TYPES, tf.bool])
def test_allgather_takes_different_numbers_of_rows(mode, dtype):
    out = run(mode, bps.allgather, full((bps.rank() + 1, 3), bps.rank(), dtype))
    want = full((total(),), 0) + tf.constant([r for r in ranks() for _ in range(r + 1)], tf.float32)
    assert out.dtype == dtype and (out[:, 0].numpy() == tf.cast(want, dtype).numpy()).all()


def test_allgather_names_the_worker_whose_shape_differs():
    with pytest.raises(bps.Error, match=r"rank \d has shape"):
        bps.allgather(tf.ones([2, 2 + (bps.rank() == 1)]))
    with pytest.raises(ValueError, match="one dimension"):
        bps.allgather(tf.constant(1.0))


def test_grouped_allgather_returns_all_outputs():
    outputs = bps.grouped_allgather([full((1, n), float(bps.rank())) for n in (2, 5)])
    assert [o.numpy().tolist() for o in outputs] == [
        [[float(r)] * n for r in ranks()] for n in (2, 5)
    ]


@MODES
def test_alltoall_sends_rows_to_each_worker(mode):
    splits = [r + 1 for r in ranks()]
    x = tf.repeat(tf.range(bps.size()), splits) + 100 * bps.rank()
    out, received = run(mode, lambda x: bps.alltoall(x, splits), x)
    n = bps.rank() + 1
    assert out.numpy().tolist() == [100 * r + bps.rank() for r in ranks() for _ in range(n)]
    assert received.numpy().tolist() == [n] * bps.size()


@MODES
def test_alltoall_without_splits_sends_equal_parts(mode):
    out = run(mode, bps.alltoall, tf.range(2 * bps.size()) + 100 * bps.rank())
    assert out.numpy().tolist() == [100 * r + 2 * bps.rank() + i for r in ranks() for i in (0, 1)]


@MODES
def test_reducescatter_gives_each_worker_its_rows(mode):
    rows = bps.size() + 1
    x = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2])
    own = x + float(bps.rank())
    out = run(mode, lambda x: bps.reducescatter(x, op=bps.Sum), own)
    first, n = bps.rank() + (bps.rank() > 0), 2 if bps.rank() == 0 else 1
    assert near(out, x[first : first + n] * bps.size() + float(sum(ranks())))
    (other,) = bps.grouped_reducescatter([own], op=bps.Sum, name="parts")
    assert near(other, out)


def test_objects_are_sent():
    assert bps.broadcast_object({"epoch": bps.rank()}, 1) == {"epoch": 1}
    assert bps.broadcast_object(bps.rank(), 1, session=None, name="place") == 1
    assert bps.broadcast_object_fn(1)(bps.rank()) == 1
    assert bps.allgather_object(bps.rank(), session=None, name="place") == list(ranks())


def test_variables_are_broadcast_one_after_the_other():
    variables = [tf.Variable(full((n,), float(bps.rank()))) for n in (3, 50)]
    bps.broadcast_variables(variables, root_rank=1, inplace=True)
    assert all((v.numpy() == 1).all() for v in variables)


@MODES
def test_operations_read_the_process_set_of_an_id(mode):
    last = bps.size() - 1
    some = bps.add_process_set([last])
    number = some.process_set_id
    read = run(
        mode,
        lambda: [
            bps.size_op(number),
            bps.size_op(),
            bps.process_set_included_op(number),
            bps.process_set_included_op(name="here"),
        ],
    )
    assert [int(x) for x in read] == [1, bps.size(), bps.rank() == last, 1]
    bps.remove_process_set(some)
    with pytest.raises(ValueError, match="no process set"):
        bps.size_op(number)


def test_join_is_refused_in_words():
    with pytest.raises(NotImplementedError, match="same number of steps"):
        bps.join()


@MODES
def test_a_process_set_runs_collectives_of_its_own(mode):
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    x = full((2, 3), bps.rank() + 1.0)
    if some.included():
        options = {"process_set": some}
        out = run(mode, lambda x: bps.allreduce(x, op=bps.Sum, **options), x)
        assert near(out, full((2, 3), 2.0 * last + 1))
        out = run(mode, lambda x: bps.allreduce(x, name="mean", **options), x)
        assert near(out, full((2, 3), last + 0.5))
        out = run(mode, lambda x: bps.broadcast(x, last, **options), x)
        assert near(out, full((2, 3), last + 1.0))
        out = run(mode, lambda x: bps.allgather(x, **options), x)
        assert out[:, 0].numpy().tolist() == [last, last, last + 1, last + 1]
        out = run(mode, lambda x: bps.reducescatter(x, op=bps.Sum, **options), x)
        assert near(out, full((1, 3), 2.0 * last + 1))
        out = run(mode, lambda x: bps.alltoall(x, **options), x)
        assert out[:, 0].numpy().tolist() == [last, last + 1]
        variable = tf.Variable(x)
        bps.broadcast_variables([variable], last, **options)
        assert near(variable, full((2, 3), last + 1.0))
        place = run(mode, lambda: [bps.rank_op(**options), bps.size_op(some.process_set_id)])
        assert [int(p) for p in place] == [bps.rank() - last + 1, 2]
    else:
        with pytest.raises(ValueError, match="is not in"):
            bps.allreduce(x, process_set=some)
    assert near(bps.allreduce(x, op=bps.Sum), full((2, 3), float(total())))
    bps.remove_process_set(some)


# ---- training ----


def network():
    rng = np.random.RandomState(0)
    shapes = [(6, 16), (16,), (16, 3), (3,)]
    return [tf.Variable(0.3 * rng.randn(*s), dtype=tf.float32) for s in shapes]


def batch():
    rng = np.random.RandomState(7)
    return [tf.constant(rng.randn(24, n), tf.float32) for n in (6, 3)]


def mine():
    """Return the slice of the batch's rows that this worker uses."""
    return slice(bps.rank() * 24 // bps.size(), (bps.rank() + 1) * 24 // bps.size())


def loss_of(v, x, y):
    return tf.reduce_mean((tf.nn.relu(x @ v[0] + v[1]) @ v[2] + v[3] - y) ** 2)


def train(mode, variables, wrap, rows=slice(None), steps=10):
    x, y = (t[rows] for t in batch())

    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(variables, x, y)
        for v, g in zip(variables, wrap(tape).gradient(loss, variables)):
            v.assign_sub(0.1 * g)

    step = tf.function(step) if mode == "graph" else step
    for _ in range(steps):
        step()


@MODES
def test_a_tape_equals_one_worker_with_the_whole_batch(mode):
    variables, alone = network(), network()
    train(mode, variables, bps.DistributedGradientTape, mine())
    train(mode, alone, lambda tape: tape)
    for a, b in zip(variables, alone):
        assert near(a, b, 1e-6) and same_everywhere(a)


def test_a_tape_with_half_precision_and_a_predivide_factor_stays_near_full_precision():
    variables, alone = network(), network()

    def wrap(tape):
        return bps.DistributedGradientTape(
            tape, compression=bps.Compression.fp16, gradient_predivide_factor=2.0
        )

    train("graph", variables, wrap, mine())
    train("graph", alone, lambda tape: tape)
    # In each of 10 steps of rate 0.1, gradients below 1 are rounded before and after the sum. Each
    # rounding changes a gradient by at most 2^-12 of its value.
    assert all(near(a, b, 2**-11) and same_everywhere(a) for a, b in zip(variables, alone))
    assert not all(near(a, b, 1e-6) for a, b in zip(variables, alone))
    with pytest.raises(ValueError, match="op=Average"):
        bps.DistributedGradientTape(tf.GradientTape(), op=bps.Sum, gradient_predivide_factor=2.0)


@pytest.mark.parametrize("as_dense", [False, True])
def test_a_tape_reduces_sparse_gradients(as_dense):
    table = tf.Variable(tf.ones([10, 4]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [bps.rank(), 9]))
    grad = bps.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, table)
    assert isinstance(grad, tf.IndexedSlices) != as_dense
    grad = tf.convert_to_tensor(grad)
    assert near(grad[9], tf.ones(4)) and near(grad[8], tf.zeros(4))
    assert near(grad[bps.rank()], full((4,), 1 / bps.size()))


def test_a_tape_keeps_the_structure_of_its_sources_and_missing_gradients():
    a, b, c = (tf.Variable(1.0) for _ in range(3))
    with tf.GradientTape(persistent=True) as tape:
        loss = 2.0 * a + 3.0 * c * (bps.rank() + 1)
    tape = bps.DistributedGradientTape(tape)
    grads = tape.gradient(loss, {"a": a, "rest": [b, c]})
    assert float(grads["a"]) == 2.0 and grads["rest"][0] is None
    assert near(grads["rest"][1], 3.0 * total() / bps.size())


def test_a_tape_keeps_gradients_of_local_variables_at_this_worker():
    a, b, c = tf.Variable(1.0), tf.Variable(1.0), tf.Variable([[1.0]])
    with tf.GradientTape() as tape:
        loss = (a + b + tf.gather(c, [0])[0, 0]) * float(bps.rank() + 1)
    tape = bps.DistributedGradientTape(tape)
    tape.register_local_source(b)
    tape.register_local_source(c)
    shared, local, rows = tape.gradient(loss, [a, b, c])
    assert near(shared, total() / bps.size()) and near(local, (bps.rank() + 1) / bps.size())
    assert near(rows.values, [[(bps.rank() + 1) / bps.size()]])


@pytest.mark.parametrize("groups", [2, "lists"])
def test_a_tape_sends_groups_of_gradients_in_calls_of_their_own(monkeypatch, groups):
    variables = network()
    sent, reduce = [], _group.Group.reduce

    def observed(self, arrays, *args, **options):
        sent.append(len(arrays))
        return reduce(self, arrays, *args, **options)

    monkeypatch.setattr(_group.Group, "reduce", observed)
    x, y = batch()
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(variables, x[mine()], y[mine()])
    grads = bps.DistributedGradientTape(tape).gradient(loss, variables)
    assert sent == [4]
    if groups == "lists":
        groups = [[variables[3], variables[0]], [variables[2]]]
    options = {"groups": groups} if isinstance(groups, list) else {"num_groups": groups}
    other = bps.DistributedGradientTape(tape, **options).gradient(loss, variables)
    assert sent[1:] == ([2, 1, 1] if "groups" in options else [2, 2])
    assert all(near(a, b) for a, b in zip(grads, other))
    with pytest.raises(ValueError, match="groups"):
        bps.DistributedGradientTape(tape, groups=-1)


def test_a_worker_outside_the_process_set_keeps_its_gradients():
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    v, rows = tf.Variable(1.0), tf.Variable(tf.ones([3, 2]))
    with tf.GradientTape(persistent=True) as tape:
        loss = (v + tf.reduce_sum(tf.gather(rows, [1]))) * float(bps.rank() + 1)
    tape = bps.DistributedGradientTape(tape, process_set=some)
    grad, sparse = tape.gradient(loss, [v, rows])
    want = last + 0.5 if some.included() else bps.rank() + 1.0
    assert near(grad, want) and near(tf.convert_to_tensor(sparse)[1], [want, want])
    with tf.Graph().as_default():
        w = tf.compat.v1.get_variable("w", initializer=0.0)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = bps.DistributedOptimizer(optimizer, process_set=some)
        step = optimizer.minimize(w * float(bps.rank() + 1))
        with session() as run_:
            run_.run(tf.compat.v1.global_variables_initializer())
            run_.run(step)
            assert run_.run(w) == -want
    bps.remove_process_set(some)


def test_an_optimizer_of_tensorflow_1_takes_horovods_arguments():
    with tf.Graph().as_default():
        a, b = (tf.compat.v1.get_variable(n, initializer=0.0) for n in "ab")
        optimizer = bps.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), "mine", use_locking=True, num_groups=2
        )
        optimizer.register_local_var(b)
        with pytest.raises(RuntimeError, match="compute_gradients"):
            optimizer.apply_gradients([(tf.constant(1.0), a)])
        step = optimizer.minimize((a + b) * float(bps.rank() + 1))
        assert step.name == "mine" and optimizer._use_locking
        with session() as run_:
            run_.run(tf.compat.v1.global_variables_initializer())
            run_.run(step)
            assert near(run_.run(a), -total() / bps.size())
            assert near(run_.run(b), -(bps.rank() + 1) / bps.size())


@MODES
def test_horovods_gradient_of_reducescatter_is_that_of_the_sum_times_the_size(mode):
    weight, x = full((2,), float(bps.rank() + 1)), tf.ones([2 * bps.size()])
    want = np.repeat([r + 1.0 for r in ranks()], 2)
    for op, factor in ((bps.Sum, bps.size()), (bps.Average, 1)):
        options = {"op": op, "has_horovods_gradient": True}
        grad = gradient(mode, lambda x, o=options: bps.reducescatter(x, **o), x, weight)
        assert near(grad, factor * want)
        grad = gradient(
            mode, lambda x, o=options: bps.grouped_reducescatter([x], **o)[0], x, weight
        )
        assert near(grad, factor * want)


@pytest.mark.parametrize("n_devices", [1, 2])
def test_a_mirrored_strategy_reduces_over_all_workers(tmp_path, n_devices):
    script = f"""
import numpy as np, tensorflow as tf
import bps.tensorflow as bps
cpu = tf.config.list_physical_devices("CPU")[0]
devices = [tf.config.LogicalDeviceConfiguration()] * {n_devices}
tf.config.set_logical_device_configuration(cpu, devices)
bps.init()
strategy = tf.distribute.MirroredStrategy(
    [f"CPU:{{i}}" for i in range({n_devices})], cross_device_ops=bps.CrossDeviceOps())
with strategy.scope():
    v = tf.Variable([1.0, 1.0])

@tf.function
def step():
    def replica():
        place = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        grad = tf.fill([2], bps.rank() + 1.0) + place
        total = tf.distribute.get_replica_context().all_reduce("sum", [grad, 2 * grad])
        return total
    return strategy.run(replica)

for _ in range(3):
    a, b = step()
first = [x.values[0] if hasattr(x, "values") else x for x in (a, b)]
n = {n_devices}
want = np.mean([n * (r + 1) + n * (n - 1) / 2 for r in range(bps.size())])
assert np.allclose(first[0], want) and np.allclose(first[1], 2 * want), (first, want)
bps.shutdown()
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


def test_a_state_is_saved_restored_and_sent():
    v = tf.Variable([float(bps.rank())])
    state = bps.elastic.TensorFlowState([v], step=bps.rank())
    v.assign([7.0])
    state.step = 9
    state.restore()
    assert float(v[0]) == bps.rank() and state.step == bps.rank()
    state.sync()
    assert float(v[0]) == 0.0 and state.step == 0


def test_a_tensorflow_state_is_sent_restored_and_committed():
    variables = [tf.Variable(full(shape, bps.rank() + 1.0)) for shape in ((2, 2), (2,))]
    state = bps.elastic.TensorFlowState(variables, batch=20 + bps.rank(), epoch=10 + bps.rank())
    state.sync()
    assert all((v.numpy() == 1).all() for v in variables) and (state.batch, state.epoch) == (20, 10)
    for commits in (False, True):
        for v in variables:
            v.assign(tf.fill(v.shape, 5.0))
        state.batch, state.epoch = 21, 11
        if commits:
            state.commit()
        state.restore()
        want = 5 if commits else 1
        assert all((v.numpy() == want).all() for v in variables)
        assert (state.batch, state.epoch) == ((21, 11) if commits else (20, 10))


def test_an_elastic_function_runs_with_a_state_that_all_share():
    v = tf.Variable([float(bps.rank())])

    @bps.elastic.run
    def train(state):
        while state.step < 3:
            v.assign_add(bps.allreduce([2.0 * bps.rank() / (bps.size() - 1)]))  # 1 on average
            state.step += 1
            state.commit()
        return float(v[0])

    assert train(bps.elastic.TensorFlowState([v], step=0)) == pytest.approx(3.0)


# ---- what Horovod's tests check, see behaviours.txt ----


@pytest.fixture
def halves():
    """Return the set of the even ranks and the set of the odd ranks, this worker's set first."""
    sets = [bps.add_process_set(ranks()[first::2]) for first in (0, 1)]
    yield sets[:: 1 if bps.rank() % 2 == 0 else -1]
    for one in sets:
        bps.remove_process_set(one)


def sent_rows(splits):
    """Return rows for an all-to-all: each row has the rank of its sender and of its receiver."""
    pairs = [[bps.rank(), r] for r, n in enumerate(splits) for _ in range(n)]
    return tf.constant(pairs, tf.int32, [sum(splits), 2])


SPLITS = {
    "one sends nothing": lambda r: [0 if r == 1 else r + 1] * bps.size(),
    "one receives nothing": lambda r: [0] + [r + 1] * (bps.size() - 1),
    "some are silent": lambda r: [int(max(r, to) < bps.size() // 2) for to in ranks()],
    "all are silent": lambda r: [0] * bps.size(),
}


@MODES
@pytest.mark.parametrize("who", SPLITS)
def test_alltoall_where_workers_send_or_receive_nothing(mode, who):
    tables = [SPLITS[who](r) for r in ranks()]
    me = bps.rank()
    rows, received = run(mode, lambda x: bps.alltoall(x, tables[me], "a2a"), sent_rows(tables[me]))
    assert received.numpy().tolist() == [table[me] for table in tables]
    assert rows.shape == (sum(table[me] for table in tables), 2)
    assert rows.numpy().tolist() == [[r, me] for r in ranks() for _ in range(tables[r][me])]


@pytest.mark.parametrize("dtype", [*TYPES, tf.uint16, tf.int16, tf.bool])
def test_alltoall_takes_every_type_also_without_elements(dtype):
    out = bps.alltoall(full((bps.size(), 2), bps.rank(), dtype))
    assert out.dtype == dtype
    assert (out.numpy() == tf.cast([[r, r] for r in ranks()], dtype).numpy()).all()
    assert bps.alltoall(tf.zeros([bps.size(), 0], dtype)).shape == (bps.size(), 0)


@pytest.mark.parametrize("dtype", [tf.uint16, tf.int16])
@pytest.mark.parametrize("call", [bps.allgather, lambda x: bps.grouped_allgather([x, x])[1]])
def test_allgather_takes_small_integers(dtype, call):
    out = call(full((2, 3), bps.rank(), dtype))
    assert out.dtype == dtype and out[::2, 0].numpy().tolist() == list(ranks())


DIFFERENT = {
    "allreduce": lambda x: bps.allreduce(x),
    "group": lambda x: bps.grouped_allreduce([tf.ones(2), x]),
    "allgather": lambda x: bps.allgather(x),
    "alltoall": lambda x: bps.alltoall(x),
    "broadcast": lambda x: bps.broadcast(x, 0),
    "reducescatter": lambda x: bps.reducescatter(x),
}


@pytest.mark.parametrize("what", ["type", "shape"])
@pytest.mark.parametrize("call", DIFFERENT)
def test_types_and_shapes_that_differ_are_errors_of_every_call(call, what):
    n, odd = bps.size(), bps.rank() % 2
    x = tf.ones([n, 2 + (odd if what == "shape" else 0)], tf.int32 if what == "type" and odd else
                tf.float32)  # fmt: skip
    with pytest.raises(RuntimeError) as caught:  # the base class of Horovod's error
        DIFFERENT[call](x)
    assert isinstance(caught.value, bps.Error)
    assert float(bps.allreduce(1.0, op=bps.Sum)) == n


def test_roots_that_differ_are_an_error_at_all():
    with pytest.raises(bps.Error, match="root 0.*root 1"):
        bps.broadcast(tf.ones(3), min(bps.rank(), 1))


def test_rows_that_cannot_be_split_are_an_error():
    n = bps.size()
    for x, splits in ((tf.ones(n + 1), None), (tf.ones(n - 1), [1] * n), (tf.ones(n), [-1] * n)):
        with pytest.raises(ValueError, match="cannot be split"):
            bps.alltoall(x, splits)


def test_numbers_are_refused_by_reducescatter_also_in_groups():
    for call in (
        lambda: bps.reducescatter(tf.constant(1.0)),
        lambda: bps.grouped_reducescatter([tf.zeros([3, 1]), tf.constant(1.0)]),
    ):
        with pytest.raises(ValueError, match="at least one dimension"):
            call()


@pytest.mark.parametrize("call", ["allgather", "broadcast", "alltoall", "object"])
def test_names_that_differ_between_workers_are_an_error_at_all(call):
    calls = {
        "allgather": lambda n: bps.allgather(tf.ones(2), n),
        "broadcast": lambda n: bps.broadcast(tf.ones(2), 0, n),
        "alltoall": lambda n: bps.alltoall(tf.ones(bps.size()), name=n),
        "object": lambda n: bps.broadcast_object(1, 0, name=n),
    }
    for names in ("ab", (None, "b")):
        with pytest.raises(bps.Error, match="workers disagree"):
            calls[call](names[min(bps.rank(), 1)])
    calls[call]("b")


def test_an_empty_list_of_variables_is_compared_with_the_others():
    for inplace in (False, True):
        given = [] if bps.rank() == 0 else [tf.Variable([1.0])]
        with pytest.raises(bps.Error, match="rank 0 has 0 tensors|which rank 0 does not have"):
            bps.broadcast_variables(given, 0, inplace=inplace)
        bps.broadcast_variables([], 0, inplace=inplace)


def test_differences_in_a_process_set_name_ranks_of_the_job():
    last = bps.add_process_set(ranks()[1:])
    n = bps.rank() + 1
    calls = [
        lambda: bps.allreduce(tf.ones(n), process_set=last),
        lambda: bps.allgather(tf.ones([1, n]), process_set=last),
        lambda: bps.alltoall(tf.ones([last.size(), n]), process_set=last),
        lambda: bps.broadcast(tf.ones(n), 1, process_set=last),
        lambda: bps.broadcast(tf.ones(2), bps.rank(), process_set=last),
        lambda: bps.broadcast_variables([tf.Variable(tf.ones(n))], 1, last),
    ]
    for call in calls if last.included() and last.size() > 1 else []:
        with pytest.raises(bps.Error, match="rank [12] has .*(rank 2|this worker) has") as caught:
            call()
        assert "root 0" not in str(caught.value) and "rank 0" not in str(caught.value)
    bps.barrier()
    bps.remove_process_set(last)


@MODES
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float16, tf.float32, tf.float64])
def test_reducescatter_averages_and_scales_every_type(mode, dtype):
    n, exact = bps.size(), tf.float32 if dtype == tf.float16 else tf.float64
    x = tf.cast(tf.reshape(tf.range(4 * n), [-1, 1]), dtype)
    own, factor = x[4 * bps.rank() : 4 * bps.rank() + 4], 0.4
    scaled = lambda x: tf.cast(tf.cast(x, exact) * factor, dtype)  # noqa: E731
    wants = [
        ({"op": bps.Average}, own),
        ({"op": bps.Sum, "prescale_factor": factor}, scaled(own) * n),
        ({"op": bps.Sum, "postscale_factor": factor}, scaled(own * n)),
    ]
    for options, want in wants:
        one = run(mode, lambda x, o=options: bps.reducescatter(x, **o), x)
        two = run(mode, lambda x, o=options: bps.grouped_reducescatter([x, x], **o), x)
        for out in (one, *two):
            assert out.dtype == dtype and near(out, want, 1e-2 if dtype == tf.float16 else 1e-5)


@MODES
def test_reducescatters_of_a_remainder_are_in_one_graph(mode):
    rows = 4 * bps.size() + bps.size() // 2
    xs = [tf.range(rows, dtype=tf.float32) + float(i) for i in range(4)]
    outs = run(mode, lambda *xs: [bps.reducescatter(x, op=bps.Sum) for x in xs], *xs)
    more = bps.rank() < bps.size() // 2
    first = 4 * bps.rank() + min(bps.rank(), bps.size() // 2)
    for x, out in zip(xs, outs):
        assert near(out, x[first : first + 4 + more] * bps.size())


@pytest.mark.parametrize("name", [None, "mixed"])
@pytest.mark.parametrize("op", [bps.Sum, bps.Average])
def test_a_group_may_have_tensors_and_slices(name, op):
    factor = 1 if op == bps.Sum else 1 / bps.size()
    x = full((2, 3), bps.rank() + 1.0)
    slices = tf.IndexedSlices(x, tf.constant([bps.rank(), bps.rank() + 1]), tf.constant([9, 3]))
    dense, rows = bps.grouped_allreduce([x, slices], op=op, name=name)
    assert near(dense, full((2, 3), total() * factor))
    want = [0.0] * 9
    for r in ranks():
        want[r], want[r + 1] = want[r] + (r + 1) * factor, want[r + 1] + (r + 1) * factor
    assert near(tf.convert_to_tensor(rows)[:, 0], want)


@pytest.mark.parametrize("op", [bps.Min, bps.Max, bps.Product])
def test_other_operations_have_no_gradient_and_say_so(op):
    with pytest.raises(NotImplementedError, match="only Average and Sum"):
        gradient("eager", lambda x: bps.allreduce(x, op=op), tf.ones(3), tf.ones(3))


@MODES
def test_groups_run_in_process_sets(mode, halves):
    here, n = {"process_set": halves[0]}, halves[0].size()
    sums = float(sum(r + 1 for r in halves[0].ranks))
    xs = [full((4 * n, 2), bps.rank() + 1.0) for _ in range(3)]
    for out in run(mode, lambda *xs: bps.grouped_allreduce(xs, op=bps.Sum, **here), *xs):
        assert near(out, full((4 * n, 2), sums))
    for out in run(mode, lambda *xs: bps.grouped_allgather(xs, **here), *xs):
        assert out[:: 4 * n, 0].numpy().tolist() == [r + 1 for r in halves[0].ranks]
    for op, want in ((bps.Sum, sums), (bps.Average, sums / n)):
        for out in run(mode, lambda *xs, o=op: bps.grouped_reducescatter(xs, op=o, **here), *xs):
            assert near(out, full((4, 2), want))
    root = halves[0].ranks[-1]
    assert bps.broadcast_object(bps.rank(), root, process_set=halves[0]) == root
    assert bps.allgather_object(bps.rank(), process_set=halves[0]) == halves[0].ranks


@MODES
def test_gradients_of_all_calls_stay_in_their_process_set(mode, halves):
    here, n, me = {"process_set": halves[0]}, halves[0].size(), halves[0].rank()
    root, splits = halves[0].ranks[-1], [me + 1] * n
    scatter = {**here, "has_horovods_gradient": True}
    calls = {
        "allreduce": (lambda x: bps.allreduce(x, op=bps.Sum, **here), 4, n),
        "group": (lambda x: bps.grouped_allreduce([x], op=bps.Sum, **here)[0], 4, n),
        "allgather": (lambda x: bps.allgather(x, **here), bps.rank() + 1, 1),
        "gathers": (lambda x: bps.grouped_allgather([x], **here)[0], bps.rank() + 1, 1),
        "broadcast": (lambda x: bps.broadcast(x, root, **here), 4, int(bps.rank() == root)),
        "alltoall": (lambda x: bps.alltoall(x, splits, **here)[0], sum(splits), 1),
        "equal": (lambda x: bps.alltoall(x, **here), 2 * n, 1),
        "reducescatter": (lambda x: bps.reducescatter(x, op=bps.Sum, **scatter), 4 * n, n),
        "averages": (lambda x: bps.reducescatter(x, **scatter), 4 * n, 1),
    }
    for name, (call, rows, want) in calls.items():
        grad = gradient(mode, call, tf.ones([rows, 2]), tf.constant(1.0))
        assert near(grad, full((rows, 2), float(want))), name


def test_compression_leaves_integers_and_bools():
    for dtype in [*TYPES, tf.uint16, tf.int16, tf.bool]:
        x = tf.ones([3], tf.float32)
        x = tf.cast(x, dtype)
        small, context = bps.Compression.fp16.compress(x)
        assert small.dtype == (tf.float16 if dtype.is_floating else dtype)
        out = bps.Compression.fp16.decompress(small, context)
        assert out.dtype == dtype and (out.numpy() == x.numpy()).all()


class Tripling(bps.Compression.none):
    """A compressor that has a method of its own only for the results."""

    @classmethod
    def decompress(cls, tensor, context):
        return tensor * 3


@MODES
def test_a_compressor_with_one_method_of_its_own_is_called(mode):
    out = run(mode, lambda x: bps.allreduce(x, op=bps.Sum, compression=Tripling), full((3,), 1.0))
    assert near(out, full((3,), 3.0 * bps.size()))
    v = tf.Variable([2.0])
    with tf.GradientTape() as tape:
        loss = v[0] * 3.0
    grad = bps.DistributedGradientTape(tape, compression=Tripling).gradient(loss, v)
    assert near(grad, [9.0])


@pytest.mark.parametrize("n_local", [0, 1, 2])
def test_a_partial_tape_keeps_gradients_of_local_layers(n_local):
    layers = [tf.keras.layers.Dense(2) for _ in range(2)]
    x = tf.fill([1, 2], float(bps.rank() + 1))
    with tf.GradientTape(persistent=True) as tape:
        loss = sum(tf.reduce_sum(layer(x)) for layer in layers)
    variables = [v for layer in layers for v in layer.trainable_variables]
    own = tape.gradient(loss, variables)
    partial = bps.PartialDistributedGradientTape(tape, local_layers=layers[:n_local])
    local = {id(v) for layer in layers[:n_local] for v in layer.trainable_variables}
    for v, grad, mine_ in zip(variables, partial.gradient(loss, variables), own):
        kernel = v.shape.rank == 2
        mean = total() / bps.size() if kernel else 1.0
        want = mine_ / bps.size() if id(v) in local else tf.fill(v.shape, mean)
        assert near(grad, want)


# ---- graphs that a session runs ----


def session(**options):
    """Return a session whose operations share one thread, so that each blocks the others."""
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, **options
    )
    return tf.compat.v1.Session(config=config)


def own(n, shape=(4,)):
    return tf.fill(shape, float(100 * n + bps.rank()))


def sums(n):
    return total(lambda r: 100.0 * n + r)


@pytest.mark.parametrize("name", [None, "sum"])
def test_a_session_gets_the_sum_of_each_operation_of_a_graph(name):
    with tf.Graph().as_default():
        names = [name and f"{name}{n}" for n in range(12)]
        ops = [bps.allreduce(own(n), op=bps.Sum, name=names[n]) for n in range(12)]
        with session() as run_:
            for _ in range(3):
                assert [x.tolist() for x in run_.run(ops)] == [[sums(n)] * 4 for n in range(12)]


def test_a_session_runs_some_operations_of_a_graph():
    with tf.Graph().as_default():
        given = [tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(4)]
        ops = [bps.allreduce(x, op=bps.Sum) for x in given]
        with session() as run_:
            # Each worker asks for the operations in an order of its own.
            order = [3, 1] if bps.rank() == 0 else [1, 3]
            feed = {given[i]: [i + bps.rank()] * 2 for i in order}
            got = dict(zip(order, run_.run([ops[i] for i in order], feed)))
            for i in order:
                assert got[i].tolist() == [total(lambda r, i=i: float(i + r))] * 2


def test_a_session_runs_every_kind_of_collective_in_any_order():
    with tf.Graph().as_default():
        ops = []
        for n in range(4):
            x = own(n, (bps.size(), 2))
            rows = tf.IndexedSlices(x[:1], tf.constant([bps.rank()]), tf.constant([9, 2]))
            ops += [
                bps.broadcast(x, 1),
                bps.allgather(x[:1]),
                bps.alltoall(x),
                bps.reducescatter(x, op=bps.Sum),
                bps.allreduce(rows, op=bps.Sum).values,
                bps.grouped_allreduce([x, 2 * x], op=bps.Sum)[1],
            ]
        with session() as run_:
            outputs = run_.run(ops)
    for n in range(4):
        all_ = [100.0 * n + r for r in ranks()]
        want = [[all_[1]] * bps.size(), all_, all_, [sums(n)], all_, [2 * sums(n)] * bps.size()]
        assert [x[:, 0].tolist() for x in outputs[6 * n : 6 * n + 6]] == want


def test_a_session_runs_gradients_of_collectives():
    with tf.Graph().as_default():
        x = tf.ones([3])
        outputs = [bps.allreduce(x * float(n), op=bps.Sum) for n in range(6)]
        weighted = [tf.reduce_sum(y) * float(bps.rank() + 1) for y in outputs]
        with session() as run_:
            grads = run_.run([tf.gradients(loss, x)[0] for loss in weighted])
    assert [g.tolist() for g in grads] == [[float(n * total())] * 3 for n in range(6)]


def test_a_session_broadcasts_the_global_variables():
    with tf.Graph().as_default():
        a, b = (tf.compat.v1.get_variable(n, initializer=1.0 + bps.rank()) for n in "ab")
        send, some = bps.broadcast_global_variables(1), bps.broadcast_([a], 0)
        with session() as run_:
            run_.run(tf.compat.v1.global_variables_initializer())
            run_.run(send)
            assert run_.run([a, b]) == [2.0, 2.0]
            run_.run(a.assign(5.0 + bps.rank()))
            run_.run(some)
            assert run_.run([a, b]) == [5.0, 2.0]


def test_collectives_inside_functions_of_such_a_graph_are_refused_in_words():
    with tf.Graph().as_default():
        with pytest.raises(NotImplementedError, match="disable_control_flow_v2"):
            tf.cond(tf.constant(True), lambda: bps.allreduce(tf.ones(2)), lambda: tf.ones(2))
        with pytest.raises(NotImplementedError, match="a session"):
            tf.function(bps.allreduce)(tf.ones(2))


def test_a_wrapped_function_of_tensorflow_1_gets_the_sum_of_each_operation():
    def many(x):
        return [bps.allreduce(x + float(n), op=bps.Sum) for n in range(8)]

    wrapped = tf.compat.v1.wrap_function(many, [tf.TensorSpec([2])])
    for _ in range(2):
        outputs = wrapped(tf.fill([2], float(bps.rank())))
        want = [[total(lambda r, n=n: float(r + n))] * 2 for n in range(8)]
        assert [x.numpy().tolist() for x in outputs] == want


def test_devices_other_than_the_processor_are_refused_in_words():
    with pytest.raises(NotImplementedError, match="host memory"):
        bps.BroadcastGlobalVariablesHook(0, "/gpu:0")
    with pytest.raises(NotImplementedError, match="host memory"):
        bps.allreduce(tf.ones(2), device_dense="/gpu:0")
    with pytest.raises(NotImplementedError, match="host memory"):
        bps.DistributedGradientTape(tf.GradientTape(), device_sparse="/gpu:0")
    assert near(bps.allreduce(tf.ones(2), device_dense="/cpu:0"), tf.ones(2))


# ---- errors ----


@MODES
def test_a_killed_worker_is_named_by_the_others_within_3_seconds(tmp_path, mode):
    script = """
import os, tensorflow as tf
import bps.tensorflow as bps
bps.init()
step = bps.allreduce if os.environ["MODE"] == "eager" else tf.function(bps.allreduce)
step(tf.ones(1000))
if bps.rank() == 1:
    kill_me()
try:
    step(tf.ones(1000))
except (bps.Error, tf.errors.UnknownError) as error:
    report(error)
    raise
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path, MODE=mode)
        seen = re.search(r"after ([\d.]+) s: (Unknown)?Error: .*rank 1", outputs[0], re.S)
        assert seen and float(seen[1]) < 3 and codes == [1, -9], outputs[0]


def test_a_script_that_never_shuts_down_ends(tmp_path):
    if bps.rank() == 0:
        script = (
            "import tensorflow as tf, bps.tensorflow as bps\n"
            "bps.init()\ntf.function(bps.allreduce)(tf.ones(3))\n"
        )
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


def test_calls_before_init_are_refused_in_words(tmp_path):
    if bps.rank() == 0:
        script = "import tensorflow as tf, bps.tensorflow as bps\nbps.allreduce(tf.ones(3))\n"
        codes, outputs = jobs.start(script, tmp_path, n=1)
        assert codes == [1] and "NotInitialized: bps is not initialized" in outputs[0]


# ---- scripts of others ----


@pytest.mark.parametrize("package", ["horovod", "byteps"])
def test_scripts_of_horovod_and_byteps_run_unmodified(tmp_path, package):
    script = f"""
import bps.compat.{package}
import tensorflow as tf
import {package}.tensorflow as hvd
hvd.init()
v = tf.Variable([1.0 + hvd.rank()])
hvd.broadcast_variables([v], root_rank=0)
with tf.GradientTape() as tape:
    loss = v[0] * hvd.rank()
tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.none, op=hvd.Average)
assert float(tape.gradient(loss, v)[0]) == 0.5
if "{package}" == "byteps":
    w = tf.Variable([3.0 + hvd.rank()])
    assert float(hvd.broadcast(w, 1, "scope", "w", True)[0]) == 4.0
    hvd.broadcast_variables([w], 0, "scope")
    assert float(w[0]) == 3.0
else:
    x = tf.ones([2])
    for op, want in ((hvd.Sum, 2.0), (hvd.Average, 1.0)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.reducescatter(x, op=op)
        # The mathematical gradients are 1 and 1 / 2. Horovod multiplies them by the size.
        assert tape.gradient(y, x).numpy().tolist() == [want] * 2
reduce = hvd.push_pull if "{package}" == "byteps" else hvd.allreduce
assert float(reduce(tf.constant(float(hvd.rank())), average=False)) == 1.0
hvd.shutdown()
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


@pytest.mark.parametrize("package", ["horovod", "byteps"])
@pytest.mark.parametrize("has_hook", [False, True])
def test_scripts_of_tensorflow_1_run_unmodified(tmp_path, package, has_hook):
    script = f"""
import bps.compat.{package}
import numpy as np, tensorflow.compat.v1 as tf
import {package}.tensorflow as hvd
tf.disable_v2_behavior()
hvd.init()
x = tf.placeholder(tf.float32, [None, 2])
w = tf.get_variable("w", initializer=tf.constant([[1.0], [2.0]]) * (1.0 + hvd.rank()))
loss = tf.reduce_mean(tf.matmul(x, w))
train = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.5)).minimize(
    loss, tf.train.get_or_create_global_step())
send = hvd.broadcast_global_variables(0)
place = tf.fill([2], float(hvd.rank()))
reduce = hvd.push_pull if "{package}" == "byteps" else hvd.allreduce
branch = tf.cond(tf.reduce_sum(w) < 100, lambda: reduce(place), lambda: place)
hooks = [hvd.BroadcastGlobalVariablesHook(0)] if {has_hook} else []
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    if not hooks:
        session.run(send)
    for _ in range(2):
        session.run(train, {{x: np.full((3, 2), 1.0 + hvd.rank())}})
    value = session.run(w)
    assert session.run(branch).tolist() == [0.5, 0.5]
# The gradients are 1 and 2 at the two workers, so each step subtracts 0.5 * 1.5.
assert value.ravel().tolist() == [-0.5, 0.5], value
hvd.shutdown()
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs
