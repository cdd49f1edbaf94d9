"""Groups of the back-end bps whose workers change (PyTorch's reconfiguration interface).

Each test starts workers of its own.
"""

import importlib.util
import re

import jobs
import pytest
import torch

pytestmark = pytest.mark.skipif(
    torch.__version__ < (2, 14), reason="this release of PyTorch cannot reconfigure groups"
)

START = """
import datetime, os, torch, torch.distributed as dist
import bps.torch
rank, size = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])
path = os.path.join(os.getcwd(), "store")
store = dist.FileStore(path, size)
dist.init_process_group("bps", store=store, rank=rank, world_size=size, enable_reconfigure=True)
group = dist.group.WORLD
store.set(f"handle/{rank}", dist._get_reconfigure_handle())
handles = [store.get(f"handle/{r}").decode() for r in range(size)]

def reconfigure(number, handles, seconds=60):
    dist._reconfigure(number, handles, timeout=datetime.timedelta(seconds=seconds)).wait()

def sums():
    one = torch.full((5,), rank + 1.0)
    dist.all_reduce(one)
    assert len(set(one.tolist())) == 1
    return one[0].item()

def refusal(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no error")
"""


def run(script, folder, n=3):
    """Run a script as n workers. Return their exit codes and outputs."""
    return jobs.start(START + script, folder, n=n)


def test_group_has_the_workers_of_the_last_handles(tmp_path):
    codes, outputs = run(
        """
assert dist._supports_reconfigure()
assert "call reconfigure first" in refusal(RuntimeError, sums)
reconfigure(1, handles)
assert sums() == 6, sums()
reconfigure(2, handles[::-1])  # the order of the handles gives the ranks
out = [torch.zeros(1) for _ in range(3)]
dist.all_gather(out, torch.full((1,), float(rank)))
assert [one.item() for one in out] == [2, 1, 0], out
if rank < 2:
    reconfigure(3, handles[:2])
    assert sums() == 3
reconfigure(4, set(handles))
assert sums() == 6
dist.barrier()
dist.destroy_process_group()
print("done", rank)
""",
        tmp_path,
    )
    assert codes == [0, 0, 0], outputs


def test_others_go_on_after_a_worker_is_killed(tmp_path):
    codes, outputs = run(
        """
reconfigure(1, handles)
for step in range(3):
    assert sums() == 6
if rank == 1:
    kill_me()
print("lost:", refusal(dist.DistBackendError, lambda: [sums() for _ in range(1000)]))
left = [handles[0], handles[2]]
print("late:", refusal(dist.DistBackendError, lambda: reconfigure(2, handles, 2)))
reconfigure(3, left)
assert sums() == 4
dist.destroy_process_group()
print("done", rank)
""",
        tmp_path,
    )
    assert codes[0] == codes[2] == 0 and codes[1] == -9, outputs
    for rank in (0, 2):
        assert "lost: all_reduce" in outputs[rank] and "was lost" in outputs[rank], outputs[rank]
        late = re.search(
            r"late: .* is not complete after 2000 ms: .*missing ranks?(.*);", outputs[rank]
        )
        assert "1" in late[1], outputs[rank]


def test_wrong_handles_are_refused_in_words(tmp_path):
    codes, outputs = run(
        """
for wrong in (["gloo"], ["{}"], ["[1]"]):
    text = refusal(ValueError, lambda: reconfigure(1, [*handles, *wrong]))
    assert "is not a handle of the back-end bps" in text, text
text = refusal(ValueError, lambda: reconfigure(1, [h for h in handles if h != handles[rank]]))
assert "handle is not among the" in text, text
reconfigure(1, handles)
assert sums() == 3
dist.destroy_process_group()
""",
        tmp_path,
        n=2,
    )
    assert codes == [0, 0], outputs


def test_group_without_reconfiguration_keeps_its_workers(tmp_path):
    codes, outputs = jobs.start(
        """
import torch.distributed as dist
import bps.torch
dist.init_process_group("bps", init_method="bps://")
assert not dist._supports_reconfigure()
dist.destroy_process_group()
""",
        tmp_path,
    )
    assert codes == [0, 0], outputs


TRAINER = """
import datetime, os, sys, time, torch, torch.distributed as dist
import bps.torch
from torchft.manager import Manager
replica, lighthouse, crash_at = int(os.environ["REPLICA"]), os.environ["LIGHTHOUSE"], CRASH_AT
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
dist.init_process_group(
    "bps", store=dist.PrefixStore("group", store), rank=0, world_size=1, enable_reconfigure=True
)
model = torch.nn.Linear(4, 1)
with torch.no_grad():
    for p in model.parameters():
        p.fill_(0.5 if replica == 0 else 9.0)  # the manager makes them equal
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
limit = datetime.timedelta(seconds=60)
manager = Manager(
    pg=dist.group.WORLD, min_replica_size=2, load_state_dict=model.load_state_dict,
    state_dict=model.state_dict, replica_id=f"r{replica}", store_addr="localhost",
    store_port=store.port, rank=0, world_size=1, lighthouse_addr=lighthouse, timeout=limit,
    quorum_timeout=limit, connect_timeout=limit, use_async_quorum=False,
)
draw = torch.Generator().manual_seed(replica)
while manager.current_step() < 30:
    manager.start_quorum()
    x = torch.randn(8, 4, generator=draw)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        manager.allreduce(p.grad).wait()
    if manager.should_commit():
        optimizer.step()
    if manager.current_step() == crash_at:
        os._exit(9)
manager.shutdown(wait=False)
dist.destroy_process_group()
print("loss", loss.item(), "weights", model.weight.tolist())
"""


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")
def test_torchft_trains_on_after_a_replica_is_killed(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=2000)

    def replica(number, crash_at):
        env = {"REPLICA": str(number), "LIGHTHOUSE": lighthouse.address()}
        script = TRAINER.replace("CRASH_AT", str(crash_at))
        codes, outputs = jobs.start(script, tmp_path, n=1, **env)
        return codes[0], outputs[0]

    with ThreadPoolExecutor() as pool:
        steady = pool.submit(replica, 0, -1)
        assert replica(1, 8)[0] == 9
        ends = [replica(1, -1), steady.result()]
    lighthouse.shutdown()
    assert [code for code, _ in ends] == [0, 0], ends
    weights = {re.search(r"weights (.*)", text)[1] for _, text in ends}
    assert len(weights) == 1, "the replicas differ"
    assert all(float(re.search(r"loss ([\d.e-]+)", text)[1]) < 0.1 for _, text in ends), ends
