"""Join traces of bps with each other and with a trace of PyTorch's profiler.

Run this module: ``python -m bps.tracing join [PROFILE.json] TRACE.json... -o OUT.json``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Trace = dict[str, Any]  # a file of Chrome's trace format
GZIP = b"\x1f\x8b"  # first bytes of a compressed file


class TraceError(Exception):
    """A file that cannot be joined. The text says why, and what to do."""


def read(path: str) -> Trace:
    """Return the contents of a file, which may be compressed by gzip.

    Raises:
        TraceError: the file cannot be read, or is not a trace.
    """
    try:
        raw = Path(path).read_bytes()
        trace = json.loads(gzip.decompress(raw) if raw.startswith(GZIP) else raw)
    except OSError as error:
        raise TraceError(f"cannot read '{path}': {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise TraceError(f"'{path}' is not a whole file of JSON: {error}") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise TraceError(
            f"'{path}' has no field traceEvents: pass files of bps.trace, of bpsctl trace, or of "
            "export_chrome_trace of torch.profiler"
        )
    if "baseTimeNanoseconds" not in trace and any("ts" in e for e in trace["traceEvents"]):
        raise TraceError(
            f"'{path}' has no field baseTimeNanoseconds, so its times cannot be compared: record "
            "the profile with a newer PyTorch"
        )
    return trace


def write(path: str, trace: Trace) -> None:
    """Write a file. If its name ends in ``.gz``, compress it.

    Raises:
        TraceError: the file cannot be written.
    """
    text = json.dumps(trace, separators=(",", ":")).encode()
    try:
        Path(path).write_bytes(gzip.compress(text) if path.endswith(".gz") else text)
    except OSError as error:
        raise TraceError(f"cannot write '{path}': {error.strerror or error}") from None


def numbers(trace: Trace, name: str, key: str) -> list[int]:
    """Return the numbers with this key in a trace's metadata events of this name."""
    found = [e.get("args", {}).get(key) for e in trace["traceEvents"] if e.get("name") == name]
    return [number for number in found if isinstance(number, int)]


def shifted(trace: Trace, by_ns: int, pid: int, place: int) -> list[Trace]:
    """Return the events of a trace of bps for another file.

    Args:
        trace (dict): the trace.
        by_ns (int): nanoseconds to add to the times.
        pid (int): number of the trace's process in the other file.
        place (int): place of this process in the order of processes.
    """
    events = [e | {"pid": pid} for e in trace["traceEvents"]]
    for event in events:
        if "ts" in event:
            # The profiler counts from a time up to three months ago. A sum of such large floats
            # would have errors of nanoseconds, with which slices would not nest any more.
            event["ts"] = (round(event["ts"] * 1000) + by_ns) / 1000
    order = {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": place}}
    return [*events, order]


def join(traces: Sequence[Trace], profile: Trace | None = None) -> Trace:
    """Return one trace with the events of all traces.

    Args:
        traces (sequence of dict): traces of bps. Each becomes a process of its own, behind the
            profile's processes.
        profile (dict, optional): a trace of PyTorch's profiler. The result has its other fields.
    """
    timed = [t for t in traces if any("ts" in e for e in t["traceEvents"])]
    bases = [t["baseTimeNanoseconds"] for t in ([profile] if profile else timed)]
    base = min(bases, default=0)
    whole = profile or {"displayTimeUnit": "ms", "traceEvents": [], "baseTimeNanoseconds": base}
    used = [e["pid"] for e in whole["traceEvents"] if isinstance(e.get("pid"), int)]
    pid = max(used, default=0) + 1
    place = max(numbers(whole, "process_sort_index", "sort_index"), default=0) + 1
    events = list(whole["traceEvents"])
    for i, trace in enumerate(traces):
        by_ns = trace.get("baseTimeNanoseconds", base) - base
        events += shifted(trace, by_ns, pid + i, place + i)
    return whole | {"traceEvents": events}


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "2 machines"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def machine_of(trace: Trace) -> tuple[str, str] | None:
    """Return the host and the agent of a trace of bps; None: an earlier release wrote it, or its
    worker had no agent."""
    host, agent = (trace["bps"].get(key) for key in ("host", "agent"))
    return (host, agent) if host and agent else None


def join_files(paths: Sequence[str], out: str) -> str:
    """Join files, and return a sentence about the result.

    Args:
        paths (sequence of str): traces of bps, and at most one of PyTorch's profiler, in any order.
        out (str): the new file.

    Raises:
        TraceError: a file cannot be read, joined or written.
    """
    read_ = {path: read(path) for path in dict.fromkeys(paths)}
    traces = [trace for trace in read_.values() if "bps" in trace]
    others = [path for path, trace in read_.items() if "bps" not in trace]
    if len(others) > 1:
        raise TraceError(
            f"'{others[0]}' and '{others[1]}' are not traces of bps: pass one profile at a time"
        )
    if not traces:
        raise TraceError(f"'{others[0]}' is not a trace of bps: pass one of bps.trace, too")
    write(out, join(traces, read_[others[0]] if others else None))
    rounds, lost = (sum(t["bps"].get(key, 0) for t in traces) for key in ("records", "lost"))
    earlier = f"; {counted(lost, 'earlier round')} not kept" if lost else ""
    # several files may come from one machine, and each agent of a host counts as one
    machines = len({machine_of(trace) or id(trace) for trace in traces})
    return f"wrote {counted(rounds, 'round')} of {counted(machines, 'machine')} to '{out}'{earlier}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bps.tracing")
    command = parser.add_subparsers(required=True, metavar="join").add_parser(
        "join", help="join traces of bps with each other and with a profile"
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="traces, at most one profile")
    command.add_argument("-o", "--output", required=True, metavar="OUT")
    given = parser.parse_args(words)
    try:
        print(join_files(given.files, given.output))
    except TraceError as error:
        print(f"bps.tracing: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
