"""Training over the back-end "bps" equals training over Gloo.

All workers of a job run these tests in the same order (tests/frontends/run.py). Each test trains a
model twice in float32: over bps, and over Gloo. After each step every worker computes the loss of
the whole batch. The losses must be the same bits at all workers. Gloo may add the workers' values
in another order, so the losses of the two back-ends may differ by rounding errors.
"""

import contextlib
import datetime
import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

RANK, SIZE = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])
STEPS, ROWS = 8, 12  # ROWS: number of rows of a batch that a worker trains with
TIME_OUT = datetime.timedelta(seconds=60)
# Largest relative difference of two losses after STEPS steps: about that of STEPS sums of SIZE
# values in another order, without cancellation. It is no strict bound. The differences that were
# measured are an eighth of it.
LIMIT = STEPS * 2 * (SIZE - 1) * 2**-24
OVER = ("bps", "gloo")


@pytest.fixture(scope="session", autouse=True)
def group():
    import bps.torch  # noqa: F401  registers the rendezvous bps://

    dist.init_process_group("bps", init_method="bps://", timeout=TIME_OUT)
    yield
    dist.destroy_process_group()


def network():
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 3))
    return torch.nn.Sequential(*layers)


def batch():
    torch.manual_seed(7)
    x = torch.randn(ROWS * SIZE, 6)
    return x, torch.stack([x.sum(1), x[:, 0] * x[:, 1], x[:, 2].sin()], 1)


def loss_of(model, rows=slice(None)):
    x, y = batch()
    return (model(x[rows]) - y[rows]).pow(2).mean()


def losses(model, optimizer, rows):
    """Train with these rows of the batch. Return the losses of the whole batch after each step."""
    values = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rows).backward()
        optimizer.step()
        with torch.no_grad():
            values.append(loss_of(model))
    return torch.stack(values)


def check(over_bps, over_gloo):
    for values in (over_bps, over_gloo):
        everywhere = [torch.empty_like(values) for _ in range(SIZE)]
        dist.all_gather(everywhere, values)
        assert all(torch.equal(values, other) for other in everywhere)
        assert values[-1] < 0.9 * values[0]  # the model learns
    assert ((over_bps - over_gloo).abs() <= LIMIT * over_gloo).all(), (over_bps, over_gloo)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


MINE = slice(RANK * ROWS, (RANK + 1) * ROWS)


def plain(over):
    model = DistributedDataParallel(network(), process_group=dist.new_group(backend=over))
    return losses(model, sgd(model), MINE)


def sharded_optimizer(over):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    one = dist.new_group(backend=over)
    model = DistributedDataParallel(network(), process_group=one)
    options = {"process_group": one, "lr": 0.1, "momentum": 0.9}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    return losses(model, optimizer, MINE)


def sharded_over(mesh):
    from torch.distributed.fsdp import fully_shard

    model = network()
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    return losses(model, sgd(model), MINE)


def mesh_over(over):
    """Return a mesh of all workers. PyTorch's caches take meshes of the same names for equal, and
    would use the back-end of the first mesh for the second."""
    return DeviceMesh.from_group(dist.new_group(backend=over), "cpu", mesh_dim_names=(over,))


def fully_sharded(over):
    return sharded_over(mesh_over(over))


def hybrid_sharded(over):
    """Shard over two workers, and replicate the shards over two pairs of workers."""
    if SIZE != 4:
        pytest.skip("HSDP of 2x2 needs 4 workers")
    places = {f"replicate {over}": ([0, 2], [1, 3]), f"shard {over}": ([0, 1], [2, 3])}
    groups = [dist.new_subgroups_by_enumeration(p, backend=over)[0] for p in places.values()]
    mesh = DeviceMesh.from_group(groups, "cpu", mesh=[[0, 1], [2, 3]], mesh_dim_names=tuple(places))
    return sharded_over(mesh)


def tensor_parallel(over):
    """Split the layers over the workers. All workers train with the same rows."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = mesh_over(over)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(), mesh, plan)
    return losses(model, sgd(model), slice(None))


WAYS = (plain, fully_sharded, hybrid_sharded, sharded_optimizer, tensor_parallel)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_losses_are_those_of_gloo(way):
    check(*[way(over) for over in OVER])


# ---- trainers, which use the group of all workers ----


@contextlib.contextmanager
def gloo_instead(folder):
    """Replace the group of all workers by a group of Gloo."""
    place = [str(folder / "store")]
    dist.broadcast_object_list(place, 0)
    dist.destroy_process_group()
    options = {"rank": RANK, "world_size": SIZE, "timeout": TIME_OUT}
    dist.init_process_group("gloo", init_method=f"file://{place[0]}", **options)
    try:
        yield
    finally:
        dist.destroy_process_group()
        dist.init_process_group("bps", init_method="bps://", timeout=TIME_OUT)


def over_both(train, folder):
    """Check the losses of `train`, which gets the name of the back-end and an empty folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        over_bps = train("bps", folder / "bps")
        with gloo_instead(folder):
            over_gloo = train("gloo", folder / "gloo")
    check(over_bps, over_gloo)


def data():
    return torch.utils.data.TensorDataset(*batch())


def lightning_losses(over, folder):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.losses = network(), []

        def training_step(self, rows, _):
            x, y = rows
            return (self.network(x) - y).pow(2).mean()

        def on_train_batch_end(self, *_):
            with torch.no_grad():
                self.losses.append(loss_of(self.network))

        def configure_optimizers(self):
            return sgd(self)

    assert dist.get_backend() == over
    n_local = int(os.environ["BPS_LOCAL_SIZE"])
    module, options = Regression(), {"accelerator": "cpu", "logger": False}
    options |= {"enable_checkpointing": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "default_root_dir": folder}
    options |= {"devices": n_local, "num_nodes": SIZE // n_local, "max_epochs": 1}
    trainer = lightning.Trainer(strategy=DDPStrategy(process_group_backend=over), **options)
    assert (trainer.global_rank, trainer.world_size) == (RANK, SIZE)
    trainer.fit(module, torch.utils.data.DataLoader(data(), 2))
    return torch.stack(module.losses)


def hugging_face_losses(over, folder):
    import transformers

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x, labels):
            out = self.network(x)
            return {"loss": (out - labels).pow(2).mean(), "logits": out}

    class Record(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            with torch.no_grad():
                values.append(loss_of(model.network))

    values, model = [], Net()
    options = {"use_cpu": True, "max_steps": STEPS, "learning_rate": 0.05, "report_to": []}
    options |= {"save_strategy": "no", "disable_tqdm": True, "output_dir": folder}
    arguments = transformers.TrainingArguments(per_device_train_batch_size=4, **options)
    rows = [{"x": x, "labels": y} for x, y in data()]
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, callbacks=[Record()]
    )
    assert arguments.world_size == SIZE and dist.get_backend() == over
    trainer.train()
    return torch.stack(values)


@pytest.mark.parametrize("train", [lightning_losses, hugging_face_losses], ids=lambda t: t.__name__)
def test_the_losses_of_a_trainer_are_those_of_gloo(train, tmp_path):
    over_both(train, tmp_path)
