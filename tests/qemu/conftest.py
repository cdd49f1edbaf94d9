"""Fixtures for tests in the guest.

Results are printed on the console, which tests/qemu/run.sh reads.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cluster"), str(HERE.parent.parent / "libbpsclient" / "python")]

from cluster import BUILD, Cluster, clusters  # noqa: E402


class VerbsCluster(Cluster):
    """A cluster whose data connections use the RDMA device and no shared memory.

    Daemons have keys, except when all addresses are local.
    """

    data_net = "10.9.9"

    def __init__(self, folder, **kw):
        key = folder / "cluster.key"
        made = subprocess.run(
            [str(BUILD / "bpsctl"), "key", "new"], capture_output=True, text=True, check=True
        )
        key.touch(mode=0o600)
        key.write_text(made.stdout)
        # Time limits are long, since an emulated processor on a shared machine is slow.
        self.member = [
            "--key-file",
            key,
            "--provider",
            "verbs",
            "--same-host",
            "off",
            "--ping-dead",
            "20s",
            "--thread-dead",
            "60s",
        ]
        super().__init__(
            scheduler_args=[
                "--key-file",
                key,
                "--server-dead",
                "30s",
                "--agent-dead",
                "60s",
                "--agent-window",
                "60s",
            ],
            **kw,
        )

    def add_server(self, i, *args):
        return super().add_server(i, *self.member, "--threads", 1, *args)

    def add_agent(self, i, *args, kind=None):
        return super().add_agent(i, *self.member, *args, kind=kind)


@pytest.fixture
def cluster():
    with clusters() as make:
        yield make


@pytest.fixture
def verbs(tmp_path):
    with clusters(partial(VerbsCluster, tmp_path)) as make:
        yield make


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call" or report.outcome != "passed":
        word = "passed" if report.passed else "skipped" if report.skipped else "FAILED"
        with open(os.environ["BPS_QEMU_CONSOLE"], "w", encoding="utf-8") as f:
            f.write(f"\n@@ {word} {report.duration:.1f} {item.name}\n")
