#!/usr/bin/env python3
"""Measure training with machines that stall, with and without a backup machine.

    tests/bench/late.py BUILD-FOLDER [--seeds N] [--steps S] [--out FILE] [--strict]

A small network learns handwritten digits with 4 workers on 4 agents of this host. A step sleeps for
a while, which stands for an accelerator, and four times as long with a probability of 10 %. Three
jobs make the same number of steps: in step, with BPS_BACKUP=1, and with BPS_BACKUP=1 where a worker
that is behind calls catch_up(). With --strict, the exit status is 1 if a bar does not hold.
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
from asynchronous import BATCH, DIGITS, RATE, ROOT, TRAINED, WORKERS
from page import Row, row

STEP_S, STALLED_S, STALLS = 0.05, 0.2, 0.1
IN_STEP, BACKUP, CATCHING_UP = "in step", "backup", "backup and catch_up()"


def train(kind: str, seed: int, steps: int) -> tuple[float, float, float]:
    """Train. Return the seconds, the accuracy in per cent, and the share of gradients that count:
    those of steps whose sum has the gradients of this worker, as a mean of all workers."""
    import torch
    import torch.nn.functional as F

    import bps.torch as bps

    rows = [list(map(float, line.split(","))) for line in DIGITS.read_text().splitlines()]
    data = torch.tensor(rows)[torch.randperm(len(rows), generator=torch.Generator().manual_seed(5))]
    x, y = data[:, :-1] / 16, data[:, -1].long()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE), model.named_parameters()
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.barrier()
    generator = torch.Generator().manual_seed(100 * seed + bps.rank())
    # The same steps stall in all jobs, also if a worker skips them.
    is_stalled = (torch.rand(steps, generator=generator) < STALLS).tolist()
    start, n, counted = time.monotonic(), 0, 0
    while n < steps:
        time.sleep(STALLED_S if is_stalled[n] else STEP_S)
        picked = torch.randint(TRAINED, (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[picked]), y[picked]).backward()
        optimizer.step()
        n += 1
        counted += not optimizer.is_behind
        if kind == CATCHING_UP and optimizer.is_behind:
            n += optimizer.catch_up(steps - n)
    seconds = time.monotonic() - start
    right = model(x[TRAINED:]).argmax(1) == y[TRAINED:]
    found = bps.allgather_object((seconds, counted / steps))
    shares = sum(share for _, share in found) / WORKERS
    return max(s for s, _ in found), 100 * right.float().mean().item(), 100 * shares


def worker(args: argparse.Namespace) -> None:
    """Train with all seeds. Rank 0 writes the figures."""
    import torch

    import bps.torch as bps

    torch.set_num_threads(1)
    bps.init()
    figures = [train(args.kind, seed, args.steps) for seed in range(args.seeds)]
    if bps.rank() == 0:
        Path(args.result).write_text(json.dumps(figures))
    bps.shutdown()


def run_job(args: argparse.Namespace, kind: str, folder: Path) -> Any:
    """Run the job of a kind. Return its figures for each seed."""
    result = folder / "figures.json"
    options = ["--kind", kind, "--seeds", args.seeds, "--steps", args.steps, "--result", result]
    program = [args.python, Path(__file__).resolve(), args.build, *options]
    cluster = [args.build / "bpsrun", "-n", WORKERS, "--agents", WORKERS, "--"]
    env = {
        "BPS_BACKUP": "0" if kind == IN_STEP else "1",
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
    return json.loads(result.read_text())


def report(args: argparse.Namespace) -> Iterator[Row]:
    """Run the jobs. Yield the rows of the table."""
    with tempfile.TemporaryDirectory(prefix="bps-late-") as folder:
        figures = {k: run_job(args, k, Path(folder)) for k in (IN_STEP, BACKUP, CATCHING_UP)}
    base = figures[IN_STEP]
    yield row(f"{IN_STEP}, seconds", "", [s for s, _, _ in base], None)
    for kind in (BACKUP, CATCHING_UP):
        is_judged = kind == CATCHING_UP
        ratios = [s / t for (s, _, _), (t, _, _) in zip(figures[kind], base)]
        bar = "<= 0.75" if is_judged else ""
        holds = (lambda v: v <= 0.75) if is_judged else None
        yield row(f"{kind}, time over that in step", bar, ratios, holds)
    for kind, runs in figures.items():
        yield row(f"{kind}, accuracy in %", "", [a for _, a, _ in runs], None)
        yield row(f"{kind}, % of steps that count", "", [c for _, _, c in runs], None)
    points = [b - a for (_, a, _), (_, b, _) in zip(figures[CATCHING_UP], base)]
    what = f"{CATCHING_UP}, points of accuracy lost"
    yield row(what, "<= 1", points, lambda v: v <= 1)


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
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build = args.build.resolve()
    if args.kind:
        worker(args)
        return 0
    frontends = ROOT / "tests" / "frontends"
    make = (frontends / "environment.py", frontends / "torch.txt", ROOT / "build" / "frontends")
    args.python = args.python or subprocess.check_output([sys.executable, *make], text=True).strip()
    holds = page.write(
        "Machines that stall",
        (
            "This page compares training with a backup machine with training in step, if each",
            "machine stalls in a tenth of its steps.",
            "[The guide](../guides/pytorch.md) says how a machine that was late catches up.",
        ),
        args.build,
        f"--seeds {args.seeds} --steps {args.steps}",
        lambda: list(report(args)),
        args.out,
    )
    return 0 if holds or not args.strict else 1


if __name__ == "__main__":
    sys.exit(main())
