import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster"), str(HERE.parent.parent / "libbpsclient" / "python")]

import cells  # noqa: E402
from lab import Lab, LabCluster  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: a cell that every `make test` passes once")


def pytest_collection_modifyitems(config, items):
    """BPS_CELLS=quick leaves the slow cells out; BPS_SHARD=i/n takes every n-th."""
    keep = items
    if os.environ.get("BPS_CELLS") == "quick":
        keep = [i for i in keep if i.get_closest_marker("quick")]
    if os.environ.get("BPS_SHARD"):
        at, of = map(int, os.environ["BPS_SHARD"].split("/"))
        keep = [x for i, x in enumerate(keep) if i % of == at - 1]
    dropped = [i for i in items if i not in keep]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = keep


@pytest.fixture
def cell(request):
    return cells.Cell(request.node)


@pytest.fixture
def faulty():
    """LabCluster(...) on loopback, or with lab= in namespaces, whose daemons end well unless the cell says otherwise."""
    made = []

    def make(**kw):
        made.append(LabCluster(**kw))
        return made[-1]

    yield make
    problems = [p for c in made for p in c.close()]
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="session")
def namespaces():
    with Lab(6) as lab:
        yield lab


@pytest.fixture
def lab(namespaces):
    """A network of six hosts, whole again afterwards."""
    yield namespaces
    namespaces.heal()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """How each cell ended goes to BPS_MATRIX_OUT too."""
    report = (yield).get_result()
    if os.environ.get("BPS_MATRIX_OUT") and (call.when == "call" or report.outcome != "passed"):
        cells.note({"cell": cells.name_of(item), "outcome": "xfailed" if hasattr(report, "wasxfail") else report.outcome,
                    "test": item.nodeid})  # fmt: skip
