import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "cluster"),
    str(HERE.parent.parent / "libbpsclient" / "python"),
]

import cells  # noqa: E402
from cluster import BUILD  # noqa: E402
from lab import Lab, LabCluster  # noqa: E402

CELL = pytest.StashKey()


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: a cell that every `make test` passes once")
    config.addinivalue_line(
        "markers",
        "alone: a cell that must run alone, because other cells would disturb its measurement",
    )


@pytest.hookimpl(trylast=True)  # runs after -k has chosen tests
def pytest_collection_modifyitems(config, items):
    """Leave out slow cells if BPS_CELLS=quick. Write the list of cells to $BPS_MATRIX_LIST."""
    if os.environ.get("BPS_CELLS") == "quick":
        dropped = [i for i in items if not i.get_closest_marker("quick")]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [i for i in items if i not in dropped]
    if os.environ.get("BPS_MATRIX_LIST"):
        what = [
            {
                "cell": cells.name_of(i),
                "test": i.nodeid,
                "is_alone": bool(i.get_closest_marker("alone")),
            }
            for i in items
        ]
        Path(os.environ["BPS_MATRIX_LIST"]).write_text(json.dumps(what))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[CELL] = cells.Cell(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    cell = item.stash[CELL]
    why = ""
    if report.outcome != "passed":
        why = str(
            report.longrepr[2]
            if report.skipped
            else report.longrepr.reprcrash.message
            if hasattr(report.longrepr, "reprcrash")
            else report.longrepr
        )
    cell.ended(report.outcome, why)
    if cell.logs and report.failed:
        report.sections.append(("Logs", cell.logs))
    if call.when == "teardown":
        cell.close()


@pytest.fixture
def cell(request):
    return request.node.stash[CELL]


@pytest.fixture
def faulty(request):
    """Yield a function that makes a LabCluster, on loopback or (with lab=) in network namespaces.

    At the end, all daemons must stop without an error, unless the cell expects this error. Each
    fault that the cell has set must have acted. When a cell fails, the logs of its daemons and
    workers are kept in the build folder.
    """
    made = []
    cell = request.node.stash[CELL]

    def make(**kw):
        made.append(LabCluster(**kw))
        return made[-1]

    yield make
    said = [c.said(cell.outcome in ("failed", "disturbed")) for c in made]
    acted = [a for c in made for a in c.all_acted()]
    cell.n_faults = sum(bool(pid) for _, pid in acted)
    problems = [p for c in made for p in c.close()]
    if cell.outcome == "passed":  # a cell that has failed or was skipped may not set all faults
        problems += [f"the fault {fault} did not act" for fault, pid in acted if not pid]
    if problems or cell.outcome in ("failed", "disturbed"):
        folder = Path(os.environ.get("BPS_MATRIX_LOGS", BUILD / "faults-failed")) / (
            re.sub(r"[^\w.-]+", "-", cell.name) + time.strftime("-%Y%m%d-%H%M%S")
        )
        for i, texts in enumerate(said):
            texts.write(folder / str(i))
        cell.logs = str(folder)
    for texts in said:
        texts.close()
    assert not problems, "\n".join([*problems, f"logs: {cell.logs}"])


@pytest.fixture(scope="session")
def namespaces():
    with Lab(6) as lab:
        yield lab


@pytest.fixture
def lab(namespaces):
    """Yield a network of six hosts. All faults of the network are repaired afterwards."""
    yield namespaces
    namespaces.heal()
