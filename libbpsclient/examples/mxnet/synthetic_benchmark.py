"""Measure the training throughput of ResNet-50 on random images, with a Gluon trainer.

    bpsrun -n 2 -- python synthetic_benchmark.py --batch-size 8

The last line of the output shows the images per second of all workers together.
"""

import argparse
import statistics
import timeit

import mxnet as mx
from mxnet import autograd, gluon

import bps.mxnet as bps


def log(text: str) -> None:
    """Print a text, only at rank 0."""
    if bps.rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Train for several iterations of several batches each, and print the throughput."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark of bps and MXNet.")
    parser.add_argument("--model", default="resnet50_v1", help="a network of gluon's model zoo")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    args = parser.parse_args()

    bps.init()
    net = gluon.model_zoo.vision.get_model(args.model, classes=1000)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    images = mx.nd.random.uniform(shape=(args.batch_size, 3, args.image_size, args.image_size))
    labels = mx.nd.random.randint(0, 1000, shape=(args.batch_size,)).astype("float32")
    net(images)  # sets the shapes of the parameters
    parameters = net.collect_params()
    bps.broadcast_parameters(parameters)
    trainer = bps.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.01})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    def benchmark_step() -> None:
        with autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(args.batch_size)
        mx.nd.waitall()

    n_parameters = sum(p.data().size for p in parameters.values() if p.grad_req != "null")
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

    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = bps.allreduce(mx.nd.array([mean, spread]), average=False, name="rates").asnumpy()
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {total[0]:.1f} +-{total[1]:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
