"""Helpers that run bpsctl and check the duration of the run and the width of the output."""

import json
import re
import subprocess
import time

from cluster import BUILD

WAITS = {"what": "one_is_missing", "args": {"missing_rank": 1, "timeout": 20}}


def show(c, *args, status=None):
    """Run a bpsctl command and return its output. Every line must be shorter than 100 columns."""
    start = time.monotonic()
    p = c.bpsctl(*args)
    # bpsctl must end within 2 s. The test allows 4 s, because the machine may be under load.
    assert time.monotonic() - start < 4, f"{args} took too long"
    assert max(map(len, p.stdout.splitlines()), default=0) < 100, p.stdout
    if status is not None:
        assert p.returncode == status, p
    return p.stdout


def document(c, *args):
    d = json.loads(c.bpsctl("--json", *args).stdout)
    assert d["schema"] == 1
    return d


def waiting_job(c, name="digits"):
    """Start a job whose rank 1 does not submit the second round of tensor 'w'."""
    started = c.start_job("error", 2, WAITS, job=name)
    c.wait_for("rank 0 waits", lambda: "have not submitted" in c.bpsctl("why-stuck", name).stdout)
    return started


def words():
    text = subprocess.run(
        [str(BUILD / "bpsctl"), "help"], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    return re.findall(r"(?m)^  ([a-z-]+(?: [a-z]+)?)", text)
