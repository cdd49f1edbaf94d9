"""Measure the training throughput of a residual network on random images.

    bpsrun -n 2 -- python synthetic_benchmark.py --batch-size 8

The default is ResNet-50 with images of 224x224 pixels. The last line of the output is
the number of images per second of all workers together.
"""

import argparse
import os
import statistics
import timeit

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bps.torch as bps

BLOCKS = {"resnet26": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, which is the input of the next block."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A residual network for images (He et al., 2015; the stride is in the 3x3 convolution).

    Args:
        blocks (tuple[int, ...]): the number of blocks of each of the four stages.
        width (int): number of channels of the first stage.
        n_classes (int): number of classes of the output.
    """

    def __init__(self, blocks: tuple[int, ...], width: int = 64, n_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )
        stages, n_in = [], width
        for stage, n_blocks in enumerate(blocks):
            for block in range(n_blocks):
                stride = 2 if stage and not block else 1
                stages.append(Bottleneck(n_in, width << stage, stride))
                n_in = 4 * (width << stage)
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


def log(text: str) -> None:
    """Print a text, only at rank 0."""
    if bps.rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Train for several iterations of several batches each, and print the throughput."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark of bps and PyTorch.")
    parser.add_argument("--model", choices=BLOCKS, default="resnet50")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--bf16-allreduce", action="store_true", help="halve the bytes")
    parser.add_argument("--cross-barrier", action="store_true", help="wait per layer")
    args = parser.parse_args()

    bps.init()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // bps.local_size()))
    model = ResNet(BLOCKS[args.model], args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        compression=bps.Compression.bf16 if args.bf16_allreduce else bps.Compression.none,
        cross_barrier=args.cross_barrier,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    labels = torch.randint(1000, (args.batch_size,))

    def benchmark_step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    n_parameters = sum(p.numel() for p in model.parameters())
    log(f"Model: {args.model}, {n_parameters:,} parameters")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of workers: {bps.size()}")
    log("Running warmup...")
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    log("Running benchmark...")
    rates = []
    for i in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{i}: {rates[-1]:.1f} img/sec per worker")
    optimizer.synchronize()

    mean = statistics.fmean(rates)
    spread = 1.96 * statistics.pstdev(rates)
    total = bps.allreduce(torch.tensor([mean, spread]), op=bps.Sum, name="rates").tolist()
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {total[0]:.1f} +-{total[1]:.1f}")


if __name__ == "__main__":
    main()
