"""Measure the throughput of ResNet-50 training on random images. One jitted call is one step.

    bpsrun -n 2 -- python synthetic_benchmark.py --batch-size 8

The last line has the images per second of all workers together.
"""

import argparse
import statistics
import timeit
from typing import Any

import jax
import jax.numpy as jnp
import optax

import bps.jax as bps

BLOCKS = {
    "resnet14": (1, 1, 1, 1),
    "resnet26": (2, 2, 2, 2),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
}
Params = dict[str, Any]


def log(text: str) -> None:
    """Print a text, only at rank 0."""
    if bps.rank() == 0:
        print(text, flush=True)


def make_conv(key: jax.Array, size: int, n_in: int, n_out: int) -> Params:
    """Return the parameters of a convolution and of the normalization after it."""
    scale = (2 / (size * size * n_in)) ** 0.5
    w = scale * jax.random.normal(key, (size, size, n_in, n_out))
    return {"w": w, "gain": jnp.ones(n_out), "bias": jnp.zeros(n_out)}


def conv(p: Params, x: jax.Array, stride: int = 1) -> jax.Array:
    """Return the convolution of images [N, H, W, C], normalized over the batch."""
    form = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, p["w"], (stride, stride), "SAME", dimension_numbers=form)
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["gain"] + p["bias"]


def make_model(key: jax.Array, blocks: tuple[int, ...], width: int) -> Params:
    """Return the parameters of a residual network (He et al., 2015)."""
    keys = iter(jax.random.split(key, 4 * sum(blocks) + 2))
    model: Params = {"stem": make_conv(next(keys), 7, 3, width), "blocks": []}
    n_in = width
    for stage, n_blocks in enumerate(blocks):
        inner = width << stage
        for _ in range(n_blocks):
            block = {
                "conv1": make_conv(next(keys), 1, n_in, inner),
                "conv2": make_conv(next(keys), 3, inner, inner),
                "conv3": make_conv(next(keys), 1, inner, 4 * inner),
            }
            if n_in != 4 * inner:
                block["shortcut"] = make_conv(next(keys), 1, n_in, 4 * inner)
            model["blocks"].append(block)
            n_in = 4 * inner
    model["fc"] = jax.random.normal(next(keys), (n_in, 1000)) * n_in**-0.5
    model["fc_bias"] = jnp.zeros(1000)
    return model


def loss_of(model: Params, strides: tuple[int, ...], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean loss of a batch."""
    x = jax.nn.relu(conv(model["stem"], x, 2))
    window = (1, 3, 3, 1)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, (1, 2, 2, 1), "SAME")
    for block, stride in zip(model["blocks"], strides):
        z = jax.nn.relu(conv(block["conv1"], x))
        z = jax.nn.relu(conv(block["conv2"], z, stride))
        shortcut = conv(block["shortcut"], x, stride) if "shortcut" in block else x
        x = jax.nn.relu(conv(block["conv3"], z) + shortcut)
    logits = x.mean((1, 2)) @ model["fc"] + model["fc_bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def main() -> None:
    """Train for several iterations of several batches each, and print the throughput."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark of bps and JAX.")
    parser.add_argument("--model", choices=BLOCKS, default="resnet50")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    args = parser.parse_args()

    bps.init()
    blocks = BLOCKS[args.model]
    # The first block of each stage halves the image, except in the first stage.
    strides = tuple(2 if s and not b else 1 for s, n in enumerate(blocks) for b in range(n))
    params = bps.broadcast(make_model(jax.random.key(0), blocks, args.width))
    optimizer = bps.DistributedOptimizer(optax.sgd(0.01))
    state = optimizer.init(params)
    key = jax.random.key(bps.rank())
    images = jax.random.normal(key, (args.batch_size, args.image_size, args.image_size, 3))
    labels = jax.random.randint(key, (args.batch_size,), 0, 1000)

    @jax.jit
    def train_step(params: Params, state: Any) -> tuple[Params, Any]:
        grads = jax.grad(loss_of)(params, strides, images, labels)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def benchmark_step() -> None:
        nonlocal params, state
        params, state = jax.block_until_ready(train_step(params, state))

    log(f"Model: {args.model}, {sum(p.size for p in jax.tree.leaves(params)):,} parameters")
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
    total = bps.push_pull(jnp.array([mean, spread]), average=False, name="rates")
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} worker(s): {total[0]:.1f} +-{total[1]:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
