"""The checks of folders, names and prose detect the faults for which they are made."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def tree(tmp_path):
    """Copy the product's sources and the checks into a folder, in which a test makes a fault."""
    for folder in ("common", "bps-agent", "bps-server", "bps-scheduler", "libbpsclient"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.csv", "__pycache__")
        )
    (tmp_path / "tests").mkdir()
    for check in ("layers.py", "layers.txt", "unique_names.py"):
        shutil.copy(ROOT / "tests" / check, tmp_path / "tests" / check)
    return tmp_path


def check(tree, name):
    """Run a check in the folder `tree`. Return the check's exit status and output."""
    done = subprocess.run(
        [sys.executable, f"tests/{name}"], cwd=tree, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    return done.returncode, done.stdout


def append(path, line):
    path.write_text(path.read_text() + line + "\n")


def test_the_tree_passes_its_checks(tree):
    assert check(tree, "layers.py") == (0, "")
    assert check(tree, "unique_names.py")[0] == 0


def test_an_include_that_is_turned_around_is_found(tree):
    append(tree / "common/wire/wire.c", '#include "common/transport/xport.h"')
    status, out = check(tree, "layers.py")
    assert status == 1
    assert 'common/wire/wire.c: common/wire may not include "common/transport/xport.h"' in out
    assert "folders include each other" in out


def test_a_core_that_includes_its_shell_or_a_clock_is_found(tree):
    append(tree / "bps-server/core/slots.c", '#include "bps-server/thread.h"')
    append(tree / "bps-agent/core/link.c", "#include <uv.h>")
    status, out = check(tree, "layers.py")
    assert status == 1
    assert 'bps-server/core may not include "bps-server/thread.h"' in out
    assert "a pure folder includes uv.h" in out


def test_a_permission_that_nothing_uses_is_found(tree):
    layers = tree / "tests/layers.txt"
    layers.write_text(
        re.sub(r"^common/data:", "common/data: common/wire", layers.read_text(), flags=re.M)
    )
    status, out = check(tree, "layers.py")
    assert status == 1
    assert "layers.txt: common/data does not use common/wire" in out


def test_a_folder_that_grows_too_large_or_is_unknown_is_found(tree):
    for i in range(31):
        (tree / f"common/loop/more{i}.c").write_text("")
    (tree / "common/attic").mkdir()
    (tree / "common/attic/old.c").write_text("")
    status, out = check(tree, "layers.py")
    assert status == 1
    assert "common/loop: " in out and "at most 30" in out
    assert "common/attic/old.c: the folder has no line in layers.txt" in out


def test_a_name_that_exists_twice_is_found(tree):
    append(
        tree / "common/base/heap.c",
        "struct srv_core {\n\tint x;\n};\nint duration_parse_ms(void)\n{\n\treturn 0;\n}",
    )
    status, out = check(tree, "unique_names.py")
    assert status == 1
    assert "srv_core" in out and "duration_parse_ms" in out


@pytest.fixture
def prose(tmp_path):
    """Return a function that writes a text to a file, and checks this file with prose.py.

    The function returns the (exit status, output) of prose.py.
    """
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "prose.py", tmp_path / "tests" / "prose.py")

    def run(name, text):
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            [sys.executable, "tests/prose.py", name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not done.stderr
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.c", "/* Who has it keeps it. */\n", "starts with 'Who'"),
        ("a.h", "/* Is it there? */\nbool f(void);\n", "starts with 'Is'"),
        ("a.h", "int x; /* heard of it */\n", "'heard of'"),
        ("a.c", "int x;\n" * 101, "no opening paragraph"),
        ("a.py", '"""A module."""\n# Whoever comes is served.\n', "starts with 'Whoever'"),
        ("a.py", 'def f():\n    """What it returns."""\n', "starts with 'What'"),
        ("a.sh", "# It begins anew.\n", "'anew'"),
        ("a.mk", "# Files.\n" + "x" * 101 + "\n", "101 columns"),
        ("a.md", "In a former life it was different.\n", "'In a former life'"),
    ],
)
def test_bad_prose_is_found(prose, name, text, what):
    status, out = prose(name, text)
    assert status == 1
    assert what in out


def test_good_prose_strings_and_tables_pass(prose):
    text = """# Servers

A restarted server registers again. See https://example.org/%s.

| x |
|---|
| %s |
""" % ("x" * 80, "x" * 120)
    assert prose("a.md", text) == (0, "")
    code = '/* Return the text. */\nconst char *text = "/* Who begins anew? */";\n'
    assert prose("a.c", code) == (0, "")


def commit_msg(tmp_path, text):
    message = tmp_path / "message"
    message.write_text(text)
    done = subprocess.run(
        [ROOT / "tests/hooks/commit-msg", message], capture_output=True, text=True, timeout=10
    )
    return done.returncode, done.stderr


def test_commit_messages_of_the_right_form_pass(tmp_path):
    for text in (
        "net: give net_open a file of its own\n",
        "bps-agent: merge two rings\n\nBoth did the same.\n",
        "# comment\nci: run lint\n",
    ):
        assert commit_msg(tmp_path, text) == (0, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("Update things\n", "area: imperative"),
        ("net: " + "x" * 70 + "\n", "at most 72"),
        ("net: add a; remove b\n", "semicolon"),
        ("net: added a queue\n", "no imperative"),
        ("net: The queue is shared\n", "not with a verb"),
        ("net: share the queue.\n", "full stop"),
        ("net: share the queue\nat once\n", "second line"),
        ("net: share the queue\n\n" + "word " * 30 + "\n", "100 columns"),
    ],
)
def test_commit_messages_of_the_wrong_form_are_refused(tmp_path, text, why):
    status, err = commit_msg(tmp_path, text)
    assert status == 1
    assert why in err and "CONTRIBUTING.md" in err
