#!/usr/bin/env python3
"""Compare the results of training with gradients in blocks with those of training with float32.

    tests/bench/accuracy.py BUILD-FOLDER [--seeds N] [--epochs E] [--out FILE] [--strict]

Two classifiers of handwritten digits train on 4 machines of 1 worker and on 4 machines of 4
workers, and a small GPT over the bytes of this project's documents on 4 machines of 1 worker. Each
kind of compression trains from the same start, with the same samples. For the classifiers, all
tensors are sent in blocks, also small ones, which front-ends would send as they are. With --strict,
the exit status is 1 if a bar does not hold. `sign` without its residual must miss the limit of the
others, so that the limit can fail. The GPT trains with AdamW, with which `sign` has no limit: Adam
divides by a mean of squares, in which the errors do not cancel. If the environment of the
front-ends' tests (tests/frontends/torch.txt) does not exist, the program makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import page
from page import Row, row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "libbpsclient" / "examples"
MACHINES = 4
# Kinds of compression. Of the kinds with a bar, the accuracy may be at most 1 point below that of
# "none", and the loss of the GPT at most 1.02 times as large.
KINDS = ("none", "int8", "int4", "int4+residual", "sign+residual", "sign")
MEASURED = ("none", "int8", "int4", "int4+residual")  # where a machine has several workers
OF_GPT = ("none", "int8", "int4", "sign+residual", "sign")
WITH_BAR = ("int8", "int4", "int4+residual", "sign+residual")


# ---- a worker: one process of the job ----


def compressor(kind: str, min_bytes: int) -> Any:
    """Return the compressor of a kind, which sends smaller tensors as they are."""
    from bps.torch import Compression

    name, _, residual = kind.partition("+")
    if name == "none":
        return Compression.none
    base = getattr(Compression, name)
    return type(kind, (base,), {"min_bytes": min_bytes, "has_residual": bool(residual)})


def digits(model_name: str, kind: str, seed: int, epochs: int) -> tuple[float, float]:
    """Train a classifier. Return its accuracy and its mean loss on the test samples."""
    import torch
    import torch.nn.functional as F

    import bps.torch as bps

    table = torch.tensor(
        [[int(x) for x in line.split(",")] for line in (EXAMPLES / "digits.csv").open()]
    )
    images, labels = table[:, :64] / 16.0, table[:, 64]
    n_train = len(table) - 360
    torch.manual_seed(seed)
    if model_name == "linear":
        model: torch.nn.Module = torch.nn.Linear(64, 10)
    else:
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        model.named_parameters(),
        compression=compressor(kind, 0),
    )
    batch = 64 // bps.size()
    for _ in range(epochs):
        order = torch.randperm(n_train)[: n_train // 64 * 64].view(-1, bps.size(), batch)
        for rows in order[:, bps.rank()]:
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        out = model(images[n_train:])
        loss = F.cross_entropy(out, labels[n_train:]).item()
        return (out.argmax(1) == labels[n_train:]).float().mean().item(), loss


def gpt(kind: str, seed: int, steps: int) -> float:
    """Train a GPT. Return its mean loss over the last tenth of the steps."""
    import torch
    import torch.nn.functional as F
    from gpt import GPT

    import bps.torch as bps

    text = b"".join(p.read_bytes() for p in sorted((ROOT / "docs").rglob("*.md")))
    data, length, batch = torch.frombuffer(bytearray(text), dtype=torch.uint8).long(), 64, 8
    torch.manual_seed(seed)
    model = GPT(128, 2, 4, length)
    optimizer = bps.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        model.named_parameters(),
        compression=compressor(kind, 64 << 10),
    )
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - length - 1, (bps.size(), batch))[bps.rank()]
        rows = torch.stack([data[i : i + length + 1] for i in starts.tolist()])
        optimizer.zero_grad()
        out = model(rows[:, :-1])
        loss = F.cross_entropy(out.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return bps.allreduce(torch.stack(losses[-steps // 10 :]).mean()).item()


def worker(args: argparse.Namespace) -> None:
    """Train all models of one cluster. Rank 0 prints the figures."""
    import torch

    import bps.torch as bps

    sys.path.append(str(EXAMPLES / "pytorch"))
    torch.set_num_threads(1)
    bps.init()
    is_alone = bps.size() == MACHINES
    kinds = KINDS if is_alone else MEASURED
    figures: dict[str, Any] = {}
    for model in ("linear", "32 hidden"):
        figures[model] = {
            kind: [digits(model, kind, seed, args.epochs) for seed in range(args.seeds)]
            for kind in kinds
        }
    if is_alone:
        figures["GPT"] = {
            kind: [(0.0, gpt(kind, seed, 10 * args.epochs)) for seed in range(min(args.seeds, 2))]
            for kind in OF_GPT
        }
    if bps.rank() == 0:
        Path(args.result).write_text(json.dumps(figures))
    bps.shutdown()


# ---- the program that starts the workers ----


def measure(args: argparse.Namespace, workers: int) -> dict[str, Any]:
    """Train on a cluster of MACHINES machines with some workers each. Return the figures."""
    with tempfile.TemporaryDirectory(prefix="bps-accuracy-") as folder:
        result = Path(folder) / "result.json"
        command = [
            args.build / "bpsrun", "-n", workers * MACHINES, "--agents", MACHINES, "--servers", 2,
            "--", args.python, Path(__file__).resolve(), args.build, "--worker",
            "--seeds", args.seeds, "--epochs", args.epochs, "--result", result,
        ]  # fmt: skip
        env = {
            **os.environ,
            "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"),
            "PYTHONPATH": str(ROOT / "libbpsclient" / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run([*map(str, command)], check=True, env=env, stdout=subprocess.DEVNULL)
        return json.loads(result.read_text())


def bar_of(kind: str, limit: str, is_met: Callable[[float], bool]) -> tuple[str, Any]:
    """Return the text of a bar and the condition that it holds. "sign" must miss it."""
    if kind in WITH_BAR:
        return limit, is_met
    return (f"not {limit}", lambda x: not is_met(x)) if kind == "sign" else ("", None)


def rows_of(figures: dict[str, Any], workers: int) -> Iterator[Row]:
    """Yield the rows of one cluster."""
    for model, kinds in figures.items():
        raw = kinds["none"]
        for kind, runs in kinds.items():
            what = f"{model}, {MACHINES} x {workers}, {kind}"
            if model == "GPT":
                ratios = [loss / other for (_, loss), (_, other) in zip(runs, raw)]
                text, holds = bar_of(kind, "<= 1.02", lambda x: x <= 1.02)
                if kind == "sign+residual":
                    text, holds = "", None
                yield row(f"{what}: loss over that of none", text, ratios, holds)
                continue
            lost = [100 * (other - one) for (one, _), (other, _) in zip(runs, raw)]
            losses = [loss for _, loss in runs]
            text, holds = bar_of(kind, "<= 1", lambda x: x <= 1)
            # The mean over the seeds has a smaller error than each difference.
            mean = statistics.mean(lost)
            yield row(f"{what}: points below none, mean of the seeds", text, [mean], holds)
            yield row(f"{what}: loss", "", losses, None)


def report(args: argparse.Namespace) -> list[Row]:
    """Run all clusters. Return the rows of the table."""
    return [r for workers in (1, 4) for r in rows_of(measure(args, workers), workers)]


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
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
        "Accuracy with gradients in blocks",
        (
            "This page compares training with gradients in blocks with training with float32.",
            "All tensors of the classifiers are sent in blocks, also the small ones, which",
            "front-ends send as they are. Adam with `sign` has no bar, see accuracy.py.",
            "[fewer-bytes.md](../guides/fewer-bytes.md) says which type to choose.",
        ),
        args.build,
        f"--seeds {args.seeds} --epochs {args.epochs}",
        lambda: report(args),
        args.out,
    )
    return 0 if holds or not args.strict else 1


if __name__ == "__main__":
    sys.exit(main())
