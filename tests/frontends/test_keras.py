"""Tests of bps.keras on the Keras back-end that $KERAS_BACKEND names.

Every worker of a job runs these tests in the same order (tests/frontends/run.py).
"""

import os
import re
import subprocess
import sys

import coded
import jobs
import keras
import numpy as np
import pytest

import bps.keras as bps
from bps import _group

BACKEND = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="for TensorFlow alone")


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


def ranks():
    return range(bps.size())


def total(value=lambda rank: rank + 1):
    return sum(map(value, ranks()))


def network(seed=0, **options):
    """Return a model. Models of the same seed have the same weights."""
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)], **options
    )
    rng = np.random.RandomState(seed)
    model.set_weights([(0.3 * rng.randn(*w.shape)).astype("f4") for w in model.get_weights()])
    return model


def batch():
    rng = np.random.RandomState(7)
    return rng.randn(24, 6).astype("f4"), rng.randn(24, 3).astype("f4")


def mine():
    """Return the slice of the batch's rows that this worker uses."""
    return slice(bps.rank() * 24 // bps.size(), (bps.rank() + 1) * 24 // bps.size())


def fit(model, rows=slice(None), epochs=5, callbacks=(), batch_size=24, **options):
    x, y = (a[rows] for a in batch())
    options = {"shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, batch_size, epochs, callbacks=list(callbacks), **options)


def near(a, b, tolerance=1e-6):
    return all(np.allclose(x, y, rtol=0, atol=tolerance) for x, y in zip(a, b))


def same_bytes(array):
    all_ = bps.allgather_object(array.tobytes())
    return all_.count(all_[0]) == bps.size()


def same_everywhere(model):
    flat = np.concatenate([w.reshape(-1) for w in model.get_weights()])
    all_ = bps.allgather(flat[None])
    return all(np.array_equal(all_[0], row) for row in all_)


def value_of(variable):
    return keras.ops.convert_to_numpy(variable)


# ---- values ----


def test_allreduce_of_values_variables_and_numbers():
    assert np.allclose(bps.allreduce(float(bps.rank())), sum(ranks()) / bps.size())
    own = bps.rank() + 1.0
    assert np.allclose(bps.allreduce(keras.ops.ones(3) * own, average=False), total())
    assert np.allclose(bps.allreduce(keras.Variable([2 * own]), op=bps.Sum, name="v"), 2 * total())
    assert np.allclose(bps.push_pull(np.full(3, bps.rank()), "p", average=False), sum(ranks()))


def test_broadcast_allgather_and_reducescatter_of_values():
    assert bps.broadcast(bps.rank(), 1) == 1
    assert bps.allgather(np.full(bps.rank() + 1, bps.rank())).tolist() == [
        r for r in ranks() for _ in range(r + 1)
    ]
    out = bps.reducescatter(np.arange(bps.size()) + bps.rank(), op=bps.Sum)
    assert out.tolist() == [bps.rank() * bps.size() + sum(ranks())]


def test_a_process_set_runs_collectives_of_its_own():
    last = bps.size() - 1
    some = bps.add_process_set([last - 1, last])
    if some.included():
        x, options = np.full(2, bps.rank() + 1.0, "f4"), {"process_set": some}
        assert np.allclose(bps.allreduce(x, op=bps.Sum, **options), 2 * last + 1)
        assert np.allclose(bps.broadcast(x, last, **options), last + 1)
        assert bps.allgather(x[:1], **options).tolist() == [last, last + 1]
        assert bps.reducescatter(x, op=bps.Sum, **options).tolist() == [2 * last + 1]
    else:
        with pytest.raises(ValueError, match="is not in"):
            bps.allreduce(1.0, process_set=some)
    assert bps.allreduce(bps.rank() + 1.0, op=bps.Sum) == total()
    bps.remove_process_set(some)


def test_calls_that_keras_3_has_no_use_for_are_refused_in_words():
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        bps.broadcast_global_variables(0)


# ---- the optimizer ----


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "AdamW"])
def test_training_equals_one_worker_with_the_whole_batch(name):
    make = getattr(keras.optimizers, name)
    model, alone = network(), network()
    model.compile(bps.DistributedOptimizer(make(0.01)), "mse")
    alone.compile(make(0.01), "mse")
    fit(model, mine())
    fit(alone)
    assert same_everywhere(model)
    # Optimizers other than SGD divide by a root of squares, which makes small differences larger.
    tolerance = 1e-6 if name == "SGD" else 1e-4
    assert near(model.get_weights(), alone.get_weights(), tolerance)


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_gradients_are_averaged_before_they_are_clipped(clip):
    model, alone = network(), network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1, **{clip: 0.05})), "mse")
    alone.compile(keras.optimizers.SGD(0.1, **{clip: 0.05}), "mse")
    fit(model, mine())
    fit(alone)
    assert near(model.get_weights(), alone.get_weights())


def test_momentum_weight_decay_and_moving_averages_stay_the_same_everywhere():
    model, alone = network(), network()
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "use_ema": True}
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.05, **options)), "mse")
    alone.compile(keras.optimizers.SGD(0.05, **options), "mse")
    fit(model, mine())
    fit(alone)
    assert near(model.get_weights(), alone.get_weights()) and same_everywhere(model)


@pytest.mark.parametrize("by_keras", [False, True])
def test_gradients_of_several_batches_are_accumulated_and_sent_once(monkeypatch, by_keras):
    sent, reduce = [], _group.Group.reduce

    def observed(self, *args, **options):
        sent.append(self)
        return reduce(self, *args, **options)

    monkeypatch.setattr(_group.Group, "reduce", observed)
    model, alone = network(), network()
    options = {"gradient_accumulation_steps": 2} if by_keras else {}
    optimizer = keras.optimizers.SGD(0.1, **options)
    if not by_keras:
        optimizer = bps.DistributedOptimizer(
            optimizer, backward_passes_per_step=2, average_aggregated_gradients=True
        )
    else:
        optimizer = bps.DistributedOptimizer(optimizer)
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    # In each epoch, each worker has two batches and makes one update.
    rows = mine()
    n = (rows.stop - rows.start) // 2
    fit(model, rows, epochs=3, batch_size=n)
    fit(alone, epochs=3)
    assert len(sent) == 3 and same_everywhere(model)
    assert near(model.get_weights(), alone.get_weights(), 1e-5)


def test_accumulated_gradients_are_summed_by_default_as_horovods_are():
    model, alone = network(), network()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.05), backward_passes_per_step=2)
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    rows = mine()
    fit(model, rows, epochs=1, batch_size=(rows.stop - rows.start) // 2)
    fit(alone, epochs=1)
    assert near(model.get_weights(), alone.get_weights(), 1e-5)


@pytest.mark.parametrize("kind", [bps.Compression.fp16, bps.Compression.bf16])
def test_half_precision_on_the_wire_keeps_workers_the_same(kind):
    model, alone = network(), network()
    optimizer = bps.DistributedOptimizer(
        keras.optimizers.SGD(0.05), compression=kind, gradient_predivide_factor=2.0
    )
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.05), "mse")
    fit(model, mine())
    fit(alone)
    assert same_everywhere(model) and near(model.get_weights(), alone.get_weights(), 1e-2)


@pytest.mark.parametrize(("compression", "levels"), coded.KINDS)
def test_large_gradients_are_sent_in_blocks(compression, levels):
    value = coded.values(bps.rank(), (200, 100))
    coded.check(bps.allreduce(value, compression=compression), levels)

    def made():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(3000, "relu"), keras.layers.Dense(3)]
        )
        rng = np.random.RandomState(1)
        model.set_weights([0.1 * rng.randn(*w.shape) for w in model.get_weights()])
        return model

    kind = compression.with_residual()
    models = [made() for _ in range(bps.size() + 2)]
    model, alone, *parts = models
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=kind), "mse")
    for one in (alone, *parts):
        one.compile(keras.optimizers.SGD(1.0), "mse")
    before = alone.get_weights()
    fit(model, mine(), epochs=1)
    fit(alone, epochs=1)
    for r, one in enumerate(parts):
        fit(one, slice(r * 24 // bps.size(), (r + 1) * 24 // bps.size()), epochs=1)
    assert same_everywhere(model)
    largest = [
        max(np.abs(one.get_weights()[i] - w).max() for one in parts) for i, w in enumerate(before)
    ]
    for got, want, most in zip(model.get_weights(), alone.get_weights(), largest):
        error = np.abs(got - want).max()
        assert error <= coded.bound(levels, most) + 1e-5
        assert (error > 1e-5) == (got.nbytes >= 1 << 16), "the wrong gradients are coded"
    coded.check_residual("grad", levels / largest[0])


def test_signs_are_sent_if_each_machine_has_one_worker():
    options = {"name": "sign", "compression": bps.Compression.sign}
    if coded.shares_a_machine():
        with pytest.raises(ValueError, match=r"use Compression\.int4"):
            bps.allreduce(np.ones(coded.N, "f4"), **options)
        return
    value = np.where(coded.values(bps.rank()) < 0, -2, 2).astype("f4")
    out = bps.allreduce(value, **options)
    is_alike = np.prod([np.sign(coded.values(r)) for r in ranks()], 0) > 0
    # Where two workers have the same sign, the mean is 2, else 0. So the blocks of the result have
    # the mean absolute value.
    assert (np.sign(out) == np.sign(value))[is_alike].all()
    assert same_bytes(out) and np.abs(out).mean() == pytest.approx(2 * is_alike.mean(), rel=0.1)


def test_a_sum_of_gradients_is_not_divided():
    model, alone = network(), network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.01), op=bps.Sum), "mse")
    alone.compile(keras.optimizers.SGD(0.01 * bps.size()), "mse")
    fit(model)  # every worker trains on the whole batch
    fit(alone)
    assert near(model.get_weights(), alone.get_weights())


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="Average or Sum"):
        bps.DistributedOptimizer(keras.optimizers.SGD(), op=bps.Max)
    with pytest.raises(ValueError, match="op=Average"):
        bps.DistributedOptimizer(keras.optimizers.SGD(), op=bps.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="already"):
        bps.DistributedOptimizer(bps.DistributedOptimizer(keras.optimizers.SGD()))


def test_the_optimizer_keeps_its_class_name_and_its_settings():
    optimizer = keras.optimizers.Adam(0.25, beta_1=0.8)
    wrapped = bps.DistributedOptimizer(optimizer)
    assert isinstance(wrapped, keras.optimizers.Adam) and type(wrapped).__name__ == "Adam"
    assert wrapped.get_config() == optimizer.get_config()
    assert float(value_of(wrapped.learning_rate)) == 0.25


def test_an_optimizer_made_from_a_config_has_the_same_config():
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(0.25, beta_1=0.8))
    config = optimizer.get_config()
    for copy in (optimizer.from_config(config), type(optimizer).from_config(config)):
        assert copy.get_config() == config


@on_tensorflow  # Keras itself keeps NaN on PyTorch, where it clears sums by a product with 0
def test_an_infinite_gradient_does_not_outlast_its_update():
    v = keras.Variable([0.0])
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    for grads in ((np.inf, 1.0), (1.0, 2.0)):
        v.assign([0.0])
        for grad in grads:
            optimizer.apply([keras.ops.convert_to_tensor([grad], "float32")], [v])
    assert value_of(v).tolist() == [-3.0]


def test_gradients_that_differ_between_workers_are_named_by_their_variables():
    shapes = [(2,), (3 + bps.rank(), 4)]
    variables = [keras.Variable(np.ones(s, "f4"), name=n) for s, n in zip(shapes, ("a", "wide"))]
    grads = [keras.ops.ones(shape) for shape in shapes]
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    match = r"tensor 'wide': rank 0 has float32 \[3, 4\], rank 1 has float32 \[4, 4\]"
    with pytest.raises(bps.Error, match=match):
        optimizer.apply(grads, variables)


class Tripling(bps.Compression.none):
    """A compressor that has a method of its own only for the results."""

    @classmethod
    def decompress(cls, tensor, context):
        return tensor * 3


class TriplingHalves(bps.Compression.fp16):
    """A compressor that sends the type of its base class."""

    @classmethod
    def decompress(cls, tensor, context):
        return super().decompress(tensor * 3, context)


@pytest.mark.parametrize("kind", [Tripling, TriplingHalves])
def test_a_compressor_with_one_method_of_its_own_is_called(kind):
    for value in (np.ones(2), keras.ops.ones(2)):
        out = bps.allreduce(value, op=bps.Sum, compression=kind)
        assert out.tolist() == [3.0 * bps.size()] * 2
        assert out.dtype.name == keras.backend.standardize_dtype(value.dtype)


def test_the_name_of_a_broadcast_is_compared():
    with pytest.raises(bps.Error, match="workers disagree"):
        bps.broadcast(np.ones(2), 0, "ab"[min(bps.rank(), 1)])
    assert bps.broadcast(np.full(2, bps.rank()), 1, "b").tolist() == [1, 1]


def test_embeddings_are_trained_alike():
    def make(optimizer):
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(10, 4)])
        model.set_weights([np.ones((10, 4), "f4")])
        model.compile(optimizer, "mse")
        return model

    model = make(bps.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    alone = make(keras.optimizers.SGD(1.0))
    x = np.array([[r, 9] for r in ranks()], "i4")
    y = np.zeros((bps.size(), 2, 4), "f4")
    model.fit(x[bps.rank() :][:1], y[:1], verbose=0)
    alone.fit(x, y, batch_size=bps.size(), verbose=0)
    assert near(model.get_weights(), alone.get_weights()) and same_everywhere(model)


def test_gradients_that_overflow_at_one_worker_are_skipped_by_all():
    model = network()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0)
    model.compile(bps.DistributedOptimizer(optimizer), "mse", auto_scale_loss=False)
    before = model.get_weights()
    x, y = batch()
    x = x.copy()
    if bps.rank() == 1:
        x[:] = np.inf
    model.fit(x, y, 24, verbose=0)
    assert near(model.get_weights(), before)
    fit(model, mine(), epochs=1)
    assert same_everywhere(model) and not near(model.get_weights(), before)


def test_mixed_precision_agrees_on_overflows_through_the_broadcast_callback():
    model = network(seed=bps.rank())
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    # Wrap the optimizer, as compile() does if the model uses mixed precision.
    model.optimizer = keras.optimizers.LossScaleOptimizer(model.optimizer)
    x, y = batch()
    if bps.rank() == 1:
        x = x * np.inf
    model.fit(x, y, 24, verbose=0, callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback()])
    assert near(model.get_weights(), network(seed=0).get_weights())


@on_tensorflow
def test_xla_is_refused_in_words_and_switched_off_by_the_broadcast_callback():
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        fit(model, mine(), epochs=1)
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    fit(model, mine(), epochs=1, callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback()])
    alone = network()
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    fit(alone, epochs=1)
    assert same_everywhere(model) and near(model.get_weights(), alone.get_weights())


@on_tensorflow
def test_optimizers_reached_through_bps_tensorflow_are_the_same():
    import bps.tensorflow

    model, alone = network(), network()
    optimizer = bps.tensorflow.DistributedOptimizer(
        keras.optimizers.SGD(0.1), compression=bps.tensorflow.Compression.none
    )
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model, mine())
    fit(alone)
    assert near(model.get_weights(), alone.get_weights())


def test_a_function_of_the_model_runs_eagerly_too():
    if BACKEND == "jax":
        pytest.skip("JAX trains compiled code")
    model, alone = network(), network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model, mine())
    fit(alone)
    assert near(model.get_weights(), alone.get_weights())


def test_a_worker_outside_the_process_set_keeps_its_gradients():
    last = bps.size() - 1
    some = bps.add_process_set([last])
    model, alone = network(seed=bps.rank()), network(seed=bps.rank())
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=some)
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(last, process_set=some),
        bps.callbacks.MetricAverageCallback(process_set=some),
    ]
    fit(model, mine(), callbacks=callbacks)
    fit(alone, mine())
    assert near(model.get_weights(), alone.get_weights())
    bps.remove_process_set(some)


class OwnApply(keras.optimizers.SGD):
    """An optimizer that never clips gradients, so Keras does not call the usual hook."""

    def apply(self, grads, trainable_variables=None):
        for grad, variable in zip(grads, trainable_variables or self._trainable_variables):
            variable.assign(variable - keras.ops.cast(self.learning_rate, grad.dtype) * grad)


class OwnSteps(keras.optimizers.SGD):
    """An optimizer that does not call the methods of Keras at all."""

    def apply_gradients(self, grads_and_vars):
        pass


class Foreign:
    """An optimizer of another package, such as tf_keras."""

    def apply_gradients(self, grads_and_vars):
        pass


def test_optimizers_with_an_update_of_their_own_are_averaged_or_refused():
    if BACKEND != "torch":  # Keras has a class for each optimizer of PyTorch
        model, alone = network(), network()
        model.compile(bps.DistributedOptimizer(OwnApply(0.1)), "mse")
        alone.compile(keras.optimizers.SGD(0.1), "mse")
        fit(model, mine())
        fit(alone)
        assert same_everywhere(model) and near(model.get_weights(), alone.get_weights())
    with pytest.raises(TypeError, match="apply_gradients"):
        bps.DistributedOptimizer(OwnSteps(0.1))
    with pytest.raises(TypeError, match="not an optimizer of Keras 3"):
        bps.DistributedOptimizer(Foreign())


class Doubling:
    """A compressor of a script for Horovod."""

    @staticmethod
    def compress(tensor):
        return tensor * 2, 4

    @staticmethod
    def decompress(tensor, context):
        return tensor / context


def test_a_compressor_of_the_script_is_called():
    model, alone = network(), network()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=Doubling)
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.05), "mse")
    fit(model, mine())
    fit(alone)
    assert near(model.get_weights(), alone.get_weights())
    assert near(bps.allreduce(np.ones(2), compression=Doubling, op=bps.Sum), [bps.size() / 2] * 2)
    with pytest.raises(TypeError, match="not a compressor"):
        bps.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=object())


@pytest.mark.parametrize("groups", [2, "lists"])
def test_groups_of_gradients_are_sent_in_calls_of_their_own(monkeypatch, groups):
    sent, reduce = [], _group.Group.reduce

    def observed(self, arrays, *args, **options):
        sent.append(len(arrays))
        return reduce(self, arrays, *args, **options)

    monkeypatch.setattr(_group.Group, "reduce", observed)
    model, alone = network(), network()
    v = model.trainable_variables
    options = {"num_groups": 2} if groups == 2 else {"groups": [[v[3], v[0]], [v[2]]]}
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), "mse")
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model, mine(), epochs=1)
    fit(alone, epochs=1)
    assert sent == ([2, 2] if groups == 2 else [2, 1, 1])
    assert near(model.get_weights(), alone.get_weights())


@pytest.mark.parametrize("scales", [False, True])
def test_gradients_of_local_layers_stay_at_this_worker(scales):
    model, alone = network(), network()
    optimizer = bps.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1),
        "partial",
        local_layers=[model.layers[0]],
        scale_local_gradients=scales,
    )
    assert optimizer.name == "partial"
    optimizer.register_local_var(model.layers[1].bias)
    before = alone.get_weights()
    model.compile(optimizer, "mse")
    alone.compile(keras.optimizers.SGD(0.1 / bps.size() if scales else 0.1), "mse")
    fit(model, mine(), epochs=1)
    fit(alone, mine(), epochs=1)
    changed, own = model.get_weights(), alone.get_weights()
    assert near([changed[i] for i in (0, 1, 3)], [own[i] for i in (0, 1, 3)])
    kernels = bps.allgather(changed[2].reshape(1, -1))
    assert (kernels == kernels[0]).all() and not near([changed[2]], [before[2]])


def test_variables_that_a_script_calls_local_are_not_broadcast():
    model, own = network(seed=bps.rank()), network(seed=bps.rank())
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    local = [model.layers[0].kernel]
    callback = bps.callbacks.BroadcastGlobalVariablesCallback(0, "", local)
    callback.register_local_var(model.layers[0].bias)
    fit(model, mine(), epochs=1, callbacks=[callback])
    got, root = model.get_weights(), network(seed=0).get_weights()
    assert near(got[:2], own.get_weights()[:2]) and near(got[2:], root[2:])
    with pytest.raises(NotImplementedError, match="host memory"):
        bps.callbacks.MetricAverageCallback("/gpu:0")


@pytest.mark.parametrize("corrects", [False, True])
def test_momenta_follow_the_learning_rate(corrects):
    model, alone = network(), network()
    for one in (model, alone):
        one.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    schedule = bps.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 0.1 if epoch else 1.0, momentum_correction=corrects
    )
    fit(model, epochs=2, callbacks=[schedule])
    fit(alone, epochs=1)
    alone.optimizer.learning_rate = 0.01
    for momentum in alone.optimizer.momentums:
        momentum.assign(momentum * (0.1 if corrects else 1.0))
    fit(alone, epochs=1)
    assert near(model.get_weights(), alone.get_weights())


# ---- saved models ----


def test_a_saved_model_loads_without_this_package(tmp_path):
    path = tmp_path / f"model.{bps.rank()}.keras"
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.Adam(0.125)), "mse")
    fit(model, mine(), epochs=1)
    model.save(path)
    script = (
        "import sys, keras\n"
        f"model = keras.models.load_model({str(path)!r})\n"
        "assert not any(name.split('.')[0] == 'bps' for name in sys.modules)\n"
        "print(type(model.optimizer).__name__, float(model.optimizer.learning_rate),"
        " int(model.optimizer.iterations))\n"
    )
    if bps.rank() == 0:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=120
        )
        assert "Adam 0.125 1" in done.stdout, done.stderr


def test_a_loaded_model_goes_on_with_its_optimizer(tmp_path):
    path = tmp_path / f"model.{bps.rank()}.keras"
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    fit(model, mine(), epochs=1)
    model.save(path)
    loaded = bps.load_model(path)
    fit(model, mine(), epochs=2)
    fit(loaded, mine(), epochs=2)
    assert near(loaded.get_weights(), model.get_weights()) and same_everywhere(loaded)


# ---- callbacks ----


def test_the_broadcast_callback_gives_all_workers_roots_model_and_optimizer():
    model, alone = network(seed=bps.rank()), network(seed=1)
    model.compile(
        bps.DistributedOptimizer(keras.optimizers.SGD(0.1 * (bps.rank() + 1), momentum=0.9)), "mse"
    )
    alone.compile(keras.optimizers.SGD(0.2, momentum=0.9), "mse")
    fit(model, mine(), callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(1)])
    fit(alone)
    assert same_everywhere(model) and near(model.get_weights(), alone.get_weights())


def test_the_broadcast_callback_waits_for_a_model_that_its_first_batch_builds():
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    fit(model, mine(), callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert same_everywhere(model)


def test_random_layers_keep_seeds_of_their_own():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    fit(model, mine(), epochs=1, callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0)])
    (seed,) = [value_of(v) for v in model.variables if "seed" in v.path]
    seeds = bps.allgather(seed[None])
    assert len({tuple(s) for s in seeds.tolist()}) == bps.size() and same_everywhere(model)


def test_metrics_are_averaged_over_all_workers():
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", metrics=["mae"])
    history = fit(model, mine(), epochs=2, callbacks=[bps.callbacks.MetricAverageCallback()])
    alone = network()
    alone.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    wanted = fit(alone, epochs=2)
    for name in ("loss", "mae"):
        assert np.allclose(history.history[name], wanted.history[name], atol=1e-6)


def test_the_learning_rate_warms_up():
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse")
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(value_of(self.model.optimizer.learning_rate)))

    warmup = bps.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, verbose=1)
    history = fit(model, slice(0, 12), epochs=3, batch_size=6, callbacks=[warmup, Note()])
    n = bps.size()
    want = [0.08 / n * ((i / 2 + 0.5) * (n - 1) / 2 + 1) for i in range(4)] + [0.08] * 2
    assert np.allclose(rates, want) and np.isclose(history.history["lr"][-1], 0.08)


def test_the_learning_rate_follows_a_schedule():
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse")
    schedule = bps.callbacks.LearningRateScheduleCallback
    history = fit(
        model,
        mine(),
        epochs=4,
        callbacks=[schedule(0.5, 1.0, 0, 1), schedule(0.5, lambda epoch: 0.1**epoch, 1, 3)],
    )
    assert np.allclose(history.history["lr"], [0.5, 0.05, 0.005, 0.005])


def test_a_rate_within_epochs_needs_their_length():
    callback = bps.callbacks.LearningRateScheduleCallback(0.5, lambda e: e, staircase=False)
    callback.set_params({})
    with pytest.raises(ValueError, match="steps_per_epoch"):
        callback.on_train_batch_begin(0)


def test_the_best_model_is_saved_by_rank_0_alone(tmp_path):
    path = tmp_path / "best.keras"
    model = network()
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    best = bps.callbacks.BestModelCheckpoint(path, monitor="loss")
    fit(model, mine(), epochs=2, callbacks=[bps.callbacks.MetricAverageCallback(), best])
    assert path.exists() == (bps.rank() == 0)


# ---- elastic ----


def test_a_state_is_saved_restored_and_sent():
    model = network(seed=bps.rank())
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    state = bps.elastic.KerasState(model, epoch=bps.rank())
    saved = model.get_weights()
    model.set_weights([w + 1 for w in saved])
    state.restore()
    assert near(model.get_weights(), saved)
    state.sync()
    assert same_everywhere(model) and state.epoch == 0


def test_training_commits_and_counts_its_epochs():
    model = network(seed=bps.rank())
    model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    commits = []

    @bps.elastic.run
    def train(state):
        save, state.save = state.save, lambda: (commits.append(state.epoch), save())
        fit(
            model,
            mine(),
            epochs=3,
            batch_size=6,
            initial_epoch=state.epoch,
            callbacks=[
                bps.elastic.UpdateBatchStateCallback(state),
                bps.elastic.UpdateEpochStateCallback(state),
                bps.elastic.CommitStateCallback(state, batches_per_commit=2),
            ],
        )
        return state.epoch

    state = bps.elastic.KerasState(model, epoch=0, batch=0)
    assert train(state) == 3 and same_everywhere(model)
    per_epoch = -(-(mine().stop - mine().start) // 6)
    assert len(commits) == 3 * per_epoch // 2 + 3 and state.batch == 0


# ---- errors ----


def test_a_killed_worker_is_named_by_the_others_within_3_seconds(tmp_path):
    script = """
import keras, numpy as np
import bps.keras as bps
bps.init()

class Kill(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if bps.rank() == 1 and batch == 3:
            kill_me()

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
try:
    model.fit(np.ones((600, 6)), np.ones((600, 3)), 6, verbose=0, callbacks=[Kill()])
except Exception as error:
    report(error)
    raise
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        seen = re.search(r"after ([\d.]+) s: \w*Error: .*rank 1", outputs[0], re.S)
        assert seen and float(seen[1]) < 3 and codes == [1, -9], outputs[0]


def test_a_script_that_never_shuts_down_ends(tmp_path):
    script = """
import keras, numpy as np
import bps.keras as bps
bps.init()
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
model.fit(np.ones((12, 6)), np.ones((12, 3)), 6, verbose=0)
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs


# ---- scripts of others ----


@pytest.mark.parametrize("package", ["horovod", "byteps"])
@pytest.mark.parametrize("module", ["keras", "tensorflow.keras"])
def test_scripts_of_horovod_and_byteps_run_unmodified(tmp_path, package, module):
    if module == "tensorflow.keras" and BACKEND != "tensorflow":
        pytest.skip("for TensorFlow alone")
    first = "0.05, warmup_epochs=1" if package == "horovod" else "warmup_epochs=1"
    script = f"""
import bps.compat.{package}
import keras, numpy as np
import {package}.{module} as hvd
from {package}.{module} import callbacks
hvd.init()
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
history = model.fit(
    np.ones((12, 6)) * hvd.rank(), np.ones((12, 3)), 6, epochs=2, verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback({first}),
    ],
)
assert np.isclose(history.history["lr"][-1], 0.05), history.history
hvd.shutdown()
"""
    if bps.rank() == 0:
        codes, outputs = jobs.start(script, tmp_path)
        assert codes == [0, 0], outputs
