"""Check behaviours.txt, which lists what Horovod's tests check, with our test of each behaviour.

Nothing joins a job here.
"""

import ast
import collections
from pathlib import Path

import pytest
import run

HERE = Path(__file__).resolve().parent
GUIDE = HERE.parent.parent / "docs" / "guides" / "migrate-horovod.md"
REFUSED_MOST = 12
COVERED_LEAST = 0.95
LINES = [
    tuple(part.strip() for part in line.split("|"))
    for line in (HERE / "behaviours.txt").read_text().splitlines()
    if line and line[0] != "#"
]
FRAMEWORKS = sorted({line[0] for line in LINES})


def found_in(part):
    """Return the names of the tests in a file."""
    tree = ast.parse((HERE / f"test_{part}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def kind(line):
    """Return "refused", "missing" or "tested"."""
    word = line[2].split(":")[0]
    return word if word in ("refused", "missing") else "tested"


def test_each_behaviour_has_one_line_of_three_parts():
    assert {len(line) for line in LINES} == {3} and FRAMEWORKS == ["mxnet", "tensorflow", "torch"]
    named = collections.Counter(line[:2] for line in LINES)
    assert [name for name, n in named.items() if n > 1] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_test_exists_and_runs_with_several_workers(framework):
    wrong = []
    for line in LINES:
        if line[0] != framework or kind(line) != "tested":
            continue
        for one in line[2].split(","):
            part, _, name = one.strip().partition("/")
            clusters = run.FRONTENDS[framework].get(part, ())
            is_run = any(int(cluster.split("x")[0]) > 1 for cluster in clusters)
            if not is_run or f"test_{name}" not in found_in(part):
                wrong.append(one.strip())
    assert wrong == []


def test_each_reason_of_a_refusal_is_in_the_guide():
    guide = " ".join(GUIDE.read_text().split())
    reasons = [line[2].partition(":")[2].strip() for line in LINES if kind(line) == "refused"]
    assert [reason for reason in reasons if not reason or reason not in guide] == []
    assert len(reasons) <= REFUSED_MOST


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nearly_all_other_behaviours_are_tested(framework):
    kinds = collections.Counter(kind(line) for line in LINES if line[0] == framework)
    assert kinds["tested"] >= COVERED_LEAST * (kinds["tested"] + kinds["missing"])
