"""bps.jax: every worker of a job runs these tests in the same order (tests/frontends/run.py)."""

import gc
import re

import coded
import jax
import jax.numpy as jnp
import jobs
import numpy as np
import optax
import pytest

import bps.jax as bps
from bps.jax import _ffi


@pytest.fixture(scope="session", autouse=True)
def job():
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    bps.barrier()


TYPES = ["uint8", "int8", "int32", "float16", "bfloat16", "float32", "int16", "uint16", "uint32"]
MODES = pytest.mark.parametrize("mode", ["eager", "jit"])


def ranks():
    return range(bps.size())


def total(value=lambda rank: rank + 1):
    return sum(map(value, ranks()))


def run(mode, function, *args):
    return function(*args) if mode == "eager" else jax.jit(function)(*args)


def near(a, b, tolerance=1e-6):
    return np.allclose(np.asarray(a, "f8"), np.asarray(b, "f8"), rtol=0, atol=tolerance)


def same_everywhere(tree):
    flat = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])
    all_ = np.asarray(bps.allgather(flat.reshape(1, -1)))
    return all(np.array_equal(all_[0], row) for row in all_)


# ---- push_pull ----


def test_place_is_that_of_the_launcher():
    assert sorted(bps.allgather_object(bps.rank())) == list(ranks())
    assert bps.is_initialized() and bps.local_rank() < bps.local_size() <= bps.size()


@MODES
@pytest.mark.parametrize("dtype", TYPES)
def test_push_pull_sums_every_type(mode, dtype):
    x = jnp.full((3, 5), bps.rank() + 1, dtype)
    out = run(mode, lambda x: bps.push_pull(x, bps.Sum), x)
    assert out.dtype == x.dtype and out.shape == x.shape and near(out, total())


@MODES
def test_push_pull_sums_bits_of_64_when_they_are_enabled(mode):
    with jax.enable_x64(True):
        x = jnp.full(7, 2**40 + bps.rank(), "int64")
        out = run(mode, lambda x: bps.push_pull(x, bps.Sum), x)
        assert out.dtype == jnp.int64 and (out == total(lambda r: 2**40 + r)).all()


@MODES
def test_push_pull_averages_a_tree_by_default(mode):
    tree = {"w": jnp.full((4, 3), float(bps.rank())), "rest": [jnp.float32(bps.rank()), ()]}
    out = run(mode, bps.push_pull, tree)
    assert jax.tree.structure(out) == jax.tree.structure(tree)
    assert near(out["w"], sum(ranks()) / bps.size()) and out["rest"][0].shape == ()


@pytest.mark.parametrize(("op", "fold"), [(bps.Min, min), (bps.Max, max)])
def test_push_pull_takes_the_least_and_the_most(op, fold):
    out = bps.push_pull(jnp.array([bps.rank(), -bps.rank()]), op)
    assert out.tolist() == [fold(ranks()), fold(-r for r in ranks())]


def test_push_pull_multiplies():
    assert near(
        bps.push_pull(jnp.full(3, bps.rank() + 2.0), bps.Product),
        np.prod([r + 2.0 for r in ranks()]),
    )


@MODES
def test_push_pull_scales_before_and_after(mode):
    def scaled(x):
        return bps.push_pull(x, bps.Sum, prescale_factor=0.5, postscale_factor=4.0)

    assert near(run(mode, scaled, jnp.full(4, bps.rank() + 1.0)), 2.0 * total())


@MODES
def test_integers_are_scaled_in_64_bits_and_rounded_towards_zero(mode):
    def scaled(x):
        return bps.push_pull(x, bps.Sum, prescale_factor=0.5, postscale_factor=3.0)

    n = 2**25 + 1
    assert run(mode, scaled, jnp.full(3, 2 * n, "int32")).tolist() == [3 * n * bps.size()] * 3
    out = run(mode, lambda x: bps.push_pull(x, postscale_factor=0.5), jnp.full(2, -5, "int32"))
    assert out.tolist() == [-2, -2]


class Doubling:
    """A compressor of a script for Horovod."""

    @staticmethod
    def compress(array):
        return array * 2, 4

    @staticmethod
    def decompress(array, context):
        return array / context


@MODES
def test_a_compressor_of_the_script_is_called(mode):
    out = run(mode, lambda x: bps.push_pull(x, bps.Sum, compression=Doubling), jnp.ones(3))
    assert near(out, bps.size() / 2)
    with pytest.raises(TypeError, match="not a compressor"):
        bps.push_pull(jnp.ones(2), compression=object())


def test_arrays_on_several_devices_keep_their_place_or_are_refused(tmp_path):
    script = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import bps.jax as bps
bps.init()
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(jnp.arange(4.0) + bps.rank(), NamedSharding(mesh, P("d")))
for call, want in ((lambda x: bps.push_pull(x, bps.Sum), 1.0), (lambda x: bps.broadcast(x, 1), 1)):
    y = call(x)
    assert y.sharding == x.sharding and y[0] == want
    y = call(jax.device_put(x, jax.devices()[1]))
    assert y.devices() == {jax.devices()[1]} and y[0] == want
    inside = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    for function in (jax.jit(call), inside):
        try:
            function(x)
            raise SystemExit("not refused")
        except NotImplementedError as error:
            assert "one worker for each device" in str(error)
bps.shutdown()
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


def test_a_worker_outside_the_process_set_keeps_its_gradients():
    last = bps.size() - 1
    some = bps.add_process_set([last])
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0), process_set=some)
    params = jnp.zeros(2)
    state = optimizer.init(params)

    @jax.jit
    def step(grads, state):
        return optimizer.update(grads, state, params)

    updates, _ = step(jnp.full(2, bps.rank() + 1.0), state)
    assert near(updates, -(bps.rank() + 1.0))
    bps.remove_process_set(some)


def test_updates_that_are_not_finite_are_skipped_by_all_workers():
    optimizer = optax.chain(bps.average_gradients(), optax.apply_if_finite(optax.sgd(1.0), 5))
    params = jnp.zeros(2)
    state = optimizer.init(params)
    step = jax.jit(optimizer.update)
    grads = jnp.full(2, np.nan if bps.rank() == 1 else 1.0)
    updates, state = step(grads, state, params)
    assert near(updates, 0.0) and int(state[1].total_notfinite) == 1
    updates, state = step(jnp.full(2, bps.rank() + 1.0), state, params)
    assert near(updates, -total() / bps.size()) and int(state[1].notfinite_count) == 0


def test_push_pull_takes_numbers_lists_and_nothing():
    assert float(bps.push_pull(2.0 * bps.rank())) == bps.size() - 1
    assert bps.push_pull({}) == {}
    assert bps.push_pull(jnp.zeros((0, 2))).shape == (0, 2)
    assert near(bps.allreduce([jnp.full(2, bps.rank() + 1.0)], average=False)[0], total())


def test_results_stay_as_they_are_when_later_ones_come():
    step = jax.jit(lambda tree: bps.push_pull(tree, bps.Sum, "stay"))
    own = [float(bps.rank() + i) for i in range(6)]
    held = [step([jnp.full(1000, x), jnp.full(20, -x)]) for x in own]
    for i, (a, b) in enumerate(held):
        assert near(a, total(lambda r: r + i)) and near(b, -total(lambda r: r + i))


def test_operations_keep_the_order_of_the_program():
    @jax.jit
    def many(x):
        return [bps.push_pull(x + i, bps.Sum) for i in range(30)]

    for _ in range(3):
        outputs = many(jnp.full(9, float(bps.rank())))
        assert all(near(out, total(lambda r: r + i)) for i, out in enumerate(outputs))


def test_operations_run_in_loops_and_branches():
    @jax.jit
    def loop(x):
        def body(i, x):
            reduced = lambda x: bps.push_pull(x, bps.Sum)  # noqa: E731
            return jax.lax.cond(i % 2 == 0, reduced, lambda x: x, x)

        return jax.lax.fori_loop(0, 5, body, x)

    assert near(loop(jnp.full(3, bps.rank() + 1.0)), float(total() * bps.size() ** 2))


def test_compiled_code_keeps_its_calls_and_gives_them_its_memory():
    step = jax.jit(lambda x: bps.push_pull(2 * x, bps.Sum, "kept") + 2 * x)
    for i in range(3):
        gc.collect()
        own = float(i + bps.rank())
        assert near(step(jnp.full((40, 3), own)), 2.0 * (total(lambda r: r + i) + own))


def test_a_callback_of_jax_serves_where_its_internals_have_changed(monkeypatch):
    monkeypatch.setattr(_ffi, "_primitive", None)
    tree = {"a": jnp.full((2, 3), bps.rank() + 1.0), "b": jnp.arange(5)}
    out = jax.jit(lambda tree: bps.push_pull(tree, bps.Sum))(tree)
    assert near(out["a"], total()) and near(out["b"], np.arange(5) * bps.size())
    rows = jax.jit(bps.allgather)(jnp.full((1, 2), bps.rank()))
    assert rows.tolist() == [[r, r] for r in ranks()]


def test_a_name_may_come_back_with_another_shape():
    for n in (3, 5, 3):
        assert near(bps.push_pull(jnp.full(n, bps.rank() + 1.0), bps.Sum, "shapes"), total())


def test_shapes_that_differ_between_workers_are_an_error_at_all():
    with pytest.raises(bps.Error, match="differ"):
        bps.push_pull(jnp.ones(3 + 100 * bps.rank()), name="differ")


OTHERS = [((3, 4), jnp.float32, "float32 [3, 4]"), ((2, 6), jnp.int32, "int32 [2, 6]")]


@pytest.mark.parametrize("call", [bps.push_pull, bps.broadcast])
@pytest.mark.parametrize(("shape", "dtype", "text"), OTHERS)
def test_leaves_of_equal_size_that_differ_are_an_error_that_names_them(call, shape, dtype, text):
    mine = jnp.ones(shape, dtype) if bps.rank() else jnp.ones((2, 6))
    with pytest.raises(bps.Error, match=r"tensor '\['b'\]': rank 0 has float32 \[2, 6\]") as caught:
        call({"a": jnp.ones(3), "b": mine})
    assert f"has {text}" in str(caught.value)
    assert near(bps.push_pull(jnp.ones(2), bps.Sum), bps.size())


def test_shapes_that_differ_are_an_error_of_jax_inside_jit():
    step = jax.jit(lambda x: bps.push_pull(x, name="jitted"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="jitted"):
        jax.block_until_ready(step(jnp.ones(3 + 100 * bps.rank())))


def test_adasum_and_unknown_operations_are_refused():
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.push_pull(jnp.ones(3), bps.Adasum)
    with pytest.raises(ValueError, match="exclude"):
        bps.push_pull(jnp.ones(3), bps.Sum, average=True)


def test_types_that_cannot_be_summed_are_refused_in_words():
    with pytest.raises(TypeError, match="complex64 cannot be summed"):
        jax.jit(bps.push_pull)(jnp.ones(3, "complex64"))


@MODES
@pytest.mark.parametrize("kind", [bps.Compression.fp16, bps.Compression.bf16])
def test_compression_changes_the_type_on_the_wire_only(mode, kind):
    out = run(
        mode, lambda x: bps.push_pull(x, bps.Sum, compression=kind), jnp.full(8, 0.5 + bps.rank())
    )
    assert out.dtype == jnp.float32 and near(out, total(lambda r: 0.5 + r))


BLOCKS = pytest.mark.parametrize(("compression", "levels"), coded.KINDS)


@MODES
@BLOCKS
def test_large_arrays_are_sent_in_blocks(mode, compression, levels):
    x = jnp.asarray(coded.values(bps.rank(), (200, 100)))
    tree = {"w": x, "h": x.astype("bfloat16"), "b": jnp.full(5, 1.0 * bps.rank())}
    for name in (None, f"blocks.{levels}"):
        out = run(mode, lambda t: bps.push_pull(t, name=name, compression=compression), tree)
        coded.check(out["w"], levels)
        assert out["h"].dtype == "bfloat16" and near(out["h"], coded.mean(x.shape), 2 / levels)
        assert near(out["b"], sum(ranks()) / bps.size())


@BLOCKS
def test_an_optimizer_sends_blocks_with_residuals(compression, levels):
    kind = compression.with_residual()
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0), name=f"ef{levels}", compression=kind)
    params = {"w": jnp.zeros(coded.N), "b": jnp.zeros(3)}
    state = optimizer.init(params)
    grads = {"w": jnp.asarray(coded.values(bps.rank())), "b": jnp.ones(3)}
    update = jax.jit(optimizer.update)
    steps = []
    for _ in range(8):
        updates, state = update(grads, state)
        steps.append(-np.asarray(updates["w"], "f8"))
        assert near(updates["b"], -1)
    coded.check(steps[0], levels)
    errors = [np.abs(g - coded.mean()).mean() for g in (steps[0], sum(steps) / 8)]
    assert errors[1] < errors[0]
    coded.check_residual(f"ef{levels}", levels)


@MODES
def test_blocks_are_refused_where_they_make_no_sense(mode):
    x = jnp.zeros(coded.N)
    with pytest.raises(Exception, match="max needs the values themselves"):
        kind = bps.Compression.int8
        jax.block_until_ready(run(mode, lambda x: bps.push_pull(x, bps.Max, compression=kind), x))
    with pytest.raises(Exception, match="needs the argument name"):
        kind = bps.Compression.int4.with_residual()
        jax.block_until_ready(run(mode, lambda x: bps.push_pull(x, compression=kind), x))


@MODES
@pytest.mark.parametrize("op", [bps.Sum, bps.Average])
def test_the_gradient_of_push_pull_is_reduced_alike(mode, op):
    weight = jnp.full(5, bps.rank() + 1.0)
    grad = run(mode, jax.grad(lambda x: (bps.push_pull(x, op, "loss") * weight).sum()), jnp.ones(5))
    assert near(grad, total() / (bps.size() if op == bps.Average else 1))


def test_an_array_larger_than_a_bucket_is_reduced():
    x = np.arange(6_000_000, dtype=np.float32) % 65_536  # sums are exact
    out = jax.jit(lambda x: bps.push_pull(x, bps.Sum, "large"))(x + bps.rank())
    assert np.array_equal(out, x * bps.size() + sum(ranks()))


# ---- broadcast, allgather, reducescatter, alltoall ----


@MODES
def test_broadcast_gives_every_worker_roots_tree(mode):
    tree = {"w": jnp.full((2, 3), bps.rank()), "b": jnp.full(4, bps.rank(), bool)}
    out = run(mode, lambda tree: bps.broadcast(tree, 1), tree)
    assert near(out["w"], 1) and out["b"].all() and out["b"].dtype == bool


def test_allgather_takes_different_numbers_of_rows():
    out = bps.allgather(jnp.full((bps.rank() + 1, 2), bps.rank()))
    assert out[:, 0].tolist() == [r for r in ranks() for _ in range(r + 1)]


def test_allgather_inside_jit_has_a_fixed_shape():
    out = jax.jit(bps.allgather)(jnp.full((2, 3), bps.rank()))
    assert out[:, 0].tolist() == [r for r in ranks() for _ in range(2)]


def test_allgather_names_the_worker_whose_shape_differs():
    with pytest.raises(bps.Error, match=r"rank \d has shape"):
        bps.allgather(jnp.ones((2, 2 + (bps.rank() == 1))))


@MODES
def test_reducescatter_gives_each_worker_its_rows(mode):
    rows = bps.size() + 1
    x = jnp.arange(rows * 2.0).reshape(rows, 2)
    out = run(mode, lambda x: bps.reducescatter(x, bps.Sum), x + bps.rank())
    first, n = bps.rank() + (bps.rank() > 0), 2 if bps.rank() == 0 else 1
    assert near(out, x[first : first + n] * bps.size() + sum(ranks()))


@MODES
def test_alltoall_sends_equal_parts(mode):
    out = run(mode, bps.alltoall, jnp.arange(2 * bps.size()) + 100 * bps.rank())
    assert out.tolist() == [100 * r + 2 * bps.rank() + i for r in ranks() for i in (0, 1)]


def test_alltoall_sends_unequal_parts_outside_of_jit():
    splits = [r + 1 for r in ranks()]
    x = jnp.repeat(jnp.array(ranks()), jnp.array(splits)) + 100 * bps.rank()
    out, received = bps.alltoall(x, splits)
    n = bps.rank() + 1
    assert out.tolist() == [100 * r + bps.rank() for r in ranks() for _ in range(n)]
    assert received.tolist() == [n] * bps.size()
    with pytest.raises(NotImplementedError, match="inside jit"):
        jax.jit(lambda x: bps.alltoall(x, splits))(jnp.ones(total()))


@MODES
def test_a_process_set_runs_collectives_of_its_own(mode):
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    x = jnp.full((2, 3), bps.rank() + 1.0)
    if some.included():
        options = {"process_set": some}
        out = run(mode, lambda x: bps.push_pull(x, bps.Sum, **options), x)
        assert near(out, 2 * last + 1)
        assert near(run(mode, lambda x: bps.push_pull(x, name="mean", **options), x), last + 0.5)
        assert near(run(mode, lambda x: bps.broadcast(x, last, **options), x), last + 1)
        rows = run(mode, lambda x: bps.allgather(x, **options), x)
        assert rows[:, 0].tolist() == [last, last, last + 1, last + 1]
        row = run(mode, lambda x: bps.reducescatter(x, bps.Sum, **options), x)
        assert row.shape == (1, 3) and near(row, 2 * last + 1)
        rows = run(mode, lambda x: bps.alltoall(x, **options), x)
        assert rows[:, 0].tolist() == [last, last + 1]
    else:
        with pytest.raises(ValueError, match="is not in"):
            bps.push_pull(x, process_set=some)
    assert near(bps.push_pull(x, bps.Sum), total())
    bps.remove_process_set(some)


def test_an_optimizer_averages_over_its_process_set():
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    if some.included():
        rows = slice(12 * some.rank(), 12 * some.rank() + 12)
        params = train(bps.DistributedOptimizer(optax.sgd(0.05), process_set=some), rows)
        alone = train(optax.sgd(0.05))
        assert all(near(params[k], alone[k]) for k in alone)
    bps.remove_process_set(some)


# ---- training ----


def network():
    rng = np.random.RandomState(0)
    return {
        k: jnp.asarray(0.3 * rng.randn(*s), jnp.float32)
        for k, s in {"a": (6, 16), "b": (16,), "c": (16, 3), "d": (3,)}.items()
    }


def batch():
    rng = np.random.RandomState(7)
    return [jnp.asarray(rng.randn(24, n), jnp.float32) for n in (6, 3)]


def mine():
    """Return the slice of the batch's rows that this worker uses."""
    return slice(bps.rank() * 24 // bps.size(), (bps.rank() + 1) * 24 // bps.size())


def loss_of(p, x, y):
    return ((jax.nn.relu(x @ p["a"] + p["b"]) @ p["c"] + p["d"] - y) ** 2).mean()


def train(optimizer, rows=slice(None), steps=10):
    params = network()
    state, (x, y) = optimizer.init(params), (t[rows] for t in batch())

    @jax.jit
    def step(params, state):
        grads = jax.grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


@pytest.mark.parametrize("make", [optax.sgd, optax.adam, optax.adamw])
def test_an_optimizer_equals_one_worker_with_the_whole_batch(make):
    params = train(bps.DistributedOptimizer(make(0.05)), mine())
    alone = train(make(0.05))
    assert same_everywhere(params)
    # Adam divides by the root of a mean of squares, which makes small differences larger.
    tolerance = 1e-6 if make is optax.sgd else 1e-5
    assert all(
        near(a, b, tolerance) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(alone))
    )


def test_gradients_are_averaged_before_they_are_clipped():
    clipped = optax.chain(bps.average_gradients(), optax.clip_by_global_norm(0.1), optax.sgd(1.0))
    params = train(clipped, mine(), steps=1)
    start = network()
    norm = np.sqrt(sum(((params[k] - start[k]) ** 2).sum() for k in start))
    assert norm == pytest.approx(0.1, rel=1e-4) and same_everywhere(params)
    alone = train(optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(1.0)), steps=1)
    assert all(near(params[k], alone[k]) for k in alone)


def test_an_optimizer_with_half_precision_stays_near_full_precision():
    optimizer = bps.DistributedOptimizer(optax.sgd(0.1), compression=bps.Compression.bf16)
    params, alone = train(optimizer, mine()), train(optax.sgd(0.1))
    assert same_everywhere(params)
    # In each of 10 steps of rate 0.1, gradients below 1 are rounded before and after the sum. Each
    # rounding changes a gradient by at most 2^-9 of its value.
    assert all(near(params[k], alone[k], 2**-8) for k in alone)
    assert not all(near(params[k], alone[k]) for k in alone)
    with pytest.raises(ValueError, match="Average or Sum"):
        bps.average_gradients(bps.Max)


def test_accumulated_gradients_equal_those_of_one_worker():
    params = train(optax.MultiSteps(bps.DistributedOptimizer(optax.sgd(0.1)), 2), mine(), steps=4)
    assert same_everywhere(params)
    alone = train(optax.MultiSteps(optax.sgd(0.1), 2), steps=4)
    assert all(near(params[k], alone[k]) for k in alone)


def test_an_elastic_function_runs_with_a_state_that_all_share():
    @bps.elastic.run
    def train(state):
        while state.step < 3:
            own = {"w": jnp.full(2, 2.0 * bps.rank() / (bps.size() - 1))}  # 1 on average
            state.params = jax.tree.map(jnp.add, state.params, bps.push_pull(own))
            state.step += 1
            state.commit()
        return state.params["w"].tolist()

    state = bps.elastic.State(params={"w": jnp.full(2, float(bps.rank()))}, step=0)
    assert train(state) == pytest.approx([3.0, 3.0])
    state.params = None
    state.restore()
    assert near(state.params["w"], 3.0)


# ---- errors ----


@MODES
def test_a_killed_worker_is_named_by_the_others_within_3_seconds(tmp_path, mode):
    script = """
import os, jax, jax.numpy as jnp
import bps.jax as bps
bps.init()
step = bps.push_pull if os.environ["MODE"] == "eager" else jax.jit(bps.push_pull)
jax.block_until_ready(step(jnp.ones(1000)))
if bps.rank() == 1:
    kill_me()
try:
    jax.block_until_ready(step(jnp.ones(1000)))
except (bps.Error, jax.errors.JaxRuntimeError) as error:
    report(error)
    raise
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path, MODE=mode)
        seen = re.search(r"after ([\d.]+) s: (JaxRuntime)?Error: .*rank 1", outputs[0], re.S)
        assert seen and float(seen[1]) < 3 and codes == [1, -9], outputs[0]


def test_a_script_that_never_shuts_down_ends(tmp_path):
    if bps.rank() == 0:
        script = (
            "import jax, jax.numpy as jnp, bps.jax as bps\n"
            "bps.init()\njax.jit(bps.push_pull)(jnp.ones(3))\n"
        )
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


def test_worker_that_does_not_use_its_results_finishes_its_calls(tmp_path):
    script = """
import time
import jax, jax.numpy as jnp, bps.jax as bps
bps.init()

@jax.jit
def step(x):
    return bps.allreduce(x @ jnp.eye(300) / 2, op=bps.Sum)

x = jnp.ones((300, 300))
for _ in range(10):
    x = step(x)
    if bps.rank() == 0:  # a slow worker, so that the other one leaves while its calls wait
        time.sleep(0.05)
        x.block_until_ready()
if bps.rank() == 0:
    print(float(x.sum()))
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0] and outputs[0] == "90000.0\n", outputs


def test_calls_before_init_are_refused_in_words(tmp_path):
    if bps.rank() == 0:
        script = "import jax.numpy as jnp, bps.jax as bps\nbps.push_pull(jnp.ones(3))\n"
        codes, outputs = jobs.start(script, tmp_path, n=1)
        assert codes == [1] and "NotInitialized: bps is not initialized" in outputs[0]
