"""Workers that use the core of the Python front-ends, with NumPy in place of a framework."""

import os
import random
import time
from pathlib import Path

import numpy as np

import bps
from bps import _arrays, _core, _operation, _ops, _slots
from bps._asynchronous import ArraySteps
from bps._values import Bound


def frontend_collectives():
    """Sum arrays with and without a name. Then exchange objects, and gather arrays."""
    _core.init()
    rt = _core.runtime()
    rank, size = rt.job.rank, rt.job.size
    total = 0.0
    # Step 0 sends the unnamed array in pieces. Step 1 sends the array in a new slot of the array's
    # size, and step 2 reuses this slot.
    for step in range(3):
        for name in (None, "named"):
            x = np.full(40_000, rank + step, "f4")
            (out,) = _arrays.reduce(rt, [x], name=name, op=bps.SUM)
            assert (out == sum(range(size)) + size * step).all()
        total = float(out.sum()) / 3
    objects = rt.allgather_object({"rank": rank, "text": "x" * rank * 1000})
    assert [o["rank"] for o in objects] == list(range(size))
    root = rt.broadcast_object(["from", rank], size - 1)
    rows, counts, _ = _arrays.gather(rt, np.full((rank, 2), rank, "i4"))
    assert counts == list(range(size)) and rows.shape == (sum(counts), 2)
    _core.shutdown()
    return {"sum": total, "root": root}


def frontend_differences():
    """Make calls whose arguments differ between workers, and return the errors.

    The job must go on.
    """
    _core.init()
    rt = _core.runtime()
    rank = rt.job.rank
    calls = [
        lambda: _arrays.reduce(rt, [np.ones(10 if rank == 2 else 3)]),
        lambda: _arrays.reduce(rt, [np.ones(90_000 * (rank + 1))]),
        lambda: _arrays.reduce(rt, [np.ones(3, "f4" if rank else "i4")]),
        lambda: rt.allgather_object(1) if rank == 2 else rt.broadcast_object(1, 0),
        lambda: rt.broadcast_object(1, rank % 2),
    ]
    codes, texts = [], []
    for call in calls:
        try:
            call()
        except bps.Error as error:
            codes.append(error.code)
            texts.append(str(error))
    (out,) = _arrays.reduce(rt, [np.ones(3)], op=bps.SUM)
    # The arrays of these calls are still in flight and never get a sum. Suspend the job to remove
    # them. Rank 0 is late: the others have left the job by then, and rank 0 must not wait for them.
    time.sleep(0 if rank else 0.7)
    _core.suspend()
    _core.resume(rt.job.size, global_rank=rank)
    (again,) = _arrays.reduce(rt, [np.ones(3)], op=bps.SUM)
    _core.shutdown()
    return {"codes": codes, "texts": texts, "sums": [float(out[0]), float(again[0])]}


def frontend_late_step(ready):
    """Let the second asynchronous step of rank 0 time out, because rank 1 begins it later. Return
    the error's code, and the parameters after a third step."""
    _core.init(timeout=2)
    rank, code = _core.runtime().job.rank, None
    steps, w = ArraySteps(Bound(0)), np.zeros(10, "f4")

    def step():
        (answer,) = steps.exchange(["w"], [w], [w + 1])
        w[:] = answer

    step()
    if rank == 0:
        try:
            step()
        except bps.Error as error:
            code = error.code
        Path(ready).touch()
    else:
        while not os.path.exists(ready):
            time.sleep(0.01)
        step()
    step()
    _core.shutdown()
    assert (w == w[0]).all()
    return [code, float(w[0])]


def frontend_late(ready):
    """Let rank 0 reduce more arrays than may be in flight. Rank 1 starts only after that.

    Then both ranks reduce arrays. Return {index of the call: sum} for all calls that did not raise
    an error.
    """
    _core.init(timeout=1)
    rt = _core.runtime()
    rank, sums = rt.job.rank, {}

    def reduce(i):
        try:
            (out,) = _arrays.reduce(rt, [np.full(3, i * 10.0 + rank)], op=bps.SUM)
            sums[i] = float(out[0])
        except (bps.Error, RuntimeError):
            pass

    if rank == 0:
        for i in range(_slots.PIECES_IN_FLIGHT + 1):
            reduce(i)
        open(ready, "w", encoding="ascii").close()
    while not os.path.exists(ready):
        time.sleep(0.005)
    first = _slots.PIECES_IN_FLIGHT + 1 if rank == 0 else 0
    for i in range(first, _slots.PIECES_IN_FLIGHT + 2):
        reduce(i)
    _core.leave(True)
    return sums


class Parameter:
    """A parameter like those of frameworks: when its gradient is ready, its hooks run."""

    def __init__(self, n):
        self.grad, self.hooks, self.n = np.zeros(n), [], n

    def accumulate(self, value):
        self.grad = np.full(self.n, value)
        for hook in self.hooks:
            hook(self)


def frontend_hooks():
    """Run a step of a fake framework. The order of the gradients differs between workers."""
    _core.init()
    rt = _core.runtime()
    rank = rt.job.rank
    parameters = [Parameter(n) for n in (3, 500, 40)]
    operations = {}

    def send(i, parameter):
        slot = rt.named(f"grad.{i}", "f64", parameter.n, f"float64 [{parameter.n}]")
        slot.tensor.input[:] = parameter.grad
        slot.tensor.push_pull(bps.AVG)

        def collect():
            parameter.grad = slot.tensor.output.copy()

        operations[i] = _operation.Operation(slot, collect, slot.agreement)

    for i, parameter in enumerate(parameters):
        parameter.hooks.append(lambda p, i=i: send(i, p))
    for step in range(3):
        order = list(enumerate(parameters))
        random.Random(rank * 10 + step).shuffle(order)
        for i, parameter in order:
            parameter.accumulate((rank + 1.0) * (i + 1))
        for operation in operations.values():
            operation.finish()
    _ops.barrier()
    _core.shutdown()
    return [p.grad.tolist() for p in parameters]
