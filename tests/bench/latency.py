#!/usr/bin/env python3
"""Measure a small push_pull and Gloo's all-reduce in turn on loopback, and compare the latencies.

    tests/bench/latency.py BUILD-FOLDER [--bytes 4096] [--seconds 1] [--repeat 5]
        [--min-ratio R]

For bps, bpsrun starts 1 server, 2 agents with different addresses, and 1 worker at each agent. Gloo
runs in 2 processes, with each of its algorithms. Each repetition gives a median and a p99. The
program prints the median of each figure over all repetitions. The ratio is the best median of Gloo
divided by the median of bps. With --min-ratio, the exit status is 1 when the ratio is below R. The
program needs libgloo-dev and g++.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLOO = ["halving-doubling", "bcube", "ring", "ring-chunked"]


def run_ours(build, args):
    command = [
        build / "bpsrun",
        "--no-prefix",
        "-n",
        "2",
        "--agents",
        "2",
        "--servers",
        "1",
        "--timeout",
        "120s",
        "--",
        build / "bps-bench",
        "--json",
        "--bytes",
        str(args.bytes),
        "--seconds",
        str(args.seconds),
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout
    return "bps", json.loads(out)["results"][0]


def run_gloo(program, algorithm, args):
    with tempfile.TemporaryDirectory() as store:
        ps = [
            subprocess.Popen(
                [
                    program,
                    str(rank),
                    "2",
                    store,
                    "127.0.0.1",
                    algorithm,
                    str(args.seconds),
                    str(args.bytes),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outs = [p.communicate(timeout=180)[0] for p in ps]
    if any(p.returncode for p in ps):
        raise SystemExit(f"gloo-bench {algorithm} failed")
    return f"gloo-{algorithm}", json.loads(outs[0])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--min-ratio", type=float, default=0.0)
    args = parser.parse_args()
    build = args.build.resolve()
    program = build / "gloo-bench"
    subprocess.run(["g++", "-O2", "-o", program, HERE / "gloo-bench.cc", "-lgloo"], check=True)
    seen = {}
    for _ in range(args.repeat):
        for name, figures in [run_ours(build, args)] + [run_gloo(program, a, args) for a in GLOO]:
            seen.setdefault(name, []).append((figures["median_us"], figures["p99_us"]))
    print(f"{args.bytes} bytes, 2 workers, {args.seconds} s x {args.repeat}, microseconds")
    medians = {}
    for name, figures in seen.items():
        medians[name] = statistics.median(m for m, _ in figures)
        p99 = statistics.median(p for _, p in figures)
        spread = f"{min(m for m, _ in figures):.1f} .. {max(m for m, _ in figures):.1f}"
        print(f"{name:24} median {medians[name]:8.1f} ({spread})   p99 {p99:8.1f}")
    best = min((n for n in medians if n != "bps"), key=medians.get)
    ratio = medians[best] / medians["bps"]
    print(f"{ratio:.2f} times faster than {best}, the fastest of Gloo's algorithms")
    return 1 if ratio < args.min_ratio else 0


if __name__ == "__main__":
    sys.exit(main())
