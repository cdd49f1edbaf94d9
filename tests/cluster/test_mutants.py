"""The simulator's mutants still apply, and tests always run their first seeds."""

import re
import subprocess

import pytest

from cluster import ROOT

PATCHES = sorted((ROOT / "tests" / "sim" / "mutants").glob("*.patch"))
SOURCE = re.compile(r"^--- a/(.*)$", re.M)


def first_seeds():
    """Return {mutant: first seed} from the table of the documentation."""
    rows = re.findall(
        r"^\| ([a-z-]+) \| .* \| ([\d,]+) \| [^|]+ \|$",
        (ROOT / "docs" / "reference" / "mutants.md").read_text(),
        re.M,
    )
    return {name: int(seed.replace(",", "")) for name, seed in rows}


def passed_seeds():
    """Return {seed: what it found}."""
    lines = (ROOT / "tests" / "sim" / "seeds.txt").read_text().splitlines()
    pairs = [line.split(" ", 1) for line in lines if not line.startswith("#")]
    return {int(seed): [w.strip() for w in what.split(",")] for seed, what in pairs}


@pytest.mark.parametrize("path", PATCHES, ids=lambda p: p.stem)
def test_mutant_applies_to_the_source(path):
    source = SOURCE.search(path.read_text())[1]
    command = ["patch", "-s", "-F0", "--dry-run", "-o", "/dev/null", source, str(path)]
    p = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert p.returncode == 0, p.stdout


def test_first_seed_of_each_mutant_is_passed_by_every_run():
    first, passed = first_seeds(), passed_seeds()
    assert set(first) == {p.stem for p in PATCHES}
    missing = [
        f"{name} at {seed}" for name, seed in first.items() if name not in passed.get(seed, [])
    ]
    assert not missing, missing
