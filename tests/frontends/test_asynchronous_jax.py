"""Asynchronous training with JAX: all workers run these tests in the same order."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bps.jax as bps
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


def machines():
    return len(set(bps.allgather_object(_core.host_key())))


def begin():
    rng = np.random.RandomState(bps.rank())
    return {"w": jnp.asarray(rng.randn(6, 3), "float32"), "b": jnp.zeros(3)}


def loss_of(params, x):
    target = jnp.linspace(-1, 1, 18).reshape(6, 3)
    return ((x @ params["w"] + params["b"] - x @ target) ** 2).mean()


@pytest.mark.parametrize(
    "make, is_jit, stale",
    [
        (lambda: optax.sgd(0.1), True, None),
        (lambda: optax.adam(0.02), True, 0),
        (lambda: optax.sgd(0.1), False, None),
    ],
)
def test_training_converges_and_all_workers_end_with_equal_parameters(make, is_jit, stale):
    optimizer = bps.DistributedOptimizer(make(), asynchronous=True, stale=stale)

    def step(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    step = jax.jit(step) if is_jit else step
    params, rng = begin(), np.random.RandomState(bps.rank())
    state, losses = optimizer.init(params), []
    for _ in range(150):
        params, state, loss = step(params, state, jnp.asarray(rng.randn(32, 6), "float32"))
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 4
    params = optimizer.pull_values(params)
    for leaf in jax.tree.leaves(params):
        rows = bps.allgather_object(np.asarray(leaf).tobytes())
        assert rows.count(rows[0]) == bps.size()


def test_the_updates_of_all_workers_are_added_to_the_parameters_of_rank_0():
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0), asynchronous=True)
    params = {"a": jnp.full(4, 1.0 + bps.rank())}
    state = optimizer.init(params)
    for _ in range(3):
        updates, state = optimizer.update({"a": jnp.ones(4)}, state, params)
        params = optax.apply_updates(params, updates)
    params = optimizer.pull_values(params)
    assert params["a"].tolist() == [1.0 - 3 * bps.size()] * 4


def test_only_a_bound_lets_the_others_wait_for_a_slow_worker():
    for stale in (0, None) if machines() == bps.size() else (0,):
        optimizer = bps.DistributedOptimizer(optax.sgd(1.0), asynchronous=True, stale=stale)
        params = jnp.zeros(4)
        state = optimizer.init(params)
        optimizer.update(params, state, params)
        bps.barrier()
        is_slow, start = bps.rank() == 0, time.monotonic()
        for _ in range(10):
            if is_slow:
                time.sleep(SLOW_S)
            optimizer.update(jnp.zeros(4), state, params)
        seconds = time.monotonic() - start
        optimizer.pull_values(params)
        if not is_slow:
            assert (seconds > 8 * SLOW_S) == (stale == 0), (stale, seconds)


def test_the_values_can_be_set_again():
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0), asynchronous=True)
    params = jnp.zeros(4)
    state = optimizer.init(params)
    optimizer.update(params, state, params)
    optimizer.reset_values()
    params = jnp.full(4, 5.0 + bps.rank())
    updates, _ = optimizer.update(jnp.zeros(4), state, params)
    assert (params + updates).tolist() == [5.0] * 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_parameters_of_another_training_are_refused_until_the_values_are_reset(dtype):
    optimizer = bps.DistributedOptimizer(optax.sgd(0.1), asynchronous=True)
    for is_pulled in (False, True):
        # Far from the values of rank 0, so that the first updates are rounded most.
        params = {"w": jnp.linspace(0.001, 3e3 * bps.rank() + 1, 50, dtype=dtype)}
        state, grads = optimizer.init(params), {"w": jnp.full(50, 0.01, dtype)}
        params = optimizer.pull_values(params) if is_pulled else params
        for _ in range(5):
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        other = {"w": jnp.linspace(5, 6, 50, dtype=dtype)}
        with pytest.raises(RuntimeError, match="was changed outside of the optimizer"):
            optimizer.update(grads, optimizer.init(other), other)
        optimizer.reset_values()


def test_the_variable_of_byteps_turns_it_on(monkeypatch):
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    optimizer = bps.DistributedOptimizer(optax.sgd(1.0))
    assert hasattr(optimizer, "pull_values")
    with pytest.raises(ValueError, match="needs the parameters"):
        optimizer.update(jnp.zeros(4), optimizer.init(jnp.zeros(4)))
    with pytest.raises(ValueError, match="average_gradients cannot train asynchronously"):
        bps.average_gradients()
    off = bps.DistributedOptimizer(optax.sgd(1.0), asynchronous=False)
    assert not hasattr(off, "pull_values")


@pytest.mark.parametrize("name, value", [("op", bps.Sum), ("compression", bps.Compression.fp16)])
def test_options_that_exclude_asynchronous_training(name, value):
    with pytest.raises(ValueError, match=f"{name} cannot be combined with asynchronous training"):
        bps.DistributedOptimizer(optax.sgd(1.0), asynchronous=True, **{name: value})
