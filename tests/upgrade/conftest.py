import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "cluster"),
    str(HERE.parent.parent / "libbpsclient" / "python"),
]

from cluster import clusters  # noqa: E402


@pytest.fixture
def cluster():
    """Yield a function that makes a Cluster. At the end, all daemons must stop without an error."""
    with clusters() as make:
        yield make


@pytest.fixture
def meeting():
    """Yield a folder for servers' sockets (--same-host-dir). Sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="bps-") as d:
        yield Path(d)
