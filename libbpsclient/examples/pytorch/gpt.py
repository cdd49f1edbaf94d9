"""A small GPT over bytes, which the examples beside this file train in different ways."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

N_BYTES = 256


class Block(nn.Module):
    """Transformer block: attention to earlier bytes, then a perceptron."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, which has the shape of ``x``."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next byte at each place of a text.

    Args:
        width (int): number of channels of the activations.
        n_blocks (int): number of transformer blocks.
        n_heads (int): number of attention heads of each block.
        length (int): largest number of bytes of a text.
    """

    def __init__(self, width: int, n_blocks: int, n_heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_BYTES, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, N_BYTES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next byte at each place."""
        y = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


class Text(Dataset):
    """Pieces of a text file. The target of each byte is the byte that follows it.

    Args:
        path (Path): the file.
        length (int): number of bytes of a piece.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.length = length

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        piece = self.data[i * self.length : (i + 1) * self.length + 1]
        return piece[:-1], piece[1:]


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all gpt_*.py programs share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--text", type=Path, default=Path(__file__), help="default: this program")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4, help="of each worker")
    parser.add_argument("--length", type=int, default=64, help="bytes of a piece of the text")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def build(args: argparse.Namespace) -> GPT:
    """Return the model that the options describe, with random parameters."""
    torch.manual_seed(args.seed)
    return GPT(args.width, args.blocks, args.heads, args.length)


def batches(args: argparse.Namespace, rank: int, size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the index, the input and the target of each step of this worker."""
    data = Text(args.text, args.length)
    sampler = DistributedSampler(data, size, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    if not len(loader):
        raise SystemExit(f"{args.text} is too short for {size} batches")
    step = 0
    for epoch in range(args.steps):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            if step == args.steps:
                return
            yield step, inputs, targets
            step += 1


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy in nats per byte."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
