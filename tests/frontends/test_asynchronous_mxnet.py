"""Asynchronous training with MXNet: all workers run these tests in the same order."""

import time

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import bps.mxnet as bps
from bps import _core

SLOW_S = 0.1


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


def all_of(array):
    return [np.asarray(one) for one in bps.allgather_object(np.asarray(array).tolist())]


def machines():
    return len(set(bps.allgather_object(_core.host_key())))


def network(dtype="float32"):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, "tanh", in_units=6), gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Uniform(0.1 * (1 + bps.rank())))
    net.cast(dtype)
    return net


def flat(net):
    params = net.collect_params().values()
    return np.concatenate([p.data().asnumpy().reshape(-1) for p in params])


def train(net, trainer, steps):
    rng = np.random.RandomState(bps.rank())
    target = np.linspace(-1, 1, 18).reshape(6, 3)
    for _ in range(steps):
        x = rng.randn(32, 6)
        y = mx.nd.array(x @ target)
        with autograd.record():
            loss = ((net(mx.nd.array(x)) - y) ** 2).mean()
        loss.backward()
        trainer.step(1)
    return float(loss.asscalar())


@pytest.mark.parametrize("stale", [0, None])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_training_converges_and_all_workers_end_with_equal_parameters(stale, name):
    net = network()
    options = {"learning_rate": 0.01 if name == "adam" else 0.1}
    trainer = bps.DistributedTrainer(
        net.collect_params(), name, options, asynchronous=True, stale=stale
    )
    first, last = train(net, trainer, 1), train(net, trainer, 200)
    assert last < first / 4, (first, last)
    trainer.pull_values()
    rows = all_of(flat(net))
    assert all(np.array_equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("many", [False, True])
def test_the_updates_of_all_workers_are_added_to_the_weights_of_rank_0(many):
    plain = mx.optimizer.create("sgd", learning_rate=1.0)
    optimizer = bps.DistributedOptimizer(plain, asynchronous=True)
    updater = mx.optimizer.get_updater(optimizer)
    weights = [mx.nd.full((n,), 1.0 + bps.rank()) for n in (3, 50)]
    for _ in range(3):
        grads = [mx.nd.full((n,), 1.0 + bps.rank()) for n in (3, 50)]
        if many:
            updater([0, 1], grads, weights)
        else:
            for i in (0, 1):
                updater(i, grads[i], weights[i])
    optimizer.pull_values()
    wanted = 1 - 3 * sum(1.0 + r for r in range(bps.size()))
    assert all((w.asnumpy() == wanted).all() for w in weights)


def test_a_trainer_begins_with_the_parameters_of_its_root():
    net = network()
    for p in net.collect_params().values():
        p.set_data(mx.nd.full(p.shape, bps.rank()))
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.0}, root_rank=1, asynchronous=True
    )
    train(net, trainer, 1)
    assert (flat(net) == 1).all()


def test_only_a_bound_lets_the_others_wait_for_a_slow_worker():
    for stale in (0, None) if machines() == bps.size() else (0,):
        plain = mx.optimizer.create("sgd", learning_rate=1.0)
        optimizer = bps.DistributedOptimizer(plain, asynchronous=True, stale=stale)
        updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.zeros((4,))
        updater(0, mx.nd.zeros((4,)), weight)
        bps.barrier()
        is_slow, start = bps.rank() == 0, time.monotonic()
        for _ in range(10):
            if is_slow:
                time.sleep(SLOW_S)
            updater(0, mx.nd.zeros((4,)), weight)
        seconds = time.monotonic() - start
        optimizer.pull_values()
        if not is_slow:
            assert (seconds > 8 * SLOW_S) == (stale == 0), (stale, seconds)


def test_half_precision_has_values_in_f32_and_no_second_copy_of_the_weights():
    for is_multi in (False, True):
        plain = mx.optimizer.create("sgd", learning_rate=1.0, multi_precision=is_multi)
        optimizer = bps.DistributedOptimizer(plain, asynchronous=True)
        updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.ones((4,), dtype="float16")
        if is_multi:
            with pytest.raises(ValueError, match="multi_precision cannot be combined"):
                updater(0, mx.nd.ones((4,), dtype="float16"), weight)
            continue
        updater(0, mx.nd.ones((4,), dtype="float16"), weight)
        optimizer.pull_values()
        assert weight.asnumpy().tolist() == [1.0 - bps.size()] * 4


def test_weights_changed_outside_of_an_update_are_refused_until_the_values_are_reset():
    plain = mx.optimizer.create("sgd", learning_rate=1.0)
    optimizer = bps.DistributedOptimizer(plain, asynchronous=True)
    updater, weight = mx.optimizer.get_updater(optimizer), mx.nd.zeros((4,))
    updater(0, mx.nd.zeros((4,)), weight)
    weight[:] = bps.rank() + 5
    with pytest.raises(RuntimeError, match="was changed outside of the optimizer"):
        updater(0, mx.nd.zeros((4,)), weight)
    optimizer.reset_values()
    updater(0, mx.nd.zeros((4,)), weight)
    assert weight.asnumpy().tolist() == [5.0] * 4


def test_the_variable_of_byteps_turns_it_on_also_inside_a_trainer(monkeypatch):
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd"))
    off = bps.DistributedOptimizer(mx.optimizer.create("sgd"), asynchronous=False)
    with pytest.warns(UserWarning, match="uses the optimizer inside"):
        assert bps.DistributedTrainer(network().collect_params(), off)._values is None
    monkeypatch.delenv("BYTEPS_ENABLE_ASYNC")
    assert optimizer._bound == (None,)
    with pytest.warns(UserWarning, match="uses the optimizer inside"):
        trainer = bps.DistributedTrainer(network().collect_params(), optimizer)
    assert trainer._values is not None


@pytest.mark.parametrize(
    "name, value",
    [
        ("op", bps.Sum),
        ("gradient_predivide_factor", 2.0),
        ("num_groups", 2),
        ("compression", bps.Compression.fp16),
    ],
)
def test_options_that_exclude_asynchronous_training(name, value):
    wanted = f"{name} cannot be combined with asynchronous training"
    with pytest.raises(ValueError, match=wanted):
        bps.DistributedOptimizer(mx.optimizer.create("sgd"), asynchronous=True, **{name: value})
    if name != "op":
        with pytest.raises(ValueError, match=wanted):
            bps.DistributedTrainer(
                network().collect_params(), "sgd", asynchronous=True, **{name: value}
            )
