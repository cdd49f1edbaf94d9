#!/usr/bin/env python3
"""Build the programs that the tests of this folder run beside today's.

    tests/upgrade/mark.py

The script reads tests/compatibility-mark. It builds the mark, the commit before the last break of a
format, if there is one, and for each format a copy of today's tree whose version is larger by one.
The trees are in build/mark. The trees of commits are kept there and are not built again. The copies
of today's tree start with the objects of build/debug, so only a few files are compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import formats
from repository import git, without_comments

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "tests" / "compatibility-mark"
BUILDS = ROOT / "build" / "mark"
PRODUCT = (
    "common",
    "bps-scheduler",
    "bps-server",
    "bps-agent",
    "libbpsclient",
    "tests/host_executor",
)
# Constants that must have the value of another constant.
WITH = {"GPU_MEMORY_VERSION": ("DEVICE_DESC_VERSION",)}


@dataclass(frozen=True)
class Mark:
    """The contents of tests/compatibility-mark. ``before`` is empty if there is no such commit."""

    commit: str
    before: str
    versions: dict[str, int]


def read() -> Mark:
    """Read tests/compatibility-mark."""
    lines = [line.split() for line in FILE.read_text("utf-8").splitlines()]
    fields = {words[0]: words[1] for words in lines if words and words[0] != "#"}
    commit, before = fields.pop("commit"), fields.pop("before", "")
    if commit == "this":
        commit = git(ROOT, "log", "-1", "--format=%H", "--", str(FILE)).stdout.strip()
    return Mark(commit, before, {name: int(value) for name, value in fields.items()})


def has(commit: str) -> bool:
    """Return whether this clone has the commit."""
    return git(ROOT, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def tree_at(folder: Path) -> formats.Tree:
    """Return the source tree in a folder."""
    return lambda path: (folder / path).read_text() if (folder / path).exists() else None


def tree_of(commit: str) -> formats.Tree:
    """Return the source tree of a commit."""

    def text(path: str) -> str | None:
        shown = git(ROOT, "show", f"{commit}:{path}")
        return None if shown.returncode else shown.stdout

    return text


def folder_of(commit: str) -> Path:
    """Return the folder of a commit's tree."""
    return BUILDS / commit[:12]


def make(folder: Path, commit: str) -> None:
    """Build the programs of a tree for debugging. They report `commit` as their commit."""
    log = folder.with_suffix(".log")
    command = ("make", "-C", str(folder), f"-j{os.cpu_count()}", "BUILD=debug", f"COMMIT={commit}")
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    with log.open("w") as out:
        done = subprocess.run((*command, "all"), stdout=out, stderr=out, env=clean, check=False)
    if done.returncode:
        sys.exit(f"cannot build {folder}:\n{log.read_text()[-4000:]}")


def build_commit(commit: str) -> None:
    """Build the tree of a commit, unless it is built already."""
    folder = folder_of(commit)
    if (folder / "built").exists():
        return
    if not has(commit):
        sys.exit(
            f"this clone does not have commit {commit}, which tests/compatibility-mark names: "
            "fetch the whole history with `git fetch --unshallow`"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ("git", "-C", str(ROOT), "archive", commit), capture_output=True, check=True
    ).stdout
    subprocess.run(("tar", "-x", "-C", str(folder)), input=archive, check=True)
    make(folder, commit[:12])
    (folder / "built").touch()


def raise_version(folder: Path, name: str) -> None:
    """Raise the version of a format by one in a tree whose objects are up to date.

    Only the sources that use the constant are compiled again. So the file that defines the constant
    keeps its time, and no other header may use the constant.
    """
    for constant in (name, *WITH.get(name, ())):
        users = 0
        for path in sorted(p for part in PRODUCT for p in (folder / part).rglob("*.[ch]")):
            text = path.read_text()
            if constant not in without_comments(text):
                continue
            raised, defines = re.subn(
                rf"(?m)^(#define {constant}\s+)(\d+)",
                lambda m: f"{m[1]}{int(m[2]) + 1}",
                text,
            )
            times = path.stat().st_mtime_ns
            path.write_text(raised)
            if path.suffix == ".h":
                assert defines == 1, f"{path} uses {constant}, so its users must be compiled again"
                os.utime(path, ns=(times, times))
            users += path.suffix == ".c"
        assert users, f"no source uses {constant}"


def build_raised(name: str) -> None:
    """Build a copy of today's tree in which a format has a version that is larger by one."""
    folder = BUILDS / name
    shutil.rmtree(folder, ignore_errors=True)
    for part in (*PRODUCT, "tests/bench", "tests/gpu", "tests/sim", "tests/scale", "systemd"):
        shutil.copytree(ROOT / part, folder / part)
    parts = re.findall(r"(?m)^include (\S+)", (ROOT / "Makefile").read_text())
    for path in ("Makefile", *parts):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path)
    objects = ROOT / "build" / "debug"
    for part in (*PRODUCT, "tests/bench"):
        shutil.copytree(objects / part, folder / "build" / "debug" / part)
    raise_version(folder, name)
    make(folder, f"{name.lower()}+1")


def main() -> int:
    """Build all trees."""
    mark = read()
    for commit in filter(None, (mark.commit, mark.before)):
        build_commit(commit)
    for name in formats.FORMATS:
        build_raised(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
