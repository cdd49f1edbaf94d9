"""Test bps.torch.elastic. Rank 0 starts clusters, and runs jobs whose machines leave and join."""

import os
import re
import subprocess
import sys

import processes
import pytest

SIZE = int(os.environ["BPS_SIZE"])
pytestmark = pytest.mark.skipif(os.environ["BPS_RANK"] != "0", reason="rank 0 starts the machines")
LIMIT_S = 120

TRAIN = """
import os, sys
import torch
import bps.torch as bps

bps.init()
rank = bps.rank()
torch.manual_seed(rank)
model = torch.nn.Linear(1, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
data = torch.arange(24.0).double()
sampler = bps.elastic.ElasticSampler(data)
state = bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, n_steps=0)
resets, sizes = [], [bps.size()]
state.register_reset_callbacks(
    [lambda: resets.append(state.n_steps), lambda: sizes.append(bps.size())]
)
begun = os.environ.get("BEGUN")
leaver, is_newcomer = int(os.environ["LEAVER"]), "NEWCOMER" in os.environ
SIZE = int(os.environ.get("BPS_MAX_SIZE", 0))

@bps.elastic.run
def train(state):
    while state.epoch < EPOCHS(state):
        rows = torch.utils.data.TensorDataset(data)
        for i, (x,) in enumerate(torch.utils.data.DataLoader(rows, 2, sampler=sampler)):
            if rank == leaver and state.n_steps == 2 and not is_newcomer:
                os._exit(1)
            optimizer.zero_grad()
            (model(x[:, None] / 24) - 1).pow(2).mean().backward()
            optimizer.step()
            bps.allreduce(torch.ones(3 + i))  # uses the pieces in turn
            sampler.record_batch(i, 2)
            state.n_steps += 1
            if begun and state.n_steps == 2 and rank == 0:
                open(begun, "w").close()
            state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)

def EPOCHS(state):
    # A job that waits for newcomers trains until they are there.
    is_there = not begun or (bool(resets) and bps.size() == SIZE) or is_newcomer
    return 3 if is_there and state.epoch < 3 else state.epoch + (not is_there)

train(state)
from bps import _core
momentum = optimizer.state_dict()["state"][0]["momentum_buffer"].item()
weights = _core.runtime().allgather_present((model.weight.item(), momentum))
assert len(set(weights)) == 1, weights
print("sizes", *sizes, bps.size(), flush=True)
assert bps.global_process_set.size() == bps.size() == len(bps.global_process_set.ranks)
print("weights of", len(weights), "resets", len(resets), flush=True)
"""


class Machines:
    """A cluster whose agents have one worker each, all of one elastic job.

    Args:
        cluster (Cluster): the cluster.
        script (str): the workers' script.
        begun (Path): file that rank 0 makes after two steps.
        size (int): number of workers at the start.
        leaver (int): rank of the worker that exits after two steps; -1: none.
    """

    def __init__(self, cluster, script, begun, size=SIZE, leaver=-1):
        self.cluster, self.script, self.begun = cluster, script, begun
        self.size, self.leaver = size, leaver
        self.workers = [self.start(i, BPS_RANK=i) for i in range(size)]
        cluster.wait_for("training has begun", begun.exists, LIMIT_S)

    def start(self, agent, **env):
        own = processes.environment(
            BPS_JOB="elastic",
            BPS_SIZE=self.size,
            BPS_ELASTIC=1,
            BPS_MAX_SIZE=SIZE,
            BPS_LOCAL_SIZE=1,
            BPS_LOCAL_RANK=0,
            BPS_AGENT_SOCKET=self.cluster.agents[agent].socket,
            LEAVER=self.leaver,
            BEGUN=self.begun,
            **env,
        )
        return processes.worker(self.script, None, own)

    def join(self, agent, **env):
        """Start one more worker, which the job does not know yet."""
        self.workers.append(self.start(agent, NEWCOMER=1, **env))

    def finish(self):
        """Wait for the workers. Return the exit codes and outputs. All that ended well must have
        the same weights."""
        codes, outputs = processes.finish(self.workers)
        for code, output in zip(codes, outputs):
            assert code or f"weights of {SIZE} resets" in output, "\n".join(outputs)
        return codes, outputs


# A newcomer's first layer is frozen, as at the start of each process. The others have unfrozen it.
UNFREEZE = (
    TRAIN.replace(
        "model = torch.nn.Linear(1, 1).double()\n",
        "model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)).double()\n"
        "model[0].requires_grad_(False)\n",
    )
    .replace(
        "            optimizer.zero_grad()\n",
        "            optimizer.zero_grad()\n"
        "            model[0].requires_grad_(state.n_steps >= 1)\n",
    )
    .replace("model.weight", "model[0].weight")
)


# A newcomer must send values at the same positions as the others, which depend on the round.
RANDOMK = (
    TRAIN.replace("Linear(1, 1)", "Linear(1, 20_000)")
    .replace(
        "model.named_parameters())",
        "model.named_parameters(),\n    compression=bps.Compression.randomk(500).with_residual())",
    )
    .replace("model.weight.item()", "hash(tuple(model.weight.flatten().tolist()))")
    .replace('["momentum_buffer"].item()', '["momentum_buffer"].sum().item()')
)
# A newcomer must not wait for the others to repeat what they found out at their first step.
SIGNS = (
    TRAIN.replace("Linear(1, 1).double()", "Linear(1, 20_000)")
    .replace("named_parameters())", "named_parameters(), compression=bps.Compression.sign)")
    .replace("arange(24.0).double()", "arange(24.0)")
    .replace("weight.item()", "weight.sum().item()")
    .replace('["momentum_buffer"].item()', '["momentum_buffer"].sum().item()')
)


# A commit after the second step of four is one with an average that is not applied yet. Each worker
# trains alone between two exchanges, so only the global parameters and the momentum of the outer
# optimizer are the same bits.
DILOCO = (
    TRAIN.replace(
        "optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())",
        "outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)\n"
        "diloco = bps.DiLoCo([model], optimizer, outer, sync_every=4, fragment_sync_delay=2)\n"
        "diloco.__enter__()",
    )
    .replace("sampler=sampler, ", "sampler=sampler, diloco=diloco, ")
    .replace("train(state)\nfrom", "train(state)\ndiloco.restore_parameters()\nfrom")
    .replace("momentum = optimizer.", "momentum = outer.")
)
DILOCO_BLOCKS = (
    DILOCO.replace("Linear(1, 1).double()", "Linear(1, 20_000)")
    .replace("sync_every=4", "sync_every=4, compression=bps.Compression.int8.with_residual()")
    .replace("arange(24.0).double()", "arange(24.0)")
    .replace("model.weight.item()", "hash(tuple(model.weight.flatten().tolist()))")
    .replace('["momentum_buffer"].item()', '["momentum_buffer"].sum().item()')
)
LOCAL_SGD = (
    TRAIN.replace(
        "optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())",
        "local = bps.LocalSGD(model, optimizer, sync_every=3)\nlocal.__enter__()",
    )
    .replace("sampler=sampler, ", "sampler=sampler, local=local, ")
    .replace("train(state)\nfrom", "train(state)\nlocal.sync()\nfrom")
    .replace('optimizer.state_dict()["state"][0]["momentum_buffer"].item()', "local.state_dict()")
    .replace("len(set(weights))", "len(set(map(str, weights)))")
)
LATE = TRAIN.replace("named_parameters())", "named_parameters(), one_step_late=True)").replace(
    "train(state)\nfrom", "train(state)\noptimizer.flush()\nfrom"
)
RECIPES = {"diloco": DILOCO, "diloco int8": DILOCO_BLOCKS, "local": LOCAL_SGD, "late": LATE}


@pytest.mark.parametrize("script", [TRAIN, *RECIPES.values()], ids=["plain", *RECIPES])
def test_training_goes_on_without_a_machine(tmp_path, script):
    bpsrun = processes.BUILD / "bpsrun"
    words = [bpsrun, "-n", SIZE, "--agents", SIZE, "--on-agent-loss", "shrink"]
    done = subprocess.run(
        [*map(str, words), "--", sys.executable, "-c", script],
        cwd=tmp_path,
        env=processes.environment(LEAVER=SIZE - 1),
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.stdout.count(f"weights of {SIZE - 1} resets 1") == SIZE - 1, done.stdout
    assert done.stdout.count(f"sizes {SIZE} {SIZE - 1} {SIZE - 1}") == SIZE - 1, done.stdout


@pytest.mark.parametrize(
    "script",
    [TRAIN, UNFREEZE, RANDOMK, SIGNS, *RECIPES.values()],
    ids=["plain", "unfrozen", "randomk", "signs", *RECIPES],
)
def test_a_machine_joins_at_a_commit(tmp_path, script):
    with processes.Cluster(agents=SIZE) as cluster:
        machines = Machines(cluster, script, tmp_path / "begun", SIZE - 1)
        machines.join(SIZE - 1)
        codes, outputs = machines.finish()
    assert codes == [0] * SIZE, "\n".join(outputs)
    for output in outputs[:-1]:
        assert f"sizes {SIZE - 1} {SIZE} {SIZE}" in output, output
    assert f"sizes {SIZE} {SIZE}" in outputs[-1], outputs[-1]


@pytest.mark.parametrize("env", [{"BPS_RANK": SIZE - 1}, {}], ids=["its rank", "any rank"])
def test_a_lost_worker_that_is_started_again_joins_at_a_commit(tmp_path, env):
    with processes.Cluster(agents=SIZE) as cluster:
        machines = Machines(cluster, TRAIN, tmp_path / "begun", leaver=SIZE - 1)
        machines.workers[-1].wait(LIMIT_S)
        machines.join(SIZE - 1, **env)
        codes, outputs = machines.finish()
    assert codes == [0] * (SIZE - 1) + [1, 0], "\n".join(outputs)
    for output in outputs[: SIZE - 1]:
        assert f"sizes {SIZE} {SIZE - 1} {SIZE} {SIZE}" in output, output
    assert f"sizes {SIZE} {SIZE}" in outputs[-1], outputs[-1]


REOPEN = """
import os, signal
import torch
import bps.torch as bps

bps.init()
rank = bps.rank()
torch.manual_seed(100 + rank)
model = torch.nn.Linear(4, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = bps.DistributedOptimizer(
    optimizer, model.named_parameters(), cross_barrier={cross}, bucket_bytes=8
)
state = bps.elastic.TorchState(model, optimizer, step=0)
begun, dies = [], os.environ.get("DIES") == str(rank)

@bps.elastic.run
def train(state):
    begun.append(state.step)
    while state.step < 6:
        optimizer.zero_grad()
        (model(torch.full((2, 4), rank + 1.0).double()) - 1).pow(2).mean().backward()
        if dies and state.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        bps.allreduce(torch.ones(3))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

with torch.no_grad():
    [p.fill_(0.25 if rank == 0 and not os.environ.get("NEW") else 9.0) for p in model.parameters()]
train(state)
optimizer.synchronize()
weights = bps.allgather_object([p.tolist() for p in model.parameters()])
assert all(one == weights[0] for one in weights), weights
print("from", begun, "to", model.weight.sum().item(), flush=True)
"""


# The workers' own momenta would differ, and the state has those of one worker.
REOPEN_DILOCO = re.sub(
    r"(?s)lr=0.01, momentum=0.9\)\noptimizer = bps.Dist.*?\n\)\n",
    "lr=0.01)\n"
    "outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)\n"
    "diloco = bps.DiLoCo([model], optimizer, outer, 2, compression=bps.Compression.fp16)\n"
    "diloco.__enter__()\n",
    REOPEN.replace("optimizer, step=0", "optimizer, diloco=diloco, step=0").replace(
        "optimizer.synchronize()\n", ""
    ),
)
REOPENED = {
    "plain": REOPEN.format(cross=False),
    "cross": REOPEN.format(cross=True),
    "diloco": REOPEN_DILOCO,
}


@pytest.mark.parametrize("kind", REOPENED)
@pytest.mark.parametrize("victim", [0, SIZE - 1])
def test_a_failed_job_is_opened_again_with_a_process_in_the_place_of_the_lost_one(kind, victim):

    script = REOPENED[kind]
    with processes.Cluster(agents=2) as cluster:

        def is_forming():
            return any(j["state"] == "forming" for j in cluster.scheduler.status()["jobs"])

        codes, calm = processes.finish(processes.start(script, SIZE, cluster, "calm"))
        assert codes == [0] * SIZE, "\n".join(calm)
        started = processes.start(script, SIZE, cluster, "again", DIES=victim)
        started[victim].wait(LIMIT_S)
        cluster.wait_for("the job forms again", is_forming, LIMIT_S)
        started += processes.start(script, SIZE, cluster, "again", NEW=1, ranks=[victim])
        codes, outputs = processes.finish(started)
    want = [0] * SIZE + [0]
    want[victim] = -9
    assert codes == want, "\n".join(outputs)
    goal = calm[0].split(" to ")[1]
    for rank, output in enumerate(outputs):
        begun = "[2]" if rank == SIZE else "[0, 2]"
        assert rank == victim or f"from {begun} to {goal}" in output, "\n".join(outputs)
    lost = f"rank {victim} (host"
    assert all(lost in output for r, output in enumerate(outputs[:SIZE]) if r != victim), outputs


# Each step of a worker subtracts its rank + 1 from the weight. After two steps of four the worker
# sends its change, which is applied after the fourth.
LOSE = """
import os
import torch
import bps.torch as bps

bps.init()
rank, size = bps.rank(), bps.size()
model = torch.nn.Linear(1, 1, bias=False).double()
torch.nn.init.zeros_(model.weight)
inner, outer = (torch.optim.SGD(model.parameters(), lr=1.0) for _ in range(2))
with bps.DiLoCo([model], inner, outer, sync_every=4, fragment_sync_delay=2):
    for step in range(1, 9):
        if (rank, str(step)) == (size - 1, os.environ["STEP"]):
            os._exit(1)
        inner.zero_grad()
        ((rank + 1) * model.weight).sum().backward()
        inner.step()
print("weight", model.weight.item(), flush=True)
"""


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_lost_machine_is_missing_from_the_averages_of_diloco(tmp_path, step):
    bpsrun = processes.BUILD / "bpsrun"
    words = [bpsrun, "-n", SIZE, "--agents", SIZE, "--on-agent-loss", "shrink"]
    done = subprocess.run(
        [*map(str, words), "--", sys.executable, "-c", LOSE],
        cwd=tmp_path,
        env=processes.environment(STEP=step),
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found = {float(w) for w in re.findall(r"weight (.*)", done.stdout)}
    both = [2 * sum(range(1, n + 1)) / n for n in (SIZE, SIZE - 1)]
    # Lost in flight, the machine may be in the first average or not, equally for all.
    firsts = {2: both[1:], 4: both, 5: both[:1]}[step]
    assert len(found) == 1 and done.stdout.count("weight") == SIZE - 1, done.stdout
    weight = found.pop()
    assert any(weight == pytest.approx(-first - both[1]) for first in firsts), done.stdout


SUSPEND = """
import os, sys
import torch
import bps.torch as bps

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.full((1, 4), bps.rank() + 1.0)) - 1).pow(2).mean().backward()
        optimizer.step()
        bps.allreduce(torch.ones(30000))
        bps.allreduce(torch.ones(3), name="named")

bps.init()
size, is_new = bps.size(), "NEW" in os.environ
torch.manual_seed(bps.rank())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
hooked = bps.DistributedDataParallel(torch.nn.Linear(2, 2))

def share():
    bps.broadcast_parameters(model.state_dict(), 0)
    bps.broadcast_optimizer_state(optimizer, 0)
    hooked(torch.ones(1, 2)).sum().backward()
    train(3)
    weights = bps.allgather(model.weight.detach().reshape(1, -1))
    assert (weights == weights[0]).all(), weights
    total = bps.allreduce(torch.tensor([1.0]), op=bps.Sum, name="total").item()
    print("rank", bps.rank(), "of", bps.size(), "sum", int(total), flush=True)

if not is_new:
    share()
    rank = bps.rank()
    sets = [bps.add_process_set([r]) for r in range(size)]
    try:
        bps.suspend()
    except RuntimeError as error:
        assert "remove the sets and destroy the groups" in str(error), error
    else:
        raise AssertionError("process sets do not outlive a job")
    for one in sets:
        bps.remove_process_set(one)
    bps.suspend()
    if rank == size - 1:
        os._exit(0)
    bps.resume(size - 1, 0, rank)
    share()
    bps.barrier()
    bps.suspend()
    if rank == 0:
        open(os.environ["SMALL"], "w").close()
    bps.resume(size, global_rank=rank)
    bps.broadcast_parameters(hooked.module.state_dict(), 0)  # as the newcomer's constructor does
share()
"""


def test_a_job_is_suspended_and_resumed_with_fewer_and_with_more_workers(tmp_path, monkeypatch):

    n, small = SIZE + 1, tmp_path / "small"
    with processes.Cluster(agents=2) as cluster:
        started = processes.start(SUSPEND, n, cluster, "breathe", SMALL=small)
        cluster.wait_for("the job is suspended again", small.exists, LIMIT_S)
        started += processes.start(
            SUSPEND, n, cluster, "breathe", SMALL=small, NEW=1, ranks=[n - 1]
        )
        codes, outputs = processes.finish(started)
    assert codes == [0] * (n + 1), "\n".join(outputs)
    for rank in range(n - 1):
        for size in (n, n - 1, n):
            assert f"rank {rank} of {size} sum {size}" in outputs[rank], "\n".join(outputs)
    assert f"rank {n - 1} of {n} sum {n}" in outputs[n], "\n".join(outputs)


DIVIDED = """
import os, torch
import bps.torch as bps
bps.init()
rank, is_new = bps.rank(), "NEW" in os.environ
params = [torch.nn.Parameter(torch.ones(60_000))]

def step(optimizer):
    params[0].grad = torch.ones(60_000)
    optimizer.step()
    return sorted(set(params[0].tolist()))

def new():
    return bps.ShardedOptimizer(params, torch.optim.SGD, lr=1.0)

if not is_new:
    optimizer, sizes = new(), (2,) if bps.size() == 1 else (1, 2)
    print("first", step(optimizer), flush=True)
    bps.suspend()
    if rank:
        os._exit(0)
    for size in sizes:
        if size == 2:
            open(os.environ["SMALL"], "w").close()
        bps.resume(size, global_rank=0)
        try:
            step(optimizer)
        except RuntimeError as error:
            assert "construct a new one" in str(error), error
            print("refused", flush=True)
        if size == 1:
            print("alone", step(new()), flush=True)
            bps.suspend()
params[0].detach().zero_()
optimizer = new()
print("last", [step(optimizer) for _ in range(3)], flush=True)
"""


@pytest.mark.parametrize("n", [1, 3])
def test_optimizer_with_divided_state_is_made_again_for_other_workers(tmp_path, n):
    """A worker that was alone decides again whether the job may have tensors in shards."""
    small = tmp_path / "small"
    with processes.Cluster(agents=2) as cluster:
        started = processes.start(DIVIDED, n, cluster, "divided", SMALL=small)
        cluster.wait_for("one worker is left", small.exists, LIMIT_S)
        started += processes.start(DIVIDED, 2, cluster, "divided", SMALL=small, NEW=1, ranks=[1])
        codes, outputs = processes.finish(started)
    assert codes == [0] * (n + 1), "\n".join(outputs)
    alone = ["refused", "alone [-1.0]"] if n > 1 else []
    last = "last [[-1.0], [-2.0], [-3.0]]"
    assert outputs[0].split("\n")[:-1] == ["first [0.0]", *alone, "refused", last], outputs[0]
    assert last in outputs[n], outputs[n]
