"""Workers that are forks of a server process (forks.py)."""

import os
import signal
import tempfile

import pytest

import forks

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import numpy
import forks
(word,) = forks.serve()
print(word, numpy.random.random())
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path):
    """Yield the path of a program, and end its server."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(folder=os.path.dirname(forks.__file__)))
    yield str(path)
    for key in [k for k in forks._servers if k[0] == str(path)]:
        server = forks._servers.pop(key)
        server.requests.close()
        server.process.wait(10)


def test_workers_end_with_their_statuses_and_draw_different_numbers(program):
    numbers = set()
    for word in ("one", "two"):
        with tempfile.TemporaryFile() as out:
            assert forks.start(program, [word], out, dict(os.environ)).wait(30) == 3
            out.seek(0)
            printed, number = out.read().split()
            assert printed.decode() == word
            numbers.add(number)
    assert len(numbers) == 2


def test_a_dead_server_is_named_with_its_status(program):
    with tempfile.TemporaryFile() as out:
        forks.start(program, ["one"], out, dict(os.environ)).wait(30)
        (server,) = (s for key, s in forks._servers.items() if key[0] == program)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
        with pytest.raises(RuntimeError, match="the fork server ended with status -9"):
            forks.start(program, ["two"], out, dict(os.environ))
