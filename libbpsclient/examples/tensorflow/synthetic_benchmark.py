"""Measure the training throughput of ResNet-50 on random images, with a gradient tape.

    bpsrun -n 2 -- python synthetic_benchmark.py --batch-size 8

The last line has the images per second of all workers together.
"""

import argparse
import os
import statistics
import timeit

import keras
import tensorflow as tf

import bps.tensorflow as bps


def log(text: str) -> None:
    """Print a text, only at rank 0."""
    if bps.rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Train for several iterations of several batches each, and print the throughput."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark of bps and TensorFlow.")
    parser.add_argument("--model", default="ResNet50", help="a class of keras.applications")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--bf16-allreduce", action="store_true", help="halve the bytes")
    args = parser.parse_args()

    bps.init()
    if "OMP_NUM_THREADS" not in os.environ:
        n_threads = max(1, len(os.sched_getaffinity(0)) // bps.local_size())
        tf.config.threading.set_intra_op_parallelism_threads(n_threads)
    size = (args.image_size, args.image_size, 3)
    model = getattr(keras.applications, args.model)(
        weights=None, input_shape=size, classifier_activation=None
    )
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    bps.broadcast_variables([*model.variables, *optimizer.variables])
    images = tf.random.uniform((args.batch_size, *size))
    labels = tf.random.uniform((args.batch_size,), maxval=1000, dtype=tf.int32)
    compression = bps.Compression.bf16 if args.bf16_allreduce else bps.Compression.none

    @tf.function
    def benchmark_step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = bps.DistributedGradientTape(tape, compression=compression)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    log(f"Model: {args.model}, {model.count_params():,} parameters")
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

    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = bps.allreduce(tf.constant([mean, spread]), op=bps.Sum, name="rates").numpy()
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {total[0]:.1f} +-{total[1]:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
