"""Cells of the fault matrix: names of their tests, their measured times, and their records.

A cell is a test whose docstring starts with "FM-<process>-<fault>: <sentence>". It checks the
outcome (exact sums, or one clear error that names the culprit), and that a time is within its
bound. Each measurement is a line on stdout. A pass is one run of a cell. Each pass adds a line of
JSON to the file that BPS_MATRIX_RECORDS names.

The bounds are those of docs/reference/detection.md, for a machine with a processor to spare.
BPS_BOUND_SLACK multiplies them: 6 in make test, where only the outcome counts, and 1 in make
matrix. The witness of a cell is a pair of threads. One thread sleeps, and records how late it wakes
up. The other thread records how long the disk takes to sync a byte.

Load on the machine can delay a pass. In make matrix, a delayed pass counts as disturbed, and the
cell runs again. There are two cases. In the first case, the witness was delayed by more than
LATE_S, and a measured time exceeds its bound by at most HOPS x this delay. In the second case, a
time limit of the cell or of a watchdog expired, and the witness was delayed by more than STILL_S.
"""

import json
import os
import re
import resource
import tempfile
import threading
import time

import pytest

RECORDS = os.environ.get("BPS_MATRIX_RECORDS")
WHY_MAX = 2000
STILL_S = 2  # less than the shortest time after which a daemon is declared dead: 2.4 s
PATIENCE = (
    r"not within \d+ s|is not ready|ended with 70|timed out after|hangs:|did not stop|did "
    r"not come back"
)
LATE_S, HOPS = (
    0.05,  # LATE_S: a delay of the witness that is longer than this can disturb a cell
    5,  # HOPS: in a disturbed cell, a time exceeds its bound by at most HOPS x the witness's delay
)
SLACK = float(os.environ.get("BPS_BOUND_SLACK", "3"))


def name_of(node):
    """Return the cell's name, such as FM-S-kill9[param], from the start of its test's docstring."""
    found = re.match(r"(FM-[\w-]+): ", node.function.__doc__ or "")
    if not found:
        return node.name
    param = getattr(getattr(node, "callspec", None), "id", "")
    return f"{found[1]}[{param}]" if param else found[1]


def cpu_s():
    """Return the CPU seconds of this process, and of its children that have ended."""
    return sum(
        u.ru_utime + u.ru_stime
        for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Witness:
    """Measures the longest time that this process waits for a processor or for the disk.

    This time serves as an estimate of the waits of all processes of the same priority. The disk
    matters because the scheduler syncs its state to disk for each view.
    """

    def __init__(self):
        self.woken_s, self.synced_s, self.is_over = 0.0, 0.0, threading.Event()
        self.threads = [
            threading.Thread(target=f, daemon=True)
            for f in ((self.watch, self.sync) if RECORDS else (self.watch,))
        ]
        for t in self.threads:
            t.start()

    @property
    def late_s(self):
        return max(self.woken_s, self.synced_s)

    def watch(self):
        at = time.monotonic()
        while not self.is_over.wait(0.02):
            self.woken_s = max(self.woken_s, time.monotonic() - at - 0.02)
            at = time.monotonic()

    def sync(self):
        with tempfile.TemporaryFile(buffering=0) as f:
            while not self.is_over.wait(0.1):
                f.write(b"x")
                at = time.monotonic()
                os.fsync(f.fileno())
                self.synced_s = max(self.synced_s, time.monotonic() - at)

    def stop(self):
        self.is_over.set()
        for t in self.threads:
            t.join()


class Cell:
    """A run of a cell, with its outcome and its measured times."""

    def __init__(self, node):
        self.name, self.test = name_of(node), node.nodeid
        self.outcome, self.why, self.logs = "passed", "", ""
        self.times = []  # (what was measured, seconds, bound)
        self.n_faults = 0  # faults of failpoints that acted
        self.begun, self.cpu_before = time.monotonic(), cpu_s()
        self.witness = Witness()

    def within(self, what, seconds, bound_s):
        """Record a measured time. The cell fails if the time is longer than its bound."""
        self.times.append((what, round(seconds, 4), bound_s))
        print(f"\n{self.name}: {what} took {seconds:.3f} s, bound {bound_s:g} s", flush=True)
        late_s = self.witness.late_s
        if RECORDS and LATE_S < late_s and 0 < seconds - bound_s <= HOPS * late_s:
            self.times.pop()
            self.outcome, self.why = (
                "disturbed",
                f"{what} took {seconds:.3f} s, the machine delayed it by {late_s:.3f} s",
            )
            pytest.skip(self.why)
        assert seconds <= bound_s * SLACK, (
            f"{self.name}: {what} took {seconds:.3f} s, bound {bound_s} s (x {SLACK:g})"
        )

    def ended(self, outcome, why):
        """Record the worst outcome of set-up, call and teardown. Also record the first reason for
        that outcome."""
        late_s, is_patience = self.witness.late_s, re.search(PATIENCE, why[:300])
        if outcome == "failed" and self.outcome != "failed":
            self.outcome, self.why = outcome, why[:WHY_MAX]
            if RECORDS and late_s > STILL_S and is_patience:
                self.outcome, self.why = (
                    "disturbed",
                    f"the machine delayed the cell by {late_s:.1f} s: {why[:WHY_MAX]}",
                )
        elif outcome != "passed" and self.outcome == "passed":
            self.outcome, self.why = outcome, why

    def record(self):
        """Return the cell's record. wall_s and cpu_s include set-up and teardown."""
        return {
            "cell": self.name,
            "test": self.test,
            "outcome": self.outcome,
            "why": self.why,
            "times": self.times,
            "faults": self.n_faults,
            "wall_s": round(time.monotonic() - self.begun, 1),
            "cpu_s": round(cpu_s() - self.cpu_before, 2),
            "late_s": round(self.witness.late_s, 3),
            "commit": os.environ.get("BPS_MATRIX_COMMIT", "unknown"),
            "at": int(time.time()),
            "logs": self.logs,
        }

    def close(self):
        self.witness.stop()
        if RECORDS:
            with open(RECORDS, "a", encoding="ascii") as f:
                f.write(json.dumps(self.record()) + "\n")
