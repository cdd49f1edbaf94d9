"""The cells of the fault matrix: what a test of one is called, how its time is measured, what is written down.

A cell is a test whose first line of doc is "FM-<process>-<fault>: <sentence>". It asserts the outcome (exact sums, or the one
clear error that names the culprit), and a time against its bound. Each measurement is one line of JSON on stdout and, when
BPS_MATRIX_OUT names a file, there.

Bounds are those of docs/faults.md. They are for a machine that has a processor to spare: BPS_BOUND_SLACK multiplies them
(make test: 3, since there the outcome counts; make matrix: 1).
"""

import json
import os
import re

SLACK = float(os.environ.get("BPS_BOUND_SLACK", "3"))


def name_of(node):
    """FM-S-kill9[param]: from the first line of the test's doc."""
    found = re.match(r"(FM-[\w-]+): ", node.function.__doc__ or "")
    if not found:
        return node.name
    param = getattr(getattr(node, "callspec", None), "id", "")
    return f"{found[1]}[{param}]" if param else found[1]


def note(record):
    """One line of JSON for whoever collects them."""
    line = json.dumps(record)
    if os.environ.get("BPS_MATRIX_OUT"):
        with open(os.environ["BPS_MATRIX_OUT"], "a", encoding="ascii") as f:
            f.write(line + "\n")
    return line


class Cell:
    def __init__(self, node):
        self.name = name_of(node)

    def within(self, what, seconds, bound_s):
        """The cell took this long for what; longer than its bound is a failure."""
        record = {"cell": self.name, "what": what, "seconds": round(seconds, 4), "bound": bound_s, "ok": seconds <= bound_s}
        print("\n" + note(record), flush=True)
        assert seconds <= bound_s * SLACK, f"{self.name}: {what} took {seconds:.3f} s, bound {bound_s} s (x {SLACK:g})"
