#!/usr/bin/env python3
"""Compare the sum of a sparse table with an all-gather of its rows, and with the sum of the dense
table.

    tests/bench/sparse.py BUILD-FOLDER [--rounds R] [--calls C] [--out FILE] [--strict]

4 workers on 4 agents, 2 servers, over TCP on the loopback. A table has 367,000 rows of 64 values of
f32. Each worker draws 8,192 of its rows by Zipf's law. In every round the workers make in turn:
    union    the sum of the rows, as the front-ends of NumPy arrays make it (bps._union)
    gather   an all-gather of the numbers of rows, and one of all workers' indices and rows, without
             pickling; no worker adds the rows
    added    the same, and each worker adds the rows
    dense    push_pull of the table in shared memory, which copies nothing from or to an array
Each worker has merged its rows of the same index before, because all forms need that. The value of
a round is the median of its calls at rank 0. Each printed ratio is the median of the ratios of the
single rounds. In a job of its own with sums in a fixed order, the program compares the sum of the
rows with the dense sum. With --strict, the exit status is 1 if a bar does not hold. The program
needs NumPy.
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
WORKERS, SERVERS = 4, 2
N_ROWS, ROW, DRAWS = 367_000, 64, 8192
SETS = 8  # draws of rows, which the calls use in turn
BARS = {"gather": None, "added": 0.6, "dense": 0.15}


# ---- a worker: one process of the job ----


def zipf(rank: int, number: int) -> Any:
    """Return the indices of a draw, sorted, each once. The frequent rows are at random places."""
    import numpy as np

    weights = np.cumsum(1 / np.arange(1, N_ROWS + 1))
    draws = np.searchsorted(
        weights, np.random.default_rng([rank, number]).random(DRAWS) * weights[-1]
    )
    return np.unique(np.random.default_rng(0).permutation(N_ROWS)[draws])


def rows_of(rank: int, number: int) -> tuple[Any, Any]:
    """Return the indices of a draw, and random rows."""
    import numpy as np

    index = zipf(rank, number)
    rows = np.random.default_rng([rank, number, 1]).standard_normal((len(index), ROW), np.float32)
    return index, rows


def gather(job: Any, index: Any, rows: Any) -> tuple[Any, Any]:
    """Return the indices and the rows of all workers."""
    import numpy as np

    counts = job.allgather(np.array([len(index)])).reshape(-1)
    most = int(counts.max())
    mine = np.zeros((most, 2 + ROW), np.float32)
    mine[: len(index), :2] = index.view(np.float32).reshape(-1, 2)
    mine[: len(index), 2:] = rows
    all_ = job.allgather(mine).reshape(job.size, most, 2 + ROW)
    whole = np.concatenate([one[:n] for one, n in zip(all_, counts)])
    return np.ascontiguousarray(whole[:, :2]).view(np.int64).reshape(-1), whole[:, 2:]


def forms(draws: list[tuple[Any, Any]]) -> dict[str, Callable[[int], Any]]:
    """Return functions that make the call with a number."""
    import bps
    from bps import _arrays, _core, _union

    rt = _core.runtime()
    table = rt.job.declare("table", "f32", (N_ROWS, ROW))
    table.input[:] = 0

    def union(i: int) -> Any:
        index, rows = draws[i % SETS]
        return _arrays.sum_rows(rt, rows, index, N_ROWS, bps.SUM)

    def dense(i: int) -> Any:
        table.push_pull(bps.SUM)
        return table.wait()

    return {
        "union": union,
        "gather": lambda i: gather(rt.job, *draws[i % SETS]),
        "added": lambda i: _union.merge(*gather(rt.job, *draws[i % SETS])),
        "dense": dense,
    }


def n_different(draws: list[tuple[Any, Any]]) -> tuple[int, int]:
    """Return how many rows a union has, and how many values of the table differ from the dense sum
    in a bit."""
    import numpy as np

    import bps
    from bps import _arrays, _core

    rt = _core.runtime()
    index, rows = draws[0]
    sums, found = _arrays.sum_rows(rt, rows, index, N_ROWS, bps.SUM)
    table, total = np.zeros((N_ROWS, ROW), np.float32), np.zeros((N_ROWS, ROW), np.float32)
    table[index], total[found] = rows, sums
    (want,) = _arrays.reduce(rt, [table], op=bps.SUM)
    return len(found), int((want.view(np.uint32) != total.view(np.uint32)).sum())


def worker(args: argparse.Namespace) -> None:
    """Run the rounds, and print their values at rank 0."""
    from bps import _core

    _core.init()
    job = _core.runtime().job
    draws = [rows_of(job.rank, i) for i in range(SETS)]
    if args.worker == "compare":
        found: Any = n_different(draws)
    else:
        calls, found = forms(draws), []
        for call in calls.values():
            call(0)  # declares the tensors
        for _ in range(args.rounds):
            one = {}
            for name, call in calls.items():
                took = []
                for i in range(args.calls):
                    job.barrier()
                    begin = time.perf_counter()
                    call(i)
                    took.append(time.perf_counter() - begin)
                one[name] = statistics.median(took)
            found.append(one)
    if job.rank == 0:
        print(json.dumps(found))
    _core.shutdown()


# ---- the program ----


def run(args: argparse.Namespace, what: str, **env: str) -> Any:
    """Run a job, and return what rank 0 has printed."""
    env = {
        **os.environ, "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"), "BPS_SAME_HOST": "off",
        "PYTHONPATH": str(ROOT / "libbpsclient" / "python"), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **env,
    }  # fmt: skip
    command = [
        args.build / "bpsrun", "--no-prefix", "-n", WORKERS, "--agents", WORKERS,
        "--servers", SERVERS, "--timeout", "600s", "--", sys.executable, Path(__file__).resolve(),
        args.build, "--worker", what, "--rounds", args.rounds, "--calls", args.calls,
    ]  # fmt: skip
    out = subprocess.check_output(list(map(str, command)), env=env, text=True, timeout=660)
    return json.loads(out.splitlines()[-1])


def rows(args: argparse.Namespace) -> list[Row]:
    """Measure, and return the rows of the table."""
    n_rows, n_wrong = run(args, "compare", BPS_DETERMINISTIC="1")
    rounds = run(args, "time")
    own = statistics.mean(len(zipf(rank, 0)) for rank in range(WORKERS))
    lines = [
        row("thousands of rows of a worker", "", [own / 1000], None),
        row("thousands of rows of the union", "", [n_rows / 1000], None),
        row("values that differ from the dense sum", "0", [n_wrong], lambda x: x == 0),
    ]
    titles = {
        "union": "sum of the rows",
        "gather": "all-gather of the rows",
        "added": "all-gather of the rows, which each worker adds",
        "dense": "sum of the dense table",
    }
    for name, title in titles.items():
        lines.append(row(f"ms of the {title}", "", [1e3 * one[name] for one in rounds], None))
    for name, bar in BARS.items():
        ratios = [one["union"] / one[name] for one in rounds]
        holds = None if bar is None else lambda x, bar=bar: x <= bar
        limit = "" if bar is None else f"<= {bar}"
        lines.append(row(f"time of the union over the {titles[name]}", limit, ratios, holds))
    return lines


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=5, help="calls of each form in a round")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--worker", choices=("compare", "time"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build = args.build.resolve()
    if args.worker:
        worker(args)
        return 0
    holds = page.write(
        "Sums of a sparse table",
        (
            "This page compares the sum of a [sparse",
            "table](../../guides/fewer-bytes.md#sparse-gradients) with an all-gather of its rows,",
            "and with the sum of the dense table: 367,000 rows of 64 values of f32, of which each",
            "of 4 workers draws 8,192 by Zipf's law. 4 agents and 2 servers run on one host, and",
            "exchange their bytes over TCP alone.",
            "[measure.md](../../guides/measure.md#sparse-tables) explains the figures.",
        ),
        args.build,
        f"--rounds {args.rounds} --calls {args.calls}",
        lambda: rows(args),
        args.out,
    )
    return 1 if args.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
