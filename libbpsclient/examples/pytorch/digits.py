"""Train a convolutional network on handwritten digits with any number of workers.

    bpsrun -n 4 -- python digits.py

Lines that differ from a single-process script are marked with "bps".
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import bps.torch as bps

DIGITS = Path(__file__).resolve().parents[1] / "digits.csv"
TEST_SAMPLES = 360


class Net(nn.Module):
    """Classifies images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the ten digits."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(torch.flatten(x, 1))))
        return self.fc2(x)


def load(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return the samples for training and the samples for testing."""
    rows = [[int(number) for number in line.split(",")] for line in path.read_text().split()]
    table = torch.tensor(rows)
    images = (table[:, :64] / 16.0).reshape(-1, 1, 8, 8)
    labels = table[:, 64]
    n = len(table) - TEST_SAMPLES
    return TensorDataset(images[:n], labels[:n]), TensorDataset(images[n:], labels[n:])


def train(
    args: argparse.Namespace,
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    epoch: int,
) -> None:
    """Train for one epoch on this worker's part of the samples."""
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % args.log_interval == 0 and bps.rank() == 0:
            print(f"epoch {epoch}  step {step}/{len(loader)}  loss {loss.item():.4f}", flush=True)


def test(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Return the mean loss and the accuracy over all workers' parts of the test samples."""
    model.eval()
    loss = correct = count = 0.0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += F.cross_entropy(output, labels, reduction="sum").item()
            correct += (output.argmax(1) == labels).sum().item()
            count += len(labels)
    sums = bps.allreduce(torch.tensor([loss, correct, count]), op=bps.Sum, name="test")  # bps
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main() -> None:
    """Train, and print the accuracy after each epoch."""
    parser = argparse.ArgumentParser(description="Handwritten digits with bps and PyTorch.")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="batch size of each worker (default: 32)"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--lr", type=float, default=0.02, help="learning rate of one worker (default: 0.02)"
    )
    parser.add_argument("--bf16", action="store_true", help="halve the bytes on the network")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--log-interval", type=int, default=10, help="number of steps between two log lines"
    )
    parser.add_argument(
        "--data", type=Path, default=DIGITS, help="table in the format of digits.csv"
    )
    parser.add_argument("--save", type=Path, help="write the model to this file")
    args = parser.parse_args()

    bps.init()  # bps
    torch.manual_seed(args.seed)
    train_set, test_set = load(args.data)
    sampler = DistributedSampler(train_set, bps.size(), bps.rank(), seed=args.seed)  # bps
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    test_loader = DataLoader(
        torch.utils.data.Subset(test_set, range(bps.rank(), len(test_set), bps.size())), 100
    )

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=0.9)  # bps
    compression = bps.Compression.bf16 if args.bf16 else bps.Compression.none
    optimizer = bps.DistributedOptimizer(  # bps
        optimizer, model.named_parameters(), compression=compression
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)  # bps
    bps.broadcast_optimizer_state(optimizer, root_rank=0)  # bps

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(args, model, loader, optimizer, epoch)
        loss, accuracy = test(model, test_loader)
        if bps.rank() == 0:
            print(f"epoch {epoch}  test loss {loss:.4f}  accuracy {accuracy:.2%}", flush=True)
    if args.save and bps.rank() == 0:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
