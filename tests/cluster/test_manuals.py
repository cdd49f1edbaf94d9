"""The manuals agree with the programs.

Every call, error code, setting and command has an entry, and the examples run.
"""

import json
import os
import re
import subprocess

import pytest

from cluster import BUILD, IS_ASAN, ROOT, Cluster

MAN = ROOT / "docs" / "man"
EXAMPLE_PAGES = sorted(p.name for p in MAN.glob("*.3"))


def source(name):
    return (MAN / name).read_text()


def section(text, title):
    found = re.search(rf"^\.Sh {title}\n(.*?)(?=^\.Sh |\Z)", text, re.M | re.S)
    return found.group(1) if found else ""


def names_of(page):
    """Return the names in the page's NAME section. `man` finds the page under these names."""
    return re.findall(r"^\.Nm (\S+)", section(source(page), "NAME"), re.M)


def public_symbols():
    text = (ROOT / "libbpsclient" / "libbpsclient.map").read_text()
    return sorted(set(re.findall(r"\b(bps_\w+);", text)))


def test_every_exported_call_has_a_page_that_names_and_declares_it():
    named = {n: p for p in EXAMPLE_PAGES for n in names_of(p)}
    for symbol in public_symbols():
        assert symbol in named, f"no page of section 3 has '.Nm {symbol}' in its NAME"
        assert f".Fn {symbol} " in section(source(named[symbol]), "SYNOPSIS"), (
            f"{named[symbol]}: no synopsis of {symbol}"
        )


def test_no_page_names_a_call_that_is_not_exported():
    symbols = public_symbols()
    for page in EXAMPLE_PAGES:
        gone = [
            w
            for w in re.findall(r"^\.(?:Fn|Nm|Xr) (bps_\w+)", source(page), re.M)
            if w not in symbols
        ]
        assert not gone, f"{page} names {gone}"


def test_every_error_code_says_what_it_means_and_what_to_do():
    entries = dict(
        (f"{name} {number}", text)
        for name, number, text in re.findall(
            r"^\.It (BPS_E\w+) Pq (-\d+)\n(.*?)(?=^\.It |^\.El)",
            source("bps-errors.7"),
            re.M | re.S,
        )
    )
    codes = re.findall(r"X\((BPS_E\w+), (\d+),", (ROOT / "common" / "base" / "error.h").read_text())
    assert sorted(entries) == sorted(f"{name} -{number}" for name, number in codes)
    for code, text in entries.items():
        meaning, found, action = text.partition("\n.Pp\n.Em To do :\n")
        assert found, f"{code} does not say what to do"
        assert len(meaning) > 20 and len(action) > 10, code


@pytest.mark.parametrize("page", sorted(p.name for p in MAN.glob("*.[1-8]")))
def test_page_refers_only_to_pages_that_exist(page):
    theirs = {"nohup 1", "setrlimit 2", "systemd 1"}
    ours = {f"{n} {p[-1]}" for p in os.listdir(MAN) for n in names_of(p)}
    refs = set(re.findall(r"^(?:\.|\.[A-Z].* )(?:Pq )?Xr (\S+ \d)", source(page), re.M))
    assert not refs - ours - theirs


TYPES = {
    "TEXT": "text",
    "N": "number",
    "SIZE": "size",
    "TIME": "duration",
    "HOST:PORT": "address",
    None: "yes or no",
}


def settings_of(program):
    """Return (name, type, range, default, reloadable) of every setting in the program's --help."""
    out = subprocess.run(
        [BUILD / program, "--help"], capture_output=True, text=True, timeout=10, check=True
    ).stdout
    for name, form, text in re.findall(r"^  --([a-z-]+)(?:=(\S+))?\n((?: {10}.*\n)+)", out, re.M):
        if name == "config":
            continue
        text, _, default = " ".join(text.split()).partition(" (default ")
        limits = re.search(r"; (-?\w+ to \w+)$", text)
        kind = TYPES.get(form or None, f"word, {form}")
        yield (
            name,
            kind,
            limits and limits[1],
            default.rstrip(")") or "empty",
            re.search(r"; live(;|$)", text),
        )


def entries_of(role):
    """Map each setting of the daemon `role` to the first line of its entry in bps.conf(5)."""
    text = source("bps.conf.5")
    found = {}
    for title in re.findall(r"^\.Sh (SETTINGS OF .*)$", text, re.M):
        if "ALL" in title or role in title.lower():
            found.update(re.findall(r"^\.It Cm (\S+)\n(.*)$", section(text, title), re.M))
    return found


@pytest.mark.parametrize("role", ["scheduler", "server", "agent"])
def test_every_setting_has_its_type_range_and_default_in_the_manual(role):
    program = f"bps-{role}"
    entries, settings = entries_of(role), list(settings_of(f"{program}/{program}"))
    assert sorted(entries) == sorted(s[0] for s in settings)
    for name, kind, limits, default, is_live in settings:
        text = entries[name]
        assert bool(is_live) == (", live," in text), f"{name}: {text}"
        text = text.replace(", live,", ",")
        assert text.startswith(f"{kind},"), f"{name}: {text}"
        assert f"{limits}," in text if limits else not re.search(r"\d to \w", text), (
            f"{name} is {limits}: {text}"
        )
        ours = re.search(rf"(\S+) \({role}\)", text) or re.search(
            r"default (\S+?)[.,](?: |$)", text
        )
        assert ours and ours[1] == default, f"{name} is {default}: {text}"
        assert re.search(rf"^\.It Fl -{name}\b", source(f"{program}.8"), re.M), (
            f"{program}.8 does not name --{name}"
        )


def test_manual_has_the_measurements_that_decide_about_provider_auto():
    page = (ROOT / "docs" / "results" / "performance" / "providers.md").read_text()
    measured = re.findall(
        r"^\| (.+?) \| ([<>]= \S+) \| (\S+) \(.*\) \| \**(yes|no)\** \|$", page, re.M
    )
    manual = source("bps.conf.5")
    assert measured
    assert measured == re.findall(r"^\.It (.+?) Ta ([<>]= \S+) Ta (\S+) Ta (yes|no)$", manual, re.M)
    assert "In this release not every row holds, so it selects sockets." in manual
    assert any(holds == "no" for *_, holds in measured), "every row holds: let auto select tcp"


def test_example_files_of_the_settings_manual_are_accepted(tmp_path):
    text = section(source("bps.conf.5"), "EXAMPLES")
    files = re.findall(
        r"^\.Pa /etc/bps/(\w+)\.conf.*?^\.Bd -literal[^\n]*\n(.*?)^\.Ed", text, re.M | re.S
    )
    assert {role for role, _ in files} == {"scheduler", "server"}
    for role, example in files:
        path = tmp_path / f"{role}.conf"
        path.write_text(unescape(example))
        command = [BUILD / f"bps-{role}" / f"bps-{role}", "--config", path, "--check-config"]
        r = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        assert r.returncode == 0, r.stderr


def test_every_word_and_flag_of_bpsctl_is_in_its_manual():
    page = source("bpsctl.8")
    out = subprocess.run(
        [BUILD / "bpsctl", "help"], capture_output=True, text=True, timeout=10, check=True
    ).stdout
    words = re.findall(r"^  ([a-z-]+(?: [a-z-]+)*)", out, re.M)
    assert "status" in words
    for word in words:
        assert re.search(rf"^\.It Cm {word}\b", page, re.M), f"bpsctl.8 has no entry for '{word}'"
    for name, *_ in settings_of("bpsctl"):
        assert re.search(rf"^\.It Fl -{name}\b", page, re.M), f"bpsctl.8 has no entry for --{name}"


def test_every_problem_that_bpsctl_explains_is_in_its_manual():
    out = subprocess.run(
        [BUILD / "bpsctl", "--json", "explain"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    ).stdout
    codes = [c["code"] for c in json.loads(out)["codes"] if c["kind"] == "problem"]
    assert "SERVER_DOWN" in codes
    for code in codes:
        assert re.search(rf"^\.It Dv .*\b{code}\b", source("bpsctl.8"), re.M), (
            f"bpsctl.8 has no entry for {code}"
        )


def test_page_of_flow_control_has_its_files_and_bounds():
    page = (ROOT / "docs" / "explanation" / "design" / "flow-control.md").read_text()
    files = {p.name for p in (ROOT / "common" / "transport" / "flow").glob("*.h")}
    assert files == set(re.findall(r"`(\w+\.h)`", page))
    sources = "".join(
        p.read_text() for d in ("common", "bps-agent") for p in sorted((ROOT / d).rglob("*.[ch]"))
    )
    factors = {"": 1, " KiB": 1 << 10, " MiB": 1 << 20, " ms": 1000}
    bounds = re.findall(r"`([A-Z_]+)` \((\d+)( \w+)?\)", page)
    assert len(bounds) > 20
    for name, number, unit in bounds:
        found = re.search(rf"(?m)^#define {name}\s+(.*?)(?: /\*.*)?$", sources)
        assert found, name
        terms = re.sub(r"UINT\d+_C|[()]|(?<=\d)u\b", "", found[1]).split("<<")
        value = int(terms[0]) << int(terms[1] if terms[1:] else 0)
        factor = factors[unit] * (1000 if unit == " ms" and name.endswith("_NS") else 1)
        assert value == int(number) * factor, f"{name} is {value}"


def test_metrics_that_are_served_are_those_of_the_documentation(service):
    rows = re.findall(r"^\|.*", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.M)
    written = set(re.findall(r"`((?:bps|process)_[a-z_]+)", " ".join(rows)))
    served = set()
    for daemon in service.daemons:
        served |= set(re.findall(r"^# TYPE (\S+)", daemon.get("/metrics"), re.M))
    assert "bps_view" in served
    assert not served - written, "docs/reference/metrics.md does not name these"
    code = "".join(
        p.read_text()
        for d in ("common", "bps-scheduler", "bps-server", "bps-agent")
        for p in (ROOT / d).rglob("*.[ch]")
    )
    assert not [name for name in written if f'"{name}"' not in code], (
        "docs/reference/metrics.md names what no daemon serves"
    )


@pytest.mark.parametrize("program", ["bpsrun", "bps-bench", "bps-digits"])
def test_every_flag_of_a_tool_is_in_its_manual(program):
    out = subprocess.run(
        [BUILD / program, "--help"], capture_output=True, text=True, timeout=10, check=False
    )
    flags = set(re.findall(r"--([a-z][a-z-]*)", out.stdout + out.stderr))
    assert len(flags) > 3
    for flag in flags:
        assert re.search(rf"Fl -{flag}\b", source(f"{program}.1")), (
            f"{program}.1 does not name --{flag}"
        )


@pytest.mark.parametrize(
    "command",
    [
        "bps-scheduler/bps-scheduler --help",
        "bps-server/bps-server --help",
        "bps-agent/bps-agent --help",
        "bpsctl --help",
        "bpsctl help",
        "bpsrun --help",
        "bps-bench --help",
        "bps-digits --help",
    ],
)
def test_help_of_a_program_fits_into_80_columns(command):
    program, option = command.split()
    out = subprocess.run(
        [BUILD / program, option], capture_output=True, text=True, timeout=10, check=False
    )
    lines = (out.stdout + out.stderr).splitlines()
    assert len(lines) > 1
    assert not [line for line in lines if len(line) > 80]


def unescape(text):
    for escape, character in (
        ("\\(aq", "'"),
        ("\\(dq", '"'),
        ("\\-", "-"),
        ("\\&", ""),
        ("\\e", "\\"),
    ):
        text = text.replace(escape, character)
    return text


def examples(page):
    """Return the complete programs in the page's section EXAMPLES."""
    blocks = re.findall(
        r"^\.Bd -literal.*?\n(.*?)^\.Ed", section(source(page), "EXAMPLES"), re.M | re.S
    )
    return [unescape(b) for b in blocks if b.startswith("#include")]


@pytest.fixture(scope="module")
def service():
    with Cluster(agents=1, servers=1) as c:
        yield c


@pytest.mark.parametrize("page", EXAMPLE_PAGES)
@pytest.mark.skipif(IS_ASAN, reason="examples are built without the sanitizer")
def test_example_compiles_and_runs_as_a_job_of_two(page, service, tmp_path):
    programs = examples(page)
    assert programs, f"{page} has no whole program among its examples"
    for i, text in enumerate(programs):
        program = tmp_path / f"example{i}"
        (tmp_path / "example.c").write_text(text)
        (tmp_path / "bps.h").write_bytes((ROOT / "libbpsclient" / "bps.h").read_bytes())
        build = [
            "cc",
            "-std=gnu99",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{tmp_path}",
            "-o",
            program,
            tmp_path / "example.c",
            f"-L{BUILD}",
            f"-Wl,-rpath,{BUILD}",
            "-l:libbpsclient.so.0",
        ]
        subprocess.run(build, check=True, timeout=60)
        r = subprocess.run(
            [
                str(BUILD / "bpsrun"),
                "-n",
                "2",
                "--agent",
                str(service.agents[0].socket),
                "--timeout",
                "30s",
                "--",
                str(program),
            ],
            env=service.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert r.returncode == 0, r.stdout + r.stderr
        assert {line[:3] for line in r.stdout.splitlines()} == {"[0]", "[1]"}


def test_every_kind_of_log_line_is_documented():
    ids = re.findall(
        r'X\(\w+, "([0-9a-f]{32})"\)', (ROOT / "common" / "base" / "log.h").read_text()
    )
    assert len(ids) > 20 and len(set(ids)) == len(ids)
    documented = re.findall(
        r"^\| `([0-9a-f]{32})` \| \w", (ROOT / "docs" / "reference" / "logs.md").read_text(), re.M
    )
    assert sorted(documented) == sorted(ids)
