#!/usr/bin/env python3
"""Measure asynchronous training with different bounds.

    tests/bench/asynchronous.py BUILD-FOLDER [--seeds N] [--steps S] [--out FILE] [--strict]

A small network learns handwritten digits with 4 workers on 4 agents of this host. A step sleeps
for STEP_S, which stands for an accelerator. Each group compares the time of the same number of
updates, and the accuracy, with those of the bound 0, where all workers wait for each other:
    stall    each step takes four times as long with a probability of 10 %
    slow     rank 0 takes three times as long in each step
Then momenta are compared, with the slow rank and a larger learning rate.
With --strict, the exit status is 1 if a bar does not hold. If the environment of the front-ends'
tests (tests/frontends/torch.txt) does not exist, the program makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page
from page import Row, row

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "libbpsclient" / "examples" / "digits.csv"
WORKERS, STEP_S, BATCH, TRAINED = 4, 0.02, 16, 1400
GROUPS, BOUNDS, RATE = ("stall", "slow"), (0, 1, 2, 4, 8, None), 0.2
MOMENTA, RATE_OF_MOMENTA = (0.0, 0.5, 0.9), 0.4
# Bars of the times over that of the bound 0. A simulation of the rules without the costs of bps had
# .73 for stalls and the bound 2, .99 for a slow worker and the bound 8, and .47 without a bound.
BARS = {
    ("stall", 2): ("<= 0.85", lambda x: x <= 0.85),
    ("slow", 8): (">= 0.9", lambda x: x >= 0.9),
    ("slow", None): ("<= 0.6", lambda x: x <= 0.6),
}


def named(bound: int | None) -> str:
    """Return the name of a bound."""
    return "no bound" if bound is None else f"bound {bound}"


# ---- a worker: one process of the job ----


def sleep_s(group: str, rank: int, generator: Any) -> float:
    """Return the time that the next step sleeps."""
    import torch

    is_stalled = torch.rand((), generator=generator).item() < 0.1
    if group == "stall":
        return STEP_S * (4 if is_stalled else 1)
    return STEP_S * (3 if rank == 0 else 1)


def train(
    group: str, bound: int | None, seed: int, steps: int, rate: float = RATE, momentum: float = 0.0
) -> tuple[float, float]:
    """Train until all workers together have made `steps` steps for each. Return the seconds, and
    the accuracy in per cent."""
    import torch
    import torch.nn.functional as F

    import bps.torch as bps
    from bps import _core

    rows = [list(map(float, line.split(","))) for line in DIGITS.read_text().splitlines()]
    data = torch.tensor(rows)[torch.randperm(len(rows), generator=torch.Generator().manual_seed(5))]
    x, y = data[:, :-1] / 16, data[:, -1].long()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate / WORKERS, momentum=momentum),
        model.named_parameters(),
        asynchronous=True,
        stale=bound,
    )
    # Without a bound, workers make different numbers of steps. This value counts those of all.
    job = _core.runtime().job
    total = job.declare(
        f"steps/{group}/{bound}/{seed}/{rate}/{momentum}", "f64", 1, mode="value", stale=None
    )
    total.abstain()
    total.wait()
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()  # sets the values
    bps.barrier()
    generator = torch.Generator().manual_seed(100 * seed + bps.rank())
    start, n = time.monotonic(), 0
    while n < steps if bound is not None else (total.output[0] < steps * WORKERS):
        time.sleep(sleep_s(group, bps.rank(), generator))
        picked = torch.randint(TRAINED, (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[picked]), y[picked]).backward()
        optimizer.step()
        n += 1
        if bound is None:
            total.input[:] = 1
            total.push_pull()
            total.wait()
    seconds = max(bps.allgather_object(time.monotonic() - start))
    optimizer.pull_values()
    found = model(x[TRAINED:]).argmax(1) == y[TRAINED:]
    return seconds, 100 * found.float().mean().item()


def worker(args: argparse.Namespace) -> None:
    """Train with all bounds. Rank 0 writes the figures."""
    import torch

    import bps.torch as bps

    torch.set_num_threads(1)
    bps.init()
    figures: list[Any] = [
        [group, bound, [train(group, bound, seed, args.steps) for seed in range(args.seeds)]]
        for group in GROUPS
        for bound in BOUNDS
    ]
    for momentum in MOMENTA:
        for bound in (0, None):
            options = args.steps, RATE_OF_MOMENTA, momentum
            runs = [train("slow", bound, seed, *options) for seed in range(args.seeds)]
            figures.append([f"momentum {momentum:g}", bound, runs])
    if bps.rank() == 0:
        Path(args.result).write_text(json.dumps(figures))
    bps.shutdown()


# ---- the program that starts the workers ----


def rows_of(figures: dict[tuple[str, int | None], Any]) -> Iterator[Row]:
    """Yield the rows of the table."""
    for group in GROUPS:
        base = figures[group, 0]
        for bound in BOUNDS:
            runs, what = figures[group, bound], f"{group}: {named(bound)}"
            if bound == 0:
                yield row(f"{what}, seconds", "", [s for s, _ in runs], None)
            else:
                ratios = [s / t for (s, _), (t, _) in zip(runs, base)]
                bar = BARS.get((group, bound), ("", None))
                yield row(f"{what}, time over that of bound 0", bar[0], ratios, bar[1])
            yield row(f"{what}, accuracy in %", ">= 90", [a for _, a in runs], lambda x: x >= 90)
    for momentum in MOMENTA:
        for bound in (0, None):
            group = f"momentum {momentum:g}"
            accuracies = [a for _, a in figures[group, bound]]
            yield row(f"{group}: {named(bound)}, accuracy in %", "", accuracies, None)


def report(args: argparse.Namespace) -> list[Row]:
    """Run the job. Return the rows of the table."""
    with tempfile.TemporaryDirectory(prefix="bps-asynchronous-") as folder:
        result = Path(folder) / "figures.json"
        options = ["--worker", "--seeds", args.seeds, "--steps", args.steps, "--result", result]
        program = [args.python, Path(__file__).resolve(), args.build, *options]
        cluster = [args.build / "bpsrun", "-n", WORKERS, "--agents", WORKERS, "--"]
        env = {
            "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"),
            "PYTHONPATH": str(ROOT / "libbpsclient" / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run(
            [*map(str, [*cluster, *program])],
            check=True,
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
        )
        figures = json.loads(result.read_text())
    return [*rows_of({(group, bound): runs for group, bound, runs in figures})]


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--strict", action="store_true", help="fail if a bar does not hold")
    parser.add_argument("--python", help="with PyTorch; default: the tests' environment")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build = args.build.resolve()
    if args.worker:
        worker(args)
        return 0
    frontends = ROOT / "tests" / "frontends"
    make = (frontends / "environment.py", frontends / "torch.txt", ROOT / "build" / "frontends")
    args.python = args.python or subprocess.check_output([sys.executable, *make], text=True).strip()
    holds = page.write(
        "Asynchronous training",
        (
            "This page compares bounds of asynchronous training with the bound 0, where workers",
            "wait for all others: if each worker stalls now and then, and if one is slow for good.",
            "[The guide](../guides/asynchronous.md) says when a bound helps.",
        ),
        args.build,
        f"--seeds {args.seeds} --steps {args.steps}",
        lambda: report(args),
        args.out,
    )
    return 0 if holds or not args.strict else 1


if __name__ == "__main__":
    sys.exit(main())
