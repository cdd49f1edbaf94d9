"""Lightning, Accelerate and Hugging Face's Trainer over the back-end "bps".

All workers of a job run these tests in the same order (tests/frontends/run.py).
"""

import os
import warnings

import pytest
import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
lightning = pytest.importorskip("lightning")
accelerate = pytest.importorskip("accelerate")
RANK, SIZE = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])


@pytest.fixture(scope="session", autouse=True)
def group():
    import bps.torch  # noqa: F401  registers bps://, which sets torchrun's variables

    dist.init_process_group("bps", init_method="bps://")
    yield
    dist.destroy_process_group()


def data():
    torch.manual_seed(7)
    x = torch.randn(16 * SIZE, 6)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def same_everywhere(model):
    for p in model.parameters():
        all_ = [torch.empty_like(p) for _ in range(SIZE)]
        dist.all_gather(all_, p.detach())
        assert all(torch.equal(all_[0], q) for q in all_)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)

    def training_step(self, batch, _):
        x, y = batch
        loss = (self.layer(x) - y).pow(2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def test_lightning_trains_with_the_back_end(tmp_path):
    from lightning.pytorch.strategies import DDPStrategy

    torch.manual_seed(RANK)
    module = Regression()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("BPS_LOCAL_SIZE", SIZE)),
        num_nodes=SIZE // int(os.environ.get("BPS_LOCAL_SIZE", SIZE)),
        strategy=DDPStrategy(process_group_backend="bps"),
        max_epochs=3,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data(), 4))
    assert trainer.world_size == SIZE and trainer.callback_metrics["loss"] < 2
    same_everywhere(module)
    assert dist.get_backend() == "bps"


def test_accelerate_uses_the_group_that_exists():
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == SIZE and accelerator.process_index == RANK
    torch.manual_seed(RANK)
    model = torch.nn.Linear(6, 1)
    parts = (model, torch.optim.SGD(model.parameters(), lr=0.05))
    parts += (torch.utils.data.DataLoader(data(), 4, shuffle=True),)
    model, optimizer, loader = accelerator.prepare(*parts)
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    same_everywhere(model)
    losses = accelerator.gather(loss.detach().reshape(1))
    assert losses.shape == (SIZE,) and losses.mean() < 4
    accelerator.wait_for_everyone()


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


def test_the_trainer_of_hugging_face_uses_the_group_that_exists(tmp_path):
    transformers = pytest.importorskip("transformers")
    options = {"output_dir": tmp_path, "use_cpu": True, "max_steps": 4, "learning_rate": 0.05}
    options |= {"per_device_train_batch_size": 4, "save_strategy": "no", "report_to": []}
    arguments = transformers.TrainingArguments(**options, disable_tqdm=True)
    assert arguments.world_size == SIZE
    rows = [{"x": x, "labels": y} for x, y in data()]
    torch.manual_seed(RANK)
    trainer = transformers.Trainer(model=Tiny(), args=arguments, train_dataset=rows)
    assert trainer.train().global_step == 4
    same_everywhere(trainer.model)
