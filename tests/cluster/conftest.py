import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "libbpsclient" / "python")]

from cluster import Cluster  # noqa: E402


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
