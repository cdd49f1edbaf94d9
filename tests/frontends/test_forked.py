"""Forked processes, such as the workers of data loaders, do not affect the parent's job.

Each test starts a job of two workers.
"""

import re

import jobs
import pytest


def run(script, folder, n=2):
    """Run a script as a job of n workers, all of which must succeed. Return the outputs."""
    codes, outputs = jobs.start(script, folder, n)
    assert not any(codes), "\n".join(outputs)
    return outputs


# Python code for workers. in_child() runs a function in a forked child, and returns the function's
# result as a string. meet() waits until both workers have called meet() with the same name. It
# synchronizes the workers through a named pipe instead of the job.
HELPERS = """
import os, sys, threading
import numpy as np
import bps
from bps import _arrays, _core

def in_child(function):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(function()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, text
    return text

def refused(call):
    try:
        return f"not refused: {call()}"
    except bps.Error as error:
        return "refused" if error.code == bps.EFORKED and "was forked" in str(error) else error

def meet(name):
    try:
        os.mkfifo(name)
    except FileExistsError:
        pass
    open(name, "rw"[rank]).close()  # waits for the other side

_core.init()
rank, size = _core.rank(), _core.size()
"""

# Rank 0 has values in flight while its child makes a call. Rank 1 submits its own values after the
# child's call.
IN_FLIGHT = """
def reduce(value):
    return _arrays.reduce(_core.runtime(), [np.full(SIZE, value)], name=NAME, op=bps.SUM)[0]

def other(value):
    return _arrays.reduce(_core.runtime(), [np.full(CHILD, value)], name=NAME, op=bps.SUM)[0]

for value in (1.0, 2.0, 3.0):
    assert (reduce(value) == 2 * value).all()
if rank == 0:
    submitted, results = threading.Event(), []
    push_pull = bps.Tensor.push_pull

    def observed(tensor, *arguments):
        push_pull(tensor, *arguments)
        submitted.set()

    go, ready = os.pipe(), os.pipe()
    pid = os.fork()  # the child copies the locks and slots as they were before the call
    if pid == 0:
        os.read(go[0], 1)
        text = str(refused(lambda: other(1000.0)))
        os.write(ready[1], text.encode())
        os._exit(0)
    bps.Tensor.push_pull = observed
    thread = threading.Thread(target=lambda: results.append(reduce(4.0)))
    thread.start()
    submitted.wait()
    os.write(go[1], b"x")
    text = os.read(ready[0], 999).decode()
    assert text == "refused", text
    os.waitpid(pid, 0)
    meet("go")
    thread.join()
else:
    meet("go")
    results = [reduce(4.0)]
assert (results[0] == 8).all(), results
assert (reduce(5.0) == 10).all()
"""


@pytest.mark.parametrize("name, of_child", [("x", 50), ("x", 7), (None, 50), (None, 7)])
def test_a_call_of_a_child_leaves_the_parents_values_in_flight_alone(tmp_path, name, of_child):
    values = f"NAME, SIZE, CHILD = {name!r}, 50, {of_child}\n"
    run(HELPERS + values + IN_FLIGHT, tmp_path)


def test_every_call_of_a_child_is_refused(tmp_path):
    script = """
from bps import _ops, _sets
job, x = _core.runtime().job, np.ones(4)
tensor = job.declare("t", "f32", 4)
one = _sets.add_process_set([0])
calls = [
    lambda: _arrays.reduce(_core.runtime(), [x]),
    lambda: _arrays.reduce(_core.runtime(), [x], name="x"),
    lambda: _arrays.broadcast(_core.runtime(), [x], 0),
    lambda: _arrays.gather(_core.runtime(), x),
    lambda: _ops.barrier(),
    lambda: _ops.broadcast_object(1),
    lambda: _ops.allgather_object(1),
    lambda: _sets.add_process_set([1]),
    lambda: _core.init(),
    lambda: _core.suspend(),
    lambda: _core.reopen(),
    lambda: job.declare("u", "f32", 4),
    lambda: job.broadcast(x),
    lambda: tensor.input,
    lambda: tensor.input_address,
    lambda: tensor.push_pull(),
    lambda: tensor.wait(),
]
if rank == 0:
    calls.append(lambda: _arrays.reduce(one.runtime(), [x]))
for i, call in enumerate(calls):
    text = in_child(lambda: refused(call))
    assert text == "refused", (i, text)
assert _arrays.reduce(_core.runtime(), [x], op=bps.SUM)[0].tolist() == [2.0] * 4
"""
    run(HELPERS + script, tmp_path)


def test_a_child_does_not_wait_for_a_lock_that_another_thread_of_the_parent_held(tmp_path):
    script = """
rt = _core.runtime()
held, done = threading.Event(), threading.Event()

def hold():
    with rt.lock:
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
text = in_child(lambda: refused(lambda: _arrays.reduce(_core.runtime(), [np.ones(4)])))
done.set()
thread.join()
assert text == "refused", text
"""
    run(HELPERS + script, tmp_path)


def test_a_child_knows_its_parents_place_and_is_in_no_job(tmp_path):
    script = """
known = in_child(lambda: (_core.rank(), _core.size(), _core.local_rank(), _core.local_size()))
assert known == str((rank, 2, rank, 2)), known
assert in_child(_core.is_initialized) == "False" and _core.is_initialized()
"""
    run(HELPERS + script, tmp_path)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "_core.shutdown()", "os._exit(0)", "1 / 0"])
def test_the_end_of_a_child_leaves_the_job_alone(tmp_path, ending):
    script = f"""
pid = os.fork()
if pid == 0:
    {ending}
    sys.exit(0)
status = os.waitpid(pid, 0)[1]
assert (status == 0) == ("/ 0" not in {ending!r}), status
for name in (None, "x"):
    total = _arrays.reduce(_core.runtime(), [np.ones(4)], name=name, op=bps.SUM)[0]
    assert total.tolist() == [2.0] * 4
"""
    run(HELPERS + script, tmp_path)


def test_a_child_joins_another_job_after_shutdown(tmp_path):
    script = """
def alone():
    _core.shutdown()
    _core.init(job=f"child.{os.getpid()}", rank=0, size=1, local_rank=0, local_size=1)
    return _arrays.reduce(_core.runtime(), [np.full(3, 7.0)])[0].tolist()

assert in_child(alone) == "[7.0, 7.0, 7.0]"
assert _arrays.reduce(_core.runtime(), [np.ones(4)], op=bps.SUM)[0].tolist() == [2.0] * 4
"""
    run(HELPERS + script, tmp_path)


# Rank 1 forks a child and leaves the job. The child still has copies of rank 1's descriptors, and
# ends when rank 0 has noticed the loss of rank 1.
LEAVE = """
assert _arrays.reduce(_core.runtime(), [np.ones(4)], op=bps.SUM)[0].tolist() == [2.0] * 4
if rank == 1:
    pid = os.fork()
    if pid == 0:
        meet("noticed")
        os._exit(0)
    leave()
    os.waitpid(pid, 0)
else:
    try:
        _arrays.reduce(_core.runtime(), [np.ones(4)])
    except bps.Error as error:
        report(error)
        meet("noticed")
        os._exit(0)
"""
ABORT = """
def leave():
    import time
    with open(os.environ["KILLED_AT"], "w") as f:
        f.write(str(time.monotonic()))
    _core.leave(True)
"""


@pytest.mark.parametrize("leave", ["leave = kill_me\n", ABORT], ids=["killed", "aborted"])
def test_a_worker_that_leaves_is_named_within_3_seconds_while_its_child_lives(tmp_path, leave):
    _, outputs = jobs.start(HELPERS + leave + LEAVE, tmp_path)
    seen = re.search(r"after ([\d.]+) s: Error: .*rank 1", outputs[0])
    assert seen and float(seen[1]) < 3, "\n".join(outputs)


# ---- data loaders ----

# Each script trains with a loader that forks processes, and prints the trained weights. A forked
# process calls a function of bps, and bps must refuse the call.
ROWS = """
import os
import numpy as np

def row(i, in_child, call):
    if in_child and i == 0:
        try:
            call()
        except Exception as error:
            assert "was forked" in str(error), error
        else:
            raise AssertionError("the call of a child was not refused")
    return np.full(4, i / 24 + bps.rank(), "float32")

parent, seen = os.getpid(), set()
"""
LOADERS = {
    "torch": """
import torch
import bps.torch as bps
bps.init()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        call = lambda: bps.allreduce(torch.full((4,), 1000.0), name="row")
        return row(i, os.getpid() != parent, call), os.getpid()

bps.allreduce(torch.ones(4), name="row")
model = torch.nn.Linear(4, 1)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
bps.broadcast_parameters(model.state_dict(), 0)
for persistent in (False, True):
    loader = torch.utils.data.DataLoader(
        Data(), 6, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    for epoch in range(2):
        for x, pids in loader:
            seen.update(pids.tolist())
            optimizer.zero_grad()
            (model(x) - 1).pow(2).mean().backward()
            optimizer.step()
weights = model.weight.detach().numpy()
""",
    "tensorflow": """
import multiprocessing
import tensorflow as tf
import bps.tensorflow as bps
bps.init()

def load(i):
    call = lambda: bps.allreduce(tf.fill([4], 1000.0), name="row")
    return row(i, os.getpid() != parent, call), os.getpid()

bps.allreduce(tf.ones(4), name="row")
w = tf.Variable(tf.ones([4, 1]))

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - 1) ** 2)
    tape = bps.DistributedGradientTape(tape)
    w.assign_sub(0.01 * tape.gradient(loss, [w])[0])

for epoch in range(2):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        def generate():
            for x, pid in pool.imap(load, range(24)):
                seen.add(pid)
                yield x

        data = tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([4], tf.float32)
        )
        for x in data.batch(6).prefetch(2):
            step(x)
weights = w.numpy()
""",
    "keras": """
import keras
import bps.keras as bps
bps.init()

class Data(keras.utils.PyDataset):
    def __init__(self):
        super().__init__(workers=2, use_multiprocessing=True)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        in_child = os.getpid() != parent
        if in_child:
            open(f"forked.{os.getpid()}", "w").close()
        call = lambda: bps.allreduce(np.full(4, 1000.0, "float32"), name="row")
        rows = [row(6 * i + j, in_child, call) for j in range(6)]
        return np.stack(rows), np.ones((6, 1), "float32")

bps.allreduce(np.ones(4, "float32"), name="row")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
model.fit(
    Data(), epochs=2, verbose=0, callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0)]
)
weights = model.get_weights()[0]
seen.update(name for name in os.listdir(".") if name.startswith("forked."))
""",
    "jax": """
import multiprocessing
import jax, jax.numpy as jnp
import bps.jax as bps
bps.init()

def load(i):
    call = lambda: bps.barrier()
    return row(i, os.getpid() != parent, call), os.getpid()

@jax.jit
def step(w, x):
    return w - 0.01 * bps.push_pull(jax.grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w))

w = jnp.ones((4, 1))
for epoch in range(2):
    w = step(w, np.ones((6, 4), "float32"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        rows = []
        for x, pid in pool.imap(load, range(24)):
            seen.add(pid)
            rows.append(x)
            if len(rows) == 6:
                w, rows = step(w, np.stack(rows)), []
weights = np.asarray(w)
""",
    "mxnet": """
import mxnet as mx
from mxnet import autograd, gluon
import bps.mxnet as bps
bps.init()

class Data(gluon.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        in_child = os.getpid() != parent
        if in_child:
            open(f"forked.{os.getpid()}", "w").close()
        call = lambda: bps.allreduce(mx.nd.full((4,), 1000.0), name="row")
        return row(i, in_child, call)

bps.allreduce(mx.nd.ones((4,)), name="row")
net = gluon.nn.Dense(1, in_units=4)
net.initialize(mx.init.One())
trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
for epoch in range(2):
    for x in gluon.data.DataLoader(Data(), 6, num_workers=2):
        with autograd.record():
            loss = ((net(x) - 1) ** 2).mean()
        loss.backward()
        trainer.step(1)
weights = net.weight.data().asnumpy()
seen.update(name for name in os.listdir(".") if name.startswith("forked."))
""",
}


@pytest.mark.parametrize("framework", jobs.FRAMEWORKS)
def test_training_goes_on_with_a_loader_that_forks(tmp_path, framework):
    ending = """
assert seen - {parent}, "no process was forked"
print("weights", weights.tobytes().hex(), flush=True)
"""
    outputs = run(ROWS + LOADERS[framework] + ending, tmp_path)
    found = [re.findall(r"weights (\w+)", output) for output in outputs]
    assert len(found[0]) == 1 and found[0] == found[1], "\n".join(outputs)
