"""The version has one definition, and `make dist` writes the same archive twice, which builds."""

import hashlib
import os
import re
import subprocess
import tarfile

import pytest

from cluster import ROOT

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository")


# Variables of the `make` that runs the tests
OUTER = ("BUILD", "B", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")


def make(*args, cwd=ROOT):
    return subprocess.run(
        ["make", "--no-print-directory", *map(str, args)],
        env={k: v for k, v in os.environ.items() if k not in OUTER},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def version():
    return re.search(r"(?m)^VERSION\s*:= (\S+)$", (ROOT / "Makefile").read_text())[1]


def test_manifests_for_kubernetes_name_the_images_of_this_version():
    folder = ROOT / "docs" / "guides" / "kubernetes"
    texts = "".join(p.read_text() for p in sorted(folder.rglob("kustomization.yaml")))
    assert set(re.findall(r"(?m)^ +newTag: (\S+)$", texts)) == {version()}
    assert len(re.findall(r"(?m)^ +newName: localhost/bps(-cuda)?$", texts)) == 3


def test_packages_know_each_exported_symbol():
    exported = (ROOT / "libbpsclient" / "libbpsclient.map").read_text()
    known = (ROOT / "systemd" / "debian" / "libbpsclient0.symbols").read_text()
    calls = re.findall(r"(?m)^ (bps_\w+)@BPS_0\.1 0\.1\.0$", known)
    assert sorted(calls) == sorted(set(re.findall(r"\b(bps_\w+);", exported)))


def test_version_is_one_of_three_numbers_and_the_changelogs_begin_with_it():
    assert re.fullmatch(r"\d+\.\d+\.\d+", version())
    changes = (ROOT / "docs" / "CHANGELOG.md").read_text()
    heading = re.search(r"(?m)^## \[(\S+)\] - (unreleased|\d{4}-\d\d-\d\d)$", changes)
    assert heading and heading[1] == version()
    debian = (ROOT / "systemd" / "debian" / "changelog").read_text()
    assert debian.startswith(f"bps ({version()}-")


def test_sections_of_the_changelog_are_those_of_keep_a_changelog():
    changes = (ROOT / "docs" / "CHANGELOG.md").read_text()
    sections = set(re.findall(r"(?m)^### (.*)$", changes))
    assert {"Added"} <= sections
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return the folder of a run of `make dist`."""
    folder = tmp_path_factory.mktemp("dist") / "one"
    make("dist", f"DIST={folder}")
    return folder


@needs_git
def test_two_archives_of_one_commit_have_the_same_bytes_and_the_digest_that_is_noted(
    dist, tmp_path, monkeypatch
):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    again = tmp_path / "two"
    make("dist", f"DIST={again}")
    name = f"bps-{version()}.tar.gz"
    one, two = (dist / name).read_bytes(), (again / name).read_bytes()
    assert one == two
    assert (dist / "SHA256SUMS").read_text() == f"{hashlib.sha256(one).hexdigest()}  {name}\n"


@needs_git
def test_the_archive_has_all_files_and_builds_an_object_with_its_commit(dist, tmp_path):
    with tarfile.open(dist / f"bps-{version()}.tar.gz") as archive:
        archive.extractall(tmp_path)
    tree = tmp_path / f"bps-{version()}"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout.split("\n")
    assert not [name for name in listed if name and not (tree / name).exists()]
    assert "bps-scheduler" in make("-n", "all", cwd=tree)
    make("build/release/common/base/version.o", cwd=tree)
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout.strip()
    assert head.encode() in (tree / "build/release/common/base/version.o").read_bytes()
