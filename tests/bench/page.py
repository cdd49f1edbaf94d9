"""Write the pages of the front-end benchmarks in docs/results/performance."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """Return the short name of the commit that is checked out, and whether files have changes."""
    git = ("git", "-C", str(ROOT))
    name = subprocess.check_output((*git, "rev-parse", "--short", "HEAD"), text=True).strip()
    status = subprocess.check_output((*git, "status", "--porcelain", "-uno"), text=True)
    return f"{name} with changes" if status else name


class Row(NamedTuple):
    """A row of the table, and whether its bar holds. A row without a bar holds."""

    text: str
    holds: bool


def row(what: str, bar: str, values: list[float], holds: Callable[[float], bool] | None) -> Row:
    """Return a row of the table: the median, the range, and whether the median meets the bar."""
    median = statistics.median(values)
    is_met = holds is None or holds(median)
    verdict = "" if holds is None else "yes" if is_met else "**no**"
    spread = f"{median:.3g} ({min(values):.3g} .. {max(values):.3g})"
    return Row(f"| {what} | {bar} | {spread} | {verdict} |", is_met)


def old_limit(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the limit for a figure of a new build over that of an old build. Less is better.

    Two copies of the old build ran in the same rounds, so they differ by chance. The limit is 1
    plus 1.25 times their largest relative difference.

    Args:
        first, second (sequence of float): the figures of the copies, one figure per round.
    """
    return 1 + 1.25 * max(abs(math.log(a / b)) for a, b in zip(first, second))


def write(
    title: str,
    about: Sequence[str],
    build: Path,
    options: str,
    measure: Callable[[], Sequence[Row]],
    out: Path | None,
) -> bool:
    """Measure, and print a page with the commit, the command and the table.

    Return whether all bars hold.

    Args:
        title (str): heading of the page.
        about (sequence of str): lines of the first paragraph.
        build (Path): build folder, for the command.
        options (str): options of the command.
        measure: returns the rows of the table.
        out (Path, optional): file to which the page is also written.
    """
    measured_on, load = commit(), os.getloadavg()[0]
    rows = measure()
    lines = [
        f"# {title}",
        "",
        *about,
        "",
        f"Measured at {measured_on} on {os.cpu_count()} cores by",
        "",
        f"    tests/bench/{Path(sys.argv[0]).name} {os.path.relpath(build)} {options}",
        "",
        f"The load average was {load:.1f} before the first measurement.",
        "",
        "| figure | bar | median (range) | holds |",
        "|---|---|---|---|",
        *(measured.text for measured in rows),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if out:
        out.write_text(text)
    return all(measured.holds for measured in rows)
