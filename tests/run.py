#!/usr/bin/env python3
"""Run the tests of one build and print the counts.

    tests/run.py build/debug [--only WORD] [--no-cluster | --cluster WORD]
    tests/run.py build/debug --provider WORD [--libfabric FOLDER] [--only WORD]

Unit tests are cmocka programs, whose results are counted from their output in TAP format. Fuzz
targets replay their corpus, and the simulator runs a quick set of histories. pytest runs the
cluster tests and the quick cells of the fault matrix. The cluster tests listed in PROVIDER_SHORT
run again with provider tcp, if libfabric is installed. Each program has a time limit. The last
line is "N passed, N failed, N skipped". The exit status is 1 when a test failed or no test ran, or
when a test was skipped that tests/skips.py does not allow to skip.

Tests with real daemons mostly wait, so more of them run at a time than there are processors, beside
the tests that compute. Tests that measure times run last, one after the other. Before them, this
script waits until no other process holds a lock of the file that BPS_QUIET names (see .ci/run).

The script first measures the speed of the machine. At the end, it prints the files whose tests took
longest, and each part that exceeded its budget (BUDGETS_S).

--provider runs only the tests that send bytes over data connections. The connections use the given
provider. --libfabric names the folder of the library.
"""

import argparse
import collections
import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import skips

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300
# Parts of the names of test files in tests/cluster. PROVIDER_FILES: files that can run with another
# provider than the default. PROVIDER_SHORT: files that run again with provider tcp, if libfabric is
# installed.
PROVIDER_FILES = (
    *("exactness", "averages", "flow", "combined", "agent_restart", "elastic", "drain"),
    *("faults", "errors", "hangs", "steady", "attacks", "hostile"),
)
PROVIDER_SHORT = ("exactness", "flow")
# Seconds that a part may take with nothing beside this script, on two processors of which each adds
# ten million numbers in REFERENCE_S.
REFERENCE_S = 0.25
BUDGETS_S = {
    "unit tests, fuzz targets, simulators": 120,
    "cluster": 480,
    "cluster, timed tests": 130,
    "faults": 80,
    "cluster, provider tcp": 160,
    "100 deaths of trainers": 20,
}
# Parts of the names of the files whose tests take longest. Their tests begin first.
SLOW_FILES = ("device_more", "exactness", "device_restart", "test_device", "agent_restart", "error")
SANITIZERS = {
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
    "TSAN_OPTIONS": f"suppressions={ROOT}/tests/tsan.supp:halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class Counts:
    """The counts of tests, and the seconds of parts and test files. Any thread may add to them."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.part_s, self.file_s = {}, collections.Counter()
        self.lock = threading.Lock()

    def add(self, passed=0, failed=0, skipped=0):
        with self.lock:
            self.passed += passed
            self.failed += failed
            self.skipped += skipped

    def add_files(self, output):
        """Add the seconds of each file from the output of pytest --durations=0."""
        with self.lock:
            for seconds, name in re.findall(
                r"^([\d.]+)s (?:call|setup|teardown) +(\S+?)::", output, re.M
            ):
                self.file_s[name] += float(seconds)

    @contextmanager
    def part(self, name):
        """Measure the time of a part."""
        start = time.monotonic()
        yield
        self.part_s[name] = time.monotonic() - start


def environment(**more):
    """Return the environment with the sanitizers' options. The caller's values take precedence."""
    env = dict(os.environ, **more)
    for name, options in SANITIZERS.items():
        env[name] = ":".join(filter(None, (options, os.environ.get(name))))
    return env


def run(command, env=None, limit_s=LIMIT_S, on_line=None):
    """Run a command to its end or to the limit. Return (exit status, output).

    on_line is called with each line as soon as it arrives.
    """
    lines = []
    try:
        p = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env or environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError as e:
        return 127, f"{e}\n"

    def read():
        for raw in p.stdout:
            lines.append(raw.decode(errors="replace"))
            if on_line:
                on_line(lines[-1])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        status, end = p.wait(limit_s), ""
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        status, end = 124, f"\nno end within {limit_s} s\n"
    reader.join(10)  # do not wait longer: children may keep the pipe open
    return status, "".join(lines) + end


class Progress:
    """Prints a line of pytest's output whenever another fifth of the tests is complete."""

    def __init__(self, name):
        self.name, self.start, self.percent = name, time.monotonic(), 0

    def __call__(self, line):
        found = re.search(r"\[ *(\d+)%\]$", line.rstrip())
        if found and self.percent // 20 < int(found.group(1)) // 20 < 5:
            self.percent = int(found.group(1))
            print(
                f"     {self.name}: {self.percent} % after {time.monotonic() - self.start:.0f} s",
                flush=True,
            )


def report(name, seconds, ok, text):
    print(f"{'ok  ' if ok else 'FAIL'} {name} ({seconds:.1f} s) {text}", flush=True)


def check_skips(found, n_skipped, build):
    """Print the skipped tests, and return how many of them tests/skips.py does not allow."""
    text, wrong = skips.report(found, n_skipped, build.name)
    if text:
        print(text, flush=True)
    return wrong


def run_unit(build, counts, only):
    env = environment(CMOCKA_MESSAGE_OUTPUT="TAP")
    for program in sorted((build / "tests").glob("test_*")):
        if program.suffix or (only and only not in program.name):
            continue
        start = time.monotonic()
        status, out = run([str(program)], env)
        passed = len(re.findall(r"^ok \d+(?!.*# SKIP)", out, re.M))
        # cmocka reports a skipped test with "not ok"
        skipped = len(re.findall(r"^(?:not )?ok \d+.*# SKIP", out, re.M))
        failed = len(re.findall(r"^not ok \d+(?!.*# SKIP)", out, re.M))
        if status != 0 and not failed or not passed + skipped + failed:
            failed += 1  # outside of a test: a crash, a time-out or a report of a sanitizer
        failed += check_skips(skips.of_unit(program.name, out), skipped, build)
        counts.add(passed, failed, skipped)
        report(
            program.name, time.monotonic() - start, not failed, f"{passed} passed, {failed} failed"
        )
        if failed:
            print(out[-8000:], flush=True)


def run_program(name, command, counts, only, tail):
    if only and only not in name:
        return
    start = time.monotonic()
    status, out = run(command)
    counts.add(*((1, 0) if status == 0 else (0, 1)))
    report(
        name,
        time.monotonic() - start,
        status == 0,
        out.strip().splitlines()[-1] if status == 0 and out.strip() else "",
    )
    if status != 0:
        print(out[-tail:], flush=True)


def run_fuzz(build, counts, only):
    for program in sorted((build / "tests").glob("fuzz_*")):
        corpus = ROOT / "tests" / "fuzz" / "corpus" / program.name
        if not program.suffix:
            run_program(program.name, [str(program), str(corpus)], counts, only, 4000)


def run_simulators(build, counts, only):
    sim = str(build / "tests" / "sim")
    seeds = [sim, "--file", "tests/sim/seeds.txt"]
    run_program("sim, seeds that found something", seeds, counts, only, 8000)
    run_program("sim, 3,000 histories", [sim, "--seeds", "1..3000"], counts, only, 8000)
    check = [str(build / "tests" / "sim-scale"), "--check"]
    run_program("sim-scale, small cases", check, counts, only, 4000)


def processors():
    return os.cpu_count() or 1


def test_files(name, words=("",)):
    """Return the test files in tests/NAME whose names contain one of these words. Files of
    SLOW_FILES come first."""

    def order(path):
        return next((i for i, w in enumerate(SLOW_FILES) if w in path), len(SLOW_FILES)), path

    found = (f.name for f in (ROOT / "tests" / name).glob("test_*.py"))
    chosen = (f"tests/{name}/{f}" for f in found if any(word in f for word in words))
    return sorted(chosen, key=order)


def run_pytest(build, counts, only, name, at_once=0, files=("",), title="", **more):
    """Run the tests in tests/NAME, which start real daemons.

    at_once: how many tests run at a time. If 0, the tests run one at a time. Of the tests of
    tests/cluster, those marked `alone` run only if at_once is 0, and the others only if it is not.
    files: words; run only the files whose names contain one of the words. title: the name of this
    part, if not NAME.
    """
    title = title or name
    if only and only not in title:
        return
    if name == "cluster" and not at_once:
        title = f"{title}, timed tests"
    env = environment(
        BPS_BUILD=str(build), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1", **more
    )
    if build.name == "asan":  # do not report leaks of Python itself, which runs under ASan
        asan = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
        env.update(LD_PRELOAD=asan.stdout.strip(), ASAN_OPTIONS="detect_leaks=0")
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider"]
    command += ["--durations=0"]
    if at_once:
        command = ["nice", "-n", "5", *command]  # unit tests beside them measure some times
    command += test_files(name, files)
    if at_once and find_spec("xdist"):
        command += ["-n", str(at_once), "--dist", "loadgroup"]
    if name == "cluster":
        command += ["-m", "not alone" if at_once else "alone"]
    start = time.monotonic()
    print(f"     {title}: begins", flush=True)
    with counts.part(title):
        status, out = run(
            command,
            env,
            limit_s=3000 if build.name in ("asan", "tsan") else 1500,
            on_line=Progress(title),
        )
    counts.add_files(out)
    last = out.strip().splitlines()[-1] if out.strip() else ""
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    failed = found.get("failed", 0) + found.get("error", 0)
    if status != 0 and not failed:
        failed = 1
    failed += check_skips(skips.of_pytest(out), found.get("skipped", 0), build)
    counts.add(found.get("passed", 0), failed, found.get("skipped", 0))
    report(title, time.monotonic() - start, not failed, last)
    if failed:
        print(without_durations(out)[-20000:], flush=True)


def without_durations(output):
    """Return pytest's output without its table of durations."""
    return re.sub(r"^[\d.]+s (?:call|setup|teardown) .*\n", "", output, flags=re.M)


def machine_speed():
    """Return the seconds that this machine takes to add ten million numbers, in units of
    REFERENCE_S."""
    times = []
    for _ in range(3):
        start, total = time.monotonic(), 0
        for i in range(10**7):
            total += i
        times.append(time.monotonic() - start)
    return min(times) / REFERENCE_S


def report_times(counts, slowness):
    """Print the test files that took longest, and the parts that exceeded their budgets."""
    for name, seconds in counts.file_s.most_common(10):
        print(f"     {seconds:6.1f} s of tests in {name}")
    print(f"     this machine takes {slowness:.2f} times as long as the one of the budgets")
    for part, seconds in counts.part_s.items():
        budget_s = BUDGETS_S.get(part, float("inf")) * slowness
        if seconds > budget_s:
            print(f"     {part}: {seconds:.0f} s, which exceeds its budget of {budget_s:.0f} s")


def wait_until_quiet():
    """Wait until no other process holds a lock of the file that BPS_QUIET names."""
    if os.environ.get("BPS_QUIET"):
        print("     timed tests wait until nothing runs beside them", flush=True)
        with open(os.environ["BPS_QUIET"], "a", encoding="ascii") as f:
            fcntl.flock(f, fcntl.LOCK_EX)


def finish(counts):
    """Print the counts. Return the exit status."""
    print(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped", flush=True)
    return 1 if counts.failed or not counts.passed else 0


def libfabric_version():
    """Return the version of the libfabric that a daemon would open, or None."""
    code = "import ctypes; print(ctypes.CDLL('libfabric.so.1').fi_version())"
    status, out = run([sys.executable, "-c", code])
    return f"{int(out) >> 16}.{int(out) & 0xFFFF}" if status == 0 else None


def run_provider(build, counts, only, provider, files, at_once):
    """Run the cluster tests in the given files with the provider. at_once: as in run_pytest."""
    run_pytest(
        build,
        counts,
        only,
        "cluster",
        at_once=at_once,
        files=[f"test_{word}" for word in files],
        title=f"cluster, provider {provider}",
        BPS_TEST_PROVIDER=provider,
    )


def check_provider(build, counts, args):
    """Run all tests that send bytes over data connections, with the given provider."""
    if args.libfabric:
        os.environ["LD_LIBRARY_PATH"] = str(args.libfabric.resolve())
    print(f"     provider {args.provider}, libfabric {libfabric_version()}", flush=True)
    if args.provider != "sockets":
        os.environ["BPS_TEST_PROVIDER"] = args.provider
        for program in ("test_fabric", "test_net"):
            if not args.only or args.only in program:
                run_unit(build, counts, program)
    files = PROVIDER_SHORT if args.short else PROVIDER_FILES
    run_provider(build, counts, args.only, args.provider, files, at_once=processors())
    if not args.short:
        run_provider(build, counts, args.only, args.provider, files, at_once=0)
        title = f"faults, provider {args.provider}"
        quick = {"BPS_CELLS": "quick", "BPS_BOUND_SLACK": "3"}
        provider = {"BPS_TEST_PROVIDER": args.provider}
        run_pytest(build, counts, args.only, "faults", title=title, **quick, **provider)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--only", help="run only parts whose names contain this word")
    parser.add_argument(
        "--no-cluster", action="store_true", help="leave out the tests with real daemons"
    )
    parser.add_argument(
        "--cluster",
        metavar="WORD",
        default="",
        help="of the cluster tests, run only files whose names contain this word, and no faults",
    )
    parser.add_argument("--provider", help="run the tests of data connections with this provider")
    parser.add_argument(
        "--libfabric", type=Path, help="folder of the libfabric.so.1 to use with --provider"
    )
    parser.add_argument(
        "--short", action="store_true", help="with --provider: few cluster tests, and no faults"
    )
    args = parser.parse_args()
    if args.short and not args.provider:
        parser.error("--short needs --provider")
    if args.libfabric and not args.provider:
        parser.error("--libfabric needs --provider")
    if not test_files("cluster", [args.cluster]):
        parser.error(f"--cluster {args.cluster}: no file in tests/cluster has the word in its name")
    build = args.build.resolve()
    counts = Counts()
    if args.provider:
        check_provider(build, counts, args)
        return finish(counts)
    slowness = machine_speed()
    is_whole = not args.no_cluster and not args.cluster

    def compute():
        with counts.part("unit tests, fuzz targets, simulators"):
            run_unit(build, counts, args.only)
            run_fuzz(build, counts, args.only)
            run_simulators(build, counts, args.only)
        if is_whole:
            slack = {"BPS_CELLS": "quick", "BPS_BOUND_SLACK": "6"}
            run_pytest(build, counts, args.only, "faults", at_once=1, **slack)
        if is_whole and libfabric_version():
            run_provider(build, counts, args.only, "tcp", PROVIDER_SHORT, at_once=1)

    with ThreadPoolExecutor() as pool:
        beside = pool.submit(compute)
        if not args.no_cluster:
            n = processors() + (build.name not in ("asan", "tsan"))
            run_pytest(build, counts, args.only, "cluster", at_once=n, files=[args.cluster])
        beside.result()
    if is_whole:
        wait_until_quiet()
        run_pytest(build, counts, args.only, "cluster")
        if build.name != "asan":  # with asan, the counts would include Python's own forks
            crashes = [sys.executable, "tests/faults/crashes.py", str(build), "--crashes", "100"]
            with counts.part("100 deaths of trainers"):
                run_program("100 deaths of trainers", crashes, counts, args.only, 4000)
    report_times(counts, slowness)
    return finish(counts)


if __name__ == "__main__":
    sys.exit(main())
