"""Measure the training throughput of ResNet-50 on random images, with ``model.fit``.

    KERAS_BACKEND=jax bpsrun -n 2 -- python synthetic_benchmark.py --batch-size 8

The last line of the output has the images per second of all workers together.
"""

import argparse
import statistics
import time

import keras
import numpy as np

import bps.keras as bps


def log(text: str) -> None:
    """Print a text, only at rank 0."""
    if bps.rank() == 0:
        print(text, flush=True)


class Throughput(keras.callbacks.Callback):
    """Measure the images per second of each epoch.

    Args:
        n_images (int): images of an epoch.
    """

    def __init__(self, n_images: int) -> None:
        super().__init__()
        self.n_images = n_images
        self.rates: list[float] = []
        self.start_s = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Start the clock."""
        self.start_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Store the throughput of this epoch."""
        self.rates.append(self.n_images / (time.perf_counter() - self.start_s))
        log(f"Iter #{epoch}: {self.rates[-1]:.1f} img/sec per worker")


def main() -> None:
    """Train for several iterations of several batches each, and print the throughput."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark of bps and Keras.")
    parser.add_argument("--model", default="ResNet50", help="a class of keras.applications")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    args = parser.parse_args()

    bps.init()
    size = (args.image_size, args.image_size, 3)
    model = getattr(keras.applications, args.model)(
        weights=None, input_shape=size, classifier_activation=None
    )
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    n_images = args.batch_size * args.num_batches_per_iter
    random = np.random.default_rng(bps.rank())
    images = random.random((n_images, *size), "f4")
    labels = random.integers(0, 1000, n_images, "i4")

    log(f"Model: {args.model}, {model.count_params():,} parameters")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of workers: {bps.size()}")
    log("Running benchmark, first one iteration that does not count...")
    throughput = Throughput(n_images)
    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=1 + args.num_iters,
        verbose=0,
        callbacks=[bps.callbacks.BroadcastGlobalVariablesCallback(0), throughput],
    )
    rates = throughput.rates[1:]
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = bps.allreduce(np.array([mean, spread]), op=bps.Sum, name="rates")
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {total[0]:.1f} +-{total[1]:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
