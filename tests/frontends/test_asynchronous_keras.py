"""Asynchronous training with Keras on the back-end that $KERAS_BACKEND names.

Every worker of a job runs these tests in the same order (tests/frontends/run.py).
"""

import time

import keras
import numpy as np
import pytest

import bps.keras as bps
from bps import _core

BACKEND = keras.backend.backend()
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
    keras.utils.clear_session()
    keras.utils.set_random_seed(100 + bps.rank())


def machines():
    return len(set(bps.allgather_object(_core.host_key())))


def model_of(optimizer, **options):
    layers = keras.Input((6,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)
    model = keras.Sequential(layers)
    optimizer = bps.DistributedOptimizer(optimizer, asynchronous=True, **options)
    model.compile(optimizer, "mse", jit_compile=False if BACKEND == "tensorflow" else "auto")
    return model, optimizer


def data(n=64):
    rng = np.random.RandomState(bps.rank())
    x = rng.randn(n, 6).astype("f4")
    return x, x @ np.linspace(-1, 1, 18, dtype="f4").reshape(6, 3)


def flat(model):
    return np.concatenate([w.reshape(-1) for w in model.get_weights()])


def same_everywhere(model):
    rows = bps.allgather(flat(model)[None])
    return all(np.array_equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("name, stale", [("SGD", None), ("Adam", 0)])
def test_training_converges_and_all_workers_end_with_equal_weights(name, stale):
    model, optimizer = model_of(getattr(keras.optimizers, name)(0.01), stale=stale)
    x, y = data()
    first = model.evaluate(x, y, verbose=0)
    model.fit(x, y, 16, 40, verbose=0)
    optimizer.pull_values()
    assert same_everywhere(model)
    assert model.evaluate(x, y, verbose=0) < first / 4


def test_the_updates_of_all_workers_are_added_to_the_weights_of_rank_0():
    own = float(bps.rank() + 1)
    variable = keras.Variable(np.full(4, own, "f4"))
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), asynchronous=True)
    for _ in range(3):
        optimizer.apply([keras.ops.ones(4) * own], [variable])
    optimizer.pull_values()
    wanted = 1 - 3 * sum(r + 1.0 for r in range(bps.size()))
    assert keras.ops.convert_to_numpy(variable).tolist() == [wanted] * 4


@pytest.mark.parametrize("is_built", [False, True])
def test_the_broadcast_callback_may_send_before_and_after_the_first_batch(is_built):
    layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers] if is_built else layers)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01), asynchronous=True)
    model.compile(optimizer, "mse")
    callbacks = [bps.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(*data(), 16, 2, verbose=0, callbacks=callbacks)
    optimizer.pull_values()
    assert same_everywhere(model)


@pytest.mark.parametrize("averages", [False, True])
def test_accumulated_gradients_are_applied_in_each_second_step(averages):
    variable = keras.Variable(np.zeros(4, "f4"))
    optimizer = bps.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        asynchronous=True,
        backward_passes_per_step=2,
        average_aggregated_gradients=averages,
    )
    optimizer.pull_values()  # reads nothing before the first update
    optimizer.build([variable])
    for _ in range(4):
        optimizer.apply([keras.ops.ones(4)], [variable])
    optimizer.pull_values()
    wanted = -(2 if averages else 4) * bps.size()
    assert np.allclose(keras.ops.convert_to_numpy(variable), wanted)


def test_only_a_bound_lets_the_others_wait_for_a_slow_worker():
    for stale in (0, None) if machines() == bps.size() else (0,):
        variable = keras.Variable(np.zeros(4, "f4"))
        optimizer = bps.DistributedOptimizer(
            keras.optimizers.SGD(1.0), asynchronous=True, stale=stale
        )
        optimizer.apply([keras.ops.zeros(4)], [variable])
        bps.barrier()
        is_slow, start = bps.rank() == 0, time.monotonic()
        for _ in range(10):
            if is_slow:
                time.sleep(SLOW_S)
            optimizer.apply([keras.ops.zeros(4)], [variable])
        seconds = time.monotonic() - start
        optimizer.pull_values()
        if not is_slow:
            assert (seconds > 8 * SLOW_S) == (stale == 0), (stale, seconds)


def test_weights_changed_outside_of_an_update_are_refused_until_the_values_are_reset():
    variable = keras.Variable(np.zeros(4, "f4"))
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), asynchronous=True)
    optimizer.apply([keras.ops.zeros(4)], [variable])
    variable.assign(np.full(4, bps.rank() + 5.0, "f4"))
    with pytest.raises(RuntimeError, match="was changed outside of the optimizer"):
        optimizer.apply([keras.ops.zeros(4)], [variable])
    optimizer.reset_values()
    optimizer.apply([keras.ops.zeros(4)], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [5.0] * 4


def test_the_variable_of_byteps_turns_it_on(monkeypatch):
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    assert hasattr(bps.DistributedOptimizer(keras.optimizers.SGD(1.0)), "pull_values")
    off = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), asynchronous=False)
    assert not hasattr(off, "pull_values")


@pytest.mark.parametrize(
    "name, value",
    [
        ("compression", bps.Compression.fp16),
        ("op", bps.Sum),
        ("gradient_predivide_factor", 2.0),
        ("num_groups", 2),
        ("groups", 2),
        ("sparse_as_dense", True),
        ("scale_local_gradients", False),
    ],
)
def test_options_that_exclude_asynchronous_training(name, value):
    with pytest.raises(ValueError, match=f"{name} cannot be combined with asynchronous training"):
        bps.DistributedOptimizer(keras.optimizers.SGD(1.0), asynchronous=True, **{name: value})


def test_a_loss_scale_is_refused():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match="LossScaleOptimizer cannot be combined"):
        bps.DistributedOptimizer(scaled, asynchronous=True)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="for TensorFlow alone")
class TestTensorFlow:
    def test_sparse_gradients(self):
        import tensorflow as tf

        variable = keras.Variable(np.zeros((8, 2), "f4"))
        optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), asynchronous=True)
        rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([bps.rank()]), tf.constant([8, 2]))
        optimizer.apply([rows], [variable])
        optimizer.pull_values()
        wanted = np.zeros((8, 2), "f4")
        wanted[: bps.size()] = -1
        assert np.array_equal(keras.ops.convert_to_numpy(variable), wanted)

    def test_an_optimizer_of_tensorflow_1(self):
        import tensorflow as tf

        import bps.tensorflow as bps_tf

        for is_graph in (False, True):
            variable = tf.Variable(np.full(4, bps.rank() + 1.0, "f4"))
            plain = tf.compat.v1.train.MomentumOptimizer(1.0, 0.0)
            optimizer = bps_tf.DistributedOptimizer(plain, asynchronous=True)

            def step(optimizer=optimizer, variable=variable):
                optimizer.apply_gradients([(tf.ones(4), variable)])

            step = tf.function(step) if is_graph else step
            for _ in range(3):
                step()
            optimizer.pull_values()
            assert variable.numpy().tolist() == [1.0 - 3 * bps.size()] * 4

    def test_an_optimizer_of_tensorflow_1_in_a_session(self):
        import tensorflow as tf

        import bps.tensorflow as bps_tf

        v1 = tf.compat.v1
        for is_resource in (True, False):
            with tf.Graph().as_default():
                own = np.full(4, bps.rank() + 1.0, "f4")
                variable = v1.Variable(own, use_resource=is_resource)
                plain = v1.train.GradientDescentOptimizer(1.0)
                optimizer = bps_tf.DistributedOptimizer(plain, asynchronous=True)
                loss = tf.reduce_sum(variable)
                step = optimizer.minimize(loss, var_list=[variable])
                pull = optimizer.pull_values()
                with v1.Session() as session:
                    session.run(v1.global_variables_initializer())
                    for _ in range(3):
                        session.run(step)
                    session.run(pull)
                    assert session.run(variable).tolist() == [1.0 - 3 * bps.size()] * 4

    def test_a_tape_refuses_the_variable_of_byteps(self, monkeypatch):
        import tensorflow as tf

        import bps.tensorflow as bps_tf

        monkeypatch.setenv("BPS_STALE", "inf")
        with pytest.raises(ValueError, match="DistributedGradientTape cannot train async"):
            bps_tf.DistributedGradientTape(tf.GradientTape())
        with pytest.raises(ValueError, match="CrossDeviceOps cannot train asynchronously"):
            bps_tf.CrossDeviceOps()
