"""Traces of rounds beside those of PyTorch's profiler. All workers of a job run these tests in the
same order, each on a machine of its own, so that each trace has the waits of one worker."""

import gzip
import json
import os
import subprocess
import sys
import time
import timeit

import processes  # adds the folder of slices
import pytest
import torch
import torch.distributed as dist
from slices import assert_nested, slices
from torch.profiler import ProfilerActivity, profile, record_function

import bps.torch as bps
from bps.torch import _profile

RANK = int(os.environ["BPS_RANK"])
N_STEPS = 4
LATE_S = 0.02  # rank 1 computes longer in each step
OUTSIDE_US = 1000  # most by which a wait may lie outside of its range


@pytest.fixture(scope="session", autouse=True)
def job():
    dist.init_process_group("bps", init_method="bps://")
    yield
    dist.destroy_process_group()
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    bps.barrier()
    torch.manual_seed(0)


def network():
    return torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 9))


def optimizer_steps():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 300)).sum().backward()
        optimizer.step()

    return step


def hook_steps():
    model = network()
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(bps.HookState(), bps.ddp_hook)
    return lambda: model(torch.ones(4, 300)).sum().backward()


def group_steps():
    x = torch.ones(100_000)
    return lambda: dist.all_reduce(x, async_op=True).wait()


def handle_steps():
    x = torch.ones(100_000)
    return lambda: bps.synchronize(bps.allreduce_async(x, name="x"))


def record(step, path):
    """Run steps with the profiler, and write its file."""
    with profile(activities=[ProfilerActivity.CPU]) as one:
        for _ in range(N_STEPS):
            with record_function("training step"):
                time.sleep(LATE_S * RANK)
                step()
    one.export_chrome_trace(str(path))


def command(*words):
    """Run the command that joins files. It needs no library."""
    env = os.environ | {"BPS_LIBRARY": "/no/library"}
    words = [sys.executable, "-m", "bps.tracing", *map(str, words)]
    return subprocess.run(words, env=env, capture_output=True, text=True)


def read(path):
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def span(event):
    return event["ts"], event["ts"] + event["dur"]


def named(trace, name):
    return [span(e) for e in trace["traceEvents"] if e.get("ph") == "X" and e["name"] == name]


def waits(mine):
    """Return the waits in the events of bps."""
    rows = {
        e["tid"]
        for e in mine["traceEvents"]
        if e["name"] == "thread_name" and e["args"]["name"].startswith("waits")
    }
    return [span(e) for e in mine["traceEvents"] if e["ph"] == "X" and e["tid"] in rows]


def outside(inner, outer):
    return max(outer[0] - inner[0], inner[1] - outer[1], 0)


@pytest.mark.parametrize("prepare", [optimizer_steps, hook_steps, group_steps, handle_steps])
def test_waits_of_a_joined_trace_lie_in_ranges_of_the_profile(tmp_path, prepare):
    ends = ".json.gz" if prepare in (hook_steps, handle_steps) else ".json"
    recorded, trace, out = (tmp_path / (name + ends) for name in ("profile", "trace", "joined"))
    trace = tmp_path / "trace.json"
    step = prepare()
    step()  # the first step also declares tensors
    bps.barrier()
    begun = time.monotonic()
    record(step, recorded)
    bps.trace(trace, since=begun)
    done = command("join", recorded, trace, "-o", out)
    assert done.returncode == 0 and "rounds of 1 machine to" in done.stdout, done
    before, whole = read(recorded)["traceEvents"], read(out)
    assert whole["traceEvents"][: len(before)] == before
    mine = {"traceEvents": whole["traceEvents"][len(before) :]}
    (number,) = {e["pid"] for e in mine["traceEvents"]}
    assert number not in {e.get("pid") for e in before}
    places = [
        (e["args"]["sort_index"], e["pid"])
        for e in whole["traceEvents"]
        if e["name"] == "process_sort_index"
    ]
    assert max(places)[1] == number and len(places) > 1
    assert_nested(mine)
    steps, ranges, found = named(whole, "training step"), named(whole, "bps.wait"), waits(mine)
    assert len(steps) == N_STEPS
    rounds = [span(e) for e in slices(mine, "round")]
    assert len(rounds) >= N_STEPS
    assert all(outside(one, (steps[0][0], steps[-1][1])) < OUTSIDE_US for one in rounds)
    for one in steps:
        assert any(begin < one[1] and one[0] < end for begin, end in rounds)
    worst = max((min(outside(one, range_) for range_ in ranges) for one in found), default=0)
    print(f"{prepare.__name__}: {len(found)} waits, at most {worst:.0f} us outside of a range")
    assert worst < OUTSIDE_US
    # Rank 0 waits for rank 1.
    long = [end - begin for begin, end in found if end - begin > 0.5e6 * LATE_S]
    assert RANK or len(long) >= N_STEPS


def test_a_wait_without_a_profiler_costs_less_than_a_microsecond():
    def wait():
        with _profile.waiting():
            pass

    n = 2_000  # short, so that one of the repetitions has the processor for itself
    cost_us = 1e6 * min(timeit.repeat(wait, number=n, repeat=50)) / n
    print(f"a wait costs {cost_us:.2f} us more")
    assert cost_us < 1


def test_traces_of_several_machines_are_joined_by_the_time_of_day(tmp_path):
    folder = bps.broadcast_object(str(tmp_path), 0)
    files = [f"{folder}/{rank}.json" for rank in range(2)]
    step = handle_steps()
    begun = time.monotonic()
    for _ in range(N_STEPS):
        step()
    bps.trace(files[RANK], since=begun)
    bps.barrier()
    if RANK == 0:
        out = tmp_path / "joined.json"
        done = command("join", *files, "-o", out)
        assert done.returncode == 0 and "of 2 machines" in done.stdout, done
        whole = read(out)
        numbers = sorted({e["pid"] for e in whole["traceEvents"]})
        assert len(numbers) == 2
        rounds = [
            {e["args"]["round"]: span(e) for e in slices(whole, "round") if e["pid"] == number}
            for number in numbers
        ]
        # The machines of this test have one clock. So the two records of a round overlap.
        assert rounds[0].keys() == rounds[1].keys() and len(rounds[0]) == N_STEPS
        for number, (begin, end) in rounds[0].items():
            assert begin < rounds[1][number][1] and rounds[1][number][0] < end
    bps.barrier()


BASE = '"baseTimeNanoseconds": 1'
EVENT = '{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}'


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("nonsense", "{}", "is not a whole file of JSON"),
        ('{"traceEvents": [', "{}", "is not a whole file of JSON"),
        ("[1]", "{}", "has no field traceEvents: pass files of bps.trace"),
        ('{"a": 1}', "{}", "has no field traceEvents: pass files of bps.trace"),
        (f'{{"traceEvents": [{EVENT}]}}', "{}", "record the profile with a newer PyTorch"),
        (f'{{"traceEvents": [], {BASE}}}', '{"traceEvents": []}', "pass one profile at a time"),
        (f'{{"traceEvents": [], {BASE}}}', None, "is not a trace of bps"),
        (None, None, "cannot read"),
        ("\x1f\x8b", None, "is not a whole file of JSON"),
    ],
)
def test_a_file_that_cannot_be_joined_is_an_error_in_words(tmp_path, first, second, sentence):
    files = [tmp_path / "a.json"]
    for text in (first, second):
        if text is not None:
            files[-1].write_bytes(text.encode("latin-1"))
            files.append(tmp_path / "b.json")
    files = files[:-1] or files
    done = command("join", *files, "-o", tmp_path / "out.json")
    assert done.returncode == 1 and sentence in done.stderr, done
    assert done.stderr.startswith("bps.tracing: ") and not (tmp_path / "out.json").exists()


def test_files_of_one_machine_count_once(tmp_path):
    files = []
    for i, (host, agent) in enumerate([("h", "a"), ("h", "a"), ("h", "b"), ("i", "a")]):
        files.append(tmp_path / f"{i}.json")
        head = json.dumps({"records": 1, "host": host, "agent": agent})
        files[-1].write_text(f'{{"bps": {head}, "traceEvents": [{EVENT}], {BASE}}}')
    out = tmp_path / "out.json"
    assert "wrote 4 rounds of 3 machines to" in command("join", *files, "-o", out).stdout
    assert "wrote 2 rounds of 1 machine to" in command("join", *files[:2], "-o", out).stdout
    assert "wrote 1 round of 1 machine to" in command("join", files[0], "-o", out).stdout


def test_a_trace_without_rounds_moves_no_other(tmp_path):
    empty, full, out = (tmp_path / f"{name}.json" for name in ("empty", "full", "out"))
    empty.write_text('{"bps": {"records": 0, "lost": 0}, "traceEvents": []}')
    full.write_text(f'{{"bps": {{"records": 1}}, "traceEvents": [{EVENT}], {BASE}}}')
    assert command("join", empty, full, "-o", out).returncode == 0
    whole = read(out)
    assert whole["baseTimeNanoseconds"] == 1
    assert [e["ts"] for e in whole["traceEvents"] if "ts" in e] == [1]
    done = command("join", empty, full, "-o", "/no/file")
    assert done.returncode == 1 and "cannot write '/no/file'" in done.stderr


# ---- PyTorch's flight recorder ----

DIFFERENT = """
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_file

import bps.torch

dist.init_process_group("bps", init_method="bps://")
x = torch.ones(100)
for _ in range(3):
    dist.all_reduce(x)
try:
    dist.broadcast(x, 0) if dist.get_rank() else dist.all_reduce(x)
except dist.DistBackendError as error:
    print(error)
_dump_fr_trace_file(dist.get_rank(), backend="bps")
"""


def test_the_flight_recorder_names_the_call_that_differs(tmp_path):
    """Rank 0 starts a separate job, whose rank 1 makes another call."""
    if RANK == 0:
        variables = {
            "TORCH_FR_BUFFER_SIZE": 200,
            "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_",
            "OMP_NUM_THREADS": 1,
        }
        with processes.Cluster(agents=2) as cluster:
            started = processes.start(DIFFERENT, 2, cluster, "recorded", **variables)
            codes, outputs = processes.finish(started)
        assert codes == [0, 0] and "rank 1 calls broadcast" in outputs[0], outputs
        words = ["-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "fr_"]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert "Collective sequence number: 4 has errors" in said, said
        assert "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH" in said, said
        assert "collective: bps:all_reduce" in said, said
    bps.barrier()
