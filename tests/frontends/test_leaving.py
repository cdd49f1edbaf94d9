"""A worker that ends before the others, in whatever way, is named to the others at once.

Rank 0 starts clusters of two agents: two workers are on the first, one is on the second.
"""

import re
import signal

import jobs
import processes
import pytest

LEFT_AT = 3
# An error comes within two seconds, or later on a loaded machine. The job's time-out is minutes.
SOON_S = 20

TRAIN = """
import os, signal, sys, time, warnings
warnings.simplefilter("ignore")
WAY, LEAVER = os.environ["WAY"], int(os.environ["LEAVER"])

def train(rank, step, shutdown):
    for n in range(6):
        if n == {left_at} and rank == LEAVER:
            if WAY == "exit 0":
                sys.exit(0)
            if WAY == "exit 1":
                sys.exit(1)
            if WAY == "raise":
                raise RuntimeError("no more data")
            if WAY == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if WAY == "shutdown":
                shutdown()
            if WAY == "lose the machine":
                os.kill(int(os.environ["AGENT"]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            return
        begun = time.monotonic()
        try:
            step(n)
        except Exception as error:
            seconds = time.monotonic() - begun
            print(f"step {{n}} failed after {{seconds:.3f}} s: {{error}}", flush=True)
            os._exit(3)
""".format(left_at=LEFT_AT)
SCRIPTS = {
    "numpy": """
import numpy as np
import bps
with bps.open() as job:
    t = job.declare("t", "f32", 1000)
    def step(n):
        t.input[:] = n
        t.push_pull()
        t.wait()
    train(job.rank, step, job.close)
""",
    "torch": """
import torch
import bps.torch as bps
bps.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
def step(n):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
train(bps.rank(), step, bps.shutdown)
""",
    "back-end": """
import torch, torch.distributed as dist
import bps.torch
dist.init_process_group("bps", init_method="bps://")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
def step(n):
    model(torch.ones(2, 4)).sum().backward()
train(dist.get_rank(), step, dist.destroy_process_group)
""",
    "tensorflow": """
import tensorflow as tf
import bps.tensorflow as bps
bps.init()
w = tf.Variable(tf.ones([4, 1]))

@tf.function
def run():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(w ** 2)
    tape = bps.DistributedGradientTape(tape)
    w.assign_sub(0.1 * tape.gradient(loss, [w])[0])

train(bps.rank(), lambda n: run(), bps.shutdown)
""",
    "keras": """
import keras, numpy as np
import bps.keras as bps
bps.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
x, y = np.ones((2, 4), "f4"), np.ones((2, 1), "f4")
train(bps.rank(), lambda n: model.train_on_batch(x, y), bps.shutdown)
""",
    "jax": """
import jax, jax.numpy as jnp
import bps.jax as bps
bps.init()
run = jax.jit(lambda w: bps.push_pull(w))
train(bps.rank(), lambda n: jax.block_until_ready(run(jnp.ones(4))), bps.shutdown)
""",
    "mxnet": """
import mxnet as mx
import bps.mxnet as bps
bps.init()
net = mx.gluon.nn.Dense(1, in_units=4)
net.initialize()
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
def step(n):
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(1)
    mx.nd.waitall()
train(bps.rank(), step, bps.shutdown)
""",
}
HERE = [name for name in SCRIPTS if name in jobs.FRAMEWORKS]
HERE += ["numpy", "back-end"] if "torch" in jobs.FRAMEWORKS else []


# Rank 1 shares its machine with rank 0. Rank 2 has a machine of its own.
@pytest.mark.parametrize(
    "way,leaver",
    [
        ("exit 0", 2),
        ("exit 1", 1),
        ("return", 2),
        ("shutdown", 1),
        ("raise", 2),
        ("kill", 1),
        ("lose the machine", 2),
    ],
)
@pytest.mark.parametrize("name", HERE)
def test_worker_that_ends_early_is_named_to_the_others(tmp_path, name, way, leaver):
    with processes.Cluster(agents=2) as cluster:
        agent = cluster.agents[leaver // 2]
        if way == "lose the machine":
            agent.may_end_with.add(-signal.SIGKILL)
        env = {"WAY": way, "LEAVER": leaver, "AGENT": agent.process.pid}
        script = TRAIN + SCRIPTS[name]
        started = processes.start(script, 3, cluster, "leaving", folder=tmp_path, **env)
        codes, outputs = processes.finish(started, 60)
    for rank, output in enumerate(outputs):
        if rank == leaver:
            continue
        failed = re.search(r"step (\d) failed after ([\d.]+) s: (.*)", output, re.S)
        assert failed and codes[rank] == 3, "\n".join(outputs)
        # an exit that aborts the job may end the step before, too
        assert int(failed[1]) in (LEFT_AT - 1, LEFT_AT) and float(failed[2]) < SOON_S, output
        who = "agent 'a1' (host" if way == "lose the machine" else f"rank {leaver} (host"
        assert who in failed[3], output
        assert re.search("has left job|was lost|is lost", failed[3]), output
