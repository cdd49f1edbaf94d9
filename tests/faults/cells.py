"""The cells of the fault matrix: what a test of one is called, how its time is measured, what is written down.

A cell is a test whose first line of doc is "FM-<process>-<fault>: <sentence>". It asserts the outcome (exact sums, or the one
clear error that names the culprit), and a time against its bound. Each measurement is a line on stdout; each pass of a cell is
one line of JSON in the file that BPS_MATRIX_RECORDS names.

Bounds are those of docs/faults.md. They are for a machine that has a processor to spare: BPS_BOUND_SLACK multiplies them
(make test: 3, since there the outcome counts; make matrix: 1).
"""

import json
import os
import re
import resource
import time

SLACK = float(os.environ.get("BPS_BOUND_SLACK", "3"))


def name_of(node):
    """FM-S-kill9[param]: from the first line of the test's doc."""
    found = re.match(r"(FM-[\w-]+): ", node.function.__doc__ or "")
    if not found:
        return node.name
    param = getattr(getattr(node, "callspec", None), "id", "")
    return f"{found[1]}[{param}]" if param else found[1]


def cpu_s():
    """What this process has used, and those of its children that it has waited for."""
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


class Cell:
    """One pass of a cell."""

    def __init__(self, node):
        self.name, self.test = name_of(node), node.nodeid
        self.outcome, self.why, self.logs = "passed", "", ""
        self.times = []  # what, seconds, bound
        self.begun, self.cpu_before = time.monotonic(), cpu_s()

    def within(self, what, seconds, bound_s):
        """The cell took this long for what; longer than its bound is a failure."""
        self.times.append((what, round(seconds, 4), bound_s))
        print(f"\n{self.name}: {what} took {seconds:.3f} s, bound {bound_s:g} s", flush=True)
        assert seconds <= bound_s * SLACK, f"{self.name}: {what} took {seconds:.3f} s, bound {bound_s} s (x {SLACK:g})"

    def ended(self, outcome, why):
        """The worst of set-up, call and teardown counts, and the first reason."""
        if outcome != "passed" and self.outcome != "failed":
            self.outcome, self.why = outcome, self.why or why

    def record(self):
        """Set-up and teardown are in wall_s and cpu_s too."""
        return {"cell": self.name, "test": self.test, "outcome": self.outcome, "why": self.why, "times": self.times,
                "wall_s": round(time.monotonic() - self.begun, 1), "cpu_s": round(cpu_s() - self.cpu_before, 2),
                "commit": os.environ.get("BPS_MATRIX_COMMIT", "unknown"), "at": int(time.time()), "logs": self.logs}  # fmt: skip

    def write(self):
        path = os.environ.get("BPS_MATRIX_RECORDS")
        if path:
            with open(path, "a", encoding="ascii") as f:
                f.write(json.dumps(self.record()) + "\n")
