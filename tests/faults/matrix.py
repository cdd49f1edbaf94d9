#!/usr/bin/env python3
"""Run every cell of the fault matrix many times.

Write a table of the worst times and their bounds.

    tests/faults/matrix.py BUILD --repeat 20 [--minutes 55] [--at-once 4] [--shard 1/2]
        [--only WORD] [--table FILE]
    tests/faults/matrix.py BUILD --mended CELL --why "what it was"

Cells mostly wait, so several run at a time. Each cell has its own daemons. Cells with a fault of
the network use the lab of their pytest process. Cells marked `alone` run alone. A pass is one run
of a cell, whether it succeeds or fails. Each pass adds a line to the file of records (--records).
If this script is stopped or ends after --minutes, its next start continues with the same file,
possibly on another commit. A shard is every n-th cell. Several machines can run a shard each, and
their records can be combined in one file.

The table is made from all records. A failed cell counts as failed until --mended records the
reason of the failure. Then the cell's earlier passes no longer count, and the next start of this
script runs the cell again. The table lists the cell with the commit of the failure and the reason.
A pass that the machine delayed does not count, and is repeated (cells.py). Logs of a failed cell
are in the folder of the records. The exit status is 1 if a cell has failed, and 3 if some of the
requested passes have not been run.
"""

import argparse
import collections
import contextlib
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests"))

from repository import commit_of  # noqa: E402

BATCH_S = 60  # seconds that a pytest process should take for a batch of cells
GUESS_S = 6  # assumed seconds of a cell that has never run
LIMIT_S = 300  # time limit of a cell in seconds; waits within a cell have shorter limits


class Passes:
    """The recorded passes (runs) of a cell."""

    def __init__(self):
        self.records, self.mended = [], []

    def n_done(self):
        return len(self.records) - self.n("disturbed")

    def n(self, outcome):
        return sum(r["outcome"] == outcome for r in self.records)

    def seconds(self):
        return (
            sum(r["wall_s"] for r in self.records) / len(self.records) if self.records else GUESS_S
        )

    def times(self):
        by_what = {}
        for r in self.records:
            for what, seconds, bound in r["times"] if r["outcome"] != "disturbed" else ():
                by_what.setdefault((what, bound), []).append(seconds)
        return by_what


def read(records):
    cells = collections.defaultdict(Passes)
    for line in records.read_text().splitlines() if records.exists() else []:
        r = json.loads(line)
        passes = cells[r["cell"]]
        if "mended" in r:
            failed = [x for x in passes.records if x["outcome"] == "failed"]
            passes.mended += [dict(r, of=x["commit"], n=len(passes.records)) for x in failed[:1]]
            passes.records = []
        else:
            passes.records.append(r)
    return cells


class Run:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
        self.env = dict(
            os.environ,
            BPS_BUILD=str(args.build),
            BPS_MATRIX_LOGS=str(folder / "failed"),
            BPS_MATRIX_COMMIT=commit_of(ROOT),
            PYTHONDONTWRITEBYTECODE="1",
        )
        self.env.setdefault("BPS_BOUND_SLACK", "1")
        self.lock = threading.Lock()
        self.n_done, self.n_todo, self.is_stopped, self.processes = 0, 0, False, set()

    def pytest(self, *args):
        return [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *args,
        ]

    def cells(self):
        """Return the cells of this shard, in pytest's order."""
        found = self.folder / f"cells-{os.getpid()}.json"
        command = self.pytest(
            "--collect-only", "tests/faults", *(["-k", self.args.only] if self.args.only else [])
        )
        p = subprocess.run(
            command,
            cwd=ROOT,
            env=dict(self.env, BPS_MATRIX_LIST=str(found)),
            capture_output=True,
            text=True,
            check=False,
        )
        if p.returncode:
            sys.exit(p.stdout + p.stderr)
        cells = json.loads(found.read_text())
        found.unlink()
        at, of = map(int, self.args.shard.split("/"))
        return [c for i, c in enumerate(cells) if i % of == at - 1]

    def batch(self, cells):
        """Run a batch of cells in one pytest process.

        Each cell that ends writes a record. If cells have no record, the process ended during the
        first of these cells. That cell counts as failed.
        """
        name = self.folder / f"batch-{os.getpid()}-{threading.get_ident()}"
        log, records = name.with_suffix(".log"), name.with_suffix(".jsonl")
        records.write_text("")
        with open(log, "wb") as f:
            p = subprocess.Popen(
                self.pytest(*(c["test"] for c in cells)),
                cwd=ROOT,
                stdout=f,
                stderr=f,
                start_new_session=True,
                env=dict(self.env, BPS_MATRIX_RECORDS=str(records)),
            )
            self.processes.add(p)
            try:
                p.wait(LIMIT_S * len(cells))
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            self.processes.discard(p)
        lines = records.read_text().splitlines(keepends=True)
        if len(lines) < len(cells) and not self.is_stopped:
            lines.append(
                json.dumps(
                    failure(cells[len(lines)], f"pytest ended with {p.returncode} in it", log)
                )
                + "\n"
            )
        with self.lock:
            with open(self.args.records, "a", encoding="ascii") as f:
                f.write("".join(lines))
            self.n_done += sum(json.loads(line)["outcome"] != "disturbed" for line in lines)
            if p.returncode and not self.is_stopped:
                print(log.read_text(errors="replace")[-6000:], flush=True)
            print(f"{time.strftime('%H:%M:%S')} {self.n_done} of {self.n_todo} passes", flush=True)
        records.unlink()
        if p.returncode in (0, 1):
            log.unlink()

    def all(self, batches, at_once):
        todo = queue.SimpleQueue()
        for b in batches:
            todo.put(b)

        def work():
            while not self.is_stopped and time.monotonic() < self.end:
                try:
                    cells = todo.get_nowait()
                except queue.Empty:
                    return
                self.batch(cells)

        threads = [threading.Thread(target=work) for _ in range(at_once)]
        for t in threads:
            t.start()
        try:
            for t in threads:
                t.join()
        except KeyboardInterrupt:
            self.is_stopped = True
            for p in self.processes.copy():
                p.send_signal(signal.SIGINT)  # pytest removes its lab when it receives SIGINT
            for t in threads:
                t.join()
            raise


def failure(cell, why, log):
    return {
        "cell": cell["cell"],
        "test": cell["test"],
        "outcome": "failed",
        "why": why,
        "times": [],
        "wall_s": LIMIT_S,
        "cpu_s": 0,
        "commit": commit_of(ROOT),
        "at": int(time.time()),
        "logs": str(log),
    }


def in_batches(cells, known, repeat, batch_s):
    """Return batches of cells.

    All batches of one repetition precede the batches of the next repetition. Within a repetition,
    the longest cells come first.
    """
    batches = []
    missing = {c["test"]: max(0, repeat - known[c["cell"]].n_done()) for c in cells}
    for i in range(max(missing.values(), default=0)):
        batch, seconds = [], 0
        for c in sorted(cells, key=lambda c: -known[c["cell"]].seconds()):
            if missing[c["test"]] > i:
                batch.append(c)
                seconds += known[c["cell"]].seconds()
            if seconds >= batch_s:
                batches.append(batch)
                batch, seconds = [], 0
        batches += [batch] if batch else []
    return batches


def letters(cells):
    """Return {commit: letter for the table} and {commit: time of the first run of a cell}.

    The letters are in the order of these times.
    """
    first = {}
    for p in cells.values():
        for r in p.records:
            first[r["commit"]] = min(first.get(r["commit"], r["at"]), r["at"])
    names = sorted(first, key=first.get)
    return {c: chr(ord("A") + i) if i < 26 else f"A{i}" for i, c in enumerate(names)}, first


def row_score(passes, letter):
    score = f"{passes.n('passed')}/{passes.n_done() - passes.n('skipped')}"
    score += f", {passes.n('skipped')} skipped" if passes.n("skipped") else ""
    of = collections.Counter(
        letter[r["commit"]] for r in passes.records if r["outcome"] != "disturbed"
    )
    return score, " ".join(f"{c}{n}" for c, n in sorted(of.items()))


def table(cells):
    uname = platform.uname()
    letter, first = letters(cells)
    total = {
        o: sum(p.n(o) for p in cells.values()) for o in ("passed", "failed", "skipped", "disturbed")
    }
    n_faults = sum(
        r.get("faults", 0) for p in cells.values() for r in p.records if r["outcome"] != "disturbed"
    )
    lines = [
        "# The fault matrix, measured",
        "",
        "This page lists the cells of the fault matrix with their measured times, written by "
        "`make matrix`.",
        f"{len(cells)} cells, {total['passed']} passes, {total['failed']} failures, "
        f"{total['skipped']} skipped; {uname.system} "
        f"{uname.release}, {os.cpu_count()} processors.",
        "",
        "Each row has the worst and the median time of all passes of a cell, in seconds, and its "
        "bound from",
        "[detection.md](../reference/detection.md). A letter and a number name a commit and the "
        "passes on it.",
        f"The table omits {total['disturbed']} runs that the machine delayed; in the other runs, "
        f"{n_faults} faults acted.",
        "",
        *(
            f"- {letter[c]}: {c}, from {time.strftime('%Y-%m-%d %H:%M', time.gmtime(first[c]))} UTC"
            for c in letter
        ),
        "",
        "| cell | passed | at | what | worst | median | bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, p in sorted(cells.items()):
        score, at = row_score(p, letter)
        for (what, bound), times in p.times().items() or [(("", ""), [])]:
            times.sort()
            worst = f"{times[-1]:.3f} | {times[len(times) // 2]:.3f}" if times else " | "
            mark = " **over**" if times and times[-1] > bound else ""
            lines.append(f"| {name} | {score} | {at} | {what} | {worst}{mark} | {bound} |")
    for title, rows in (
        (
            "Failures",
            [
                (n, r["commit"], r["why"].splitlines()[0] if r["why"] else "")
                for n, p in sorted(cells.items())
                for r in p.records
                if r["outcome"] == "failed"
            ],
        ),
        (
            "Failures that were repaired",
            [(n, m["of"], m["mended"]) for n, p in sorted(cells.items()) for m in p.mended],
        ),
        (
            "Skipped",
            sorted(
                {
                    (n, "", r["why"])
                    for n, p in cells.items()
                    for r in p.records
                    if r["outcome"] == "skipped"
                }
            ),
        ),
    ):
        if rows:
            lines += ["", f"## {title}", "", "| cell | commit | what it was |", "|---|---|---|"]
            lines += [f"| {n} | {c} | {why.replace('|', '/')} |" for n, c, why in rows]
    return "\n".join(lines) + "\n", total["failed"]


def say_mended(args):
    if not read(args.records)[args.mended].n("failed"):
        sys.exit(f"{args.records} has no failure of cell {args.mended}")
    with open(args.records, "a", encoding="ascii") as f:
        f.write(
            json.dumps(
                {
                    "cell": args.mended,
                    "mended": args.why,
                    "commit": commit_of(ROOT),
                    "at": int(time.time()),
                }
            )
            + "\n"
        )


def run(args):
    """Run the cells. Return whether some of the requested passes have not been run."""
    args.records.parent.mkdir(parents=True, exist_ok=True)
    r = Run(args, args.records.parent)
    cells = r.cells()
    known = read(args.records)
    beside = in_batches([c for c in cells if not c["is_alone"]], known, args.repeat, BATCH_S)
    alone = in_batches([c for c in cells if c["is_alone"]], known, args.repeat, BATCH_S)
    r.n_todo = sum(map(len, beside + alone))
    print(f"{len(cells)} cells, {r.n_todo} passes to do, {args.at_once} at once", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        r.all(beside, args.at_once)
        r.all(alone, 1)
    return r.n_done < r.n_todo


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument(
        "--minutes", type=float, help="start no cell after this time; to continue, run again"
    )
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--only", help="run only cells whose test has this word in its name")
    parser.add_argument(
        "--records", type=Path, help="default: beside the build, matrix/records.jsonl"
    )
    parser.add_argument("--table", type=Path)
    parser.add_argument(
        "--mended",
        metavar="CELL",
        help="record that --why explains the failures of this cell, and let it run again",
    )
    parser.add_argument("--why")
    args = parser.parse_args()
    args.build = args.build.resolve()
    args.records = (args.records or args.build.parent / "matrix" / "records.jsonl").resolve()
    if args.mended and not args.why:
        parser.error("--mended needs --why")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_missing = False
    if args.mended:
        say_mended(args)
    else:
        is_missing = run(args)
    text, failed = table(read(args.records))
    print(next(line for line in text.splitlines() if " passes, " in line))
    if args.table:
        args.table.parent.mkdir(parents=True, exist_ok=True)
        args.table.write_text(text)
    elif not args.mended:
        print(text)
    return 1 if failed else 3 if is_missing else 0


if __name__ == "__main__":
    sys.exit(main())
