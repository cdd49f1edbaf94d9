"""`make everything` counts a target as failed when it fails, prints no figure, or is too slow."""

import importlib.util
import os
import re
import sys

import pytest

from cluster import ROOT

MAKEFILE = r"""
good:
	@echo 'noise'; echo '3 passed, 0 failed'
fails:
	@echo '3 passed, 1 failed'; exit 1
mute:
	@echo 'nothing of interest'
once:
	@test ! -e logs/once.jsonl && touch logs/once.jsonl && echo '1 passed, 0 failed'
counts:
	@echo run >>counts.txt; echo '1 passed, 0 failed'
endless:
	@echo '1 passed, 0 failed'; echo $$PPID >endless.pid; tail -f /dev/null
"""
NEVER_MIN = 0.02  # minutes that an endless target may run


@pytest.fixture
def everything(tmp_path, monkeypatch):
    """Return a function that runs tests/everything.py on the targets of a small Makefile."""
    spec = importlib.util.spec_from_file_location("everything", ROOT / "tests" / "everything.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "everything", script)
    spec.loader.exec_module(script)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "LOGS", tmp_path / "logs")

    def run(*names, options=(), commit="abc"):
        """Run the script.

        Return its exit status, and {target: (result, figures)} of the page that it writes.
        """
        code = "" if commit.endswith("with changes") else commit
        monkeypatch.setattr(script, "revision", lambda: (commit, code))
        limits = {"endless": NEVER_MIN}
        targets = tuple(script.Target(name, limits.get(name, 5), script.COUNTS) for name in names)
        monkeypatch.setattr(script, "TARGETS", targets)
        page = tmp_path / "page.md"
        monkeypatch.setattr("sys.argv", ["everything.py", "--out", str(page), *options])
        status = script.main()
        rows = re.findall(r"(?m)^\| `make (\S+)` \| (.*?) \|.*?\| ?(.*?) ?\|$", page.read_text())
        return status, {name: (result, figures) for name, result, figures in rows}

    return run


def test_run_in_which_all_targets_pass_passes(everything):
    assert everything("good") == (0, {"good": ("passed", "3 passed, 0 failed")})


def test_records_of_an_earlier_run_do_not_count(everything):
    assert everything("once")[0] == 0
    assert everything("once", options=("--again",))[0] == 0


def test_interrupted_run_goes_on_with_the_targets_that_have_not_passed(everything, tmp_path):
    everything("counts", "fails", options=("--only", "counts"))
    status, rows = everything("counts", "fails")
    assert status == 1
    assert rows["counts"] == ("passed", "1 passed, 0 failed")
    assert rows["fails"][0] == "**failed**"
    assert (tmp_path / "counts.txt").read_text() == "run\n"


def test_target_that_has_not_run_does_not_pass(everything):
    _, rows = everything("good", "counts", options=("--only", "good"))
    assert rows["counts"] == ("not run", "")


@pytest.mark.parametrize("commit", ["abd", "abc with changes"])
def test_results_of_another_commit_do_not_count(everything, tmp_path, commit):
    everything("counts", commit=commit.replace("abd", "abc"))
    everything("counts", commit=commit)
    assert (tmp_path / "counts.txt").read_text() == "run\nrun\n"


@pytest.mark.parametrize(
    "name, figures",
    [
        ("fails", "make ended with status 2; 3 passed, 1 failed"),
        ("mute", "printed no figures"),
        ("endless", f"stopped after {NEVER_MIN} min"),
        ("absent", "make ended with status 2"),
    ],
)
def test_target_that_fails_fails_the_run_and_the_others_still_run(everything, name, figures):
    status, rows = everything(name, "good")
    assert status == 1
    assert rows == {name: ("**failed**", figures), "good": ("passed", "3 passed, 0 failed")}


def test_target_that_is_stopped_leaves_no_process(everything, tmp_path):
    everything("endless")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "endless.pid").read_text()), 0)
