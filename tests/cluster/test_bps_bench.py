"""Tests of bps-bench with several workers: the report, and the detection of a wrong sum."""

import concurrent.futures
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from cluster import BUILD, IS_ASAN, ROOT, Cluster
from keeper import kept_cluster

HERE = Path(__file__).resolve().parent
RESNET = ROOT / "tests" / "traces" / "resnet50.tsv"
LIMIT_S = 60


class Bench:
    """Runs bps-bench with a worker at each of two agents.

    The agents have different host names, so they share no memory.
    """

    def __init__(self, cluster):
        self.cluster, self.n = cluster, 0

    def run(self, *options, workers=2, env=None):
        """Run bps-bench. Return rank 0's finished process, and the stderr of all ranks."""
        self.n += 1
        agents = self.cluster.agents
        started = [
            subprocess.Popen(
                [BUILD / "bps-bench", *map(str, options)],
                env=dict(
                    self.cluster.env,
                    BPS_JOB=f"bench{self.n}",
                    BPS_RANK=str(r),
                    BPS_SIZE=str(workers),
                    BPS_TIMEOUT="30s",
                    BPS_AGENT_SOCKET=str(agents[r * len(agents) // workers].socket),
                    **(env or {}),
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(workers)
        ]
        try:
            outputs = [p.communicate(timeout=LIMIT_S) for p in started]
        finally:
            for p in started:
                p.kill()
        return [p.returncode for p in started], outputs[0][0], "".join(err for _, err in outputs)

    def json(self, *options, **how):
        codes, out, err = self.run(*options, "--json", **how)
        assert not any(codes), err
        report = json.loads(out)
        assert report["is_complete"] and report["program"] == "bps-bench"
        return report


@pytest.fixture(scope="module")
def bench():
    with Cluster(
        agents=2, servers=2, server_args=("--same-host", "off"), agent_args=("--same-host", "off")
    ) as c:
        yield Bench(c)


@pytest.mark.parametrize(
    "dtype,op",
    [
        ("f32", "sum"),
        ("f16", "avg"),
        ("bf16", "max"),
        ("f64", "prod"),
        ("i8", "min"),
        ("u8", "max"),
        ("i32", "sum"),
        ("i64", "avg"),
        ("u8", "band"),
        ("i32", "bxor"),
    ],
)
def test_every_type_is_checked(bench, dtype, op):
    report = bench.json(
        "--bytes", "4KiB,1MiB", "--dtype", dtype, "--op", op, "--rounds", 3, "--check"
    )
    assert (report["workers"], report["dtype"], report["op"], report["mode"]) == (
        2,
        dtype,
        op,
        "sweep",
    )
    assert [r["bytes"] for r in report["results"]] == [4096, 1 << 20]
    for r in report["results"]:
        assert r["rounds"] == 3 and 0 < r["min_us"] <= r["median_us"] <= r["p99_us"]
        assert r["goodput_mbps"] == pytest.approx(
            r["bytes"] * 3 / r["elapsed_s"] / 1e6, rel=0.01
        )  # the unit of durations is microseconds


def test_tensors_and_depth_are_kept_in_flight(bench):
    report = bench.json(
        "--bytes", "64KiB", "--tensors", 5, "--depth", 3, "--rounds", 4, "--check", workers=4
    )
    (r,) = report["results"]
    assert (report["workers"], r["tensors"], r["depth"], r["rounds"]) == (4, 5, 3, 4)
    assert report["bytes_moved"] >= 5 * 4 * 65536


def test_option_seconds_limits_the_duration(bench):
    (r,) = bench.json("--bytes", "4KiB", "--seconds", 0.5)["results"]
    assert 0.1 < r["elapsed_s"] < 5 and r["rounds"] > 10


def test_text_output_is_a_table(bench):
    codes, out, err = bench.run("--bytes", "4KiB,64KiB", "--rounds", 2)
    assert codes == [0, 0] and not err
    what, head, *rows = out.splitlines()
    assert what == "2 workers, f32, sum"
    assert head.split()[:3] == ["size", "depth", "rounds"] and [
        re.split(r"\s{2,}", r.strip())[0] for r in rows
    ] == ["4 KiB", "64 KiB"]


@pytest.mark.skipif(IS_ASAN, reason="the sanitizer's library must be loaded first")
@pytest.mark.parametrize(
    "options",
    [("--bytes", "64KiB", "--rounds", 20), ("--replay", RESNET, "--shrink", 500, "--rounds", 2)],
)
def test_wrong_sum_ends_the_benchmark(bench, tmp_path, options):
    library = tmp_path / "wrong_sum.so"
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, HERE / "wrong_sum.c"],
        check=True,
    )
    env = {"LD_PRELOAD": str(library), "WRONG_SUM_AT": "15"}
    codes, out, err = bench.run(*options, "--check", "--json", env=env)
    assert codes == [1, 1] and "wrong result: " in err, err
    assert not json.loads(out)["is_complete"]
    assert bench.run(*options, "--json", env=env)[0] == [0, 0], "without --check no sum is checked"


@pytest.mark.parametrize("mode", [(), ("--barrier",), ("--fifo",)])
def test_replay_reports_steps_and_their_traffic(bench, mode):
    shrink = 20
    report = bench.json(
        "--replay",
        RESNET,
        "--shrink",
        shrink,
        "--compute",
        0.06,
        "--batch",
        8,
        "--rounds",
        5,
        "--check",
        *mode,
    )
    (r,) = report["results"]
    rows = [
        line.split("\t")
        for line in RESNET.read_text().splitlines()
        if line[0] != "#" and not line.startswith("name\t")
    ]
    step_bytes = sum(-(-int(n) // shrink) * 4 for _, n, _ in rows)
    assert (report["mode"], r["tensors"], r["step_bytes"], r["steps"]) == (
        "replay",
        len(rows),
        step_bytes,
        5,
    )
    assert (
        r["layers"] <= r["tensors"]
        and 60 == r["compute_ms"] <= r["step_ms"] * 1.001 <= r["p99_ms"] * 1.002
    )
    assert r["communication_ms"] > 0 and 0 <= r["overlap"] <= 1
    assert r["efficiency"] == pytest.approx(r["compute_ms"] / r["step_ms"], abs=1e-3)
    assert 0 < r["first_layer_ms"] < r["step_ms"]
    assert r["samples_per_s"] == pytest.approx(8 * 2 / (r["step_ms"] / 1e3), rel=1e-3)
    # Each byte of the tensors is sent once. Messages add less than 20 %.
    for way in ("sent_bytes", "received_bytes"):
        assert step_bytes <= r[way] < 1.2 * step_bytes, way


def rounds_of(agent):
    return int(re.search(r"^bps_agent_rounds_total (\d+)", agent.get("/metrics"), re.M)[1])


def test_replay_does_not_count_what_two_processes_of_an_agent_sent(cluster):
    c = kept_cluster(cluster, args=("--same-host", "off"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(
            Bench(c).json,
            "--replay",
            RESNET,
            "--shrink",
            100,
            "--compute",
            0.02,
            "--rounds",
            200,
            "--check",
        )
        c.wait_for("the steps of bps-bench have begun", lambda: rounds_of(c.agents[0]) > 20 * 161)
        c.agents[0].die()
        (r,) = running.result(LIMIT_S)["results"]
    assert r["steps"] == 200 and r["sent_bytes"] is r["received_bytes"] is None


def test_trainer_reads_the_traffic_of_its_agent(bench):
    n_elems, n_rounds = 100000, 5
    for ways in bench.cluster.run("traffic", 2, {"n_elems": n_elems, "n_rounds": n_rounds}):
        assert all(4 * n_elems * n_rounds <= n < 4.4 * n_elems * n_rounds for n in ways), ways
    for sent, received in bench.cluster.run(
        "traffic", 2, {"n_elems": n_elems, "n_rounds": n_rounds}, placement=[0, 0]
    ):
        assert sent < 10000 and received < 10000, "a machine that sums alone sends only pings"


def test_shared_memory_does_not_count_as_traffic(meeting):
    at = ("--same-host-dir", str(meeting))
    with Cluster(agents=2, servers=1, server_args=at, agent_args=at) as c:
        for sent, received in c.run("traffic", 2, {"n_elems": 100000, "n_rounds": 5}):
            assert sent < 10000 and received < 10000


def test_single_worker_sends_nothing():
    p = subprocess.run(
        [BUILD / "bps-bench", "--replay", RESNET, "--shrink", "500", "--rounds", "2", "--json"],
        timeout=LIMIT_S,
        env={k: v for k, v in os.environ.items() if not k.startswith("BPS_")},
        capture_output=True,
        text=True,
        check=True,
    )
    (r,) = json.loads(p.stdout)["results"]
    assert r["sent_bytes"] == r["received_bytes"] == 0


@pytest.mark.parametrize(
    "options,what",
    [
        (("--bytes", "0"), "--bytes wants sizes"),
        (("--bytes", "1MB"), "--bytes wants sizes"),
        (("--bytes", "10", "--dtype", "f64"), "not a whole number of elements"),
        (("--dtype", "f8"), "--dtype wants f32"),
        (("--op", "xor"), "--op wants sum"),
        (("--op", "bxor"), "--op bxor needs --dtype i8"),
        (("--rounds", "0"), "--rounds wants a number from 1"),
        (("--seconds", "-1"), "--seconds wants seconds"),
        (("--depth", "3", "--tensors", "2"), "--depth 3 needs as many --tensors"),
        (("--compute", "0.1"), "--compute has no effect without --replay"),
        (("--fifo",), "--fifo has no effect without --replay"),
        (("--replay", "x.tsv", "--bytes", "4KiB"), "--bytes has no effect with --replay"),
        (("--replay", "x.tsv", "--depth", "2"), "--depth has no effect with --replay"),
        (("--rounds", "3", "--seconds", "3"), "--rounds and --seconds cannot be given together"),
        (("more",), "usage: bps-bench"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(options, what):
    p = subprocess.run(
        [BUILD / "bps-bench", *options], capture_output=True, text=True, timeout=10, check=False
    )
    assert p.returncode == 64 and what in p.stderr, p


@pytest.mark.parametrize(
    "text",
    ["", "conv1\n", "conv1\t0\t1\n", "conv1\tmany\t1\n", "conv1\t4\t1x\n", f"{'a' * 300}\t4\t1\n"],
)
def test_invalid_trace_is_refused_with_the_line(tmp_path, text):
    trace = tmp_path / "t.tsv"
    trace.write_text("# a trace\n" + text)
    p = subprocess.run(
        [BUILD / "bps-bench", "--replay", trace],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("BPS_")},
    )
    assert (
        p.returncode == 1
        and f"{trace}:{2 if text else 1}: the line needs name, elements and macs" in p.stderr
    ), p
