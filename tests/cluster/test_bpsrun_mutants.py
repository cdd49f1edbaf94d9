"""Mutants of bpsrun: each takes one rule out of it, and the named test must fail."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from cluster import BUILD, IS_ASAN, IS_TSAN, ROOT

TOOLS = ROOT / "libbpsclient" / "tools"
HERE = ROOT / "tests" / "cluster"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(IS_ASAN or IS_TSAN, reason="this Python cannot load the sanitized library"),
]


@dataclass(frozen=True)
class Mutant:
    """A change of a source of bpsrun.

    Attributes:
        source: the file.
        old, new: the text that is replaced, which is there once, and its replacement.
        test: the test that must fail.
    """

    source: str
    old: str
    new: str
    test: str


MUTANTS = {
    "key in argv": Mutant(
        "daemons.c",
        'snprintf(a->key_file, sizeof(a->key_file), "%s/%s.key", r->dir, role ? role : "cluster");',
        "char hex[KEY_HEX_BYTES]; key_format_hex(&r->key, hex);"
        'snprintf(a->key_file, sizeof(a->key_file), "%s/%s%.64s", r->dir, role ? role : "c", hex);',
        "test_bpsrun_nodes.py::test_key_is_in_no_command_line_and_not_in_the_workers",
    ),
    "scheduler stopped first": Mutant(
        "bpsrun.c",
        "	job_nodes_await_leave(r);\n",
        "",
        "test_bpsrun_nodes.py::test_scheduler_stays_until_every_node_has_left",
    ),
    "any key": Mutant(
        "nodes/meeting.c",
        "strlen(mac) == sizeof(want) - 1 && key_bytes_equal(mac, want, sizeof(want))",
        "*mac",
        "test_bpsrun_nodes.py::test_node_with_another_key_is_refused_and_the_others_go_on",
    ),
    "guard that kills nothing": Mutant(
        "process/guard.c",
        "	guard_kill_children();\n	guard_remove_folder(dir);\n	exit(",
        "	guard_remove_folder(dir);\n	exit(",
        "test_bpsrun_ends.py::test_killed_process_of_bpsrun_or_of_the_workers_ends_all_nodes"
        "[runner-head]",
    ),
    "host that outlives its standard input": Mutant(
        "process/guard.c",
        "			kill(runner, GUARD_DIED);\n",
        "",
        "test_bpsrun_hosts.py::test_nothing_is_left_on_the_hosts_when_a_process_here_is_killed"
        "[guard]",
    ),
}


def build_mutant(m, folder):
    """Build the mutant into a folder that has everything else of the build."""
    for path in BUILD.iterdir():
        if path.name != "bpsrun":
            (folder / path.name).symlink_to(path)
    text = (TOOLS / m.source).read_text()
    assert text.count(m.old) == 1, f"{m.source} has changed: update the mutant"
    source = folder / "mutant.c"
    source.write_text(text.replace(m.old, m.new))
    objects = [
        (BUILD / s.relative_to(ROOT)).with_suffix(".o")
        for s in TOOLS.rglob("*.c")
        if s != TOOLS / m.source and s.parent.name != "keep"  # another program
    ]
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", '-DBPS_VERSION="mutant"', f"-I{ROOT}", "-o"]
    command += [folder / "bpsrun", source, *objects, BUILD / "libcommon.a", "-lcrypto"]
    subprocess.run(list(map(str, command)), check=True, timeout=60)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, tmp_path):
    m = MUTANTS[name]
    build_mutant(m, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / m.test)]
    r = subprocess.run(
        command,
        cwd=HERE,
        env=os.environ | {"BPS_BUILD": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert r.returncode == 1 and "1 failed" in r.stdout, r.stdout + r.stderr
