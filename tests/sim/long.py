#!/usr/bin/env python3
"""Run many millions of histories in blocks and record their results.

    tests/sim/long.py build/release/tests/sim --seeds 1..10000000 [--jobs 2] [--minutes 55]
        [--report FILE]

Each block of 100,000 histories is a line in the file of records (--records), which outlives the
run. If a run is stopped, or ends after --minutes, the next run executes only the missing blocks.
The runs that add to one file of records may differ in their commit, machine and seeds. The report
is made from all records. The exit status is 1 if a history was wrong. If no history was wrong, but
blocks are still missing, the status is 3.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests"))

from repository import commit_of  # noqa: E402

BLOCK = 100000
MORE = ("slowest_ns", "slowest_seed")  # keys of a record whose values cannot be added up


def blocks(seeds):
    first, last = map(int, seeds.split(".."))
    return [(at, min(at + BLOCK - 1, last)) for at in range(first, last + 1, BLOCK)]


def read(records):
    lines = records.read_text().splitlines() if records.exists() else []
    return [json.loads(line) for line in lines]


def run(args, first, last, of_commit):
    """Run a block of seeds and return its record.

    The key "bad" holds the list of violations. A crash of the program counts as a violation.
    """
    command = [
        str(args.sim),
        "--seeds",
        f"{first}..{last}",
        "--jobs",
        str(args.jobs),
        "--keep-going",
        "--json",
    ]
    p = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = p.stdout.splitlines()
    record = {"first": first, "last": last, "commit": of_commit, "at": int(time.time())}
    record["bad"] = [line for line in lines if line.startswith("seed ")]
    if lines and lines[-1].startswith("{"):
        record.update(json.loads(lines[-1]))
    elif not record["bad"]:
        sys.exit(f"{' '.join(command)} ended with {p.returncode} and said nothing")
    return record


def added(records):
    total = {"faults": {}}
    for r in records:
        for k, v in r.items():
            if isinstance(v, (int, float)) and k not in MORE:
                total[k] = total.get(k, 0) + v
        for k, v in r.get("faults", {}).items():
            total["faults"][k] = total["faults"].get(k, 0) + v
    slowest = max(records, key=lambda r: r.get("slowest_ns", 0))
    return total, slowest


def report(records):
    total, slowest = added(records)
    bad = [line for r in records for line in r["bad"]]
    by_commit = {}
    for r in sorted(records, key=lambda r: r["at"]):
        by_commit.setdefault(r["commit"], []).append(r)
    uname = platform.uname()
    rows = [
        ("histories", f"{total['seeds']:,}"),
        ("violations", f"{total['violations']:,}"),
        (
            "CPU time",
            f"{total['cpu_s'] / 60:.0f} min, {total['seeds'] / total['cpu_s']:,.0f} histories/s "
            "of one processor",
        ),
        ("events", f"{total['events']:.3g}"),
        ("rounds delivered", f"{total['rounds']:,}, and {total['guest_rounds']:,} of other jobs"),
        ("virtual time", f"{total['virtual_ns'] / 3.6e12:,.0f} h"),
        (
            "messages",
            f"{total['messages']:.3g}: {total['lost']:,} lost, {total['dups']:,} doubled, "
            f"{total['reordered']:,} overtaken, "
            f"{total['corrupted']:,} with a flipped bit, {total['lies']:,} lies",
        ),
        ("reads, loans", f"{total['reads']:,}, {total['loans']:,}"),
        (
            "eager offers, read as they came, discarded",
            f"{total['eager']:,}, {total['eager_reads']:,}, {total['thrown']:,}",
        ),
        ("views", f"{total['views']:,}"),
        ("starts of the scheduler", f"{total['lives']:,}"),
        ("restarts of agents", f"{total['restarts']:,}"),
        ("drains, servers stopped", f"{total['drains']:,}, {total['leaves']:,}"),
        ("jobs that failed, each with a cause", f"{total['failed_jobs']:,}"),
        (
            "slowest end after the last fault",
            f"{slowest['slowest_ns'] / 1e9:.1f} s (seed {slowest['slowest_seed']})",
        ),
        *((k, f"{v:,}") for k, v in total["faults"].items()),
    ]
    return (
        "\n".join(
            [
                "# Long runs of the simulator",
                "",
                "This page has the counts of the histories that `make sim-10m` has simulated, on",
                f"{uname.system} {uname.release} with {os.cpu_count()} processors. "
                "[simulator.md](../explanation/simulator.md) explains",
                "the checks.",
                "",
                *(
                    f"- {c}: {sum(r['last'] - r['first'] + 1 for r in rs):,} histories, "
                    f"seeds {min(r['first'] for r in rs):,} to {max(r['last'] for r in rs):,}, "
                    f"{time.strftime('%Y-%m-%d', time.gmtime(rs[0]['at']))}"
                    for c, rs in by_commit.items()
                ),
                "",
                "| | |",
                "|---|---|",
                *(f"| {name} | {value} |" for name, value in rows),
                *(["", "## Violations", "", *(f"- {line}" for line in bad)] if bad else []),
            ]
        )
        + "\n"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sim", type=Path)
    parser.add_argument("--seeds", default="1..10000000")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--minutes", type=float, help="start no block after this time; the same command continues"
    )
    parser.add_argument("--records", type=Path, default=ROOT / "build" / "sim" / "records.jsonl")
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    args.records.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["first"], r["last"]) for r in read(args.records)}
    todo = [b for b in blocks(args.seeds) if b not in done]
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    # Read the commit once. The running program stays at this commit if another commit is checked
    # out later.
    of_commit = commit_of(ROOT)
    while todo and time.monotonic() < end:
        record = run(args, *todo.pop(0), of_commit)
        with open(args.records, "a", encoding="ascii") as f:
            f.write(json.dumps(record) + "\n")
        print(
            f"{time.strftime('%H:%M:%S')} {record['first']}..{record['last']}: "
            f"{len(record['bad'])} violations, "
            f"{record.get('took_s', 0):.0f} s, {len(todo)} blocks to do",
            flush=True,
        )
        for line in record["bad"]:
            print(line, flush=True)
    records = read(args.records)
    if records and args.report:
        args.report.write_text(report(records))
    return 1 if any(r["bad"] for r in records) else 3 if todo else 0


if __name__ == "__main__":
    sys.exit(main())
