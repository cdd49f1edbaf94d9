"""Train a network on handwritten digits with ``model.fit`` and any number of workers.

    KERAS_BACKEND=jax bpsrun -n 4 -- python digits.py

Lines that differ from a single-process script are marked with "bps".
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import bps.keras as bps

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
    # bps: each worker takes every bps.size()-th sample; all workers take equally many samples
    mine = slice(bps.rank(), n // bps.size() * bps.size(), bps.size())

    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((64,)), dense(64, "relu"), dense(10)])
    # bps: all workers together have a larger batch, so the step is larger too
    rate = args.learning_rate * bps.size()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images[mine],
        labels[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        verbose=2 if bps.rank() == 0 else 0,
        callbacks=[
            bps.callbacks.BroadcastGlobalVariablesCallback(0),  # bps: start from rank 0's values
            bps.callbacks.MetricAverageCallback(),  # bps: average over workers
            bps.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
        ],
    )
    if bps.rank() == 0:
        _, accuracy = model.evaluate(images[n:], labels[n:], verbose=0)
        print(f"accuracy {accuracy:.3f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
