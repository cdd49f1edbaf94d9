"""tests/skips.py allows the skips of its table, and no others."""

import subprocess
import sys

import pytest

from cluster import ROOT

sys.path.append(str(ROOT / "tests"))

import skips  # noqa: E402

NEVER = skips.Allowed("tests/a.py", "no disk", lambda build: False, "never")
ASAN = skips.Allowed("tests/a.py", "sanitized", lambda build: build == "asan", "asan only")
UNIT = skips.Allowed("test_a needs_root", "", lambda build: True, "no root")


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(skips, "ALLOWED", (NEVER, ASAN, UNIT))


def test_skip_is_allowed_by_file_reason_and_machine(table):
    for skip, build, row in (
        (("tests/a.py", "it is sanitized"), "asan", ASAN),
        (("tests/a.py", "it is sanitized"), "debug", None),
        (("tests/a.py", "no disk"), "asan", None),
        (("tests/b.py", "it is sanitized"), "asan", None),
        (("test_a needs_root", ""), "debug", UNIT),
        (("test_a needs_disk", ""), "debug", None),
    ):
        assert skips.allowed(skip, build) is row, (skip, build)


def test_skips_of_pytest_are_found_with_their_reasons(tmp_path):
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='no disk: none')\n"
        "@pytest.mark.parametrize('i', range(3))\n"
        "def test_a(i): pass\n"
        "def test_b(): pytest.skip('it is late')\n"
        "def test_c(): pass\n"
    )
    (tmp_path / "test_y.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    p = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = skips.of_pytest(p.stdout)
    assert found.count(("test_x.py", "no disk: none")) == 3, p.stdout
    assert found.count(("test_x.py", "it is late")) == 1 and len(found) == 5
    assert [test for test, reason in found if "no_such_module" in reason] == ["test_y.py"]


def test_skips_of_workers_are_compared_with_the_counts_of_pytest():
    skipped = "[1] SKIPPED [2] tests/frontends/test_gpu.py:7: one worker has no executor\n"
    ends = "[0] 5 passed in 0.31s\n[1] 3 passed, 2 skipped in 0.30s\n"
    found, n_skipped = skips.of_workers("frontends/torch/gpu", skipped + ends)
    assert (len(found), n_skipped) == (2, 2)
    assert skips.report(found, n_skipped, "debug")[1] == 0
    found, n_skipped = skips.of_workers("frontends/torch/gpu", ends)
    assert skips.report(found, n_skipped, "debug")[1] == 2
    found, n_skipped = skips.of_workers("frontends/torch/torch", skipped + ends)
    assert skips.report(found, n_skipped, "debug")[1] == 2


def test_skips_of_a_unit_test_are_found_by_name():
    output = "1..3\nok 1 - good\nnot ok 2 # SKIP needs_root\nnot ok 3 # SKIP needs_disk\n"
    assert skips.of_unit("test_a", output) == [("test_a needs_root", ""), ("test_a needs_disk", "")]


def test_report_counts_what_is_not_allowed_and_what_is_not_named(table):
    bad, good = ("tests/a.py", "no disk"), ("test_a needs_root", "")
    assert skips.report([good], 1, "debug") == ("     1 skipped: test_a: no root", 0)
    text, wrong = skips.report([bad, good, bad], 4, "debug")
    assert wrong == 3
    assert "FAIL 2 skipped: tests/a.py: no disk (tests/skips.py does not allow this)" in text
    assert "FAIL 1 skipped tests are not named" in text
    assert skips.report([], 0, "debug") == ("", 0)
