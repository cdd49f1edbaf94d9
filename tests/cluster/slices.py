"""Slices in traces of rounds (bps-agent/steps/trace_file.h)."""


def slices(trace, category):
    """Return the slices of a category, in the order of the file."""
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == category]


def assert_nested(trace):
    """Check that the slices of each row follow each other or nest, as Perfetto demands."""
    rows = {}
    for e in trace["traceEvents"]:
        if e["ph"] == "X":
            begun = round(e["ts"] * 1000)
            rows.setdefault(e["tid"], []).append((begun, -round(e["dur"] * 1000)))
    for row in rows.values():
        open_ends = []
        for begun, minus in sorted(row):
            while open_ends and open_ends[-1] <= begun:
                open_ends.pop()
            assert not open_ends or begun - minus <= open_ends[-1]
            open_ends.append(begun - minus)
