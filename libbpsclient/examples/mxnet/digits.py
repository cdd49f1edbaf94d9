"""Train a network on handwritten digits with any number of workers.

    bpsrun -n 4 -- python digits.py

Lines that differ from a single-process script are marked with "bps".
"""

import argparse
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import bps.mxnet as bps

DIGITS = Path(__file__).resolve().parents[1] / "digits.csv"
TEST_SAMPLES = 360


def main() -> None:
    """Train the model, and test it at rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args()

    bps.init()  # bps: join the job
    table = np.loadtxt(DIGITS, delimiter=",")
    images, labels = (table[:, :64] / 16).astype("f4"), table[:, 64].astype("i4")
    n = len(table) - TEST_SAMPLES

    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(64, "relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    bps.broadcast_parameters(net.collect_params())  # bps: start from rank 0's values
    # bps: all workers together have a larger batch, so the learning rate is larger too.
    # Gradients are averages over the workers.
    options = {"learning_rate": args.learning_rate * bps.size(), "momentum": 0.9}
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", options)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(args.epochs):
        order = np.random.RandomState(epoch).permutation(n)
        mine = order[bps.rank() :: bps.size()]  # bps: each worker takes its part of the samples
        total = mx.nd.zeros(1)
        n_steps = n // bps.size() // args.batch_size
        for i in range(n_steps):
            rows = mine[i * args.batch_size :][: args.batch_size]
            with autograd.record():
                loss = loss_of(net(mx.nd.array(images[rows])), mx.nd.array(labels[rows]))
            loss.backward()
            trainer.step(len(rows))
            total += loss.mean()
        total = bps.allreduce(total / n_steps, name="loss")  # bps: average over workers
        if bps.rank() == 0:
            print(f"epoch {epoch}  loss {total.asscalar():.4f}", flush=True)
    if bps.rank() == 0:
        found = net(mx.nd.array(images[n:])).asnumpy().argmax(1)
        print(f"accuracy {np.mean(found == labels[n:]):.3f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
