"""bps.mxnet: every worker of a job runs these tests in the same order (tests/frontends/run.py)."""

import importlib.util
import re

import coded
import jobs
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import bps.mxnet as bps
from bps import _group
from bps.mxnet import _ops


@pytest.fixture(scope="session", autouse=True)
def job():
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    bps.barrier()
    mx.random.seed(bps.rank())


TYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


def ranks():
    return range(bps.size())


def total(value=lambda rank: rank + 1):
    return sum(map(value, ranks()))


def full(shape, value, dtype="float32"):
    return mx.nd.full(shape, value, dtype=dtype)


def near(a, b, tolerance=1e-6):
    return np.allclose(a.asnumpy(), b if np.isscalar(b) else b.asnumpy(), rtol=0, atol=tolerance)


def same_everywhere(tensor):
    all_ = bps.allgather(tensor.reshape((1, -1))).asnumpy()
    return all(np.array_equal(all_[0], row) for row in all_)


# ---- place ----


def test_place_is_that_of_the_launcher():
    assert sorted(bps.allgather_object(bps.rank())) == list(ranks())
    assert bps.is_initialized() and bps.local_rank() < bps.local_size() <= bps.size()


# ---- allreduce ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(17,), (17, 17), (3, 5, 7)])
def test_allreduce_sums_every_type_and_shape(dtype, shape):
    out = bps.allreduce(full(shape, bps.rank() + 1, dtype), op=bps.Sum)
    assert out.dtype == np.dtype(dtype) and out.shape == shape
    assert (out.asnumpy() == total()).all()


def test_allreduce_averages_by_default():
    assert near(bps.allreduce(full((5,), bps.rank())), sum(ranks()) / bps.size())


def test_allreduce_of_an_average_and_a_sum_by_the_older_argument():
    x = full((5,), bps.rank())
    assert near(bps.allreduce(x, average=True), sum(ranks()) / bps.size())
    assert near(bps.allreduce(x, average=False), sum(ranks()))


@pytest.mark.parametrize(("op", "fold"), [(bps.Min, min), (bps.Max, max)])
def test_allreduce_takes_the_least_and_the_most(op, fold):
    out = bps.allreduce(mx.nd.array([bps.rank(), -bps.rank()]), op=op)
    assert out.asnumpy().tolist() == [fold(ranks()), fold(-r for r in ranks())]


def test_allreduce_scales_before_and_after():
    x = full((4,), bps.rank() + 1)
    out = bps.allreduce(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert near(out, 2.0 * total())


def test_positional_arguments_are_those_of_horovod():
    x = full((4,), bps.rank() + 1)
    out = bps.allreduce(x, False, "positional", 0, 0.5, 4.0)
    (other,) = bps.grouped_allreduce([x], False, "positional_group", 0, 0.5, 4.0)
    assert near(out, 2.0 * total()) and near(other, 2.0 * total())


def test_integers_are_scaled_in_64_bits_and_rounded_towards_zero():
    n = 2**25 + 1
    x = mx.nd.array([2 * n], dtype="int64")
    out = bps.allreduce(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert out.asnumpy().tolist() == [3 * n * bps.size()]


class Doubling:
    """A compressor of a script for Horovod."""

    @staticmethod
    def compress(tensor):
        return tensor * 2, 4

    @staticmethod
    def decompress(tensor, context):
        return tensor / context


def test_a_compressor_of_the_script_is_called():
    out = bps.allreduce(full((3,), 1), op=bps.Sum, compression=Doubling)
    assert near(out, bps.size() / 2)
    net, alone = network(), network()
    options = {"learning_rate": 0.1}
    train(net, bps.DistributedTrainer(net.collect_params(), "sgd", options, compression=Doubling))
    options = {"learning_rate": 0.05}
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", options))
    assert all(near(a, b) for a, b in zip(parameters(net), parameters(alone)))
    with pytest.raises(TypeError, match="not a compressor"):
        bps.DistributedTrainer(net.collect_params(), "sgd", compression=object())


def test_groups_of_gradients_are_sent_in_calls_of_their_own(monkeypatch):
    sent, reduce = [], _group.Group.reduce

    def observed(self, arrays, *args, **options):
        sent.append(len(arrays))
        return reduce(self, arrays, *args, **options)

    monkeypatch.setattr(_group.Group, "reduce", observed)
    net, alone = network(), network()
    options = {"learning_rate": 0.05}
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", options, num_groups=2)
    train(net, trainer, mine(), steps=1)
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", options), steps=1)
    assert sent == [2, 2]
    assert all(near(a, b) for a, b in zip(parameters(net), parameters(alone)))


def test_a_worker_outside_the_process_set_keeps_its_gradients():
    last = bps.size() - 1
    some = bps.add_process_set([last])
    net, alone = network(), network()
    options = {"learning_rate": 0.05}
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", options, root_rank=last, process_set=some
    )
    train(net, trainer, mine())
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", options), mine())
    assert all(near(a, b) for a, b in zip(parameters(net), parameters(alone)))
    x, g = full((2,), 1), full((2,), bps.rank() + 1)
    optimizer = mx.optimizer.create("sgd", learning_rate=1.0)
    bps.DistributedOptimizer(optimizer, process_set=some).update(0, x, g, None)
    assert near(x, -bps.rank())
    bps.remove_process_set(some)


@pytest.mark.parametrize("call", [bps.allgather, bps.alltoall, bps.broadcast])
def test_priorities_of_calls_that_block_are_refused_in_words(call):
    with pytest.raises(NotImplementedError, match="omit priority=3"):
        call(full((2,), 1), 0, priority=3) if call is bps.broadcast else call(
            full((2,), 1), priority=3
        )


@pytest.mark.parametrize("call", [bps.allgather, bps.alltoall])
def test_the_name_of_a_call_is_in_the_texts_of_errors(call):
    with pytest.raises(bps.Error, match="'my_rows'"):
        call(full((bps.size(), 1 + (bps.rank() == 1)), 1), name="my_rows")


def test_names_that_are_declared_have_priorities(monkeypatch):
    sent, reduce = [], _group.Group.reduce

    def observed(self, *args, **options):
        sent.append(args[-1])
        return reduce(self, *args, **options)

    monkeypatch.setattr(_group.Group, "reduce", observed)
    for name in ("declared_a", "declared_b"):
        bps.byteps_declare_tensor(name)
    for name in ("declared_b", "declared_a"):
        bps.byteps_push_pull(full((2,), 1), name=name)
    bps.byteps_push_pull(full((2,), 1), name="declared_a", priority=-4)
    assert sent[0] == sent[1] - 1 and sent[2] == -4


def test_allreduce_leaves_its_input_alone_and_in_place_does_not():
    x = full((4, 4), bps.rank())
    bps.allreduce(x, op=bps.Sum)
    assert near(x, bps.rank())
    assert bps.allreduce_(x, op=bps.Sum) is x and near(x, sum(ranks()))


def test_allreduce_waits_for_the_engine_and_the_engine_sees_its_result():
    x, want = full((1000, 100), bps.rank() + 1), total() / bps.size()
    for i in range(5):
        x *= 2.0  # MXNet may still compute x when allreduce_() begins
        x += bps.rank() + i
        bps.allreduce_(x, name="engine")
        x /= 2.0
        want += (total() / bps.size() - 1 + i) / 2
    assert near(x, want)


def test_allreduce_of_nothing_and_of_one_element():
    one = bps.allreduce(full((1,), bps.rank() + 1), op=bps.Sum)
    assert one.shape == (1,) and one.asscalar() == total()
    with mx.util.np_shape(True):
        assert bps.allreduce(mx.nd.zeros((0, 3)), op=bps.Sum).shape == (0, 3)
    assert near(bps.allreduce(full((2,), bps.rank()), op=bps.Sum), sum(ranks()))


def test_adasum_and_unknown_operations_are_refused():
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.allreduce(full((3,), 1), op=bps.Adasum)
    with pytest.raises(ValueError, match="exclude"):
        bps.allreduce(full((3,), 1), average=True, op=bps.Sum)


def test_shapes_that_differ_between_workers_are_an_error_at_all():
    with pytest.raises(bps.Error, match="differ"):
        bps.allreduce(full((3 + 100 * bps.rank(),), 1), name="differ")


@pytest.mark.parametrize("what", ["allreduce", "grouped", "broadcast", "parameters"])
def test_equal_sizes_that_differ_are_an_error_that_names_both(what):
    others = [mx.nd.ones((3, 4)), mx.nd.ones((2, 6), dtype="int32")]
    for other, text in zip(others, ["float32 [3, 4]", "int32 [2, 6]"]):
        mine = other if bps.rank() else mx.nd.ones((2, 6))
        calls = {
            "allreduce": lambda x=mine: bps.allreduce(x),
            "grouped": lambda x=mine: bps.grouped_allreduce([mx.nd.ones(2), x]),
            "broadcast": lambda x=mine: bps.broadcast(x, 0),
            "parameters": lambda x=mine: bps.broadcast_parameters({"a": mx.nd.ones(2), "b": x}),
        }
        with pytest.raises(bps.Error, match=r"rank 0 has float32 \[2, 6\]") as caught:
            calls[what]()
        assert f"has {text}" in str(caught.value)
        assert "tensor 'b'" in str(caught.value) or what != "parameters"
    assert (bps.allreduce(mx.nd.ones(2), op=bps.Sum).asnumpy() == bps.size()).all()


def test_layers_have_one_order_although_their_numbers_differ():
    first = 9 + bps.rank()  # "dense9", "dense10" or "dense10", "dense11"
    params = {f"dense{first + i}_weight": full((2,), 10 * bps.rank() + i) for i in range(2)}
    bps.broadcast_parameters(params, root_rank=1)
    values = [params[f"dense{first + i}_weight"].asnumpy().tolist() for i in range(2)]
    assert values == [[10, 10], [11, 11]]


def test_types_that_differ_between_workers_are_an_error_at_all():
    dtype = "float64" if bps.rank() else "float32"
    with pytest.raises(bps.Error, match="types"):
        bps.allreduce(full((8,), 1, dtype), name="types")


def test_sparse_tensors_are_refused_in_words():
    with pytest.raises(NotImplementedError, match="tostype"):
        bps.allreduce(full((3, 3), 1).tostype("row_sparse"))


def test_compression_changes_the_type_on_the_wire_only():
    out = bps.allreduce(full((8,), 0.5 + bps.rank()), op=bps.Sum, compression=bps.Compression.fp16)
    assert out.dtype == np.float32 and near(out, total(lambda r: 0.5 + r))
    small, context = bps.Compression.fp16.compress(full((2,), 1.5))
    assert small.dtype == np.float16
    assert bps.Compression.fp16.decompress(small, context).dtype == np.float32


def test_bfloat16_on_the_wire_needs_ml_dtypes():
    value = full((8,), 0.5 + bps.rank())
    if importlib.util.find_spec("ml_dtypes") is None:
        with pytest.raises(TypeError, match="pip install ml_dtypes"):
            bps.allreduce(value, op=bps.Sum, compression=bps.Compression.bf16)
    else:
        out = bps.allreduce(value, op=bps.Sum, compression=bps.Compression.bf16)
        assert out.dtype == np.float32 and near(out, total(lambda r: 0.5 + r))


BLOCKS = pytest.mark.parametrize(("compression", "levels"), coded.KINDS)


@BLOCKS
def test_large_tensors_are_sent_in_blocks(compression, levels):
    x = mx.nd.array(coded.values(bps.rank(), (200, 100)))
    for name in (None, f"blocks.{levels}"):
        out = bps.allreduce(x, name=name, compression=compression)
        coded.check(out.asnumpy(), levels)
    group = [x, x.astype("float16"), full((5,), bps.rank())]
    bps.grouped_allreduce_(group, compression=compression)
    coded.check(group[0].asnumpy(), levels)
    assert near(group[1].astype("float32"), mx.nd.array(coded.mean(x.shape)), 2 / levels)
    assert near(group[2], sum(ranks()) / bps.size())
    with pytest.raises(ValueError, match="min needs the values themselves"):
        bps.allreduce(x, op=bps.Min, compression=compression)
    if coded.shares_a_machine():
        with pytest.raises(ValueError, match=r"use Compression\.int4"):
            bps.allreduce(x, name="sign", compression=bps.Compression.sign)


@BLOCKS
@pytest.mark.parametrize("way", ["trainer", "optimizer"])
def test_gradients_are_sent_in_blocks_with_residuals(compression, levels, way):
    net = gluon.nn.Dense(coded.N, in_units=1, use_bias=False)
    net.initialize(mx.init.Zero())
    options, kind = {"learning_rate": 1.0}, compression.with_residual()
    if way == "trainer":
        trainer = bps.DistributedTrainer(
            net.collect_params(), "sgd", options, compression=kind, prefix=f"ef{levels}"
        )
    else:
        sgd = bps.DistributedOptimizer(mx.optimizer.SGD(**options), compression=kind)
        trainer = gluon.Trainer(net.collect_params(), sgd, kvstore=None)
    grad, errors = mx.nd.array(coded.values(bps.rank())), []
    for step in range(1, 9):
        with autograd.record():
            loss = (net(full((1, 1), 1)) * grad).sum()
        loss.backward()
        trainer.step(1)
        got = -net.weight.data().reshape(-1).asnumpy() / step
        errors.append(np.abs(got - coded.mean()).mean())
        if step == 1:
            coded.check(got, levels)
    assert errors[-1] < errors[0]
    coded.check_residual("grad", levels)


def test_rows_of_sparse_gradients_are_not_sent_in_blocks():
    rows = mx.nd.array(coded.values(bps.rank(), (200, 100)))
    sparse = mx.nd.sparse.row_sparse_array((rows, mx.nd.arange(200)), shape=(200, 100))
    out = _ops.sum_sparse(sparse, bps.Average, bps.Compression.int8, bps.global_process_set)
    assert near(out.tostype("default"), mx.nd.array(coded.mean((200, 100))), 1e-6)


def test_grouped_allreduce_returns_all_outputs():
    group = [full((n,), bps.rank()) for n in (1, 100, 10_000)]
    outputs = bps.grouped_allreduce(group, op=bps.Sum, name="group")
    assert [o.shape for o in outputs] == [(1,), (100,), (10_000,)]
    assert all(near(o, sum(ranks())) for o in outputs)
    bps.grouped_allreduce_(group, op=bps.Sum)
    assert all(near(o, sum(ranks())) for o in group)


def test_byteps_push_pull_is_in_place_and_averages():
    x = full((6,), bps.rank())
    bps.byteps_declare_tensor("pp")
    bps.byteps_push_pull(x, version=3, priority=-5, name="pp")
    assert near(x, sum(ranks()) / bps.size())
    x = full((6,), bps.rank())
    bps.byteps_push_pull(x, name="pp", is_average=False)
    assert near(x, sum(ranks()))


def test_codings_that_do_not_exist_are_refused_in_words():
    with pytest.raises(NotImplementedError, match="byteps_compressor_type"):
        bps.byteps_declare_tensor("coded", byteps_compressor_type="onebit")


# ---- broadcast, allgather, alltoall, reducescatter ----


@pytest.mark.parametrize("dtype", TYPES)
def test_broadcast_gives_every_worker_roots_values(dtype):
    root = bps.size() - 1
    x = full((3, 4), bps.rank(), dtype)
    out = bps.broadcast(x, root)
    assert out.dtype == np.dtype(dtype) and near(out, root) and near(x, bps.rank())
    assert bps.broadcast_(x, root) is x and near(x, root)


@pytest.mark.parametrize("dtype", TYPES)
def test_allgather_takes_different_numbers_of_rows(dtype):
    out = bps.allgather(full((bps.rank() + 1, 3), bps.rank(), dtype))
    assert out.dtype == np.dtype(dtype) and out.shape == (total(), 3)
    assert out.asnumpy()[:, 0].tolist() == [r for r in ranks() for _ in range(r + 1)]


def test_allgather_names_the_worker_whose_shape_differs():
    with pytest.raises(bps.Error, match=r"rank \d has shape"):
        bps.allgather(full((2, 2 + (bps.rank() == 1)), 1))


def test_grouped_allgather_returns_all_outputs():
    outputs = bps.grouped_allgather([full((1, n), bps.rank()) for n in (2, 5)])
    assert [o.asnumpy().tolist() for o in outputs] == [[[r] * n for r in ranks()] for n in (2, 5)]


def test_alltoall_sends_rows_to_each_worker():
    splits = [r + 1 for r in ranks()]
    x = mx.nd.array(np.repeat(np.array(ranks()), splits) + 100 * bps.rank(), dtype="int32")
    n = bps.rank() + 1
    for given in (splits, mx.nd.array(splits, dtype="int32")):
        out, received = bps.alltoall(x, given)
        assert out.asnumpy().tolist() == [100 * r + bps.rank() for r in ranks() for _ in range(n)]
        assert received.asnumpy().tolist() == [n] * bps.size()


def test_alltoall_without_splits_sends_equal_parts():
    out = bps.alltoall(mx.nd.arange(2 * bps.size()) + 100 * bps.rank())
    assert out.asnumpy().tolist() == [100 * r + 2 * bps.rank() + i for r in ranks() for i in (0, 1)]
    with pytest.raises(ValueError, match="evenly"):
        bps.alltoall(mx.nd.arange(2 * bps.size() + 1))


def test_reducescatter_gives_each_worker_its_rows():
    rows = bps.size() + 1
    x = mx.nd.arange(rows * 2).reshape((rows, 2))
    out = bps.reducescatter(x + bps.rank(), op=bps.Sum)
    first = bps.rank() + (bps.rank() > 0)
    n = 2 if bps.rank() == 0 else 1
    want = x.asnumpy()[first : first + n] * bps.size() + sum(ranks())
    assert np.array_equal(out.asnumpy(), want)
    (other,) = bps.grouped_reducescatter([x + bps.rank()], op=bps.Sum)
    assert near(other, out)


def test_objects_are_sent():
    assert bps.broadcast_object({"epoch": bps.rank()}, 1) == {"epoch": 1}


def test_a_process_set_runs_collectives_of_its_own():
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    x = full((2, 3), bps.rank() + 1)
    if some.included():
        options = {"process_set": some}
        assert near(bps.allreduce(x, op=bps.Sum, **options), 2 * last + 1)
        assert near(bps.allreduce(x, name="mean", **options), last + 0.5)
        assert near(bps.broadcast(x, last, **options), last + 1)
        rows = bps.allgather(x, **options).asnumpy()
        assert rows[:, 0].tolist() == [last, last, last + 1, last + 1]
        row = bps.reducescatter(x, op=bps.Sum, **options)
        assert row.shape == (1, 3) and near(row, 2 * last + 1)
        assert bps.alltoall(x, **options).asnumpy()[:, 0].tolist() == [last, last + 1]
    else:
        with pytest.raises(ValueError, match="is not in"):
            bps.allreduce(x, process_set=some)
    assert near(bps.allreduce(x, op=bps.Sum), total())
    bps.remove_process_set(some)


def test_a_trainer_averages_over_its_process_set():
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    if some.included():
        net, alone = network(), network()
        rows, options = slice(12 * some.rank(), 12 * some.rank() + 12), {"learning_rate": 0.05}
        trainer = bps.DistributedTrainer(
            net.collect_params(), "sgd", options, root_rank=last, process_set=some
        )
        train(net, trainer, rows)
        train(alone, gluon.Trainer(alone.collect_params(), "sgd", options))
        assert all(near(a, b) for a, b in zip(parameters(net), parameters(alone)))
    bps.remove_process_set(some)


# ---- training ----


def network(dtype="float32", in_units=6):
    mx.random.seed(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, "relu", in_units=in_units, dtype=dtype))
    net.add(gluon.nn.Dense(3, in_units=16 if in_units else 0, dtype=dtype))
    net.initialize(mx.init.Xavier(), force_reinit=True)
    return net


def batch(dtype="float32"):
    rng = np.random.RandomState(7)
    return [mx.nd.array(rng.randn(24, n), dtype=dtype) for n in (6, 3)]


def mine():
    """Return the slice of the batch's rows that this worker uses."""
    return slice(bps.rank() * 24 // bps.size(), (bps.rank() + 1) * 24 // bps.size())


def parameters(net):
    return [p.data() for p in net.collect_params().values()]


def train(net, trainer, rows=slice(None), steps=10, dtype="float32"):
    x, y = batch(dtype)
    x, y = x[rows.start or 0 : rows.stop or 24], y[rows.start or 0 : rows.stop or 24]
    loss_of = gluon.loss.L2Loss()
    for _ in range(steps):
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(len(x))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nag"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_trainer_equals_one_worker_with_the_whole_batch(optimizer, hybrid):
    net, alone = network(), network()
    if hybrid:
        net.hybridize()
    options = {"learning_rate": 0.05}
    train(net, bps.DistributedTrainer(net.collect_params(), optimizer, dict(options)), mine())
    train(alone, gluon.Trainer(alone.collect_params(), optimizer, dict(options)))
    for a, b in zip(parameters(net), parameters(alone)):
        assert near(a, b, 1e-6) and same_everywhere(a)


def test_a_trainer_divides_by_the_batch_and_by_the_workers_once():
    net, alone = network(), network()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    other = gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 1.0})
    train(net, trainer, steps=1)  # every worker trains on the same batch
    train(alone, other, steps=1)
    assert all(near(a, b) for a, b in zip(parameters(net), parameters(alone)))


def test_a_trainer_gives_all_workers_roots_parameters_at_its_first_step():
    net = network()
    for p in parameters(net):
        p[:] = bps.rank()
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.0}, root_rank=1
    )
    train(net, trainer, steps=1)
    assert all(near(p, 1) for p in parameters(net))


def test_a_trainer_in_half_precision_stays_near_full_precision():
    net, alone = network(), network()
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.05},
        compression_params={"fp16": True},
        gradient_predivide_factor=2.0,
    )
    train(net, trainer, mine())
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 0.05}))
    pairs = list(zip(parameters(net), parameters(alone)))
    # In each of 10 steps of rate 0.05, gradients below 2 are rounded before and after the sum. Each
    # rounding changes a gradient by at most 2^-12 of its value.
    assert all(near(a, b, 2**-11) and same_everywhere(a) for a, b in pairs)
    assert not all(near(a, b) for a, b in pairs)


def test_a_trainer_refuses_codings_and_unwraps_an_optimizer():
    net = network()
    with pytest.raises(NotImplementedError, match="does not support topk"):
        bps.DistributedTrainer(
            net.collect_params(), "sgd", compression_params={"compressor": "topk"}
        )
    with pytest.warns(UserWarning, match="averages gradients itself"):
        trainer = bps.DistributedTrainer(
            net.collect_params(), bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5))
        )
    assert trainer.learning_rate == 0.5


def test_a_trainer_takes_compressors_of_byteps():
    net = gluon.nn.Dense(coded.N, in_units=1, use_bias=False)
    net.initialize(mx.init.Zero())
    params = {"compressor": "randomk", "k": 500, "seed": 1, "ef": "vanilla", "fp16": False}
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 1.0}, compression_params=params, prefix="k"
    )
    with autograd.record():
        loss = (net(full((1, 1), 1)) * mx.nd.array(coded.values(bps.rank()))).sum()
    loss.backward()
    trainer.step(1)
    got = -net.weight.data().reshape(-1).asnumpy()
    assert 498 <= (got != 0).sum() <= 500 and same_everywhere(net.weight.data())
    assert np.allclose(got[got != 0], coded.mean()[got != 0], atol=1e-6)
    assert any("grad.k" in name for name in bps.compression_state_dict())


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("many", [False, True])
def test_an_optimizer_averages_gradients_before_it_updates(name, many):
    optimizer = bps.DistributedOptimizer(mx.optimizer.create(name, learning_rate=0.1))
    alone = mx.optimizer.create(name, learning_rate=0.1)
    weights = [full((n,), 1.0) for n in (3, 50)]
    others = [w.copy() for w in weights]
    updater, other = mx.optimizer.get_updater(optimizer), mx.optimizer.get_updater(alone)
    for step in range(3):
        grads = [full((n,), bps.rank() + 1 + step) for n in (3, 50)]
        means = [full((n,), total() / bps.size() + step) for n in (3, 50)]
        if many:
            updater([0, 1], grads, weights)
        else:
            for i in (0, 1):
                updater(i, grads[i], weights[i])
        for i in (0, 1):
            other(i, means[i], others[i])
    assert all(near(a, b) for a, b in zip(weights, others))
    assert optimizer.learning_rate == 0.1
    optimizer.set_learning_rate(0.2)
    assert alone.learning_rate == 0.1 and optimizer._optimizer.learning_rate == 0.2


def module_of(x, y, batch_size):
    """Return a Module of one layer, and an iterator over the rows."""
    layer = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="layer")
    out = mx.sym.LinearRegressionOutput(layer, mx.sym.Variable("label"))
    module = mx.mod.Module(out, label_names=["label"])
    iterator = mx.io.NDArrayIter({"data": x}, {"label": y}, batch_size=batch_size)
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params(mx.init.Uniform(0.1 * (bps.rank() + 1)))
    return module, iterator


def train_module(module, iterator, optimizer):
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    for one in iterator:
        module.forward_backward(one)
        module.update()
    return module.get_params()[0]


def test_a_module_equals_one_worker_with_the_whole_batch():
    x, y = batch()
    rows = mine()
    module, iterator = module_of(x[rows.start : rows.stop], y[rows.start : rows.stop], 4)
    params, aux = module.get_params()
    bps.broadcast_parameters(params)
    module.set_params(params, aux)
    start = {name: value.copy() for name, value in params.items()}  # training changes params
    sgd = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1.0)
    trained = train_module(module, iterator, bps.DistributedOptimizer(sgd))
    # A step of the one worker has the rows that the workers have in one step.
    together = np.arange(24).reshape(bps.size(), -1, 4).transpose(1, 0, 2).reshape(-1)
    alone, iterator = module_of(x.asnumpy()[together], y.asnumpy()[together], 4 * bps.size())
    alone.set_params(start, aux)
    sgd = mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1.0 / bps.size())
    wanted = train_module(alone, iterator, sgd)
    for name, value in trained.items():
        assert near(value, wanted[name], 1e-5) and same_everywhere(value)


def test_sparse_gradients_are_averaged():
    net = gluon.nn.Embedding(10, 4, sparse_grad=True)
    net.initialize(mx.init.One())
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record():
        loss = net(mx.nd.array([bps.rank(), 9])).sum()
    loss.backward()
    trainer.step(1)
    weight = net.weight.data().asnumpy()
    assert np.allclose(weight[9], 0.0) and np.allclose(weight[8], 1.0)
    assert all(np.allclose(weight[r], 1.0 - 1.0 / bps.size()) for r in ranks())


def test_row_sparse_tensors_of_some_workers_may_be_empty():
    for n_rows in (2, 0):
        x = mx.nd.sparse.zeros("row_sparse", (9, 3))
        if bps.rank() != 1 and n_rows:
            x = mx.nd.sparse.row_sparse_array((mx.nd.ones((2, 3)), [bps.rank(), 8]), shape=(9, 3))
        out = _ops.sum_sparse(x, bps.Sum, bps.Compression.none, bps.global_process_set)
        want = np.zeros((9, 3), np.float32)
        for r in ranks() if n_rows else ():
            want[[r, 8]] += r != 1
        assert out.stype == "row_sparse" and (out.tostype("default").asnumpy() == want).all()


def test_parameters_are_broadcast_also_when_their_shape_comes_later():
    net = network(in_units=0)
    mx.random.seed(bps.rank())
    bps.broadcast_parameters(net.collect_params(), root_rank=1)
    net(batch()[0])
    assert all(same_everywhere(p) for p in parameters(net))
    with pytest.raises(ValueError, match="dict"):
        bps.broadcast_parameters([1, 2])


# ---- what Horovod's tests check, see behaviours.txt ----


@pytest.fixture
def halves():
    """Return the set of the even ranks and the set of the odd ranks, this worker's set first."""
    sets = [bps.add_process_set(ranks()[first::2]) for first in (0, 1)]
    yield sets[:: 1 if bps.rank() % 2 == 0 else -1]
    for one in sets:
        bps.remove_process_set(one)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(17,), (3, 5), (2, 3, 4)])
def test_all_operations_take_every_type_and_shape(dtype, shape):
    x, values = full(shape, bps.rank() + 2, dtype), [r + 2 for r in ranks()]
    wants = [(bps.Min, 2), (bps.Max, values[-1]), (bps.Product, int(np.prod(values)))]
    wants += [(bps.Sum, sum(values))]
    for op, want in wants:
        out = bps.allreduce(x, op=op)
        assert out.dtype == np.dtype(dtype) and out.shape == shape and near(out, want)
        (out,) = bps.grouped_allreduce([x], op=op)
        assert near(out, want)
    (out,) = bps.grouped_allreduce([x * bps.size()])
    assert near(out, sum(values)) and out.dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "float32", "float64"])
def test_sums_and_reducescatters_are_scaled_before_and_after(dtype):
    n, exact = bps.size(), "float32" if dtype == "float16" else "float64"
    x, factor = mx.nd.arange(4 * n, dtype=dtype).reshape((-1, 1)), 0.4
    scaled = lambda x: (x.astype(exact) * factor).astype(dtype)  # noqa: E731
    wants = [("prescale_factor", scaled(x) * n), ("postscale_factor", scaled(x * n))]
    tolerance, rows = 1e-2 if dtype == "float16" else 1e-5, slice(4 * bps.rank(), None)
    for scale, want in wants:
        out = bps.allreduce(x, op=bps.Sum, **{scale: factor})
        assert out.dtype == np.dtype(dtype) and near(out, want, tolerance)
        out = bps.reducescatter(x, op=bps.Sum, **{scale: factor})
        (other,) = bps.grouped_reducescatter([x], op=bps.Sum, **{scale: factor})
        assert near(out, want[rows][:4], tolerance) and near(out, other)
    out = bps.reducescatter(x, op=bps.Average)
    assert out.dtype == np.dtype(dtype) and near(out, x[rows][:4])
    (out,) = bps.grouped_reducescatter([x], op=bps.Average)
    assert near(out, x[rows][:4])


def test_the_input_of_a_sum_may_be_freed_at_once():
    x = mx.nd.ones((17, 17))
    sums = [bps.allreduce(x * (i + 1), op=bps.Sum) for i in range(3)]
    assert all(near(out, (i + 1) * bps.size()) for i, out in enumerate(sums))


@pytest.mark.parametrize("shape", [(17,), (3, 5), (2, 3, 4)])
def test_broadcast_gives_every_root_its_turn(shape):
    for root in ranks():
        x = full(shape, bps.rank(), "int64")
        assert near(bps.broadcast(x, root, name="turn"), root) and near(x, bps.rank())
        assert bps.broadcast_(x, root) is x and near(x, root)


def test_a_dict_of_tensors_of_many_types_is_broadcast():
    shapes = [(17,), (3, 5), (2, 3, 4)]
    types = ["int32", "int64", "float32", "float64"]
    given = {
        str(i): full(shape, bps.rank(), dtype)
        for i, (shape, dtype) in enumerate((s, d) for s in shapes for d in types)
    }
    bps.broadcast_parameters(given, root_rank=1)
    assert all(near(x, 1) for x in given.values())


def test_a_dict_with_numbers_as_names_is_broadcast():
    given = {i: full((2,), 10 * bps.rank() + i) for i in range(12)}
    bps.broadcast_parameters(given, root_rank=1)
    assert all(near(x, 10 + i) for i, x in given.items())


def test_objects_of_all_workers_are_collected():
    mine_ = {"rank": bps.rank(), **({"more": 42} if bps.rank() == 1 else {})}
    every = bps.allgather_object(mine_)
    assert [one["rank"] for one in every] == list(ranks()) and every[1]["more"] == 42
    obj = {"hello": 123, 0: [1, 2]}
    assert bps.broadcast_object(obj if bps.rank() == 0 else {}, root_rank=0) == obj


DIFFERENT = {
    "allreduce": lambda x: bps.allreduce(x),
    "group": lambda x: bps.grouped_allreduce([mx.nd.ones(2), x]),
    "allgather": lambda x: bps.allgather(x),
    "alltoall": lambda x: bps.alltoall(x),
    "broadcast": lambda x: bps.broadcast(x, 0),
    "reducescatter": lambda x: bps.reducescatter(x),
}


@pytest.mark.parametrize("what", ["type", "shape"])
@pytest.mark.parametrize("call", DIFFERENT)
def test_types_and_shapes_that_differ_are_errors_of_every_call(call, what):
    n, odd = bps.size(), bps.rank() % 2
    dtype = "int32" if what == "type" and odd else "float32"
    x = full((n, 2 + (odd if what == "shape" else 0)), 1, dtype)
    with pytest.raises(RuntimeError) as caught:  # the base class of Horovod's error
        DIFFERENT[call](x)
    assert isinstance(caught.value, bps.Error)
    assert near(bps.allreduce(full((2,), 1), op=bps.Sum), n)


def test_roots_that_differ_are_an_error_at_all():
    with pytest.raises(bps.Error, match="root 0.*root 1"):
        bps.broadcast(full((3,), 1), min(bps.rank(), 1))


def test_splits_that_do_not_fit_are_an_error():
    n = bps.size()
    for x, splits in ((full((n + 1,), 1), None), (full((n - 1,), 1), mx.nd.ones(n, dtype="int32"))):
        with pytest.raises(ValueError, match="cannot be split"):
            bps.alltoall(x, splits)
    with pytest.raises(ValueError, match="must be integers"):
        bps.alltoall(full((n,), 1), mx.nd.ones(n))


def test_numbers_are_refused_by_reducescatter_also_in_groups():
    with mx.util.np_shape(True):
        number = mx.nd.ones(())
        for call in (
            lambda: bps.reducescatter(number),
            lambda: bps.grouped_reducescatter([mx.nd.zeros((3, 1)), number]),
        ):
            with pytest.raises(ValueError, match="at least one dimension"):
                call()


@pytest.mark.parametrize("call", ["allgather", "broadcast", "alltoall", "object"])
def test_names_that_differ_between_workers_are_an_error_at_all(call):
    calls = {
        "allgather": lambda n: bps.allgather(full((2,), 1), n),
        "broadcast": lambda n: bps.broadcast(full((2,), 1), 0, n),
        "alltoall": lambda n: bps.alltoall(full((bps.size(),), 1), name=n),
        "object": lambda n: bps.broadcast_object(1, 0, name=n),
    }
    for names in ("ab", (None, "b")):
        with pytest.raises(bps.Error, match="workers disagree"):
            calls[call](names[min(bps.rank(), 1)])
    calls[call]("b")


def test_an_empty_dict_of_parameters_is_compared_with_the_others():
    given = {} if bps.rank() == 0 else {"a": full((2,), 1)}
    with pytest.raises(bps.Error, match="rank 0 has 0 tensors"):
        bps.broadcast_parameters(given)
    bps.broadcast_parameters({})


def test_groups_and_types_run_in_process_sets(halves):
    here, n = {"process_set": halves[0]}, halves[0].size()
    sums = sum(r + 1 for r in halves[0].ranks)
    for dtype in ("int32", "int64", "float32", "float64"):
        xs = [full((4 * n, 2), bps.rank() + 1, dtype) for _ in range(3)]
        for out in bps.grouped_allreduce(xs, op=bps.Sum, name=f"set {dtype}", **here):
            assert out.dtype == np.dtype(dtype) and near(out, sums)
        for out in bps.grouped_allgather(xs, **here):
            assert out[:, 0].asnumpy()[:: 4 * n].tolist() == [r + 1 for r in halves[0].ranks]
        for out in bps.grouped_reducescatter(xs, op=bps.Sum, **here):
            assert out.shape == (4, 2) and near(out, sums)
        splits = mx.nd.array([bps.rank() + 1] * n, dtype="int32")
        rows = full(((bps.rank() + 1) * n, 2), bps.rank(), dtype)
        out, received = bps.alltoall(rows, splits, **here)
        assert received.asnumpy().tolist() == [r + 1 for r in halves[0].ranks]
        want = [r for r in halves[0].ranks for _ in range(r + 1)]
        assert out[:, 0].asnumpy().tolist() == want


def test_an_optimizer_averages_over_its_process_set_only(halves):
    even = halves[0] if bps.rank() % 2 == 0 else halves[1]
    optimizer = bps.DistributedOptimizer(mx.optimizer.Test(learning_rate=10.0), process_set=even)
    weight = mx.nd.random.uniform(shape=(3, 10))
    bps.broadcast_(weight, root_rank=0)
    before, grad = weight.copy(), full((3, 10), bps.rank() + 1)
    optimizer.update(0, weight, grad, optimizer.create_state(0, weight))
    mean = sum(r + 1 for r in even.ranks) / even.size()
    step = mean if even.included() else bps.rank() + 1
    alone = mx.optimizer.Test(learning_rate=10.0)
    alone.update(0, before, full((3, 10), step), alone.create_state(0, before))
    assert near(weight, before, 1e-5)


def test_two_trainers_have_prefixes_of_their_own():
    nets = [gluon.nn.Dense(n, in_units=10) for n in (20, 30)]
    trainers = []
    for i, net in enumerate(nets):
        net.initialize(ctx=mx.cpu(bps.rank()))
        bps.broadcast_parameters(net.collect_params(), prefix=f"net{i}")
        options = {"learning_rate": 0.1}
        trainers.append(
            bps.DistributedTrainer(net.collect_params(), "sgd", options, prefix=f"net{i}")
        )
    for _ in range(3):
        x = mx.nd.ones((5, 10), ctx=mx.cpu(bps.rank())) * (bps.rank() + 1)
        with autograd.record():
            losses = [net(x).sum() for net in nets]
        autograd.backward(losses)
        for trainer in trainers:
            trainer.step(1.0)
    for net in nets:
        assert all(same_everywhere(p.as_in_context(mx.cpu())) for p in parameters(net))


def test_compression_leaves_integers():
    for dtype in TYPES:
        x = full((17, 3), 1, dtype)
        small, context = bps.Compression.fp16.compress(x)
        is_float = dtype.startswith("float")
        assert small.dtype == np.dtype("float16" if is_float else dtype)
        out = bps.Compression.fp16.decompress(small, context)
        assert out.dtype == np.dtype(dtype) and near(out, 1)


class Tripling(bps.Compression.none):
    """A compressor that has a method of its own only for the results."""

    @classmethod
    def decompress(cls, tensor, context):
        return tensor * 3


def test_a_compressor_with_one_method_of_its_own_is_called():
    out = bps.allreduce(full((3,), 1), op=bps.Sum, compression=Tripling)
    assert near(out, 3 * bps.size())


def test_differences_in_a_process_set_name_ranks_of_the_job():
    last = bps.add_process_set(ranks()[1:])
    n = bps.rank() + 1
    calls = [
        lambda: bps.allreduce(full((n,), 1), process_set=last),
        lambda: bps.allgather(full((1, n), 1), process_set=last),
        lambda: bps.alltoall(full((last.size(), n), 1), process_set=last),
        lambda: bps.broadcast(full((n,), 1), 1, process_set=last),
        lambda: bps.broadcast(full((2,), 1), bps.rank(), process_set=last),
        lambda: bps.broadcast_parameters({"a": full((n,), 1)}, 1, process_set=last),
    ]
    for call in calls if last.included() and last.size() > 1 else []:
        with pytest.raises(bps.Error, match="rank [12] has .*(rank 2|this worker) has") as caught:
            call()
        assert "root 0" not in str(caught.value) and "rank 0" not in str(caught.value)
    bps.barrier()
    bps.remove_process_set(last)


# ---- elastic ----


def momenta(trainer):
    """Return the optimizer's state of the trainer's first parameter."""
    return trainer._updaters[0].states[0].asnumpy().tolist()


def trained_state():
    """Train one step. Return the net, the trainer and their state. The parameters and momenta
    differ between the workers."""
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.Constant(bps.rank()))
    options = {"learning_rate": 0.5, "momentum": 0.5}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=None)
    step(net, trainer)
    return net, trainer, bps.elastic.MXNetState(net.collect_params(), trainer, step=bps.rank())


def step(net, trainer):
    with autograd.record():
        loss = net(full((1, 2), 1.0 + bps.rank())).sum()
    loss.backward()
    trainer.step(1)


def test_a_state_is_restored_with_the_optimizers_momentum():
    net, trainer, state = trained_state()
    weight, momentum = net.weight.data().asnumpy(), momenta(trainer)
    step(net, trainer)
    state.step = 9
    assert not np.array_equal(net.weight.data().asnumpy(), weight) and momenta(trainer) != momentum
    state.restore()
    assert np.array_equal(net.weight.data().asnumpy(), weight) and momenta(trainer) == momentum
    assert state.step == bps.rank()
    step(net, trainer)  # the trainer goes on with the optimizer that was restored
    assert momenta(trainer) != momentum


def test_a_state_is_sent_with_the_optimizers_momentum():
    net, trainer, state = trained_state()
    state.sync()
    assert same_everywhere(net.weight.data()) and state.step == 0
    assert net.weight.data().asnumpy().tolist() == [[-0.5, -0.5]]
    assert bps.allgather_object(momenta(trainer)) == [[[-0.5, -0.5]]] * bps.size()


def test_a_state_of_a_trainer_that_has_sent_its_parameters_is_not_sent_again():
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize(mx.init.Constant(bps.rank()))
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    # Simulate that rank 0 made its first step before the other workers joined. The first step of a
    # trainer broadcasts the parameters.
    if bps.rank() == 0:
        trainer.skip_broadcast()
    state = bps.elastic.MXNetState(net.collect_params(), trainer)
    state.sync()
    step(net, trainer)
    assert same_everywhere(net.weight.data())


def test_a_state_has_the_parameters_of_all_its_trainers():
    nets = [gluon.nn.Dense(1, in_units=2, use_bias=False) for _ in range(2)]
    trainers = []
    for net in nets:
        net.initialize(mx.init.Constant(bps.rank()))
        trainers.append(bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5}))
    state = bps.elastic.MXNetState(trainer=trainers)
    state.sync()
    for net, trainer in zip(nets, trainers):
        step(net, trainer)
        assert same_everywhere(net.weight.data()) and net.weight.data()[0, 0].asscalar() < 0


def test_a_restored_state_keeps_the_optimizer_object():
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.Zero())
    optimizer = mx.optimizer.SGD(learning_rate=0.5)
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    state = bps.elastic.MXNetState(trainer=trainer)
    optimizer.set_learning_rate(0.1)
    state.restore()
    assert trainer.learning_rate == 0.5
    optimizer.set_learning_rate(0.0)
    step(net, trainer)
    assert net.weight.data().asnumpy().tolist() == [[0.0, 0.0]]


def test_a_state_needs_parameters_whose_shape_is_known():
    net = gluon.nn.Dense(1)
    net.initialize()
    with pytest.raises(gluon.parameter.DeferredInitializationError):
        bps.elastic.MXNetState(net.collect_params())


# ---- errors ----


def test_a_killed_worker_is_named_by_the_others_within_3_seconds(tmp_path):
    script = """
import mxnet as mx
import bps.mxnet as bps
bps.init()
x = mx.nd.ones((1000,))
bps.byteps_push_pull(x, name="x")
if bps.rank() == 1:
    kill_me()
try:
    bps.byteps_push_pull(x, name="x")
except bps.Error as error:
    report(error)
    raise
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        seen = re.search(r"after ([\d.]+) s: Error: .*rank 1", outputs[0])
        assert seen and float(seen[1]) < 3 and codes == [1, -9], outputs[0]


def test_a_script_that_never_shuts_down_ends(tmp_path):
    if bps.rank() == 0:
        script = "import mxnet as mx, bps.mxnet as bps\nbps.init()\nbps.allreduce(mx.nd.ones(3))\n"
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


def test_calls_before_init_are_refused_in_words(tmp_path):
    if bps.rank() == 0:
        script = "import mxnet as mx, bps.mxnet as bps\nbps.allreduce(mx.nd.ones(3))\n"
        codes, outputs = jobs.start(script, tmp_path, n=1)
        assert codes == [1] and "NotInitialized: bps is not initialized" in outputs[0]


# ---- scripts of others ----


@pytest.mark.parametrize("package", ["horovod", "byteps"])
def test_scripts_of_horovod_and_byteps_run_unmodified(tmp_path, package):
    script = f"""
import bps.compat.{package}
import mxnet as mx
import {package}.mxnet as hvd
hvd.init()
net = mx.gluon.nn.Dense(3, in_units=4)
net.initialize()
options = {{"root_rank": 0}}
if "{package}" == "horovod":
    options = {{"compression": hvd.Compression.fp16}}
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {{"learning_rate": 0.1}}, **options)
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
with mx.autograd.record():
    loss = net(mx.nd.ones((2, 4)) * hvd.rank()).sum()
loss.backward()
trainer.step(2)
x = mx.nd.ones(3) * hvd.rank()
if "{package}" == "byteps":
    hvd.byteps_declare_tensor("x")
    hvd.byteps_push_pull(x, name="x", is_average=False)
else:
    assert hvd.gloo_built() and hvd.cross_size() == 1
    x = hvd.allreduce(x, average=False)
assert (x.asnumpy() == 1).all()
hvd.shutdown()
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs
