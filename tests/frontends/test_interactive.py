"""Interactive use, such as in notebooks: cells that run one after the other in one process.

Each test starts a job of its own. All workers of the job run the same cells.
"""

import os
import re

import jobs
import processes
import pytest

# Maps each framework to a cell that imports the framework. The cell defines total(), which sums a
# number over all workers. It also defines make(), which returns a function that trains for one step
# and returns the weights.
FRAMEWORKS = {
    "torch": """
import torch
import bps.torch as bps

def total(value, name=None):
    return bps.allreduce(torch.full((50,), value), op=bps.Sum, name=name)[49].item()

def make():
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())

    def step():
        optimizer.zero_grad()
        (model(torch.full((1, 3), bps.rank() + 1.0))).sum().backward()
        optimizer.step()
        return model.weight.detach().numpy()

    step.recover = optimizer.synchronize
    return step
""",
    "tensorflow": """
import tensorflow as tf
import bps.tensorflow as bps

def total(value, name=None):
    return bps.allreduce(tf.fill([50], value), op=bps.Sum, name=name)[49].numpy()

def make():
    w = tf.Variable(tf.ones([3, 1]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ w)
        tape = bps.DistributedGradientTape(tape)
        w.assign_sub(0.1 * tape.gradient(loss, [w])[0])

    def run():
        step(tf.fill([1, 3], bps.rank() + 1.0))
        return w.numpy()

    return run
""",
    "keras": """
import keras
import numpy as np
import bps.keras as bps

def total(value, name=None):
    return bps.allreduce(np.full(50, value, "f4"), op=bps.Sum, name=name)[49]

def make():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    loss = lambda y, p: keras.ops.sum(p)
    model.compile(optimizer, loss, jit_compile=False)

    def run():
        model.fit(np.full((1, 3), bps.rank() + 1.0, "f4"), np.ones((1, 1)), verbose=0)
        return model.get_weights()[0]

    return run
""",
    "jax": """
import jax, jax.numpy as jnp
import numpy as np
import bps.jax as bps

def total(value, name=None):
    return float(bps.push_pull(jnp.full(50, value), op=bps.Sum, name=name)[49])

def make():
    w = jnp.ones((3, 1))

    @jax.jit
    def step(w, x):
        return w - 0.1 * bps.push_pull(jax.grad(lambda w: jnp.sum(x @ w))(w))

    def run():
        nonlocal w
        w = step(w, jnp.full((1, 3), bps.rank() + 1.0))
        return np.asarray(w)

    return run
""",
    "mxnet": """
import mxnet as mx
import bps.mxnet as bps

def total(value, name=None):
    return float(bps.allreduce(mx.nd.full((50,), value), op=bps.Sum, name=name)[49].asscalar())

def make():
    net = mx.gluon.nn.Dense(1, in_units=3, use_bias=False)
    net.initialize(mx.init.One())
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

    def run():
        with mx.autograd.record():
            loss = net(mx.nd.full((1, 3), bps.rank() + 1.0)).sum()
        loss.backward()
        trainer.step(1)
        return net.weight.data().asnumpy()

    return run
""",
}
every_framework = pytest.mark.parametrize("framework", jobs.FRAMEWORKS)
# Python code that runs cells as a notebook does. An exception ends only its cell.
NOTEBOOK = """
import sys
sys.ps1 = "In: "
space = {"__name__": "__main__", "kill_me": kill_me, "report": report}
for number, cell in enumerate(CELLS):
    try:
        exec(compile(cell, f"cell {number}", "exec"), space)
    except BaseException as error:
        sys.last_value = error
        print(f"cell {number}: {type(error).__name__}: {error}", flush=True)
print("the end", flush=True)
"""
# A cell that checks a step of training with two workers, whose gradients are 1 and 2.
CHECK = (
    "before = weights.copy(); weights = step(); assert abs(before - weights - 0.15).max() < 1e-6"
)
FIRST = "step = make(); weights = step().copy(); assert abs(weights - 0.85).max() < 1e-6, weights"


def notebook(*cells):
    return f"CELLS = {list(cells)!r}\n" + NOTEBOOK


def run(folder, *cells, n=2):
    """Run the cells as a job of n workers, check that no worker failed, and return the outputs."""
    codes, outputs = jobs.start(notebook(*cells), folder, n)
    assert not any(codes) and all("the end" in output for output in outputs), "\n".join(outputs)
    return outputs


def check_no_errors(outputs):
    assert not any("cell " in output for output in outputs), "\n".join(outputs)


@every_framework
def test_a_job_is_opened_again_after_shutdown(tmp_path, framework):
    used = 'assert total(2.0) == 4 and total(3.0, name="x") == 6'
    last = "bps.shutdown(); assert not bps.is_initialized()"
    first = [FRAMEWORKS[framework], "bps.init()", used, FIRST, CHECK, last]
    outputs = run(tmp_path, *first, "bps.init()", used, FIRST, CHECK, last, last)
    check_no_errors(outputs)


@every_framework
def test_cells_that_run_twice_do_no_harm(tmp_path, framework):
    cells = [FRAMEWORKS[framework], "bps.init()", FIRST, CHECK]
    outputs = run(tmp_path, *cells, *cells, *cells[1:], CHECK, "bps.shutdown()")
    check_no_errors(outputs)


@every_framework
def test_one_worker_needs_neither_launcher_nor_agent(tmp_path, framework):
    one = "step = make(); weights = step(); assert abs(weights - 0.9).max() < 1e-6, weights"
    cells = ["bps.init()", "assert (bps.rank(), bps.size()) == (0, 1)", "assert total(2.0) == 2"]
    cells = [FRAMEWORKS[framework], *cells, one, "bps.shutdown()"]
    script = jobs.KILL_ME + notebook(*cells, *cells[1:])
    env = {"BPS_AGENT_SOCKET": tmp_path / "none"}
    (code,), (output,) = processes.finish([processes.process(script, **env)])
    assert code == 0 and "the end" in output, output
    check_no_errors([output])


@every_framework
def test_an_exception_of_a_cell_does_not_end_the_job(tmp_path, framework):
    cells = [FRAMEWORKS[framework], "bps.init()", FIRST, "1 / 0", CHECK]
    outputs = run(tmp_path, *cells, CHECK, "bps.shutdown()")
    assert all(re.findall(r"cell \d+: (\w+)", o) == ["ZeroDivisionError"] for o in outputs), outputs


# interrupted() starts a thread. When the main thread waits for a result, the new thread sends
# SIGINT to the process and calls then(). meet() returns when both workers have called meet().
INTERRUPT = """
import os, signal, threading, time
import bps as package

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores SIGINT

def interrupted(then=lambda: None):
    waits, finish = threading.Event(), package.Tensor.finish

    def observed(tensor, *arguments, **options):
        waits.set()
        finish(tensor, *arguments, **options)

    def interrupt():
        waits.wait()
        package.Tensor.finish = finish
        global sent
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        then()

    package.Tensor.finish = observed
    threading.Thread(target=interrupt).start()

def meet(name):
    try:
        os.mkfifo(name)
    except FileExistsError:
        pass
    open(name, "rw"[bps.rank()]).close()

bps.init()
"""


@every_framework
@pytest.mark.parametrize("name", [None, "x"])
def test_an_interrupt_ends_a_wait_and_leaves_the_job_usable(tmp_path, framework, name):
    used = f"assert total(2.0, {name!r}) == 4"
    interrupt = f"if bps.rank() == 0: interrupted(); total(3.0, {name!r})"
    late = "if bps.rank() == 0: assert time.monotonic() - sent < 3, 'late'"
    other = f"meet('interrupted')\nif bps.rank() == 1: assert total(3.0, {name!r}) == 6"
    cells = [FRAMEWORKS[framework], INTERRUPT, used, interrupt, late, other, used, used]
    outputs = run(tmp_path, *cells, FIRST, CHECK, "bps.shutdown()")
    assert re.findall(r"cell .*", outputs[0]) == ["cell 3: KeyboardInterrupt: "], outputs[0]
    check_no_errors(outputs[1:])


@every_framework
def test_an_interrupt_in_a_step_leaves_the_job_usable(tmp_path, framework):
    # In compiled code, the interrupt takes effect only after the step, which needs both workers. So
    # rank 1 runs the step, too.
    interrupt = "if bps.rank() == 0: interrupted(lambda: meet('interrupted')); step()"
    other = "if bps.rank() == 1: meet('interrupted'); step()"
    recover = "if bps.rank() == 0: getattr(step, 'recover', print)()"
    cells = [FRAMEWORKS[framework], INTERRUPT, FIRST, CHECK, interrupt, other, recover]
    # On JAX, Keras loses the model's values when `fit` is interrupted.
    if (framework, os.environ.get("KERAS_BACKEND")) != ("keras", "jax"):
        cells += ["weights = step().copy()", CHECK]
    outputs = run(tmp_path, *cells, FIRST, CHECK, "bps.shutdown()")
    assert re.findall(r"cell .*KeyboardInterrupt", outputs[0]), outputs[0]
    assert outputs[0].count("cell ") == 1, outputs[0]
    check_no_errors(outputs[1:])
