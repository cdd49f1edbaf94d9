#!/usr/bin/env python3
"""Run the slow targets of the Makefile in turn and write one table of their results.

    tests/everything.py [--only TARGET[,TARGET...]] [--again] [--out docs/results/everything.md]

.ci/run makes `test`, `lint` and `wheel-test` for each commit, and tests the front-ends for PyTorch
and JAX. All other targets that check something are here. At the sizes chosen here, they take less
than two hours in all on two processors.

Each target runs in a process group of its own with a time limit. Its output goes to
build/everything/TARGET.log. The table has the commit, and for each target its result, its time and
its figures. The figures are the lines of its output that match the target's pattern. A target whose
output has no figure has failed, since it printed no result.

When a run is interrupted, the next run continues at the target where it stopped. A target that
passed at the same size on the same code is not repeated, unless --again is given. If the last run
of a target on the same code failed, its row also has the figures of that run. Changes of docs/ and
of this script do not count as changes of the code. The exit status is 1 when a chosen target did
not pass.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "everything"
RESULTS = "results.json"  # file in LOGS with the code's hash and each command's Result
NOT_CODE = ("docs", "tests/everything.py")  # paths whose changes do not make results invalid
Result = tuple[bool, float, list[str]]  # whether the target passed; its duration in s; its figures
COUNTS = r"\d+ passed, \d+ failed.*"


@dataclass(frozen=True)
class Target:
    """A target of the Makefile, its variables, its time limit, and the pattern of its figures.

    Args:
        name: the target's name.
        limit_min: minutes after which the target is stopped and counts as failed.
        figures: a regular expression; each match in the output is a figure.
        args: variables for ``make``.
        most: maximum count of figures; if the output has more, the table has only the last ones.
    """

    name: str
    limit_min: int
    figures: str
    args: tuple[str, ...] = ()
    most: int = field(default=1)

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(("make", self.name, *self.args))


TARGETS = (
    Target("test-frontends", 25, COUNTS, ("LISTS=torch-2.1 tensorflow mxnet",)),
    Target("check-providers", 45, r"libfabric \d.*|\d+ passed, \d+ failed.*", most=5),
    Target("check-asan", 75, COUNTS),
    Target("check-tsan", 60, COUNTS),
    Target("sim", 10, r"\d+ seeds in .*", ("BUILD=release", "SIM_SEEDS=1..200000")),
    Target("sim-mutants", 10, r"\d+ mutants, .*", ("BUILD=release",)),
    Target("sim-scale", 15, r"^\| \d.*", ("BUILD=release",)),
    Target("sim-scale-mutants", 10, r"\d+ mutants, .*", ("BUILD=release",)),
    Target(
        "sched-load", 5, r"largest memory .*|longest time between .*", ("BUILD=release",), most=2
    ),
    Target(
        "matrix",
        30,
        r"\d+ cells, \d+ passes, \d+ failures.*?skipped",
        (
            "REPEAT=1",
            "MINUTES=25",
            "MATRIX_TABLE=build/everything/matrix.md",
            "MATRIX_RECORDS=build/everything/matrix.jsonl",
        ),
    ),
    Target(
        "chaos",
        15,
        r"\"(?:rounds|wrong_sums|hung_calls|longest_stall_s)\": [\d.]+",
        ("SECONDS=600",),
        most=4,
    ),
    Target("crashes", 10, r"\d+ crashes in \d+ jobs, \d+ problems", ("CRASHES=200",)),
    Target("noticed", 10, r"\{.kills.*", ("KILLS=60",)),
    Target("fuzz", 15, r"ok +fuzz_\w+: \d+ executions", ("FUZZ_S=20",), most=20),
    Target("latency", 10, r"\d.* times faster than .*"),
    Target(
        "bench-bars",
        30,
        r"\d+ of \d+ hold",
        ("BARS=--strict --only a --repeat 1 --out build/everything",),
    ),
    Target("huge", 10, r"\d+ passed.*"),
    Target("deb-again", 20, r"the packages are the same"),
    Target("nspawn", 20, r"\d+ passed.*"),
    Target("qemu", 30, COUNTS),
    Target("demo", 5, r"^test accuracy .*"),
)


def git(*words: str) -> str:
    """Return the output of a git command in this repository."""
    return subprocess.check_output(("git", "-C", str(ROOT), *words), text=True).strip()


def revision() -> tuple[str, str]:
    """Return the commit and a hash of its code. The hash is empty if tracked files have changes."""
    commit = git("rev-parse", "--short", "HEAD")
    code = git("ls-files", "-s", "--", ".", *(f":!{path}" for path in NOT_CODE))
    if git("status", "--porcelain", "-uno"):
        return f"{commit} with changes", ""
    return commit, hashlib.sha256(code.encode()).hexdigest()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the group of a process, first with SIGTERM, then with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


def heed_interrupts() -> None:
    """Let SIGINT end the programs that this script starts, because tests send SIGINT.

    A shell that starts this script with "&" may make the script ignore SIGINT, and child processes
    inherit this setting.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(target: Target) -> Result:
    """Run one target and return its Result."""
    for left in LOGS.glob(f"{target.name}.*"):
        left.unlink()  # files of an earlier run would count as results of this run
    log = LOGS / f"{target.name}.log"
    start = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            ("make", target.name, *target.args),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        try:
            status = process.wait(timeout=60 * target.limit_min)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                stop(process)
    seconds = time.monotonic() - start
    text = log.read_text("utf-8", "replace")
    found = [m.group(0).strip() for m in re.finditer(target.figures, text, re.MULTILINE)]
    found = found[-target.most :]
    if status is None:
        return False, seconds, [f"stopped after {target.limit_min} min"]
    if status:
        return False, seconds, [f"make ended with status {status}", *found]
    if not found:
        return False, seconds, ["printed no figures"]
    return True, seconds, found


def known(code: str) -> dict[str, Result]:
    """Return the results of earlier runs on the code whose hash is ``code``."""
    try:
        record = json.loads((LOGS / RESULTS).read_text())
    except FileNotFoundError:
        return {}
    return record["results"] if code and record.get("code") == code else {}


def table(commit: str, results: dict[str, Result]) -> str:
    """Return the page: a heading with commit and machine, then a row for each target.

    Args:
        commit: the commit on which the targets ran.
        results: the results by command.
    """
    rows = {target.command: results.get(target.command) for target in TARGETS}
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    done = [result for result in rows.values() if result]
    minutes = sum(seconds for _, seconds, _ in done) / 60
    lines = [
        "# Every slow target of the Makefile",
        "",
        f"Written by `make everything` at {commit}, {date}; {platform.system()} "
        f"{platform.release()}, {os.cpu_count()} processors.",
        "`.ci/run` makes `test`, `lint`, `wheel-test` and the other front-ends for each commit.",
        f"{sum(ok for ok, _, _ in done)} of {len(TARGETS)} targets passed in {minutes:.0f} min.",
        "",
        "| target | result | min | figures |",
        "|---|---|---|---|",
    ]
    for command, result in rows.items():
        if not result:
            lines.append(f"| `{command}` | not run | | |")
            continue
        ok, seconds, figures = result
        text = "; ".join(figures).replace("|", "/")
        passed = "passed" if ok else "**failed**"
        lines.append(f"| `{command}` | {passed} | {seconds / 60:.1f} | {text} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the chosen targets."""
    names = [t.name for t in TARGETS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="TARGETS", help=f"some of: {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="repeat targets that have passed")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/everything.md")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else names
    unknown = [n for n in chosen if n not in names]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}: use some of {', '.join(names)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    commit, code = revision()
    results = known(code)
    targets = [t for t in TARGETS if t.name in chosen]
    for target in targets:
        print(f"{target.name} ...", end=" ", flush=True)
        if not args.again and results.get(target.command, (False,))[0]:
            print("passed before", flush=True)
            continue
        before = results.get(target.command)
        ok, seconds, figures = run(target)
        if before and not before[0]:
            figures = [*figures, f"a run before failed: {before[2][0]}", *before[2][1:]]
        results[target.command] = ok, seconds, figures
        result = "passed" if ok else "FAILED"
        print(f"{result} in {seconds / 60:.1f} min: {'; '.join(figures)}", flush=True)
        (LOGS / RESULTS).write_text(json.dumps({"code": code, "results": results}))
        args.out.write_text(table(commit, results))
    return 0 if all(results[t.command][0] for t in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
