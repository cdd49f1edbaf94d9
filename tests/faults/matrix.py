#!/usr/bin/env python3
"""Pass every cell of the fault matrix many times and write the worst of each beside its bound.

    tests/faults/matrix.py BUILD --repeat 20 --shard 2/6 [--only WORD] [--table docs/results/fault-matrix.md]

A shard is every n-th cell and takes under an hour at 20 repetitions on two cores. What the shards measured is kept in
BUILD/matrix, and the table is made of all that lies there and is of the same commit. Exit status 1: a cell failed.
"""

import argparse
import collections
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def commit():
    p = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return p.stdout.strip() or "unknown"


def run_once(build, out, shard, only):
    env = dict(os.environ, BPS_BUILD=str(build), BPS_MATRIX_OUT=str(out), BPS_SHARD=shard, PYTHONDONTWRITEBYTECODE="1")
    env.setdefault("BPS_BOUND_SLACK", "1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/faults"] + (["-k", only] if only else [])
    p = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(p.stdout[-6000:] if p.returncode else p.stdout.strip().splitlines()[-1], flush=True)
    return p.returncode in (0, 5)


def read(folder, of_commit):
    """{cell: {"passed": n, "failed": n, ..., "times": {what: [(seconds, bound)]}}} of all shards of this commit."""
    cells = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        if not lines or json.loads(lines[0]).get("commit") != of_commit:
            continue
        for record in map(json.loads, lines[1:]):
            c = cells.setdefault(record["cell"], {"outcomes": collections.Counter(), "times": {}})
            if "outcome" in record:
                c["outcomes"][record["outcome"]] += 1
            else:
                c["times"].setdefault((record["what"], record["bound"]), []).append(record["seconds"])
    return cells


def table(cells, of_commit):
    uname = platform.uname()
    passed = sum(c["outcomes"]["passed"] for c in cells.values())
    failed = sum(c["outcomes"]["failed"] for c in cells.values())
    lines = [
        "# The fault matrix, measured",
        "",
        f"{len(cells)} cells, {passed} passes, {failed} failures; commit {of_commit}, {time.strftime('%Y-%m-%d', time.gmtime())}, "
        f"{uname.system} {uname.release}, {os.cpu_count()} processors. Written by `make matrix`. Each row is the worst and the median",
        "of all passes of a cell, in seconds, beside the bound of docs/faults.md.",
        "",
        "| cell | passed | what | worst | median | bound |",
        "|---|---|---|---|---|---|",
    ]
    for name, c in sorted(cells.items()):
        o = c["outcomes"]
        score = f"{o['passed']}/{sum(o.values())}" + (f", {o['xfailed']} expected failures" if o["xfailed"] else "")
        score += f", {o['skipped']} skipped" if o["skipped"] else ""
        for (what, bound), times in c["times"].items() or [(("", ""), [])]:
            times.sort()
            worst = f"{times[-1]:.3f} | {times[len(times) // 2]:.3f}" if times else " | "
            mark = " **over**" if times and times[-1] > bound else ""
            lines.append(f"| {name} | {score} | {what} | {worst}{mark} | {bound} |")
    return "\n".join(lines) + "\n", failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--only", help="cells whose test has this in its name")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    build = args.build.resolve()
    folder, of_commit = build / "matrix", commit()
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"shard-{args.shard.replace('/', '-of-')}.jsonl"
    out.write_text(json.dumps({"commit": of_commit}) + "\n")
    ok = True
    for i in range(args.repeat):
        print(f"pass {i + 1} of {args.repeat}, shard {args.shard}:", end=" ", flush=True)
        ok &= run_once(build, out, args.shard, args.only)
    text, failed = table(read(folder, of_commit), of_commit)
    if args.table:
        args.table.parent.mkdir(parents=True, exist_ok=True)
        args.table.write_text(text)
    else:
        print(text)
    return 0 if ok and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
