"""`make everything` runs the targets that are red or due, and records the last run of each target.

A target has failed when it fails, prints no figure, or is too slow.
"""

import importlib.util
import json
import os
import re
import subprocess
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
counts flag size:
	@echo $@ >>runs.txt; test ! -e broken && echo '1 passed, 0 failed$(MINUTES)'
endless:
	@echo '1 passed, 0 failed'; echo $$PPID >endless.pid; tail -f /dev/null
"""
NEVER_MIN = 0.02  # minutes that an endless target may run


def load(monkeypatch):
    """Return tests/everything.py as a module."""
    spec = importlib.util.spec_from_file_location("everything", ROOT / "tests" / "everything.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(ROOT / "tests")
    monkeypatch.setitem(sys.modules, "everything", script)
    spec.loader.exec_module(script)
    return script


class Repository:
    """A repository with a small Makefile, in which tests/everything.py runs."""

    def __init__(self, script, folder, monkeypatch):
        self.script, self.folder, self.monkeypatch = script, folder, monkeypatch
        self.records = folder / "docs" / "records"
        for name, path in (
            ("ROOT", folder),
            ("LOGS", folder / "logs"),
            ("RECORDS", self.records),
            ("PAGE", folder / "docs" / "page.md"),
        ):
            monkeypatch.setattr(script, name, path)
        for person in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{person}_NAME", "test")
            monkeypatch.setenv(f"GIT_{person}_EMAIL", "test@localhost")
        self.git("init", "-q")
        self.commit(".gitignore", "broken\nruns.txt\nlogs\nendless.pid\n__pycache__\n")
        self.commit("Makefile", MAKEFILE)

    def git(self, *words):
        command = ("git", "-C", self.folder, *words)
        return subprocess.check_output(command, text=True).strip()

    def commit(self, path, text):
        """Commit a file, and return the commit."""
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_text(text)
        self.git("add", path)
        self.git("commit", "-qm", path)
        return self.git("rev-parse", "HEAD")

    def run(self, *names, options=(), paths=(":!docs",), args=()):
        """Run the script on some targets.

        Return its exit status, and {target: (result, figures)} of the page that it writes.
        """
        limits = {"endless": NEVER_MIN}
        targets = tuple(
            self.script.Target(name, limits.get(name, 5), self.script.COUNTS, args, paths=paths)
            for name in names
        )
        self.monkeypatch.setattr(self.script, "TARGETS", targets)
        self.monkeypatch.setattr("sys.argv", ["everything.py", *options])
        status = self.script.main()
        rows = re.findall(
            r"(?m)^\| `make (\w+).*?` \| (.*?) \| .*?\| .*?\| ?(.*?) ?\|$",
            self.script.PAGE.read_text(),
        )
        return status, {name: (result, figures) for name, result, figures in rows}

    def runs(self):
        """Return the targets `counts`, `flag` and `size` that have run since the last call."""
        path = self.folder / "runs.txt"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def change_record(self, name, **values):
        path = self.records / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def everything(tmp_path, monkeypatch):
    return Repository(load(monkeypatch), tmp_path, monkeypatch)


def test_run_in_which_all_targets_pass_passes(everything):
    assert everything.run("good") == (0, {"good": ("passed", "3 passed, 0 failed")})


def test_record_has_the_commit_the_command_and_the_figures(everything):
    commit = everything.git("rev-parse", "HEAD")
    everything.run("good", args=("A=b c",))
    record = json.loads((everything.records / "good.json").read_text())
    assert record["commit"] == commit
    assert record["command"] == "make good 'A=b c'"
    assert record["passed"] is True and record["seconds"] >= 0
    assert record["figures"] == ["3 passed, 0 failed"]


def test_files_of_an_earlier_run_are_removed(everything):
    assert everything.run("once")[0] == 0
    assert everything.run("once", options=("--again",))[0] == 0


def test_green_targets_run_only_with_again(everything):
    everything.run("counts", "fails", options=("--only", "counts"))
    assert everything.runs() == ["counts"]
    status, rows = everything.run("counts", "fails")
    assert status == 1
    assert rows["counts"] == ("passed", "1 passed, 0 failed")
    assert rows["fails"][0] == "**failed**"
    assert everything.runs() == []
    everything.run("counts", options=("--again",))
    assert everything.runs() == ["counts"]


def test_target_that_has_not_run_does_not_pass(everything):
    status, rows = everything.run("good", "counts", options=("--only", "good"))
    assert status == 0
    assert rows["counts"] == ("not run", "")
    assert everything.run("good", "counts", options=("--minutes", "0"))[0] == 1


def test_target_is_due_when_a_file_that_it_depends_on_changes(everything):
    everything.run("counts", paths=("code", "Makefile"))
    everything.runs()
    everything.commit("docs/page.md", "words")
    everything.run("counts", paths=("code", "Makefile"))
    assert everything.runs() == []
    everything.commit("code/a.c", "int a;")
    everything.run("counts", paths=("code", "Makefile"))
    assert everything.runs() == ["counts"]


def test_target_whose_command_changes_is_red_until_it_runs(everything):
    everything.run("counts")
    status, rows = everything.run("counts", args=("N=2",), options=("--minutes", "0"))
    assert (status, rows["counts"]) == (1, ("not run", ""))
    assert everything.run("counts", args=("N=2",))[0] == 0


def test_red_targets_run_first_and_then_the_oldest(everything):
    everything.run("counts", "size")
    old = everything.commit("a", "a")
    everything.run("size")
    everything.commit("b", "b")
    everything.runs()
    everything.run("size", "counts", "flag")
    assert everything.runs() == ["flag", "counts", "size"]
    everything.commit("c", "c")
    everything.change_record("size", passed=False, commit=old)
    everything.run("counts", "flag", "size")
    assert everything.runs() == ["size", "counts", "flag"]


def test_target_starts_only_if_its_last_time_fits(everything, capsys):
    everything.run("counts", "flag")
    everything.runs()
    everything.commit("a", "a")
    everything.change_record("counts", seconds=90)
    # The target `size` has not run, so it needs its limit of 5 minutes.
    status, _ = everything.run("counts", "flag", "size", options=("--minutes", "1"))
    assert everything.runs() == ["flag"]
    assert status == 1
    out = capsys.readouterr().out
    assert re.search(r"(?m)^due +counts +passed 1 commits ago, needs 1.5 min$", out)
    assert re.search(r"(?m)^red +size +has not run, needs 5.0 min$", out)
    assert re.search(r"(?m)^green +flag +passed 0 commits ago$", out)


def test_due_target_is_accepted_for_a_hundred_commits(everything):
    everything.run("counts")
    commit = everything.commit("a", "a")
    for n in range(100):
        commit = everything.git("commit-tree", "-m", str(n), "-p", commit, "HEAD^{tree}")
        if n in (98, 99):
            everything.git("reset", "-q", "--hard", commit)
            status, _ = everything.run("counts", options=("--minutes", "0"))
            assert status == (0 if n == 98 else 1)


def test_green_target_is_accepted_at_any_age(everything):
    everything.run("counts", paths=("Makefile",))
    everything.monkeypatch.setattr(everything.script, "OLDEST", 1)
    for name in "abc":
        everything.commit(name, name)
    assert everything.run("counts", paths=("Makefile",), options=("--minutes", "0"))[0] == 0


def test_record_of_an_unknown_commit_is_due_and_too_old(everything):
    everything.run("counts")
    everything.runs()
    everything.change_record("counts", commit="0" * 40)
    status, rows = everything.run("counts", options=("--minutes", "0"))
    assert status == 1 and rows["counts"][0] == "passed"
    assert everything.run("counts")[0] == 0
    assert everything.runs() == ["counts"]


def test_run_with_uncommitted_changes_is_not_recorded(everything):
    (everything.folder / "Makefile").write_text(MAKEFILE + "# changed\n")
    assert everything.run("counts") == (0, {"counts": ("not run", "")})
    assert everything.run("counts", paths=("code",)) == (
        0,
        {"counts": ("passed", "1 passed, 0 failed")},
    )


def test_run_with_a_new_file_that_is_not_committed_is_not_recorded(everything):
    (everything.folder / "code.c").touch()
    assert everything.run("counts") == (0, {"counts": ("not run", "")})
    assert everything.run("counts", paths=("Makefile",))[1]["counts"][0] == "passed"


def test_target_that_failed_on_the_same_code_names_that_run(everything):
    (everything.folder / "broken").touch()
    assert everything.run("counts")[0] == 1
    (everything.folder / "broken").unlink()
    status, rows = everything.run("counts")
    assert status == 0
    figures = "1 passed, 0 failed; a run before failed: make ended with status 2"
    assert rows["counts"] == ("passed", figures)


def test_targets_do_not_get_the_variables_of_everything(everything, monkeypatch):
    monkeypatch.setenv("MINUTES", "7")
    monkeypatch.setenv("MAKEFLAGS", " -- MINUTES=7")
    assert everything.run("counts")[1]["counts"] == ("passed", "1 passed, 0 failed")


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
    status, rows = everything.run(name, "good")
    assert status == 1
    assert rows == {name: ("**failed**", figures), "good": ("passed", "3 passed, 0 failed")}


def test_target_that_is_stopped_leaves_no_process(everything):
    everything.run("endless")
    with pytest.raises(ProcessLookupError):
        os.kill(int((everything.folder / "endless.pid").read_text()), 0)


def test_unknown_target_is_refused(everything, capsys):
    with pytest.raises(SystemExit) as stopped:
        everything.run("good", options=("--only", "goood"))
    assert stopped.value.code == 2
    assert "no target goood: use some of good" in capsys.readouterr().err


def test_targets_depend_on_files_that_exist(monkeypatch):
    for target in load(monkeypatch).TARGETS:
        for path in target.paths:
            assert path.startswith(":!") or any(ROOT.glob(path)), f"{target.name}: no file {path}"


def test_page_has_the_records(monkeypatch):
    script = load(monkeypatch)
    assert script.PAGE.read_text() == script.table(), "make everything MINUTES=0 writes the page"
