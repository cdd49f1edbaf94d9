#!/usr/bin/env python3
"""Run a job of two workers under each version of Python for which the wheel is made.

    tests/frontends/pythons.py WHEEL

The versions are the classifiers in the wheel's metadata. The interpreter of version 3.N is the
program python3.N in PATH. Each gets an environment with only the wheel and its extra numpy, which
comes from the package index. One line is printed for each version: the sum's check has passed, the
job has failed, or PATH has no such interpreter. The exit status is 1 if a job fails, or if PATH has
no interpreter at all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIMIT_S = 300
WORKER = """
import sys
import bps
with bps.open() as job:
    t = job.declare("layer", "f32", 1000)
    t.input[:] = job.rank + 1
    t.push_pull(bps.SUM)
    assert (t.wait() == 3).all()
    print("python", sys.version.split()[0], "rank", job.rank, "of", job.size)
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment without variables of bps and Python."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BPS_", "PYTHON", "LD_"))}
    return subprocess.run(
        [str(word) for word in command],
        env=env | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def versions(wheel: Path) -> list[str]:
    """Return the versions of Python that the wheel's metadata names, such as "3.10"."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return re.findall(r"(?m)^Classifier: Programming Language :: Python :: (3\.\d+)$", text)


def works(command: str) -> bool:
    """Return whether PATH has this interpreter, and it starts."""
    try:
        return run(command, "-c", "").returncode == 0
    except FileNotFoundError:
        return False


def try_job(command: str, wheel: Path, folder: Path) -> str | None:
    """Install the wheel and run the job. Return None, or the output of what failed."""
    bin_ = folder / "bin"
    for step in (
        (command, "-m", "venv", folder),
        (bin_ / "pip", "install", "-q", f"{wheel}[numpy]"),
        (bin_ / "bpsrun", "-n", 2, "--", bin_ / "python", "-c", WORKER),
    ):
        done = run(*step)
        if done.returncode:
            return done.stdout[-2000:]
    if len(re.findall(r"python 3\S+ rank [01] of 2", done.stdout)) != 2:
        return done.stdout[-2000:]
    print(re.findall(r"python (3\S+)", done.stdout)[0], "passed", flush=True)
    return None


def main() -> int:
    """Try each version."""
    wheel = Path(sys.argv[1]).resolve()
    tried, failed = 0, 0
    for version in versions(wheel):
        command = f"python{version}"
        if not works(command):
            print(version, "not tried: PATH has no", command)
            continue
        tried += 1
        with tempfile.TemporaryDirectory() as folder:
            trouble = try_job(command, wheel, Path(folder) / "v")
        if trouble is not None:
            failed += 1
            print(version, "failed:\n" + trouble)
    if not tried:
        print("PATH has no interpreter of these versions", file=sys.stderr)
    return 1 if failed or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
