"""Workers that are started again, their logs and variables, and what the build has."""

import os
import subprocess

import pytest
from cluster import BUILD, IS_ASAN, IS_TSAN, ROOT
from nodes import BPSRUN, LIMIT_S, WORKER_BUILD

needs_python = pytest.mark.skipif(
    IS_ASAN or IS_TSAN, reason="this Python cannot load the sanitized library"
)
# Steps until a worker that has joined later says so. argv: rank of the worker that fails at step 5.
ELASTIC = """
import os, sys
import numpy as np
import bps
state = np.zeros(1, np.int64)
with bps.open() as job:
    if job.is_new:
        job.broadcast(state, root=job.root)
        print("joins at", state[0], flush=True)
    t = job.declare("t", "i64", 100)
    over = job.declare("over", "i64", 1)
    while True:
        state += 1
        t.input[:] = 1 << job.rank
        over.input[:] = job.is_new
        job.push_pull([t, over])
        if state[0] == 5 and job.rank == int(sys.argv[1]) and not job.is_new:
            os._exit(3)
        job.wait([t, over])
        if over.output[0]:
            break
        if state[0] % 2 == 0 and job.checkpoint_barrier():
            job.broadcast(state, root=job.root)
    print("sum", t.output[0], flush=True)
"""


def bpsrun(tmp_path, *args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
    own = {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "BPS_TIMEOUT": "30s",
        "BPS_LIBRARY": str(WORKER_BUILD / "libbpsclient.so.0"),
        "PYTHONPATH": str(ROOT / "libbpsclient" / "python"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    r = subprocess.run(
        [str(BPSRUN), *map(str, args)],
        env=clean | own | {k: str(v) for k, v in env.items()},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert not list(tmp_path.glob("bpsrun-*"))
    return r


def plain(tmp_path, *args, **env):
    return bpsrun(tmp_path, "--agent", "/nonexistent", *args, **env)


def test_failed_worker_is_started_again_with_its_rank(tmp_path):
    script = f"echo life; [ $RANK = 0 ] && exit 0; mkdir {tmp_path}/once && exit 3; exit 0"
    r = plain(tmp_path, "-n", 2, "--restart", 1, "--", "sh", "-c", script)
    assert r.returncode == 0, r
    assert r.stdout.count("[1] life") == 2 and r.stdout.count("[0] life") == 1
    assert "rank 1 exited with code 3\nbpsrun: starting rank 1 again (1 of 1)" in r.stderr


def test_worker_is_started_again_only_as_often_as_allowed(tmp_path):
    r = plain(tmp_path, "-n", 1, "--restart", 2, "--", "sh", "-c", "echo life; exit 3")
    assert r.returncode == 3 and r.stdout.count("life") == 3, r
    assert r.stderr.splitlines()[-1] == "bpsrun: rank 0 exited with code 3"


def test_signal_ends_a_job_whose_workers_would_be_started_again(tmp_path):
    script = "[ $RANK = 0 ] && sleep 0.5 && kill -TERM $PPID; exec sleep 100"
    r = plain(tmp_path, "-n", 2, "--restart", 100, "--", "sh", "-c", script)
    assert r.returncode == 128 + 15 and "again" not in r.stderr, r


@needs_python
@pytest.mark.parametrize(
    ("n", "agents", "again"), [(3, 3, [2]), (4, 2, [2, 3])], ids=["one", "machine"]
)
def test_lost_worker_of_an_elastic_job_joins_again(tmp_path, n, agents, again):
    """The workers of a machine leave together, so they start again together."""
    args = ["-n", n, "--agents", agents, "--servers", 1, "--restart", 1]
    r = bpsrun(
        tmp_path, *args, "--", "/usr/bin/python3", "-c", ELASTIC, 2,
        BPS_ELASTIC=1, BPS_MAX_SIZE=n, BPS_ON_AGENT_LOSS="shrink",
    )  # fmt: skip
    assert r.returncode == 0, r
    for rank in range(n):
        assert f"[{rank}] sum {2**n - 1}\n" in r.stdout, r
        assert (f"[{rank}] joins at" in r.stdout) == (rank in again), r
        assert (f"starting rank {rank} again" in r.stderr) == (rank in again), r


def test_output_is_copied_to_the_folder_of_logs(tmp_path):
    logs = tmp_path / "logs"
    script = "echo out $RANK; printf err >&2"
    for _ in range(2):
        r = plain(tmp_path, "-n", 2, "--log-dir", logs, "--", "sh", "-c", script)
        assert r.returncode == 0 and sorted(r.stdout.splitlines()) == ["[0] out 0", "[1] out 1"], r
    for rank in (0, 1):
        assert (logs / f"rank-{rank}.out").read_text() == f"out {rank}\n" * 2
        assert (logs / f"rank-{rank}.err").read_text() == "err" * 2
    r = plain(tmp_path, "-n", 1, "--log-dir", logs, "--no-prefix", "--", "true")
    assert r.returncode == 125 and "choose one of them" in r.stderr
    (tmp_path / "file").touch()
    r = plain(tmp_path, "-n", 1, "--log-dir", tmp_path / "file", "--", "true")
    assert r.returncode == 125 and f"'{tmp_path}/file'" in r.stderr, r


def test_logs_of_the_daemons_are_kept_there_too(tmp_path):
    r = bpsrun(tmp_path, "-n", 1, "--servers", 1, "--log-dir", tmp_path / "logs", "--", "true")
    assert r.returncode == 0, r
    for name in ("scheduler", "server-0", "agent-0"):
        assert f"bps-{name.split('-')[0]}" in (tmp_path / "logs" / f"{name}.log").read_text()


def test_variables_are_exported_or_missed(tmp_path):
    show = ("--no-prefix", "--", "sh", "-c", "echo $A/$B")
    r = plain(tmp_path, "-n", 1, "-x", "A", "-x", "B=b=c", *show, A="a")
    assert r.stdout == "a/b=c\n", r
    r = plain(tmp_path, "-n", 1, "-x", "NO_SUCH", *show)
    assert r.returncode == 125
    assert r.stderr.startswith("bpsrun: -x NO_SUCH: the environment has no such variable"), r
    r = plain(tmp_path, "-n", 1, "-x", "=a", *show)
    assert r.returncode == 125 and "-x '=a' is not NAME or NAME=VALUE" in r.stderr, r


@pytest.mark.parametrize("option", ["-np", "--num-proc"])
def test_number_of_workers_has_the_names_of_horovodrun(tmp_path, option):
    r = plain(tmp_path, option, 2, "--no-prefix", "--", "sh", "-c", "echo -np $RANK")
    assert sorted(r.stdout.splitlines()) == ["-np 0", "-np 1"], r


@pytest.mark.parametrize("option", ["--check-build", "-cb"])
def test_build_is_shown(tmp_path, option):
    r = bpsrun(tmp_path, option, PATH="/usr/bin:/bin")
    assert r.returncode == 0, r
    for name in (
        "bps-scheduler",
        "bps-server",
        "bps-agent",
        "bpsctl",
        "Python package bps",
        "numpy",
    ):
        assert f"  [X] {name}\n" in r.stdout, r
    other = tmp_path / "bpsrun"
    other.write_bytes(BPSRUN.read_bytes())
    other.chmod(0o755)
    r = subprocess.run(
        [other, option],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert r.returncode == 1 and "  [ ] bps-agent: needed for a cluster of a job\n" in r.stdout, r
    assert BUILD.exists()
