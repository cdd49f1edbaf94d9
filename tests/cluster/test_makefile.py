"""Each target in the list of `make help` first installs the packages that it needs, then builds."""

import re
import subprocess

import pytest

from cluster import ROOT

# Targets that need no package except make, or that use the packages that are already installed.
WITHOUT = {"clean", "hooks", "install", "uninstall", "everything", "dist"}


def make(*args):
    p = subprocess.run(
        ["make", *args], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return p.stdout


def listed():
    text = make("-s", "help")
    names = re.findall(r"(?m)^make ([a-z][a-z0-9-]*)", text)
    return sorted({*names, *re.findall(r"(sim-[a-z0-9-]+):", text)} - WITHOUT)


LISTED = listed()


@pytest.fixture(scope="module")
def rules():
    """Let make parse the Makefile. Return {target: (prerequisites, first line of the recipe)}."""
    database = make("-pnq", "help")
    found = re.findall(r"(?m)^([a-z0-9-]+):(.*)\n(?:#.*\n)*\t(.*)$", database)
    return {target: (needs.split(), line) for target, needs, line in found}


def test_the_list_has_the_slow_targets():
    assert {"check-asan", "check-tsan", "sim", "sim-mutants", "matrix", "lint"} <= set(LISTED)


@pytest.mark.parametrize("target", LISTED)
def test_target_installs_its_packages_before_it_builds(target, rules):
    needs, line = rules[target]
    others = set(LISTED) - {target}
    assert set(needs) <= others, f"{target} builds {needs} first"
    assert needs or "tests/install-deps.sh" in line, line
