#!/usr/bin/env python3
"""Run the tests of one build and print the counts.

    tests/run.py build/debug [--only WORD] [--no-cluster | --cluster WORD]
    tests/run.py build/debug --provider WORD [--libfabric FOLDER] [--only WORD]

Unit tests are cmocka programs, whose results are counted from their output in TAP format. Fuzz
targets replay their corpus, and the simulator runs a quick set of histories. pytest runs the
cluster tests and the quick cells of the fault matrix. The cluster tests listed in PROVIDER_SHORT
run again with provider tcp, if libfabric is installed. Each program has a time limit. The last
line is "N passed, N failed, N skipped". The exit status is 1 when a test failed or no test ran.

--provider runs only the tests that send bytes over data connections. The connections use the given
provider. --libfabric names the folder of the library.
"""

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

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
SANITIZERS = {
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
    "TSAN_OPTIONS": f"suppressions={ROOT}/tests/tsan.supp:halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class Counts:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, passed=0, failed=0, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped


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


def test_files(name, words=("",)):
    """Return the test files in tests/NAME whose names contain one of these words."""
    return sorted(
        f"tests/{name}/{f.name}"
        for f in (ROOT / "tests" / name).glob("test_*.py")
        if any(word in f.name for word in words)
    )


def run_pytest(build, counts, only, name, beside=False, files=("",), title="", **more):
    """Run the tests in tests/NAME, which start real daemons.

    If `beside` is true, several tests run at a time, and the tests of tests/cluster that are marked
    `alone` do not run. If `beside` is false, the tests run one at a time, and of the tests of
    tests/cluster only those marked `alone` run. files: words; run only the files whose names
    contain one of the words. title: the name of this part, if not NAME.
    """
    title = title or name
    if only and only not in title:
        return
    env = environment(
        BPS_BUILD=str(build), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1", **more
    )
    if build.name == "asan":  # do not report leaks of Python itself, which runs under ASan
        asan = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
        env.update(LD_PRELOAD=asan.stdout.strip(), ASAN_OPTIONS="detect_leaks=0")
    # Tests mostly wait, so several run at a time. Tests that measure times run one after the other.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"]
    command += test_files(name, files)
    if beside and find_spec("xdist"):
        command += ["-n", str(os.cpu_count() or 1), "--dist", "loadgroup"]
    if name == "cluster":
        command += ["-m", "not alone" if beside else "alone"]
    start = time.monotonic()
    print(
        f"     {title}{', timed tests' if name == 'cluster' and not beside else ''}: begins",
        flush=True,
    )
    status, out = run(
        command,
        env,
        limit_s=3000 if build.name in ("asan", "tsan") else 1500,
        on_line=Progress(title),
    )
    last = out.strip().splitlines()[-1] if out.strip() else ""
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    failed = found.get("failed", 0) + found.get("error", 0)
    if status != 0 and not failed:
        failed = 1
    counts.add(found.get("passed", 0), failed, found.get("skipped", 0))
    report(title, time.monotonic() - start, not failed, last)
    print(out[-20000:] if failed else "\n".join(out.strip().splitlines()[-8:]), flush=True)


def finish(counts):
    """Print the counts. Return the exit status."""
    print(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped", flush=True)
    return 1 if counts.failed or not counts.passed else 0


def libfabric_version():
    """Return the version of the libfabric that a daemon would open, or None."""
    code = "import ctypes; print(ctypes.CDLL('libfabric.so.1').fi_version())"
    status, out = run([sys.executable, "-c", code])
    return f"{int(out) >> 16}.{int(out) & 0xFFFF}" if status == 0 else None


def run_provider(build, counts, only, provider, files, *, has_faults):
    """Run the cluster tests in the given files with the provider.

    has_faults: also run the quick cells of the fault matrix.
    """
    part = {"BPS_TEST_PROVIDER": provider}
    run_pytest(
        build,
        counts,
        only,
        "cluster",
        beside=True,
        files=[f"test_{word}" for word in files],
        title=f"cluster, provider {provider}",
        **part,
    )
    if has_faults:
        title = f"faults, provider {provider}"
        quick = {"BPS_CELLS": "quick", "BPS_BOUND_SLACK": "3"}
        run_pytest(build, counts, only, "faults", title=title, **quick, **part)


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
    run_provider(build, counts, args.only, args.provider, files, has_faults=not args.short)


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
    run_unit(build, counts, args.only)
    run_fuzz(build, counts, args.only)
    sim = build / "tests" / "sim"
    run_program(
        "sim, seeds that found something",
        [str(sim), "--file", "tests/sim/seeds.txt"],
        counts,
        args.only,
        8000,
    )
    run_program("sim, 3,000 histories", [str(sim), "--seeds", "1..3000"], counts, args.only, 8000)
    run_program(
        "sim-scale, small cases",
        [str(build / "tests" / "sim-scale"), "--check"],
        counts,
        args.only,
        4000,
    )
    if not args.no_cluster:
        run_pytest(build, counts, args.only, "cluster", beside=True, files=[args.cluster])
    if not args.no_cluster and not args.cluster:
        run_pytest(build, counts, args.only, "cluster")
        run_pytest(
            build,
            counts,
            args.only,
            "faults",
            BPS_CELLS="quick",
            BPS_BOUND_SLACK="6" if build.name == "asan" else "3",
        )
        if libfabric_version():
            run_provider(build, counts, args.only, "tcp", PROVIDER_SHORT, has_faults=False)
        if build.name != "asan":  # with asan, the counts would include Python's own forks
            crashes = [sys.executable, "tests/faults/crashes.py", str(build), "--crashes", "100"]
            run_program("100 deaths of trainers", crashes, counts, args.only, 4000)
    return finish(counts)


if __name__ == "__main__":
    sys.exit(main())
