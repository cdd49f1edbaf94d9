"""Tests of the records of the fault matrix.

The tests check which runs of a cell are valid, which cells run again, and what the table contains.
"""

import argparse
import json
import sys
import threading

import pytest

from cluster import ROOT

sys.path.insert(0, str(ROOT / "tests" / "faults"))
import matrix  # noqa: E402

CELLS = [
    {"cell": "FM-S-one", "test": "t::one", "is_alone": False},
    {"cell": "FM-S-two", "test": "t::two", "is_alone": True},
]


def record(cell, outcome, seconds=0.1, commit="c1", at=1, why=""):
    return {
        "cell": cell,
        "test": "t",
        "outcome": outcome,
        "why": why,
        "times": [["stall", seconds, 1]],
        "wall_s": 5.0,
        "cpu_s": 1.0,
        "commit": commit,
        "at": at,
        "logs": "",
    }


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.jsonl"

    def write(*lines):
        with open(path, "a", encoding="ascii") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        return matrix.read(path)

    write.path = path
    return write


def missing(known, repeat):
    batches = matrix.in_batches(CELLS, known, repeat, 60)
    return sorted(c["cell"] for b in batches for c in b)


def test_only_missing_passes_are_run(records):
    known = records(
        record("FM-S-one", "passed"),
        record("FM-S-one", "passed", commit="c2"),
        record("FM-S-two", "passed"),
    )
    assert missing(known, 2) == ["FM-S-two"]
    assert missing(known, 3) == ["FM-S-one", "FM-S-two", "FM-S-two"]


def test_disturbed_pass_does_not_count_and_is_repeated(records):
    known = records(
        record("FM-S-one", "passed"),
        record("FM-S-one", "disturbed", seconds=9),
        record("FM-S-two", "passed"),
    )
    assert missing(known, 2) == ["FM-S-one", "FM-S-two"]
    text, failed = matrix.table(known)
    assert not failed and "| FM-S-one | 1/1 | A1 | stall | 0.100 | 0.100 | 1 |" in text, text


def test_failure_stays_until_it_is_explained_and_then_stands_in_the_table(records):
    known = records(record("FM-S-one", "failed", why="too late"), record("FM-S-two", "passed"))
    assert missing(known, 1) == []
    text, failed = matrix.table(known)
    assert failed == 1 and "| FM-S-one | c1 | too late |" in text.split("## Failures")[1]
    matrix.say_mended(
        argparse.Namespace(records=records.path, mended="FM-S-one", why="its timer was wrong")
    )
    known = records()
    assert missing(known, 1) == ["FM-S-one"]
    text, failed = matrix.table(known)
    assert (
        failed == 0
        and "| FM-S-one | c1 | its timer was wrong |"
        in text.split("## Failures that were repaired")[1]
    )
    with pytest.raises(SystemExit):
        matrix.say_mended(
            argparse.Namespace(records=records.path, mended="FM-S-two", why="nothing")
        )


def test_table_has_the_commits_and_marks_times_over_the_bound(records):
    known = records(
        record("FM-S-one", "passed", commit="c2", at=9),
        record("FM-S-one", "passed", 1.5, commit="c1", at=5),
    )
    text, _ = matrix.table(known)
    assert "- A: c1" in text and "- B: c2" in text
    assert "| FM-S-one | 2/2 | A1 B1 | stall | 1.500 | 1.500 **over** | 1 |" in text, text


class Node:
    """A fake of the few parts of a pytest node that a cell uses."""

    nodeid = "t::x"

    @staticmethod
    def function():
        """FM-X-y: the docstring of a cell."""


@pytest.mark.parametrize(
    "why, late_s, want",
    [
        ("AssertionError: not within 30 s: it is back", 3.0, "disturbed"),
        ("AssertionError: not within 30 s: it is back", 2.0, "failed"),
        ("AssertionError: rank 0 ended with 1: AssertionError: round 7", 9.0, "failed"),
    ],
)
def test_only_time_limits_are_attributed_to_the_machine(why, late_s, want, monkeypatch):
    import cells

    monkeypatch.setattr(cells, "RECORDS", "somewhere")
    cell = cells.Cell(Node)
    cell.witness.stop()
    cell.witness.woken_s, cell.witness.synced_s = late_s, 0
    cell.ended("failed", why)
    assert cell.outcome == want and cell.name == "FM-X-y"


def test_disk_that_delays_a_cell_is_detected(monkeypatch):
    import cells

    is_synced = threading.Event()

    def fsync(_):
        threading.Event().wait(0.6)
        is_synced.set()

    monkeypatch.setattr(cells, "RECORDS", "somewhere")
    monkeypatch.setattr(cells.os, "fsync", fsync)
    cell = cells.Cell(Node)
    assert is_synced.wait(10)
    cell.witness.stop()
    with pytest.raises(pytest.skip.Exception):
        cell.within("rounds go on", 3.5, 3)
    assert cell.outcome == "disturbed"


def test_line_of_a_fault_is_found_for_its_point_and_action():
    import lab

    said = "text\n<4>a fault is injected: point=server.sum.start action=crash pid=4711\n"
    faults = lab.faults_of("server.sum.start=crash,after=3 server.sum.start=sleep:5ms seed=7")
    assert [lab.acted_in(said, f) for f in faults] == [4711, 0]
