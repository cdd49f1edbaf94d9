"""Check that the patch of each mutant applies to the code.

Also check that every run of the tests includes the first seed of each mutant.
"""

import re
import subprocess

import pytest

from cluster import ROOT

PATCHES = sorted((ROOT / "tests" / "sim" / "mutants").glob("*.patch"))
SOURCE = re.compile(r"^--- a/(.*)$", re.M)


def first_seeds():
    """Return {mutant: first seed that catches it} from the table in docs/reference/mutants.md."""
    rows = re.findall(
        r"^\| ([a-z-]+) \| .* \| ([\d,]+) \| [^|]+ \|$",
        (ROOT / "docs" / "reference" / "mutants.md").read_text(),
        re.M,
    )
    return {name: int(seed.replace(",", "")) for name, seed in rows}


def passed_seeds():
    """Return {seed: [mutants or bugs that it found]} from tests/sim/seeds.txt."""
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


CAUGHT = "#!/bin/sh\necho 'seed 1 at 1.0 s: I3'\nexit 1\n"


@pytest.fixture
def run_mutants(tmp_path):
    """Return a function that runs mutants.sh. Shell scripts replace the mutants' programs."""

    def run(**others):
        for path in PATCHES:
            program = tmp_path / path.stem
            program.write_text(others.get(path.stem.replace("-", "_"), CAUGHT))
            program.chmod(0o755)
        script = ROOT / "tests" / "sim" / "mutants.sh"
        p = subprocess.run(
            [str(script), str(tmp_path)], capture_output=True, text=True, check=False
        )
        return p.returncode, p.stdout.splitlines()[-1]

    return run


def test_mutants_that_are_all_caught_are_a_pass(run_mutants):
    n = len(PATCHES)
    assert run_mutants() == (0, f"{n} mutants, {n} caught")


@pytest.mark.parametrize(
    "program", ["#!/bin/sh\nexit 0\n", "#!/bin/sh\nkill -SEGV $$\n", "#!/no/such/shell\n"]
)
def test_mutant_that_is_not_caught_or_does_not_run_is_a_failure(run_mutants, program):
    n = len(PATCHES)
    assert run_mutants(one_slot=program) == (1, f"{n} mutants, {n - 1} caught")
