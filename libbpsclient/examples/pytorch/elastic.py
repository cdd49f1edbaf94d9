"""Train on handwritten digits while machines leave and join.

    bpsrun -n 4 --on-agent-loss shrink -- python elastic.py

If you kill one of the workers, the other workers divide the remaining samples of the epoch among
themselves, continue, and exit with status 0.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import bps.torch as bps
import digits


def main() -> None:
    """Train, and print the accuracy after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32, help="batch size of each worker")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker")
    parser.add_argument("--leave", type=int, metavar="RANK", help="this worker leaves in epoch 2")
    args = parser.parse_args()

    bps.init()
    torch.manual_seed(1)
    train_set, test_set = digits.load(digits.DIGITS)
    sampler = bps.elastic.ElasticSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    model = digits.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    state = bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=1)

    def on_change() -> None:
        print(f"rank {bps.rank()}: the workers have changed, {len(sampler)} samples left here")

    state.register_reset_callbacks([on_change])

    @bps.elastic.run
    def train(state: bps.elastic.TorchState) -> None:
        while state.epoch <= args.epochs:
            model.train()
            for i, (images, labels) in enumerate(loader):
                if bps.rank() == args.leave and state.epoch == 2 and i == 3:
                    os._exit(1)  # simulates a machine that loses its power
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                sampler.record_batch(i, args.batch_size)
                state.commit()  # machines join and leave here
            test(state.epoch)
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    @torch.no_grad()
    def test(epoch: int) -> None:
        model.eval()
        images, labels = test_set.tensors
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
        print(f"rank {bps.rank()}  epoch {epoch}  accuracy {accuracy:.2%}", flush=True)

    train(state)


if __name__ == "__main__":
    main()
