"""The releases of these tests: their programs, and daemons that change from one to the other."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import formats
import mark
from cluster import BUILD, ROOT, Cluster, Daemon
from keeper import Job, KeptDaemon


@dataclass(frozen=True)
class Release:
    """A release: the tree of its sources, and the folder of its programs."""

    name: str
    tree: Path
    build: Path

    def __str__(self) -> str:
        return self.name

    def version(self, name: str) -> int:
        """Return the version of a format."""
        number = formats.version(mark.tree_at(self.tree), name)
        assert number is not None, f"{self.tree} does not define {name}"
        return number

    @property
    def env(self) -> dict[str, str]:
        """The environment in which a worker loads the library and the package of this release."""
        return {
            "BPS_LIBRARY": str(self.build / "libbpsclient.so.0"),
            "PYTHONPATH": str(self.tree / "libbpsclient" / "python"),
        }


def release(name: str, folder: Path) -> Release:
    """Return the release whose tree is in a folder of build/mark."""
    return Release(name, folder, folder / "build" / "debug")


MARK = mark.read()
TODAY = Release("today", ROOT, BUILD)
THEN = release("mark", mark.folder_of(MARK.commit))
# Directions of an upgrade: to today's release, and back to the one of the mark.
WAYS = [(THEN, TODAY), (TODAY, THEN)]


def strangers(name: str) -> list[tuple[Release, Release]]:
    """Return pairs of releases, the earlier one first, with different versions of a format.

    The first pair is today's release and a copy of it with a larger version. If the format has
    changed with the mark, another pair is the release before this change and today's.
    """
    pairs = [(TODAY, release("raised", mark.BUILDS / name))]
    if MARK.before:
        before = release("before", mark.folder_of(MARK.before))
        if before.version(name) != TODAY.version(name):
            pairs.append((before, TODAY))
    return pairs


def runs(daemon: Daemon, r: Release) -> bool:
    """Return whether the daemon's process runs a program of the release."""
    exe = Path(os.readlink(f"/proc/{daemon.process.pid}/exe"))
    return exe.is_relative_to(r.build)


def replace(daemon: Daemon, r: Release) -> None:
    """Replace the process of a daemon by one of another release, as a package manager does."""
    daemon.build = r.build
    if isinstance(daemon, KeptDaemon):
        daemon.die(signal.SIGTERM)
    else:
        daemon.pin()
        daemon.kill(signal.SIGTERM)
        daemon.start()
    assert runs(daemon, r)


def is_healthy(c: Cluster) -> bool:
    """Return whether the scheduler reports no problem, and all daemons are up."""
    return c.bpsctl("status").returncode == 0 and all(
        m["state"] == "up" for m in c.scheduler.status()["members"]
    )


def start_job(c: Cluster, r: Release, workers: int = 2, **kw) -> Job:
    """Start a job whose workers load the library of a release. Wait for its first rounds."""
    job = Job(c, workers, env={**kw.pop("env", {}), **r.env}, **kw)
    job.goes_on()
    return job
