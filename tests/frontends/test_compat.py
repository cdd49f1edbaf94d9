"""bps.compat runs scripts for Horovod and BytePS without changes.

Rank 0 starts a separate job for each script.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest

SIZE = os.environ["BPS_SIZE"]
pytestmark = pytest.mark.skipif(os.environ["BPS_RANK"] != "0", reason="rank 0 starts the scripts")
LIMIT_S = 120

HOROVOD = """
import argparse

import torch
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import TorchState
from horovod.torch.mpi_ops import Average
from helper import FACTOR

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr

hvd.init()
assert hvd.gloo_built() and not hvd.mpi_threads_supported() and not hvd.nccl_built()
assert hvd.is_homogeneous() and (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none,
    op=Average,
    gradient_predivide_factor=1.0,
)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=1)
hvd.elastic.run(lambda state: state.commit())(state)
assert isinstance(state, TorchState) and state.epoch == 1
loss = hvd.allreduce(torch.tensor(FACTOR * hvd.rank()), name="avg_loss").item()
assert loss == FACTOR * (hvd.size() - 1) / 2
weights = hvd.allgather(model.weight.detach().view(1, -1))
assert (weights == weights[0]).all()
hvd.start_timeline("trace.json")
hvd.allreduce(torch.ones(3), name="traced")
hvd.stop_timeline()
try:
    hvd.run(print)
except NotImplementedError as error:
    print(error)
try:
    hvd.allreduce(torch.ones(2 + hvd.rank()), name="differ")
except HorovodInternalError:
    print("rank", hvd.rank(), "of", hvd.size())
"""

BYTEPS = """
import torch
import byteps.torch as bps
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.parallel import DistributedDataParallel as DDP

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
bps.byteps_declare_tensor("x")
x = bps.push_pull(torch.full((3,), float(bps.rank())), average=False, name="x")
assert (x == bps.size() * (bps.size() - 1) / 2).all()
x = torch.nn.Linear(2, 2)
bias = x.bias.detach().clone()
crossed = CrossBarrier(x, torch.optim.SGD(x.parameters(), lr=1.0))
for _ in range(2):
    crossed.zero_grad()
    (x(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    crossed.step()
moved = bias - x.state_dict()["bias"]
assert not crossed._bps_cross._waiting
assert torch.allclose(moved, torch.full((2,), bps.size() + 1.0)), moved
wrapped = DDP(torch.nn.Linear(2, 2), device_ids=[bps.local_rank()])
(wrapped(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
(grad,) = {p.grad.mean().item() for p in wrapped.module.parameters()}
assert abs(grad - (bps.size() + 1) / 2) < 1e-6, grad
print("rank", bps.rank(), "of", bps.size())
bps.shutdown()
"""


def run(*command, n=SIZE, cwd=None):
    """Run a job of n workers on private daemons. Return its output."""
    library = Path(os.environ["BPS_LIBRARY"])
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("BPS_") or k in ("BPS_LIBRARY", "BPS_TIMEOUT")
    }
    words = [str(library.parent / "bpsrun"), "-n", str(n), "--", sys.executable, *map(str, command)]
    done = subprocess.run(
        words,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout


def all_ranks(output):
    return sorted(re.findall(r"rank (\d+) of", output)) == [str(r) for r in range(int(SIZE))]


def test_a_horovod_script_runs_unmodified(tmp_path):
    (tmp_path / "train.py").write_text(HOROVOD)
    (tmp_path / "helper.py").write_text("FACTOR = 3.0\n")
    words = ("-m", "bps.compat", tmp_path / "train.py", "--lr", "0.1")
    code, output = run(*words, cwd=tmp_path)
    assert code == 0 and all_ranks(output), output
    assert "horovod.torch.run: start the script with bpsrun" in output
    assert "traced" in (tmp_path / "trace.json").read_text()


def test_a_byteps_script_runs_unmodified(tmp_path):
    (tmp_path / "train.py").write_text(BYTEPS)
    code, output = run("-m", "bps.compat", tmp_path / "train.py")
    assert code == 0 and all_ranks(output), output


def test_one_import_in_front_does_the_same(tmp_path):
    (tmp_path / "train.py").write_text(
        "import bps.compat.horovod, horovod\n"
        "import horovod.torch as hvd\n"
        "hvd.init()\n"
        "print(f'rank {hvd.rank()} of', hvd.size(), horovod.__version__)\n"
    )
    code, output = run(tmp_path / "train.py")
    assert code == 0 and all_ranks(output), output


def test_a_module_runs_as_a_script_does(tmp_path):
    (tmp_path / "train.py").write_text(BYTEPS)
    code, output = run("-m", "bps.compat", "-m", "train", cwd=tmp_path)
    assert code == 0 and all_ranks(output), output


def test_the_place_of_a_worker_among_the_machines():
    script = (
        "import bps.compat.horovod, torch\n"
        "import horovod.torch as hvd\n"
        "hvd.init()\n"
        "print('place', hvd.rank(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous())\n"
    )
    places = {
        3: ["0 0 2 False", "1 0 1 False", "2 1 2 False"],
        4: ["0 0 2 True", "1 0 2 True", "2 1 2 True", "3 1 2 True"],
    }
    with processes.Cluster(agents=2) as cluster:
        for n, want in places.items():
            codes, outputs = processes.finish(processes.start(script, n, cluster, f"place{n}"))
            assert codes == [0] * n, "\n".join(outputs)
            assert [re.search("place (.*)", output)[1] for output in outputs] == want


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "import horovod.spark",
            "ModuleNotFoundError: bps does not replace horovod.spark; it replaces horov",
        ),
        (
            "import byteps.torch; byteps.torch.get_pushpull_speed()",
            "NotImplementedError: bps has no byteps.torch.get_push",
        ),
        ("from horovod.torch import nonsense", "ImportError: cannot import name 'nonsense'"),
        (
            "import horovod.torch; horovod.torch.init(comm=[0])",
            "NotImplementedError: init(comm=...) has no counterpart",
        ),
    ],
)
def test_what_is_missing_is_an_error_in_words(tmp_path, line, sentence):
    (tmp_path / "train.py").write_text(line)
    code, output = run("-m", "bps.compat", tmp_path / "train.py", n=1)
    assert code != 0 and sentence in output, output


def test_horovod_that_is_imported_already_is_not_replaced(tmp_path):
    (tmp_path / "horovod.py").write_text("")
    (tmp_path / "train.py").write_text("import horovod, bps.compat.horovod")
    code, output = run(tmp_path / "train.py", n=1)
    assert (
        code != 0
        and "ImportError: horovod is imported already: import bps.compat.horovod before" in output
    ), output


@pytest.mark.parametrize("words", [(), ("-x",), ("missing.py",)])
def test_a_wrong_command_line_is_refused(tmp_path, words):
    code, output = run("-m", "bps.compat", *words, n=1)
    assert code != 0 and (
        "usage: python -m bps.compat" in output or "there is no script 'missing.py'" in output
    )
