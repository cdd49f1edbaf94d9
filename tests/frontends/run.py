#!/usr/bin/env python3
"""Run the front-ends' tests on clusters of their own and close with their counts.

    tests/frontends/run.py BUILD-FOLDER

For each list of requirements, all workers of a job run the same tests in the same order: on one agent with two workers,
then with three. A list that cannot be installed is skipped, with the reason.
"""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT_S = 600
# Name of the list: its tests, and the numbers of workers.
FRONTENDS = {
    "torch": (("torch", "c10d", "compat", "elastic"), (2, 3)),
    "mxnet": (("arrays", "mxnet"), (2, 3)),
}


def run_tests(build: Path, python: str, name: str, n: int) -> tuple[int, int, int]:
    """Returns how many tests passed, failed and were skipped at rank 0; a failure anywhere counts."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("BPS_", "BYTEPS_", "DMLC_", "PYTEST_"))
    }
    env |= {
        "BPS_LIBRARY": str(build / "libbpsclient.so.0"),
        "PYTHONPATH": str(ROOT / "libbpsclient" / "python"),
        "BPS_TIMEOUT": "30s",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    tests = [
        python,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        HERE / f"test_{name}.py",
    ]
    command = [build / "bpsrun", "-n", n, "--", *tests]
    done = subprocess.run(
        list(map(str, command)),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    counts = {
        word: int(number)
        for number, word in re.findall(
            r"^\[0\] .*?(\d+) (passed|failed|skipped)", done.stdout, re.M
        )
    }
    for number, word in re.findall(
        r"(\d+) (passed|failed|skipped)",
        "\n".join(re.findall(r"^\[0\] .* in [\d.]+s.*$", done.stdout, re.M)),
    ):
        counts[word] = int(number)
    if done.returncode:
        print(done.stdout[-6000:])
        counts["failed"] = max(1, counts.get("failed", 0))
    return counts.get("passed", 0), counts.get("failed", 0), counts.get("skipped", 0)


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    total = [0, 0, 0]
    for name, (parts, sizes) in FRONTENDS.items():
        made = subprocess.run(
            [
                sys.executable,
                HERE / "environment.py",
                HERE / f"{name}.txt",
                ROOT / "build" / "frontends",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if made.returncode:
            print(
                f"frontends/{name}: skipped, its packages cannot be installed: "
                f"{made.stderr.strip()}"
            )
            total[2] += 1
            continue
        python = made.stdout.strip()
        if "ruff==" in (HERE / f"{name}.txt").read_text():
            style = subprocess.run(
                [python, "-m", "ruff", "check", ROOT / "libbpsclient" / "python"]
            )
            form = subprocess.run([python, "-m", "ruff", "format", "--check", ROOT])
            total[1] += bool(style.returncode) + bool(form.returncode)
        for part, n in itertools.product(parts, sizes):
            counts = run_tests(build, python, part, n)
            print(
                f"frontends/{part}, {n} workers: {counts[0]} passed, {counts[1]} failed, "
                f"{counts[2]} skipped",
                flush=True,
            )
            total = [a + b for a, b in zip(total, counts)]
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
