"""Errors after wrong use and after lost workers must state what to do.

Rank 0 runs each case as a job of its own (tests/frontends/run.py).
"""

import os
import re
import signal
import subprocess
import sys
from importlib import metadata

import processes
import pytest

pytestmark = pytest.mark.skipif(os.environ["BPS_RANK"] != "0", reason="rank 0 starts the jobs")
NOTICE_S = 3.0


@pytest.fixture(scope="module", params=[1, 2], ids=["one agent", "two agents"])
def cluster(request):
    with processes.Cluster(agents=request.param) as c:
        yield c


# ---- a worker that is killed ----

KILLED = """
import os, signal, sys, time
import torch
import bps as bps_package
import bps.torch as bps

way = "{way}"
bps.init()
rank, size = bps.rank(), bps.size()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
parameters = list(model.parameters())
if way == "optimizer":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=20000)
else:
    import torch.distributed as dist

    url = "bps://" if way == "c10d" else "file://" + os.environ["MEETING"]
    place = {{}} if way == "c10d" else {{"rank": rank, "world_size": size}}
    dist.init_process_group("bps" if way == "c10d" else "gloo", init_method=url, **place)
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    if way == "hook":
        model.register_comm_hook(bps.HookState(), bps.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def die(grad):
    if rank == 1 and step == 3:
        print("killed at", time.monotonic(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

parameters[0].register_hook(die)  # its gradient is computed last, when the others are in flight
try:
    for step in range(1000):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
except Exception as error:
    print("noticed at", time.monotonic(), str(error).replace(chr(10), " "), flush=True)
    if way != "optimizer":  # PyTorch replaces exceptions of hooks and of futures
        try:
            bps.allreduce(torch.ones(1)) if way == "hook" else dist.all_reduce(torch.ones(1))
        except (bps.Error, dist.DistBackendError) as failure:
            error = failure
    print("fields", error.code == bps_package.EWORKER_LOST, error.rank, error.host, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("way", ["optimizer", "hook", "c10d"])
def test_a_worker_killed_in_backward_is_named_at_all_others_within_3_s(cluster, way, tmp_path):
    script = KILLED.format(way=way)
    started = processes.start(script, 3, cluster, f"killed-{way}", MEETING=tmp_path / "meeting")
    codes, outputs = processes.finish(started)
    assert codes == [0, -signal.SIGKILL, 0], "\n".join(outputs)
    killed_s = float(re.search(r"killed at (\S+)", outputs[1])[1])
    for output in (outputs[0], outputs[2]):
        noticed = re.search(r"noticed at (\S+) (.*)", output)
        assert noticed and "rank 1" in noticed[2], output
        assert float(noticed[1]) - killed_s < NOTICE_S, output
        host = re.search(r"\(host (\S+),", noticed[2])[1]
        assert f"fields True 1 {host}" in output, output


IN_FLIGHT = """
import os, signal, time
import torch
import bps as bps_package
import bps.torch as bps

bps.init()
rank = bps.rank()
bps.synchronize(bps.allgather_async(torch.ones(2)))
if rank == 1:
    print("killed at", time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
handles = [bps.allgather_async(torch.ones(2)), bps.broadcast_async(torch.ones(2), 1)]
for handle in handles:
    try:
        handle.wait()
    except bps.Error as error:
        is_lost = error.code == bps_package.EWORKER_LOST
        print("noticed at", time.monotonic(), is_lost, error.rank, handle.poll(), flush=True)
"""


def test_gathers_and_broadcasts_in_flight_name_a_killed_worker_within_3_s(cluster):
    codes, outputs = processes.finish(processes.start(IN_FLIGHT, 3, cluster, "killed-in-flight"))
    assert codes[1] == -signal.SIGKILL, "\n".join(outputs)
    killed_s = float(re.search(r"killed at (\S+)", outputs[1])[1])
    for output in (outputs[0], outputs[2]):
        noticed = re.findall(r"noticed at (\S+) True 1 True", output)
        assert len(noticed) == 2 and float(noticed[1]) - killed_s < NOTICE_S, output


def test_values_of_a_lost_machine_are_an_error_where_they_are_needed():
    script = """
import os
import torch
import bps as bps_package
import bps.torch as bps

bps.init()
bps.barrier()
if bps.rank() == 2:
    os._exit(1)
x = torch.ones(2)
calls = [bps.allgather_async, lambda x: bps.broadcast_async(x, 2), bps.allreduce_async]
calls += [lambda x: bps.broadcast_async(x, 0)]
for handle in [call(x) for call in calls * 2]:
    try:
        print("got", handle.wait().tolist(), flush=True)
    except bps.Error as error:
        print("lost", error.code == bps_package.EWORKER_LOST, error.rank, flush=True)
bps.shutdown()
"""
    with processes.Cluster(agents=2) as c:
        started = processes.start(script, 3, c, "shrunk", BPS_ON_AGENT_LOSS="shrink")
        codes, outputs = processes.finish(started)
    assert codes == [0, 0, 1], "\n".join(outputs)
    for output in outputs[:2]:
        got = re.findall("^(?:got|lost) .*", output, re.M)
        assert got == [*["lost True 2"] * 2, *["got [1.0, 1.0]"] * 2] * 2, output


def test_the_end_of_a_script_finishes_gathers_in_flight(cluster):
    script = """
import torch
import bps.torch as bps

bps.init()
handles = [bps.allgather_async(torch.ones(100_000)) for _ in range(20)]
if bps.rank() == 0:
    bps.synchronize(handles[3])
bps.shutdown()
assert all(len(handle.wait()) == 200_000 for handle in handles)
print("ended")
"""
    codes, outputs = processes.finish(processes.start(script, 2, cluster, "ended-in-flight"))
    assert codes == [0, 0] and all("ended" in o for o in outputs), "\n".join(outputs)


def test_a_script_that_fails_ends_while_gathers_are_in_flight(cluster):
    script = """
import torch
import bps.torch as bps

bps.init()
bps.synchronize(bps.allgather_async(torch.ones(2)))
if bps.rank() == 0:
    handles = [bps.allgather_async(torch.ones(2)) for _ in range(3)]
    assert not handles[0].poll()
    raise KeyError("on purpose")
bps.barrier()
"""
    codes, outputs = processes.finish(processes.start(script, 2, cluster, "failed-in-flight"))
    assert all(codes) and "KeyError: 'on purpose'" in outputs[0], "\n".join(outputs)
    assert "rank 0" in outputs[1], outputs[1]


def test_gradients_stay_readable_after_shutdown(cluster):
    script = """
import gc
import torch
import bps.torch as bps

bps.init()
model = torch.nn.Linear(300, 200)
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((1, 300), float(step))).sum().backward()
    optimizer.step()
bps.shutdown()
del optimizer
gc.collect()
print("sum", model.weight.grad.sum().item())
model.weight.grad.zero_()
print("zeroed", model.weight.grad.sum().item())
"""
    codes, outputs = processes.finish(processes.start(script, 2, cluster, "read-after-shutdown"))
    assert codes == [0, 0], "\n".join(outputs)
    assert all("sum 120000.0" in o and "zeroed 0.0" in o for o in outputs), "\n".join(outputs)


# ---- attributes of errors of torch.distributed ----

ATTRIBUTES = """
import os, signal, sys
import torch
import torch.distributed as dist
import bps
import bps.torch
from bps._tensor import Tensor

way = "{way}"
dist.init_process_group("bps", init_method="bps://")
rank = dist.get_rank()
dist.all_reduce(torch.ones(3))

def show(name, call):
    try:
        call()
    except RuntimeError as error:
        print(name, type(error).__name__, *(getattr(error, field, "absent") for field in
              ("code", "rank", "host", "tensor")), str(error).replace(chr(10), " "), flush=True)

if way == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if way == "submission" and rank == 0:
    def refuse(*args):
        Tensor.push_pull = push_pull
        raise bps.Error(bps.EJOB_FAILED, "refused", 1, "there", "x")

    def agree(*args):
        push_pull(*args)
        Tensor.push_pull = refuse

    push_pull, Tensor.push_pull = Tensor.push_pull, agree
    show("first", lambda: dist.all_reduce(torch.ones(3)))
n = 3 + rank if way == "mismatch" else 3
if way != "submission":
    work = dist.all_reduce(torch.ones(n), async_op=True)
    show("future", work.get_future().wait)
    show("work", work.wait)
show("call", lambda: dist.all_reduce(torch.ones(n)))
os._exit(0)
"""


def shown(output, name):
    """Find the error that a worker printed under `name`.

    Return two values: a list of the error's type and four attributes, and the error's text.
    """
    words = re.search(rf"^{name} (.*)", output, re.M)[1].split(" ", 5)
    return words[:5], words[5]


@pytest.mark.parametrize(("way", "code"), [("killed", -10007), ("mismatch", -10003)])
def test_a_failed_operation_of_torch_distributed_has_the_fields_of_the_error(cluster, way, code):
    script = ATTRIBUTES.replace("{way}", way)
    codes, outputs = processes.finish(processes.start(script, 2, cluster, f"fields-{way}"))
    assert codes == [0, -signal.SIGKILL if way == "killed" else 0], "\n".join(outputs)
    cause = "1" if way == "killed" else "0"
    for output in outputs[: 1 if way == "killed" else 2]:
        for name in ("work", "call"):
            words, text = shown(output, name)
            assert words[:3] == ["DistBackendError", str(code), cause], output
            if way == "killed":
                assert f"(host {words[3]}," in text, output
        words, text = shown(output, "future")
        assert words[0] == "RuntimeError" and f"rank {cause}" in text, output


def test_operations_behind_a_failed_submission_repeat_the_fields_of_its_error(cluster):
    script = ATTRIBUTES.replace("{way}", "submission")
    codes, outputs = processes.finish(processes.start(script, 2, cluster, "fields-submission"))
    assert codes == [0, 0], "\n".join(outputs)
    for name in ("first", "call"):
        words, text = shown(outputs[0], name)
        assert words == ["DistBackendError", "-10021", "1", "there", "x"], outputs[0]
        assert "refused" in text and ("start the job again" in text) == (name == "call"), outputs[0]
    assert shown(outputs[1], "call")[0][:3] == ["DistBackendError", "-10007", "0"], outputs[1]


# ---- processes ----


def test_an_exception_at_one_worker_ends_the_others(cluster):
    script = """
import torch
import bps.torch as bps

bps.init()
if bps.rank() == 1:
    raise KeyError("on purpose")
bps.allreduce(torch.ones(3))
"""
    codes, outputs = processes.finish(processes.start(script, 3, cluster, "raised"))
    assert all(codes) and "KeyError: 'on purpose'" in outputs[1], "\n".join(outputs)
    assert "rank 1" in outputs[0] and "rank 1" in outputs[2], "\n".join(outputs)


@pytest.mark.skipif(
    metadata.version("torch").startswith("2.1."), reason="PyTorch 2.1 has no class for back-ends"
)
def test_the_checks_of_torch_distributed_run(cluster):
    script = """
import torch
import torch.distributed as dist
import bps.torch

dist.init_process_group("bps", init_method="bps://")
group = dist.new_group([0, 1])
dist.all_reduce(x := torch.ones(2), group=group)
dist.barrier()
print("sum", x.tolist(), flush=True)
try:
    dist.all_reduce(torch.ones(2 + dist.get_rank()), group=group)
except RuntimeError as error:
    print("differ", "disagree" in str(error), flush=True)
dist.destroy_process_group()
"""
    started = processes.start(script, 2, cluster, "checks", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    codes, outputs = processes.finish(started)
    assert codes == [0, 0], "\n".join(outputs)
    for output in outputs:
        assert "sum [2.0, 2.0]" in output and "differ True" in output, output


@pytest.mark.parametrize(
    "line", ["bps.init()", 'torch.distributed.init_process_group("bps", init_method="bps://")']
)
def test_without_an_agent_the_error_says_to_start_it(cluster, line, tmp_path):
    script = f"import torch\nimport bps.torch as bps\n{line}"
    env = {"BPS_AGENT_SOCKET": tmp_path / "agent.sock", "BPS_JOB": "none"}
    (code,), (output,) = processes.finish(
        [processes.process(script, **env, BPS_RANK=0, BPS_SIZE=2)]
    )
    assert code != 0 and "is bps-agent running?" in output, output


@pytest.mark.skipif(
    metadata.version("torch").startswith("2.1."), reason="PyTorch 2.1 has no class for back-ends"
)
def test_bpsrun_starts_a_script_that_names_only_the_back_end():
    script = """
import torch
import torch.distributed as dist

dist.init_process_group("bps")
dist.all_reduce(x := torch.ones(2))
print("sum", x.tolist())
dist.destroy_process_group()
"""
    words = [processes.BUILD / "bpsrun", "-n", 2, "--no-prefix", "--", sys.executable, "-c", script]
    env = processes.environment()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    done = subprocess.run(
        [str(word) for word in words], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum [2.0, 2.0]"] * 2, done.stdout


def test_a_call_before_init_says_to_call_it(cluster):
    script = "import torch, bps.torch as bps\nbps.allreduce(torch.ones(1))"
    (code,), (output,) = processes.finish([processes.process(script)])
    assert code != 0 and "bps is not initialized: call init() first" in output, output


def test_a_pytorch_that_is_too_old_is_refused_with_the_version_needed(cluster, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.0.1+cpu'\n")
    path = f"{tmp_path}:{os.environ['PYTHONPATH']}"
    (code,), (output,) = processes.finish([processes.process("import bps.torch", PYTHONPATH=path)])
    assert code != 0 and "bps.torch needs PyTorch 2.1 or later, not 2.0.1+cpu" in output, output


def test_another_rank_than_that_of_init_is_refused(cluster):
    script = """
import torch, bps.torch as bps
bps.init()
torch.distributed.init_process_group("bps", init_method="file://" + FILE, rank=1 - bps.rank(), world_size=2)
"""
    script = script.replace("FILE", repr(str(cluster.dir / "meeting")))
    codes, outputs = processes.finish(processes.start(script, 2, cluster, "ranks"))
    assert all(codes), "\n".join(outputs)
    assert all("give both the same rank and size" in o for o in outputs), "\n".join(outputs)


# ---- torchrun ----

RESTARTED = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("bps")
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
x = torch.ones(3)
dist.all_reduce(x)
if attempt == "0" and rank == 1:
    raise SystemExit(1)
dist.all_reduce(x)
print(f"rank {rank} attempt {attempt} sum {x[0].item():.0f}", flush=True)
dist.destroy_process_group()
"""


def test_torchrun_restarts_the_workers_at_the_same_port(cluster, tmp_path):
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    (tmp_path / "train.py").write_text(RESTARTED)
    options = ["--nproc-per-node=2", f"--master-port={port}", "--max-restarts=1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "--monitor-interval=0.1"]
    done = subprocess.run(
        [*command, "train.py"],
        cwd=tmp_path,
        env=processes.environment(BPS_AGENT_SOCKET=cluster.agents[0].socket),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=processes.LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"rank {rank} attempt 1 sum 4" in done.stdout, done.stdout
