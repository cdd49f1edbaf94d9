#!/usr/bin/env python3
"""Compare data connections over libfabric's provider tcp with those over our sockets.

    tests/bench/providers.py BUILD-FOLDER [--libfabric FOLDER] [--rounds R] [--seconds S]
        [--only GROUP[,GROUP...]] [--out FILE]

Both providers are measured in turn in each round, on the same hosts. The groups:
    shaped       push_pull of 64 and 16 MiB on 4 + 4 hosts with links of 1 Gbit/s
    replays      training steps of VGG-16, ResNet-50 and BERT-large on 2 + 2 such hosts
    loopback     CPU time per byte on 2 + 2 loopback addresses
    latency      median time of a push_pull of 4 KiB on the loopback
    connections  256 agents at one data thread, all sums checked
    old          as shaped, with the system's libfabric

All groups except `old` use the libfabric.so.1 in the folder --libfabric. `make check-providers`
puts a current one into build/libfabric. The exit status is 1 when a bar does not hold. Needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import page
from harness import (
    TCP_PAYLOAD,
    TRACES,
    Lab,
    Processes,
    Suite,
    most_connections,
    size_text,
    trace_bytes,
)
from page import Row, row

PROVIDERS = ("sockets", "tcp")
MIB = 1 << 20
MODELS = ("vgg16", "resnet50", "bert-large")
N_MANY = 256
SHAPED = {64 * MIB: 0.97, 16 * MIB: 0.97}

Figures = dict[str, float]
Rounds = dict[str, list[Figures]]  # provider -> its figures, one for each round


class Comparison:
    """Measures both providers, with the options of the command line."""

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        self.args, self.folder = args, folder
        self.processes = Processes("nice")

    def suite(self, lab: Lab, provider: str, agents: int, **how: Any) -> Suite:
        """Start the daemons of one provider."""
        return Suite(
            self.args.build, lab, self.processes, self.folder, agents,
            provider=provider, same_host="off", **how,
        )  # fmt: skip

    def rounds(self, name: str, measure: Callable[[str], Figures]) -> Rounds:
        """Call `measure` with each provider in turn, once in each round."""
        seen: Rounds = {p: [] for p in PROVIDERS}
        for r in range(self.args.rounds):
            for p in PROVIDERS:
                seen[p].append(measure(p))
                print(f"{name}, round {r + 1}, {p}: {seen[p][-1]}", file=sys.stderr, flush=True)
        return seen

    def on(
        self, lab: Lab, agents: int, servers: int, name: str, measure: Callable[[Suite], Figures]
    ) -> Rounds:
        """Call `measure` with the running daemons of each provider in turn."""
        with ExitStack() as stack:
            suites = {
                p: stack.enter_context(self.suite(lab, p, agents, alone=servers)) for p in PROVIDERS
            }
            return self.rounds(name, lambda p: measure(suites[p]))


def ratios(seen: Rounds, figure: str) -> list[float]:
    """Return the figure over tcp divided by that over sockets, for each round."""
    return [t[figure] / s[figure] for t, s in zip(seen["tcp"], seen["sockets"])]


def at_least(what: str, limit: float, values: list[float]) -> Row:
    """Return a row of the table with a lower limit."""
    return row(what, f">= {limit:g}", values, lambda x: x >= limit)


def at_most(what: str, limit: float, values: list[float]) -> Row:
    """Return a row of the table with an upper limit."""
    return row(what, f"<= {limit:g}", values, lambda x: x <= limit)


def shaped(c: Comparison, limits: dict[int, float] = SHAPED) -> Iterator[Row]:
    """Compare goodputs on hosts whose links are shaped. limits: bytes -> least ratio."""
    with Lab(9, "1gbit") as lab:
        for size, limit in limits.items():
            name = f"goodput, {size_text(size)}, 4 + 4 hosts, 1 Gbit/s"
            seen = c.on(lab, 4, 4, name, lambda s, b=size: s.bench(b, 1, c.args.seconds))
            yield at_least(name, limit, ratios(seen, "goodput_mbps"))
            yield row("CPU time per byte of the same", "", ratios(seen, "cpu_s_per_gb"), None)


def old(c: Comparison) -> Iterator[Row]:
    """Compare goodputs with the system's libfabric."""
    os.environ.pop("LD_LIBRARY_PATH", None)
    for line in shaped(c, {64 * MIB: 0.85}):
        yield line.replace("| ", f"| libfabric {libfabric_version()}: ", 1)


def replays(c: Comparison) -> Iterator[Row]:
    """Compare the steps of recorded models. Computing takes as long as the link needs."""
    for model in MODELS:
        trace = TRACES / f"{model}.tsv"
        compute_s = trace_bytes(trace) / (1e9 / 8 * TCP_PAYLOAD)
        name = f"speed of {model}, f16, 2 + 2 hosts, 1 Gbit/s"
        with Lab(5, "1gbit") as lab:
            seen = c.on(lab, 2, 2, name, lambda s, t=trace, d=compute_s: s.replay(t, d, False, 8))
        yield at_least(name, 0.97, [1 / x for x in ratios(seen, "step_ms")])


def loopback(c: Comparison) -> Iterator[Row]:
    """Compare the CPU time on the loopback."""
    name = "CPU time per byte, 64 MiB, 2 + 2 on the loopback"
    with Lab(5) as lab:
        seen = c.on(lab, 2, 2, name, lambda s: s.bench(64 * MIB, 1, c.args.seconds))
    yield at_most(name, 1.10, ratios(seen, "cpu_s_per_gb"))
    yield row("goodput of the same", "", ratios(seen, "goodput_mbps"), None)


def latency(c: Comparison) -> Iterator[Row]:
    """Compare the latency of a small tensor."""
    name = "median of 4 KiB on the loopback, us more"
    with Lab(4) as lab:
        seen = c.on(lab, 2, 1, name, lambda s: s.bench(4096, 1, c.args.seconds))
    more = [t["median_us"] - s["median_us"] for t, s in zip(seen["tcp"], seen["sockets"])]
    yield at_most(name, 3, more)


def connections(c: Comparison) -> Iterator[Row]:
    """Check the sums of many agents at one data thread."""

    def load(provider: str) -> Figures:
        with (
            Lab(2 + N_MANY) as lab,
            c.suite(lab, provider, N_MANY, alone=1, server_arg="--threads 1") as suite,
        ):
            return most_connections(
                suite, lambda: suite.bench(MIB // 4, 1, c.args.seconds, check=True)
            )

    name = f"connections of a data thread with {N_MANY} agents, all sums right"
    seen = c.rounds(name, load)
    yield at_least(name, N_MANY, [f["connections"] for f in seen["tcp"]])


GROUPS = {
    "shaped": shaped,
    "replays": replays,
    "loopback": loopback,
    "latency": latency,
    "connections": connections,
    "old": old,
}


def libfabric_version() -> str:
    """Return the version of the libfabric that a daemon would load."""
    code = (
        "import ctypes; v = ctypes.CDLL('libfabric.so.1').fi_version(); print(v >> 16, v & 65535)"
    )
    out = subprocess.check_output((sys.executable, "-c", code), text=True)
    return ".".join(out.split())


def report(args: argparse.Namespace) -> list[Row]:
    """Measure the chosen groups. Return the rows of the table."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bps-providers-") as folder:
        for group in args.only:
            os.environ["LD_LIBRARY_PATH"] = str(args.libfabric)
            for measured in GROUPS[group](Comparison(args, folder)):
                print(measured.text, file=sys.stderr, flush=True)
                rows.append(measured)
    return rows


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--libfabric", type=Path, default=page.ROOT / "build" / "libfabric")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="duration of a measurement")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(GROUPS))
    parser.add_argument("--out", type=Path, help="file for the table")
    args = parser.parse_args()
    unknown = [g for g in args.only if g not in GROUPS]
    if unknown:
        parser.error(f"there is no group '{unknown[0]}'; the groups are {', '.join(GROUPS)}")
    if args.out and args.only != list(GROUPS):
        parser.error("--out needs all groups: leave --only out")
    args.build, args.libfabric = args.build.resolve(), args.libfabric.resolve()
    if not (args.libfabric / "libfabric.so.1").exists():
        parser.error(f"{args.libfabric} has no libfabric.so.1; run `make check-providers` first")
    os.environ["LD_LIBRARY_PATH"] = str(args.libfabric)
    holds = page.write(
        "Provider tcp beside sockets",
        (
            "This page compares data connections over libfabric's provider `tcp` with those over",
            "`sockets`: figures over tcp divided by those over sockets. The library is libfabric",
            f"{libfabric_version()}, except in rows that name another version. The programs run",
            "with niceness -20.",
        ),
        args.build,
        f"--rounds {args.rounds} --seconds {args.seconds:g}",
        lambda: report(args),
        args.out,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
