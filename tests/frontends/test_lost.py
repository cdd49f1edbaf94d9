"""Elastic training with TensorFlow, Keras, JAX and MXNet goes on after the loss of a worker. The
training loss still decreases at each step. Jobs of these frameworks are suspended and resumed.

Rank 0 starts a cluster of two agents with a worker on each.
"""

import ast
import itertools
import re
import signal

import jobs
import processes
import pytest

# Scripts of the workers. A script trains for 8 steps. It calls step_begins() before each step, and
# adds the loss of each step to `losses`.
BEGIN = """
import os, signal, warnings
import numpy as np
warnings.simplefilter("ignore")

losses, begun = [], []
DIES = os.environ.get("DIES")

def step_begins(n):
    if n == 3 and DIES == str(bps.rank()):
        os.kill(os.getpid(), signal.SIGKILL)

def data():
    rng = np.random.RandomState(1)
    x = rng.randn(32, 4).astype("f4")
    return x[bps.rank() :: 2], (x @ np.ones((4, 1)))[bps.rank() :: 2].astype("f4")
"""
SCRIPTS = {
    "tensorflow": """
import tensorflow as tf
import bps.tensorflow as bps
bps.init()
w = tf.Variable(tf.fill([4, 1], float(bps.rank())))
state = bps.elastic.TensorFlowState([w], step=0)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - y) ** 2)
    tape = bps.DistributedGradientTape(tape)
    w.assign_sub(0.1 * tape.gradient(loss, [w])[0])
    return loss

@bps.elastic.run
def train(state):
    begun.append(state.step)
    while state.step < 8:
        step_begins(state.step)
        losses.append(float(step(*data())))
        state.step += 1
        state.commit()
""",
    "keras": """
import keras
import bps.keras as bps
bps.init()
keras.utils.set_random_seed(bps.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
state = bps.elastic.KerasState(model, epoch=0)

class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        step_begins(epoch)

    def on_epoch_end(self, epoch, logs=None):
        losses.append(float(logs["loss"]))

@bps.elastic.run
def train(state):
    begun.append(state.epoch)
    callbacks = [
        Steps(),
        bps.elastic.UpdateEpochStateCallback(state),
        bps.elastic.CommitStateCallback(state, batches_per_commit=100),
    ]
    options = {"verbose": 0, "epochs": 8, "initial_epoch": state.epoch, "callbacks": callbacks}
    model.fit(*data(), 16, **options)
""",
    "jax": """
import jax, jax.numpy as jnp
import bps.jax as bps
bps.init()
state = bps.elastic.State(w=jnp.full((4, 1), float(bps.rank())), step=0)

@jax.jit
def step(w, x, y):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * bps.push_pull(grad), loss

@bps.elastic.run
def train(state):
    begun.append(state.step)
    while state.step < 8:
        step_begins(state.step)
        state.w, loss = step(state.w, *data())
        jax.block_until_ready(state.w)
        losses.append(float(loss))
        state.step += 1
        state.commit()
""",
    "mxnet": """
import mxnet as mx
import bps.mxnet as bps
bps.init()
net = mx.gluon.nn.Dense(1, in_units=4, use_bias=False)
net.initialize(mx.init.Constant(bps.rank()))
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
state = bps.elastic.MXNetState(net.collect_params(), trainer, step=0)

@bps.elastic.run
def train(state):
    begun.append(state.step)
    while state.step < 8:
        step_begins(state.step)
        x, y = map(mx.nd.array, data())
        with mx.autograd.record():
            loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(loss.asscalar())
        state.step += 1
        state.commit()
""",
}
# The first part of a script for each framework. It defines total(), which sums the number 1 over
# the workers. For frameworks that compile functions (tf.function, jax.jit), total() calls a
# compiled function.
SUMS = {
    "tensorflow": """
import tensorflow as tf
import bps.tensorflow as bps

@tf.function
def summed(x):
    return bps.allreduce(x, op=bps.Sum, name="one")

def total():
    return float(summed(tf.constant(1.0)))
""",
    "keras": """
import bps.keras as bps

def total():
    return float(bps.allreduce(1.0, op=bps.Sum))
""",
    "jax": """
import jax, jax.numpy as jnp
import bps.jax as bps

@jax.jit
def summed(x):
    return bps.allreduce(x, op=bps.Sum)

def total():
    return float(summed(jnp.float32(1)))
""",
    "mxnet": """
import mxnet as mx
import bps.mxnet as bps

def total():
    return bps.allreduce(mx.nd.array([1.0]), op=bps.Sum, name="one").asscalar()
""",
}
SUSPEND = """
import os
bps.init()
rank, size = bps.rank(), bps.size()
sums = [total()]
bps.suspend()
try:
    total()
except Exception as error:
    assert "the job is suspended: call resume() first" in str(error), error
else:
    raise AssertionError("a suspended job has a sum")
if rank < size - 1:
    bps.resume(size - 1, global_rank=rank)
    sums.append(total())
print("sums", [int(x) for x in sums], "size", bps.size() if rank < size - 1 else 0)
"""
END = """
train(state)
print("begun", begun, "losses", losses, flush=True)
"""
every_framework = pytest.mark.parametrize("framework", jobs.FRAMEWORKS)


def results(output):
    found = re.search(r"begun (\[.*?\]) losses (\[.*?\])", output)
    assert found, output
    return ast.literal_eval(found[1]), ast.literal_eval(found[2])


def check_falls(losses):
    assert losses[-1] < 0.5 * losses[0], losses
    assert all(after < before for before, after in itertools.pairwise(losses)), losses


@every_framework
def test_training_goes_on_without_a_lost_worker(framework):
    script = BEGIN + SCRIPTS[framework] + END
    with processes.Cluster(agents=2) as cluster:
        env = {"BPS_ON_AGENT_LOSS": "shrink", "DIES": 1}
        codes, outputs = processes.finish(processes.start(script, 2, cluster, "less", **env))
    assert codes == [0, -signal.SIGKILL], "\n".join(outputs)
    begun, losses = results(outputs[0])
    assert begun[0] == 0 and len(begun) == 2 and begun[1] in (3, 4), outputs[0]
    assert len(losses) == 8
    check_falls(losses)


@every_framework
def test_training_goes_on_with_a_process_in_the_place_of_the_lost_one(framework):
    script = BEGIN + SCRIPTS[framework] + END
    with processes.Cluster(agents=2) as cluster:

        def is_forming():
            jobs = cluster.scheduler.status()["jobs"]
            return started[0].poll() is not None or any(j["state"] == "forming" for j in jobs)

        started = processes.start(script, 2, cluster, "again", DIES=1)
        started[1].wait(processes.LIMIT_S)
        cluster.wait_for("the job forms again", is_forming, processes.LIMIT_S)
        started += processes.start(script, 2, cluster, "again", ranks=[1])
        codes, outputs = processes.finish(started)
    assert codes == [0, -signal.SIGKILL, 0], "\n".join(outputs)
    for output, first in ((outputs[0], [0, 3]), (outputs[2], [3])):
        begun, losses = results(output)
        assert begun == first and len(losses) == 8 - first[0], outputs
        check_falls(losses)


@every_framework
def test_a_job_is_suspended_and_resumed_with_fewer_workers(framework):
    n = 3
    with processes.Cluster(agents=2) as cluster:
        script = SUMS[framework] + SUSPEND
        codes, outputs = processes.finish(processes.start(script, n, cluster, "fewer"))
    assert codes == [0] * n, "\n".join(outputs)
    for rank, output in enumerate(outputs):
        wanted = "sums [3, 2] size 2" if rank < n - 1 else "sums [3] size 0"
        assert wanted in output, output


# When a worker calls suspend(), its earlier calls of step() have not ended. reducescatter divides
# the 6 rows of the sum among the workers.
JAX_SUSPEND = """
import jax, jax.numpy as jnp
import bps.jax as bps

step = jax.jit(lambda x: bps.push_pull(x, op=bps.Sum))
rows = jax.jit(lambda x: bps.reducescatter(x, op=bps.Sum))
bps.init()
rank, size = bps.rank(), bps.size()
x = jnp.ones(1 << 20)
for _ in range(20):
    step(x)
first = len(rows(jnp.ones(6)))
step(x)
bps.suspend()
if rank < size - 1:
    bps.resume(size - 1, global_rank=rank)
    print("rows", first, rows(jnp.ones(6)).tolist())
"""


@pytest.mark.skipif("jax" not in jobs.FRAMEWORKS, reason="for JAX alone")
def test_jax_ends_its_calls_before_the_job_is_suspended_and_compiles_again():
    with processes.Cluster(agents=2) as cluster:
        codes, outputs = processes.finish(processes.start(JAX_SUSPEND, 3, cluster, "late"))
    assert codes == [0] * 3, "\n".join(outputs)
    for output in outputs[:2]:
        assert "rows 2 [2.0, 2.0, 2.0]" in output, output
