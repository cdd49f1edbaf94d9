#!/usr/bin/env python3
"""Run the slow targets of the Makefile in pieces, and record the last run of each target.

    tests/everything.py [--minutes 60] [--only TARGET[,TARGET...]] [--again]

All targets that check something and that .ci/run leaves out are here. Each target has a record of
its last run, docs/results/everything/TARGET.json, and a state that follows from the record:

    green  the target passed, and no file that it depends on has changed since
    due    the target passed, and such a file has changed since, or this clone lacks the commit
    red    the target failed, or has not run with the command that it has now

Red targets run first, then those that are due, the oldest record first. Green targets run only with
--again. A target starts only if the time of its last run fits into what is left of --minutes. A
target that has not run needs its time limit. With --only, there is no limit unless --minutes is
given. With --minutes 0, nothing runs. At the end, the script prints the state of each target, and
writes all records to the table docs/results/everything.md. The exit status is 0 if no target is
red, and no target that is due has a record of more than 100 commits ago. With --only, the other
targets do not count.

Each target runs in a process group of its own with a time limit. Its output goes to
build/everything/TARGET.log. Its figures are the lines of its output that match its pattern. A
target whose output has no figure has failed, since it printed no result. If a target passes whose
last run failed on the same code, its record also has the figures of that run. When this script is
interrupted, the target that is running keeps the record of its last run.

The result of a run belongs to a commit only if the files that the target depends on have no other
changes. Otherwise the script prints the result, but does not record it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from repository import git

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "everything"
RECORDS = ROOT / "docs" / "results" / "everything"
PAGE = ROOT / "docs" / "results" / "everything.md"
MINUTES = 60  # default of --minutes
OLDEST = 100  # number of commits after which a target that is due makes the exit status 1
COUNTS = r"\d+ passed, \d+ failed.*"

# Paths on which targets depend, as patterns of git.
CODE = (":!docs/results", ":!tests/everything.py")  # everything else
BUILD = ("Makefile", "tests/*.mk", "tests/install-deps.sh", "common")
DAEMONS = (*BUILD, "bps-agent", "bps-scheduler", "bps-server")
PROGRAMS = (*DAEMONS, "libbpsclient")
SIM = (*DAEMONS, "tests/invariants", "tests/sim")
# libcores.a has the cores, and the helpers of the unit tests.
CORES = (*DAEMONS, "tests/invariants", "tests/unit", ":!tests/unit/*test_*.c")
SCALE = (*CORES, "tests/scale", "tests/traces")
CLUSTER = (*PROGRAMS, "tests/cluster")
FAULTS = (*CLUSTER, "tests/faults")
BENCH = (*SCALE, "libbpsclient", "tests/bench", "tests/netlab.sh")
# The build of the packages runs the tests that need no cluster.
CHECKED = ("tests/run.py", *(f"tests/{x}" for x in ("fuzz", "invariants", "scale", "sim", "unit")))
PACKAGES = (*PROGRAMS, *CHECKED, "systemd", "docs/man", "LICENSE", "README.md")


@dataclass(frozen=True)
class Target:
    """A target of the Makefile, its variables, its time limit, and the pattern of its figures.

    Args:
        name: the target's name.
        limit_min: minutes after which the target is stopped and counts as failed.
        figures: a regular expression; each match in the output is a figure.
        args: variables for ``make``.
        most: maximum count of figures; if the output has more, the record has only the last ones.
        paths: the target depends on the files that match these patterns of git.
    """

    name: str
    limit_min: float
    figures: str
    args: tuple[str, ...] = ()
    most: int = field(default=1)
    paths: tuple[str, ...] = CODE

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(("make", self.name, *self.args))


TARGETS = (
    Target(
        "test-frontends",
        60,
        COUNTS,
        paths=(*CLUSTER, "tests/frontends", "tests/skips.py", "docs/tutorial", ".ruff.toml"),
    ),
    Target("lint", 25, "lint: clean", ("DEEP=1",)),
    Target("check-providers", 45, r"libfabric \d.*|\d+ passed, \d+ failed.*", most=5),
    Target("check-asan", 75, COUNTS),
    Target("check-tsan", 60, COUNTS),
    Target("debian13", 40, COUNTS),
    Target(
        "mutation",
        45,
        r"\d+ mutants, .*",
        paths=(*SIM, "tests/mutation", "tests/repository.py", "tests/unit"),
    ),
    Target(
        "upgrade",
        20,
        r"\d+ passed.*",
        paths=(*CLUSTER, "tests/upgrade", "tests/repository.py", "tests/compatibility-mark"),
    ),
    Target(
        "check-manifests",
        10,
        r"\d+ resources in .*",
        paths=("Makefile", "docs/guides/kubernetes", "tests/manifests", "tests/tests.mk"),
    ),
    Target(
        "sim",
        10,
        r"\d+ seeds in .*",
        ("BUILD=release", "SIM_SEEDS=1..200000"),
        paths=SIM,
    ),
    Target(
        "sim-mutants",
        10,
        r"\d+ mutants, .*",
        ("BUILD=release",),
        paths=SIM,
    ),
    Target(
        "sim-scale",
        15,
        r"^\| \d.*",
        ("BUILD=release",),
        paths=SCALE,
    ),
    Target(
        "sim-scale-mutants",
        10,
        r"\d+ mutants, .*",
        ("BUILD=release",),
        paths=SCALE,
    ),
    Target(
        "sched-load",
        5,
        r"largest memory .*|longest time between .*",
        ("BUILD=release",),
        most=2,
        paths=(*BUILD, "bps-scheduler", "tests/load"),
    ),
    Target(
        "matrix",
        30,
        r"\d+ cells, \d+ passes, \d+ failures.*?skipped",
        (
            "REPEAT=1",
            "MATRIX_MINUTES=25",
            "MATRIX_TABLE=build/everything/matrix.md",
            "MATRIX_RECORDS=build/everything/matrix.jsonl",
        ),
        paths=FAULTS,
    ),
    Target(
        "chaos",
        15,
        r"\"(?:rounds|wrong_sums|hung_calls|longest_stall_s)\": [\d.]+",
        ("SECONDS=600",),
        most=4,
        paths=FAULTS,
    ),
    Target("crashes", 10, r"\d+ crashes in \d+ jobs, \d+ problems", ("CRASHES=200",), paths=FAULTS),
    Target("noticed", 10, r"\{.kills.*", ("KILLS=60",), paths=FAULTS),
    Target(
        "fuzz",
        15,
        r"ok +fuzz_\w+: \d+ executions",
        ("FUZZ_S=20",),
        most=20,
        paths=(*CORES, "libbpsclient", "tests/fuzz"),
    ),
    Target("latency", 10, r"\d.* times faster than .*", paths=BENCH),
    Target(
        "bench-bars",
        45,
        r"^[a-h]: \d+ of \d+ hold.*|^missed: .*",
        ("BARS=--strict --only abf --seconds 1 --repeat 3 --out build/everything",),
        most=20,
        paths=BENCH,
    ),
    Target(
        "accuracy",
        30,
        r"^\| .*\*\*no\*\*.*",
        ("BARS=--strict --out build/everything/accuracy.md",),
        paths=("common/data", "libbpsclient", "tests/bench/accuracy.py"),
    ),
    Target(
        "recipes",
        25,
        r"^\| .*\*\*no\*\*.*",
        ("BARS=--strict --out build/everything/recipes.md",),
        paths=("libbpsclient", "tests/bench/recipes.py", "tests/netlab.sh"),
    ),
    Target(
        "asynchronous",
        10,
        r"^\| .*\*\*no\*\*.*",
        ("BARS=--strict --out build/everything/asynchronous.md",),
        paths=("bps-agent", "bps-server", "libbpsclient", "tests/bench/asynchronous.py"),
    ),
    Target(
        "late",
        10,
        r"^\| .*\*\*no\*\*.*",
        ("BARS=--strict --out build/everything/late.md",),
        paths=("bps-agent", "bps-server", "libbpsclient", "tests/bench/late.py"),
    ),
    Target("huge", 10, r"\d+ passed.*", paths=CLUSTER),
    Target("deb-again", 20, r"the packages are the same", paths=PACKAGES),
    Target(
        "image-test",
        20,
        r"\d+ passed.*|^localhost/\S+ sha256:\w+",
        most=5,
        paths=(*PACKAGES, "docs/guides/kubernetes", "tests/image"),
    ),
    Target("wheel-again", 10, r"the wheels are the same", paths=PROGRAMS),
    Target("nspawn", 20, r"\d+ passed.*", paths=(*PACKAGES, "tests/nspawn")),
    Target("qemu", 30, COUNTS, paths=(*CLUSTER, "tests/qemu", "tests/unit")),
    Target("demo", 5, r"^test accuracy .*", paths=(*PROGRAMS, "tests/demo.sh")),
)


@dataclass(frozen=True)
class Record:
    """The last run of a target.

    Args:
        command: the command with the target's variables.
        commit: the commit on which the target ran.
        date: when the run ended.
        machine: the kernel, and the number of processors.
        passed: whether the target passed.
        seconds: the duration of the run.
        figures: the figures, or the reason why the target failed and the figures.
    """

    command: str
    commit: str
    date: str
    machine: str
    passed: bool
    seconds: float
    figures: list[str]

    @property
    def result(self) -> str:
        """Result, duration and figures as one line."""
        passed = "passed" if self.passed else "FAILED"
        return f"{passed} in {self.seconds / 60:.1f} min: {'; '.join(self.figures)}"


def read_record(target: Target) -> Record | None:
    """Return the record of a target if the target ran with the command that it has now."""
    try:
        record = Record(**json.loads((RECORDS / f"{target.name}.json").read_text()))
    except FileNotFoundError:
        return None
    return record if record.command == target.command else None


def is_as_at(commit: str, target: Target) -> bool:
    """Return whether all files that a target depends on are as they were at a commit.

    If this clone lacks the commit, or has new files that are not committed, the result is false.
    """
    if git(ROOT, "diff", "--quiet", commit, "--", *target.paths).returncode:
        return False
    return not git(ROOT, "ls-files", "--others", "--exclude-standard", "--", *target.paths).stdout


def state(target: Target, record: Record | None) -> tuple[str, float]:
    """Return the state of a target, and the number of commits since its record.

    If this clone lacks the record's commit, the number is infinite.
    """
    if not record:
        return "red", math.inf
    count = git(ROOT, "rev-list", "--count", f"{record.commit}..HEAD")
    age = math.inf if count.returncode else int(count.stdout)
    if not record.passed:
        return "red", age
    return "green" if is_as_at(record.commit, target) else "due", age


def needed_s(target: Target, record: Record | None) -> float:
    """Return the duration of a target's last run in seconds, or its limit if it has not run."""
    return record.seconds if record else 60 * target.limit_min


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


def execute(target: Target) -> tuple[bool, float, list[str]]:
    """Run a target. Return whether it passed, its duration in seconds, and its figures."""
    for left in LOGS.glob(f"{target.name}.*"):
        left.unlink()  # files of an earlier run would count as results of this run
    log = LOGS / f"{target.name}.log"
    # The variables of a make that started this script are not for the target.
    own = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MINUTES", "ONLY")
    start = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            ("make", target.name, *target.args),
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name not in own},
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


def run(target: Target, before: Record | None) -> Record:
    """Run a target, and return the record of the run.

    Args:
        before: the record of the last run.
    """
    commit = git(ROOT, "rev-parse", "HEAD").stdout.strip()
    passed, seconds, figures = execute(target)
    if passed and before and not before.passed and is_as_at(before.commit, target):
        figures = [*figures, f"a run before failed: {before.figures[0]}", *before.figures[1:]]
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} processors"
    return Record(target.command, commit, date, machine, passed, round(seconds, 1), figures)


def table() -> str:
    """Return the page: the records of all targets."""
    records = {target: read_record(target) for target in TARGETS}
    done = [record for record in records.values() if record]
    passed = sum(record.passed for record in done)
    minutes = sum(record.seconds for record in done) / 60
    lines = [
        "# Slow targets of the Makefile",
        "",
        "Written by `make everything`. Each row is the last run of a target; its record, with date",
        "and machine, is `everything/TARGET.json`. `make everything MINUTES=0` prints which of the",
        "results are of today's code. `.ci/run` makes the other targets for each commit.",
        f"In their last runs, {passed} of {len(TARGETS)} targets passed. All runs together took",
        f"{minutes:.0f} min.",
        "",
        "| target | result | commit | min | figures |",
        "|---|---|---|---|---|",
    ]
    for target, record in records.items():
        if not record:
            lines.append(f"| `{target.command}` | not run | | | |")
            continue
        text = "; ".join(record.figures).replace("|", "/")
        result = "passed" if record.passed else "**failed**"
        lines.append(
            f"| `{target.command}` | {result} | {record.commit[:8]} | {record.seconds / 60:.1f} "
            f"| {text} |"
        )
    return "\n".join(lines) + "\n"


def run_all(targets: list[Target], records: dict[Target, Record | None], minutes: float) -> None:
    """Run targets in turn, as far as they fit into the time, and update their records.

    Args:
        targets: the targets, the first one to run first.
        records: the records of their last runs; the function replaces those of the targets that
            ran.
        minutes: the time.
    """
    end = time.monotonic() + 60 * minutes
    for target in targets:
        before = records[target]
        if needed_s(target, before) > end - time.monotonic():
            continue
        print(f"{target.name} ...", end=" ", flush=True)
        record = records[target] = run(target, before)
        if is_as_at(record.commit, target):
            text = json.dumps(asdict(record), indent=1) + "\n"
            (RECORDS / f"{target.name}.json").write_text(text)
            PAGE.write_text(table())
            print(record.result, flush=True)
        else:
            print(f"{record.result} (not recorded: files have changes)", flush=True)


def verdict(targets: list[Target], records: dict[Target, Record | None]) -> int:
    """Print the state of each target, and return the exit status."""
    wrong = 0
    for target in targets:
        record = records[target]
        colour, age = state(target, record)
        wrong += colour == "red" or colour == "due" and age > OLDEST
        last = f"{'passed' if record.passed else 'FAILED'}" if record else "has not run"
        if record:
            last += " at an unknown commit" if math.isinf(age) else f" {age} commits ago"
        needed = "" if colour == "green" else f", needs {needed_s(target, record) / 60:.1f} min"
        print(f"{colour:<5} {target.name:<18} {last}{needed}")
    if wrong:
        print(f"{wrong} of {len(targets)} targets are red, or due for more than {OLDEST} commits")
    return 1 if wrong else 0


def main() -> int:
    """Run the chosen targets that are red or due."""
    names = [t.name for t in TARGETS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, help=f"start targets for so long ({MINUTES})")
    parser.add_argument("--only", metavar="TARGETS", help=f"some of: {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="run green targets, too")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else names
    unknown = [n for n in chosen if n not in names]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}: use some of {', '.join(names)}")
    minutes = args.minutes
    if minutes is None:
        minutes = math.inf if args.only else MINUTES
    for folder in (LOGS, RECORDS):
        folder.mkdir(parents=True, exist_ok=True)
    targets = [t for t in TARGETS if t.name in chosen]
    records = {target: read_record(target) for target in targets}
    states = {target: state(target, records[target]) for target in targets}
    waiting = [t for t in targets if args.again or states[t][0] != "green"]
    order = ("red", "due", "green")
    waiting.sort(key=lambda t: (order.index(states[t][0]), -states[t][1]))
    run_all(waiting, records, minutes)
    PAGE.write_text(table())
    return verdict(targets, records)


if __name__ == "__main__":
    sys.exit(main())
