import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "libbpsclient" / "python")]

from cluster import Cluster  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: it measures, and nothing may run beside it")
    config.addinivalue_line("markers", "xdist_group: those of one group run one after the other")


@pytest.fixture
def cluster():
    """Cluster(...) whose daemons must all end well."""
    made = []

    def make(**kw):
        made.append(Cluster(**kw))
        return made[-1]

    yield make
    problems = [p for c in made for p in c.close()]
    assert not problems, "\n".join(problems)
