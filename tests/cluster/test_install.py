"""Files that `make install` installs: units, settings files, the library's pkg-config file."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, ROOT

pytestmark = pytest.mark.xdist_group("install")  # only one `make install` may run at a time

PREFIX = "/opt/bps"
DAEMONS = ("scheduler", "server", "agent")
# Largest exposure, in tenths, that `systemd-analyze security` may report. A service without any
# protection has 100.
EXPOSURE = {"scheduler": 13, "server": 20, "server@": 20, "agent": 23}


def make(*words):
    name = BUILD.name if BUILD.name in ("debug", "release", "asan", "tsan", "cov") else "debug"
    command = ["make", "-s", f"BUILD={name}", f"B={BUILD}", f"PREFIX={PREFIX}", *words]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "LD_PRELOAD")}
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, env=env)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    path = tmp_path_factory.mktemp("installed")
    make(f"DESTDIR={path}", "install")
    return path


def run(program, *args):
    return subprocess.run(
        [str(program), *args], capture_output=True, text=True, timeout=10, check=False
    )


@pytest.mark.parametrize("role", DAEMONS)
def test_settings_file_names_every_setting_with_its_default(tree, tmp_path, role):
    program = tree / PREFIX[1:] / "sbin" / f"bps-{role}"
    example = (tree / PREFIX[1:] / "share/doc/bps/examples" / f"{role}.conf").read_text()
    named = dict(re.findall(r"^# ([a-z-]+) = ?(.*)$", example, re.M))
    plain = tmp_path / "empty.conf"
    plain.touch()
    printed = run(program, "--config", str(plain), "--print-config").stdout
    settings = dict(re.findall(r"^([a-z-]+) = (.*?) ?; default$", printed, re.M))
    settings.pop("ready-fd")  # set by service managers on the command line
    settings.pop("faults")  # only tests use this setting
    assert len(settings) > 8 and named == settings
    full = tmp_path / "full.conf"
    full.write_text(re.sub(r"^# ([a-z-]+ =)", r"\1", example, flags=re.M))
    checked = run(program, "--config", str(full), "--check-config")
    assert checked.returncode == 0, checked.stderr


def test_unit_for_several_servers_reads_the_settings_of_its_instance(tree):
    units = tree / PREFIX[1:] / "lib/systemd/system"
    one, several = (units / f"bps-server{at}.service" for at in ("", "@"))
    added = set(several.read_text().splitlines()) - set(one.read_text().splitlines())
    assert {line for line in added if not line.startswith("Description=")} == {
        f"ExecStart={PREFIX}/sbin/bps-server --config /etc/bps/server-%i.conf",
        f"ExecReload={PREFIX}/sbin/bps-server --config /etc/bps/server-%i.conf --check-config",
        "LoadCredential=cluster.key:/etc/bps/server-%i.key",
        "RuntimeDirectoryPreserve=yes",
    }


@pytest.mark.parametrize("role", [*DAEMONS, "server@"])
def test_unit_runs_the_installed_program_and_is_confined(tree, role):
    unit = tree / PREFIX[1:] / "lib/systemd/system" / f"bps-{role}.service"
    programs = re.findall(r"^Exec(?:Start|Reload)=(\S*/bps-\S+)", unit.read_text(), re.M)
    assert len(programs) == 2
    for program in programs:
        assert (tree / program[1:]).is_file(), program
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    scored = run(
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE[role]}",
        "--no-pager",
        str(unit),
    )
    assert scored.returncode == 0, scored.stdout + scored.stderr


def test_library_is_found_by_pkg_config(tree):
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    folder = tree / PREFIX[1:] / "lib"
    found = subprocess.run(
        [
            "pkg-config",
            f"--define-variable=prefix={tree}{PREFIX}",
            "--cflags",
            "--libs",
            "libbpsclient",
        ],
        env={"PKG_CONFIG_PATH": str(folder / "pkgconfig"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    ).stdout
    assert f"-I{tree}{PREFIX}/include" in found and f"-L{PREFIX}/lib" in found
    assert (folder / "libbpsclient.so").resolve() == (folder / "libbpsclient.so.0").resolve()


def test_uninstall_leaves_no_file(tmp_path):
    make(f"DESTDIR={tmp_path}", "install")
    assert any(p.is_file() for p in Path(tmp_path).rglob("*"))
    make(f"DESTDIR={tmp_path}", "uninstall")
    assert [p for p in Path(tmp_path).rglob("*") if not p.is_dir()] == []
