#!/usr/bin/env python3
"""Goodput, round time and processor time of a build, compared with another build in one run.

    tests/bench/against.py BUILD OTHER [--bytes 4KiB,512KiB,64MiB] [--repeat 9] [--seconds 2]
        [--rate 1gbit | --rate none] [--agents 2] [--servers 2] [--depth 1]

The other build runs twice in each round, before and after this one, so that the difference of its
two copies shows what is due to chance. New daemons are started for each measurement, because
the same daemons can be 15 % slower from one start to the next and then stay so. Every figure is the
median of the rounds. The ratios are those of the medians to the mean of the two copies.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import harness

NAMES = ("other, 1", "this build", "other, 2")
FIGURES = {"goodput_mbps": "goodput, MB/s", "median_us": "median, us", "cpu_s_per_gb": "CPU s/GB"}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[dict]]]:
    """Return {size: {name of a build: figures of each round}}."""
    sizes = args.bytes.split(",")
    found: dict[str, dict[str, list[dict]]] = {s: {n: [] for n in NAMES} for s in sizes}
    builds = dict(zip(NAMES, (args.other, args.build, args.other)))
    rate = None if args.rate == "none" else args.rate
    with harness.Lab(1 + args.agents + args.servers, rate) as lab:
        processes = harness.Processes("nice")
        for k in range(args.repeat):
            for name in NAMES if k % 2 == 0 else NAMES[::-1]:
                with harness.Suite(
                    builds[name],
                    lab,
                    processes,
                    folder,
                    args.agents,
                    alone=args.servers,
                    same_host="off",
                ) as suite:
                    for size in sizes:
                        figures = suite.bench(size, args.depth, args.seconds)
                        found[size][name].append(figures)
            print(f"round {k + 1} of {args.repeat}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, list[dict]]]) -> list[str]:
    """Return the rows of a table in Markdown."""
    rows = [
        "| size | figure | " + " | ".join(NAMES) + " | this over the other | copies differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for size, builds in found.items():
        for key, title in FIGURES.items():
            first, mine, second = (
                statistics.median(f[key] for f in builds[name]) for name in NAMES
            )
            mean = (first + second) / 2
            rows.append(
                f"| {size} | {title} | {first:.4g} | {mine:.4g} | {second:.4g} "
                f"| {mine / mean:.4f} | {abs(first - second) / mean:.4f} |"
            )
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="folder of the build, such as build/release")
    parser.add_argument("other", type=Path, help="folder of the build to compare with")
    parser.add_argument("--bytes", default="4KiB,512KiB,64MiB", help="sizes of the tensor")
    parser.add_argument("--rate", default="none", help="speed of each host's network card")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--depth", type=int, default=1, help="tensors in flight")
    parser.add_argument("--repeat", type=int, default=9, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=2, help="length of each measurement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(table(measure(args, Path(folder)))))


if __name__ == "__main__":
    main()
