"""tests/bench/bars and tests/bench/run compute results from figures that the probes measure."""

import argparse
import importlib.machinery
import importlib.util
import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from unittest import mock

import pytest
from cluster import BUILD, ROOT

BENCH = ROOT / "tests" / "bench"
RECORD = ROOT / "docs" / "results" / "performance" / "bars.json"


@pytest.fixture(scope="module")
def script():
    """Load a program of tests/bench as a module."""

    def load(name):
        loader = importlib.machinery.SourceFileLoader(name, str(BENCH / name))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        loader.exec_module(module)
        sys.dont_write_bytecode = before
        return module

    sys.path.insert(0, str(BENCH))
    yield load
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def bars_module(script):
    return script("bars")


@pytest.fixture
def bars(bars_module, tmp_path):
    args = argparse.Namespace(
        build=tmp_path, old=None, repeat=3, seconds=1, again=2, priority="none"
    )
    return bars_module.Bars(args, tmp_path)


@pytest.fixture
def run_group(bars, bars_module, monkeypatch):
    """Return a function that runs a group of bars without measuring.

    `figures` returns the figures of a thing in each round. The function returns {config: row}.
    """

    def run(letter, figures=lambda thing: [{}]):
        def turns(things):
            rounds = zip(*(figures(thing) for thing in things))
            return [
                dict(zip(things, (Figures(f) for f in measured), strict=True))
                for measured in rounds
            ]

        lab = mock.MagicMock(hosts=[sys.modules["harness"].Host("", [])] * 20)
        lab.__enter__.return_value = lab
        monkeypatch.setattr(bars_module, "Lab", lambda *_: lab)
        monkeypatch.setattr(bars_module, "Suite", mock.MagicMock())
        monkeypatch.setattr(bars_module, "checked", lambda *_: None)
        monkeypatch.setattr(bars_module, "simulate", lambda *_, **__: Figures())
        monkeypatch.setattr(bars, "probe", lambda *_: Figures())
        monkeypatch.setattr(bars, "turns", turns)
        bars.args.provider = "auto"
        getattr(bars_module, f"group_{letter}")(bars)
        return {row["config"]: row for row in bars.rows}

    return run


class Figures(dict):
    """Figures of a measurement, each of which is 1 unless it is given."""

    def __missing__(self, name):
        return [{"dtype": "f32", "ours_gbs": 1.0}] if name == "results" else 1.0


def probe(*words):
    out = subprocess.run(
        [BUILD / "tests" / "bps-probe", *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(out.stdout)


def test_limit_of_processors_is_cores_over_the_costs_of_a_push_pull(bars_module):
    turn = {
        "cores": {"cores": 2},
        "raw 8": {"cpu_s_per_gb": 0.3},
        "crc 8": {"cpu_s_per_gb": 0.05},
        "sum 8": {"results": [{"dtype": "f16", "ours_gbs": 1}, {"dtype": "f32", "ours_gbs": 10}]},
    }
    most, parts = bars_module.limit(turn, 2, 8)
    # For 1 GB per worker, 2 agents exchange 4 GB over sockets. CRCs are computed for 7 GB. The
    # agents compute them for 2 GB of contributions and 2 GB of received sums. The servers compute
    # them for 2 GB of received contributions and 1 GB of sums.
    assert most == pytest.approx(2 / (4 * 0.3 + 0.1 + 7 * 0.05))
    assert parts["crc s/GB"] == pytest.approx(0.35)


def test_a_bar_is_the_median_of_the_rounds_ratios(bars):
    goodput = [(90, 100, 10), (300, 200, 100), (80, 40, 100)]
    seen = [
        {"ours": {"goodput_mbps": a}, "x": {"goodput_mbps": b}, "y": {"goodput_mbps": c}}
        for a, b, c in goodput
    ]
    bars.ratio("best of both", (">=", 0.9), seen, "ours", ["x", "y"])
    row = bars.rows[0]
    assert (row["measured"], row["least"], row["most"], row["holds"]) == (0.9, 0.8, 1.5, True)


def test_program_that_fails_last_is_reported(bars):
    host = sys.modules["harness"].Host("127.0.0.1", [])
    with pytest.raises(RuntimeError, match="exit 3"):
        bars.processes.run(
            [(host, ["sh", "-c", "sleep 0.3; exit 3"], None), (host, ["true"], None)]
        )


def test_run_draws_each_configurations_share_of_a_tcp_stream(script):
    def figures(*goodput):
        return [
            {"goodput_mbps": g, "median_us": 1, "p99_us": 1, "cpu_s_per_gb": 1, "drops": 0}
            for g in goodput
        ]

    run = script("run")
    rows = run.summarise(
        {
            ("tcp", 0): figures(100),
            ("push_pull depth 1", 4096): figures(80, 90, 70),
            ("gloo <x>", 4096): figures(300),
        }
    )
    text = run.drawing(argparse.Namespace(bytes=[4096], loopback=False), rows)
    bars = xml.etree.ElementTree.fromstring(text).findall("{*}rect")
    assert [float(b.get("width")) for b in bars] == [0.8 * 160, 2 * 160], (
        "lengths relative to the stream: 0.8, and 3.0 cut off at 2"
    )
    assert "gloo &lt;x&gt;" in text and "300.0 MB/s" in text


@pytest.mark.parametrize("wanted, holds", [((">=", 1.0), False), (("<=", 1.0), True), (None, None)])
def test_a_bar_may_be_a_lower_or_an_upper_limit(bars, bars_module, wanted, holds):
    bars.bar("b", wanted, [0.99], {})
    assert bars.rows[0]["holds"] is holds
    assert ("**no**" in bars_module.row_text(bars.rows[0])) == (holds is False)


def test_missed_aim_is_shown_and_does_not_count(bars, bars_module):
    bars.bar("far", (">=", 0.9, 1.0), [0.95], {})
    bars.bar("near", ("<=", 0.9, 0.8), [0.7], {})
    assert [row["holds"] for row in bars.rows] == [True, True]
    assert bars_module.row_text(bars.rows[0]).startswith("| far | >= 0.9 | 1 | 0.950 | yes |")
    assert bars_module.row_text(bars.rows[1]).startswith("| near | <= 0.9 | 0.8, reached |")
    assert bars_module.counts(bars.rows) == "2 of 2 hold, 1 of 2 aims are reached"
    assert list(bars_module.missed(bars.rows)) == []


@pytest.mark.parametrize("options, status", [((), 0), (("--strict",), 1)])
def test_strict_run_fails_if_any_bar_is_missed(
    bars_module, monkeypatch, tmp_path, capsys, options, status
):
    def group(bars):
        bars.bar("a little less", (">=", 1.0), [0.999], {})

    monkeypatch.setattr(bars_module, "group_e", group)
    monkeypatch.setattr(bars_module.harness, "make_others", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["bars", str(tmp_path), "--only", "e", *options])
    monkeypatch.setattr(bars_module.signal, "signal", lambda *_: None)
    assert bars_module.main() == status
    out = capsys.readouterr().out
    assert out.endswith("e: 0 of 1 hold\nmissed: a little less: 0.999, wanted >= 1\n")


def recorded(letter):
    rows = json.loads(RECORD.read_text())[letter]["rows"]
    return {row["config"]: row for row in rows if row["wanted"]}


@pytest.mark.parametrize("letter", "abf")
def test_record_has_the_limits_of_the_program(run_group, letter):
    def limits(rows):
        return {c: (*r["wanted"], r["aim"]) for c, r in rows.items() if r["wanted"]}

    assert limits(recorded(letter)) == limits(run_group(letter))


@pytest.mark.parametrize("letter", "abf")
def test_shaped_groups_notice_a_loss_of_a_tenth(bars_module, letter):
    noticed = {}
    for config, row in recorded(letter).items():
        if "wait for the first layer" in config:
            continue  # a few milliseconds, which differ by more than a tenth
        sign, limit = row["wanted"]
        lost = row["measured"] * 0.9 if sign == ">=" else row["measured"] / 0.9
        assert row["holds"], config
        noticed.setdefault(config.split(": ")[0], []).append(
            not bars_module.reaches(lost, sign, limit)
        )
    assert noticed and all(any(bars) for bars in noticed.values()), noticed


# The copies of the old build differ by 4 % in one round.
OLD = {"old 1 ": [100, 100, 100], "old 2 ": [100, 104, 100]}


@pytest.mark.parametrize("letter, figure", [("c", "cpu_s_per_gb"), ("d", "median_us")])
@pytest.mark.parametrize("ours, holds", [(103, True), (110, False)])
def test_old_build_runs_in_the_same_rounds(bars, run_group, letter, figure, ours, holds):
    bars.builds = {"old 1 ": "old", "": "new", "old 2 ": "old"}
    bars.args.old = Path("old")

    def figures(thing):
        values = OLD.get(str(thing)[:6], [ours] * 3)
        return [{figure: v} for v in values]

    rows = run_group(letter, figures)
    against = {c: r for c, r in rows.items() if "the old build" in c}
    assert len(against) == {"c": 16, "d": 4}[letter]
    for row in against.values():
        assert row["wanted"][1] == pytest.approx(1 + 1.25 * math.log(1.04))
        assert row["measured"] == pytest.approx(ours / 100)
        assert row["holds"] is holds


@pytest.mark.parametrize("ours, verdict", [(103, "yes"), (110, "**no**")])
def test_steps_of_torch_are_compared_with_an_old_build(script, monkeypatch, ours, verdict):
    torch_steps = script("torch_steps.py")
    copies = iter(OLD["old 1 "] + OLD["old 2 "])
    order = []

    def measure_once(args, *what):
        order.append(args.build)
        value = ours if args.build == "new" else next(copies)
        return dict.fromkeys(what[-1].split(","), value)

    monkeypatch.setattr(torch_steps, "measure_once", measure_once)
    args = argparse.Namespace(build="new", old="old", rounds=3)
    rows = list(torch_steps.rows_of_old(args))
    assert order == ["old", "new", "old"] * 3
    assert len(rows) == 3
    for row in rows:
        assert "| <= 1.049 |" in row.text and row.text.endswith(f"| {verdict} |")
        assert row.holds is (verdict == "yes")


def test_groups_that_did_not_run_keep_their_rows(bars, bars_module, tmp_path):
    bars.bar("first", (">=", 1.0), [0.5], {"ms": [3]})
    bars_module.write(
        tmp_path, {"a": {"how": "once.", "rows": bars.rows}, "d": {"how": "once.", "rows": []}}
    )
    bars_module.write(tmp_path, {"d": {"how": "again.", "rows": bars.rows}})
    text = (tmp_path / "bars.md").read_text()
    assert "0 of 1 hold. once." in text and "0 of 1 hold. again." in text
    assert (tmp_path / "bars.svg").read_text().count("<rect") == 2


def test_measurement_that_other_programs_disturb_is_repeated(bars, bars_module, monkeypatch):
    busy = iter([0, 100, 100, 100.0])
    monkeypatch.setattr(bars_module.harness, "busy_s", lambda: next(busy))
    monkeypatch.setattr(bars_module.time, "monotonic", iter(range(0, 400, 100)).__next__)
    taken = iter([{"n": 1}, {"n": 2}])
    assert bars.measure(lambda: next(taken)) == {"n": 2, "others": 0}


def test_session_of_a_measurement_is_favoured_until_it_ends(bars_module, monkeypatch, tmp_path):
    harness, at_exit = bars_module.harness, []
    monkeypatch.setattr(harness, "AUTOGROUP", tmp_path / "autogroup")
    monkeypatch.setattr(harness.atexit, "register", lambda *call: at_exit.append(call))
    harness.Processes("nice")  # a kernel without autogroups
    assert at_exit == []
    harness.AUTOGROUP.write_text("")
    harness.Processes("nice")  # outside of all autogroups
    assert at_exit == []
    assert harness.AUTOGROUP.read_text() == ""
    harness.AUTOGROUP.write_text("/autogroup-8 nice 3\n")
    harness.Processes("nice")
    assert harness.AUTOGROUP.read_text() == "-20"
    for function, *words in at_exit:
        function(*words)
    assert harness.AUTOGROUP.read_text() == "3"


def test_figures_of_byteps_are_ratios_to_the_best_of_gloo(bars_module):
    assert bars_module.byteps_ratio(2, 64 << 10) == pytest.approx(178 / 378.6)
    assert bars_module.byteps_ratio(4, 64 << 20) == pytest.approx(406.7 / 618.9)


def test_probes_sums_equal_those_of_a_plain_loop():
    # The probe fails if any bit of the server core's sum differs from the sum of a plain loop.
    for members in (2, 4, 5):
        results = probe("sum", 128 << 10, 64 << 10, members, 0.01)["results"]
        assert [r["dtype"] for r in results] == ["f32", "f16", "bf16", "f64"]
        assert all(r["of_add"] > 0 and r["of_sum"] > 0 for r in results)


def test_probe_streams_both_ways_between_every_pair():
    r = probe("raw", 2, 3, 3 << 16, 1 << 15, 0.01)
    assert r["rounds"] >= 2 and r["gbs"] > 0 and r["cpu_s_per_gb"] > 0
    assert os.sched_getaffinity(0) and 0 < probe("cores", 1, 0.05)["cores"] < 1.5
