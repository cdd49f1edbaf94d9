#!/usr/bin/env python3
"""Measure exchanges by bps.tensorflow and bps.jax, and compare their time with that of the core.

    tests/bench/frontend_calls.py BUILD-FOLDER [--only FRAMEWORKS] [--rounds R] [--calls C]
        [--out FILE]

One worker calls compiled functions of a framework. In every round the worker exchanges:
    small   161 tensors of 4 KB in one call, as many as ResNet-50 has gradients
    large   one tensor of 100 MB
A compiled function computes the tensors and exchanges them. The program subtracts the time of a
function that only computes the tensors. In the same rounds, the worker also exchanges the large
tensor without a framework. For this exchange, the worker calls bps_push_pull_copy of the core. This
call copies the tensor from and to an array. The value of a round is the median of its calls. A
figure is the median of the values of all rounds. If the environments of the front-ends' tests do
not exist, the program makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import page
from page import Row, row

ROOT = Path(__file__).resolve().parents[2]
SMALL = (161, 1000)  # number of tensors, and number of f32 elements in each tensor
LARGE = (1, 25_000_000)
# Limits of each framework: microseconds per small tensor, and the milliseconds that the framework
# may add to the core's exchange of the large tensor.
BARS = {"tensorflow": (50, 10), "jax": (25, 10)}


def tensorflow_call(shape: tuple[int, int], exchanges: bool) -> Callable[[], None]:
    """Return a ``tf.function`` that computes tensors. If `exchanges` is true, the function also
    sums the tensors over the workers."""
    import tensorflow as tf

    import bps.tensorflow as bps

    bps.init()
    tensors = [tf.ones(shape[1]) for _ in range(shape[0])]

    @tf.function
    def step(tensors: Any, factor: Any) -> Any:
        results = [t * factor for t in tensors]
        if exchanges:
            results = bps.grouped_allreduce(results, op=bps.Sum, name=f"tf{shape[0]}")
        return results

    def call() -> None:
        float(step(tensors, tf.constant(2.0))[-1][0])

    return call


def jax_call(shape: tuple[int, int], exchanges: bool) -> Callable[[], None]:
    """Return a jitted function that computes arrays. If `exchanges` is true, the function also
    sums the arrays over the workers."""
    import jax
    import jax.numpy as jnp

    import bps.jax as bps

    bps.init()
    arrays = [jnp.ones(shape[1]) for _ in range(shape[0])]

    @jax.jit
    def step(arrays: Any, factor: Any) -> Any:
        results = [x * factor for x in arrays]
        return bps.push_pull(results, op=bps.Sum) if exchanges else results

    return lambda: jax.block_until_ready(step(arrays, 2.0))


def core_call(n_elems: int) -> Callable[[], None]:
    """Return a function that sums one tensor with ``bps.Tensor.push_pull_copy``."""
    import numpy as np

    from bps import _core

    tensor = _core.runtime().job.declare("core", "f32", n_elems)
    source, result = np.ones(n_elems, np.float32), np.empty(n_elems, np.float32)

    def call() -> None:
        tensor.push_pull_copy(source, result)
        tensor.finish()

    return call


CALLS = {"tensorflow": tensorflow_call, "jax": jax_call}


def seconds(call: Callable[[], None], n: int) -> float:
    """Return the median duration of n calls, in seconds."""
    took = []
    for _ in range(n):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def worker(args: argparse.Namespace) -> None:
    """Run the calls, and print the figures of each round."""
    rounds: list[dict[str, float]] = []
    calls = {}
    for name, shape in (("small", SMALL), ("large", LARGE)):
        calls[name] = CALLS[args.worker](shape, True)
        calls[f"compute {name}"] = CALLS[args.worker](shape, False)
    calls["core large"] = core_call(LARGE[1])
    for call in calls.values():
        seconds(call, 3)  # the first calls compile the function and declare tensors
    for _ in range(args.rounds):
        rounds.append({name: seconds(call, args.calls) for name, call in calls.items()})
    print(json.dumps(rounds))


def measure(args: argparse.Namespace, framework: str) -> list[dict[str, float]]:
    """Run one worker and its agent. Return the figures of its rounds, in seconds."""
    frontends = ROOT / "tests" / "frontends"
    make = (frontends / "environment.py", frontends / f"{framework}.txt", args.environments)
    python = subprocess.check_output([sys.executable, *make], text=True).strip()
    env = {
        **os.environ, "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"),
        "PYTHONPATH": str(ROOT / "libbpsclient" / "python"), "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        args.build / "bpsrun", "--no-prefix", "-n", "1", "--agents", "1", "--timeout", "600s", "--",
        python, Path(__file__).resolve(), args.build, "--worker", framework,
        "--rounds", args.rounds, "--calls", args.calls,
    ]  # fmt: skip
    out = subprocess.check_output(list(map(str, command)), env=env, text=True, timeout=660)
    return json.loads(out.splitlines()[-1])


def rows(framework: str, rounds: list[dict[str, float]]) -> list[Row]:
    """Return the rows of a framework."""
    most_us, most_ms = BARS[framework]
    small = [1e6 * (r["small"] - r["compute small"]) / SMALL[0] for r in rounds]
    large = [1e3 * (r["large"] - r["compute large"]) for r in rounds]
    core = [1e3 * r["core large"] for r in rounds]
    added = [ours - core_ms for ours, core_ms in zip(large, core)]
    return [
        row(f"{framework}: us per tensor of 4 KB, 161 in one call", f"<= {most_us}", small,
            lambda x: x <= most_us),
        row(f"{framework}: ms of 100 MB", "", large, None),
        row(f"{framework}: ms of 100 MB by the core", "", core, None),
        row(f"{framework}: ms added to 100 MB by the core", f"<= {most_ms}", added,
            lambda x: x <= most_ms),
    ]  # fmt: skip


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", default=",".join(CALLS), metavar="FRAMEWORKS")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=9, help="calls of each kind in a round")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--worker", choices=CALLS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build, args.environments = args.build.resolve(), ROOT / "build" / "frontends"
    if args.worker:
        worker(args)
        return 0
    unknown = set(args.only.split(",")) - set(CALLS)
    if unknown:
        parser.error(f"no framework {', '.join(sorted(unknown))}: use some of {', '.join(CALLS)}")
    page.write(
        "Calls of TensorFlow and JAX",
        (
            "This page has what a call of `bps.tensorflow` and of `bps.jax` costs beside the same",
            "exchange by the core. [measure.md](../../guides/measure.md#tensorflow-keras-and-jax)",
            "explains the figures.",
        ),
        args.build,
        f"--only {args.only} --rounds {args.rounds} --calls {args.calls}",
        lambda: [line for name in args.only.split(",") for line in rows(name, measure(args, name))],
        args.out,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
