"""Train a network on handwritten digits with any number of workers, in a custom training loop.

    bpsrun -n 4 -- python digits.py

Lines that differ from a single-process script are marked with "bps".
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import bps.tensorflow as bps

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
    # bps: each worker takes every bps.size()-th sample; all take the same number of batches
    samples = tf.data.Dataset.from_tensor_slices((images[:n], labels[:n])).shuffle(n, seed=1)
    batches = samples.shard(bps.size(), bps.rank()).batch(args.batch_size)
    batches = batches.take(n // bps.size() // args.batch_size)

    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((64,)), dense(64, "relu"), dense(10)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # bps: all workers together have a larger batch, so the step is larger too
    optimizer = keras.optimizers.SGD(args.learning_rate * bps.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    # bps: make the variables equal at all workers
    bps.broadcast_variables([*model.variables, *optimizer.variables])

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = bps.DistributedGradientTape(tape)  # bps: average the gradients
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    for epoch in range(args.epochs):
        loss = tf.reduce_mean([step(x, y) for x, y in batches])
        loss = bps.allreduce(loss, name="loss")  # bps: average over workers
        if bps.rank() == 0:
            print(f"epoch {epoch}  loss {float(loss):.4f}", flush=True)
    if bps.rank() == 0:
        found = np.argmax(model(images[n:]), 1)
        print(f"accuracy {np.mean(found == labels[n:]):.3f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
