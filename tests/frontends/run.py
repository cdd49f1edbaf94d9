#!/usr/bin/env python3
"""Run the front-ends' tests on separate clusters and print the counts.

    tests/frontends/run.py BUILD-FOLDER [--list NAME]... [--part NAME] [--cluster WORKERSxAGENTS]
        [--short] [--at-once N] [--install] [-k X]

For each list of requirements, all workers of a job run the same tests in the same order, on
clusters of one agent and of two agents. As many jobs run at a time as there are processors. With
--short, parts of SHORT run on fewer clusters. A list that cannot be installed is a failure, and so
is a skipped test that tests/skips.py does not allow. The options choose some of the runs. -k is
passed to pytest. --install only installs the lists.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(ROOT / "tests"))

import skips  # noqa: E402

LIMIT_S = 900
# Clusters, each written as WORKERSxAGENTS. With 3x2, two workers are on the first agent and one
# worker is on the second agent. The tests are divided into parts. Each part is one file,
# test_PART.py. For each list of requirements, FRONTENDS has the parts and their clusters.
CLUSTERS = ("2x1", "3x1", "2x2", "3x2")
ONE_AGENT = ("2x1", "3x1")
# A cluster with one worker, for parts whose tests start jobs of their own.
ALONE = ("1x1",)
FRONTENDS = {
    "torch": {
        "gpu_run": ALONE,  # the longest parts begin first
        "examples": ALONE,
        "torch": CLUSTERS,
        "collectives": ("2x2", "3x1"),
        "blocks": ("2x2", "3x1"),
        "c10d": ("2x1", "3x1", "4x2", "3x2"),
        "distributed": ("2x2", "3x1"),
        "equality": ("3x1", "4x2"),
        "recipes": ("2x2", "3x1"),
        "shards": ("2x2", "3x1", "3x2"),
        "asynchronous": ("2x1", "2x2", "3x2"),
        "profile": ("2x2",),
        "compat": ONE_AGENT,
        "horovod": ("2x1", "3x2"),
        "elastic": ONE_AGENT,
        "errors": ALONE,
        "forked": ALONE,
        "interactive": ALONE,
        "late": ALONE,
        "reconfigure": ALONE,
        "leaving": ALONE,
        "gpu": ("1x1", "2x1", "3x2"),
        "trainers": ("2x1",),
        "keras": ("2x1",),
        "asynchronous_keras": ("2x2",),
        "behaviours": ALONE,
    },
    # torchft's manager, which reconfigures groups.
    "torchft": {"reconfigure": ALONE},
    # The oldest supported PyTorch. Its class for back-ends differs from that of newer releases.
    "torch-2.1": {
        "torch": ("2x2",),
        "collectives": ("2x1",),
        "c10d": ("2x1", "3x2"),
        "horovod": ("2x1",),
        "distributed": ("2x1",),
        "recipes": ("2x1",),
        "shards": ("2x2",),
        "asynchronous": ("2x2",),
        "errors": ALONE,
        "forked": ALONE,
    },
    "tensorflow": {
        "tensorflow": ("3x2",),
        "keras": ("2x1",),
        "asynchronous_keras": ("2x2", "3x2"),
        "signatures": ALONE,
        "forked": ALONE,
        "interactive": ALONE,
        "lost": ALONE,
        "leaving": ALONE,
        "frameworks": ALONE,
    },
    "jax": {
        "arrays": ("3x1",),
        "jax": ("2x1", "3x2"),
        "keras": ("2x2",),
        "asynchronous_keras": ("2x2",),
        "asynchronous_jax": ("2x2", "3x2"),
        "forked": ALONE,
        "interactive": ALONE,
        "lost": ALONE,
        "leaving": ALONE,
        "frameworks": ALONE,
    },
    "mxnet": {
        "arrays": ONE_AGENT,
        "mxnet": ("2x1", "3x2"),
        "asynchronous_mxnet": ("2x2", "3x2"),
        "signatures": ALONE,
        "forked": ALONE,
        "interactive": ALONE,
        "lost": ALONE,
        "leaving": ALONE,
        "frameworks": ALONE,
    },
}
# Clusters of --short. Together they have one agent and two, two workers and three, and an agent
# with two workers beside an agent with one.
SHORT = {
    "torch": {
        "torch": ("2x1", "3x2"),
        "collectives": ("3x2",),
        "c10d": ("3x2", "4x2"),
        "distributed": ("3x2",),
        "equality": ("4x2",),
        "recipes": ("3x2",),
        "shards": ("3x2",),
        "asynchronous": ("2x2",),
        "compat": ("3x1",),
        "horovod": ("3x2",),
        "elastic": ("2x1",),
        "gpu": ("1x1", "3x2"),
    },
    "jax": {"jax": ("3x2",)},
}
# Additional environment variables of the test runs. A key is the name of a part, or of a list of
# requirements. The variables of a list apply to all parts that run with this list. FRAMEWORKS are
# the frameworks in the list: the parts that test several frameworks test these.
ENVIRONMENTS = {
    "gpu": {"BPS_GPU": "cuda"},
    "keras": {"BPS_TIMEOUT": "120s"},  # rank 1 waits while rank 0 runs jobs of its own
    "profile": {"BPS_TIMEOUT": "120s"},  # the same
    "torch": {"FRAMEWORKS": "torch keras", "KERAS_BACKEND": "torch"},
    "torchft": {"FRAMEWORKS": "torch"},
    "torch-2.1": {"FRAMEWORKS": "torch"},
    "tensorflow": {
        "FRAMEWORKS": "tensorflow keras",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    },
    "jax": {"FRAMEWORKS": "jax keras", "KERAS_BACKEND": "jax"},
    "mxnet": {"FRAMEWORKS": "mxnet"},
}
PYTHON = ROOT / "libbpsclient" / "python"
Counts = tuple[int, int, int]  # passed, failed and skipped tests
FORM = (
    ("check", PYTHON),
    ("check", "--config", PYTHON / "ruff.toml", ROOT / "libbpsclient" / "examples"),
    ("format", "--check", ROOT),
)


def run_tests(
    build: Path, python: str, name: str, part: str, cluster: str, words: list[str]
) -> Counts:
    """Run a part on a cluster. Return three counts: passed, failed and skipped tests.

    The counts are those of rank 0. If any rank fails, or skips a test that tests/skips.py does not
    allow, the count of failed tests is at least 1.
    """
    n, agents = cluster.split("x")
    foreign = ("BPS_", "BYTEPS_", "DMLC_", "PYTEST_", "PYTHON")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    env |= {
        "BPS_LIBRARY": str(build / "libbpsclient.so.0"),
        "PYTHONPATH": str(PYTHON),
        "BPS_TIMEOUT": "30s",
        "PYTHONPYCACHEPREFIX": str(ROOT / "build/frontends/pycache"),
        "OMP_NUM_THREADS": "1",
    }
    env |= ENVIRONMENTS.get(name, {}) | ENVIRONMENTS.get(part, {})
    if "BPS_GPU" in env:
        env["BPS_GPU_PROGRAM"] = str(build / "tests" / "bps-agent-host")
    tests = [python, "-m", "pytest", "-q", "-x", "-rs", "-p", "no:cacheprovider", "--tb=short"]
    command = [build / "bpsrun", "-n", n, "--agents", agents, "--", *tests]
    done = subprocess.run(
        list(map(str, [*command, HERE / f"test_{part}.py", *words])),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    last = "\n".join(re.findall(r"^\[0\] .* in [\d.]+s.*$", done.stdout, re.M))
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", last)
    }
    if done.returncode:
        print(done.stdout[-6000:])
        counts["failed"] = max(1, counts.get("failed", 0))
    found, n_skipped = skips.of_workers(f"frontends/{name}/{part}", done.stdout)
    text, wrong = skips.report(found, n_skipped, build.name)
    if text:
        print(text, flush=True)
    if wrong:
        counts["failed"] = max(1, counts.get("failed", 0))
    return counts.get("passed", 0), counts.get("failed", 0), counts.get("skipped", 0)


def check_form(python: str, name: str) -> int:
    """Run ruff, and return how many of its checks fail.

    For a list without ruff, return 0.
    """
    if "\nruff==" not in (HERE / f"{name}.txt").read_text():
        return 0
    done = [subprocess.run([python, "-m", "ruff", *words]) for words in FORM]
    return sum(one.returncode != 0 for one in done)


def environment(name: str) -> str | None:
    """Make the Python environment for a list of requirements. Return the path of the environment's
    interpreter, or None after a failure."""
    made = subprocess.run(
        [sys.executable, HERE / "environment.py", HERE / f"{name}.txt", ROOT / "build/frontends"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if made.returncode:
        reason = made.stderr.strip()
        print(f"frontends/{name}: failed, its packages cannot be installed: {reason}", flush=True)
        return None
    return made.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--list", choices=FRONTENDS, action="append")
    parser.add_argument("--part")
    parser.add_argument("--cluster")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--install", action="store_true", help="only install the frameworks")
    parser.add_argument("-k")
    given = parser.parse_args()
    build, words = given.build.resolve(), ["-k", given.k] if given.k else []
    total, runs = [0, 0, 0], []
    pool = ThreadPoolExecutor(given.at_once)
    for name, parts in FRONTENDS.items():
        if given.list and name not in given.list:
            continue
        python = environment(name)
        if python is None:
            total[1] += 1
            continue
        if given.install:
            continue
        wrong = check_form(python, name)
        if wrong:
            print(f"frontends/{name}: {wrong} checks of ruff failed, see above", flush=True)
        total[1] += wrong
        short = SHORT.get(name, {}) if given.short else {}
        chosen = [
            (part, cluster)
            for part, clusters in (parts | short).items()
            for cluster in clusters
            if given.part in (None, part) and given.cluster in (None, cluster)
        ]

        def run_one(run: tuple[str, str], name: str = name, python: str = python) -> Counts:
            part, cluster = run
            start = time.monotonic()
            counts = run_tests(build, python, name, part, cluster, words)
            workers, agents = cluster.split("x")
            print(
                f"frontends/{name}/{part}, {workers} workers on {agents} agents: "
                f"{counts[0]} passed, {counts[1]} failed, {counts[2]} skipped, "
                f"{time.monotonic() - start:.0f} s",
                flush=True,
            )
            return counts

        runs += [pool.submit(run_one, run) for run in chosen]  # they run beside the next install
    for run in runs:
        total = [a + b for a, b in zip(total, run.result())]
    if not given.install:
        print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
