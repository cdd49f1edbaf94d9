import signal
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "libbpsclient" / "python")]

from cluster import clusters  # noqa: E402
from keys import new_key  # noqa: E402


def pytest_configure(config):
    # A shell's background jobs, and those of nohup, ignore these signals, and so would all programs
    # that the tests start.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "alone: it measures, and nothing may run beside it")
    config.addinivalue_line("markers", "xdist_group: those of one group run one after the other")


@pytest.fixture
def master(tmp_path):
    """Return the path of a new cluster key."""
    return new_key(tmp_path / "master.key", "key", "new")


@pytest.fixture
def meeting():
    """Yield a folder for servers' sockets (--same-host-dir). Sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="bps-") as d:
        yield Path(d)


@pytest.fixture
def cluster():
    """Yield a function that makes a Cluster. At the end, all daemons must stop without an error."""
    with clusters() as make:
        yield make
