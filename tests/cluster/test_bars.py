"""tests/bench/bars and tests/bench/run compute results from figures that the probes measure."""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from cluster import BUILD

BENCH = Path(__file__).resolve().parents[1] / "bench"


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
    args = argparse.Namespace(build=tmp_path, repeat=3, seconds=1, again=2, priority="none")
    return bars_module.Bars(args, tmp_path)


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
