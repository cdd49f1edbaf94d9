"""The completion of bash for bpsrun offers all options and, behind some of them, their values."""

import os
import re
import subprocess

from cluster import BUILD, ROOT

COMPLETION = ROOT / "systemd" / "completion" / "bpsrun"


def completed(start, *before):
    """Return what bash offers for the word `start` behind the words `before`."""
    words = ["bpsrun", *before, start]
    script = f"""source '{COMPLETION}'; COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        COMP_LINE="$*"; _bpsrun; printf '%s\\n' "${{COMPREPLY[@]}}" """
    out = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return set(out.stdout.split())


def test_completion_of_bpsrun_offers_each_option_of_its_help_and_its_manual():
    done = subprocess.run(
        [str(BUILD / "bpsrun"), "--help"], capture_output=True, text=True, check=False, timeout=10
    )
    flags = set(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", done.stdout + done.stderr))
    manual = (ROOT / "docs" / "man" / "bpsrun.1").read_text()
    flags |= {f"-{name}" for name in re.findall(r"(?m)^\.It Fl (-?[\w-]+)", manual)}
    assert {"-n", "-H", "--servers", "--status"} <= flags
    # bpsrun itself passes --stdin to the programs that it starts on other machines.
    assert flags - completed("-") == {"--stdin"}
    assert completed("--servers-") == {"--servers-on"}


def test_completion_of_bpsrun_offers_values_commands_and_files(tmp_path, monkeypatch):
    assert completed("", "--on-agent-loss") == {"abort", "shrink"}
    assert completed("", "--servers-on") == {"all", "head"}
    assert completed("", "-n") == set()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").touch()
    (tmp_path / "logs").mkdir()
    assert completed("", "--hostfile") == {"hosts.txt", "logs"}
    assert completed("", "--log-dir") == {"logs"}
    monkeypatch.setenv("BPS_OF_A_TEST", "1")
    assert completed("BPS_OF_A", "-x") == {"BPS_OF_A_TEST"}
    assert "env" in completed("en", "-n", "2", "--")
    assert completed("ho", "-n", "2", "--", "cat") == {"hosts.txt"}


def test_completion_is_installed_under_the_names_of_the_programs():
    assert sorted(os.listdir(COMPLETION.parent)) == ["bpsctl", "bpsrun"]
