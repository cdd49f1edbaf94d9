"""Train a network on handwritten digits with any number of workers.

    bpsrun -n 4 -- python digits.py

Lines that differ from a single-process script are marked with "bps".
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bps.jax as bps

DIGITS = Path(__file__).resolve().parents[1] / "digits.csv"
TEST_SAMPLES = 360


def make(key: jax.Array) -> dict[str, jax.Array]:
    """Return the parameters of a network with one hidden layer."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


def logits_of(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return the logits of the ten digits."""
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_of(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean loss of a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x), y).mean()


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
    # bps: all workers together have a larger batch, so the step is larger too
    optimizer = optax.sgd(args.learning_rate * bps.size(), momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer)  # bps: average the gradients
    params = bps.broadcast(make(jax.random.key(bps.rank())))  # bps: start from rank 0's values
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    for epoch in range(args.epochs):
        order = np.random.RandomState(epoch).permutation(n)
        mine = order[bps.rank() :: bps.size()]  # bps: each worker takes its part of the samples
        losses = []
        for i in range(n // bps.size() // args.batch_size):
            rows = mine[i * args.batch_size :][: args.batch_size]
            params, state, loss = step(params, state, images[rows], labels[rows])
            losses.append(loss)
        loss = bps.push_pull(jnp.stack(losses).mean(), name="loss")  # bps: average over workers
        if bps.rank() == 0:
            print(f"epoch {epoch}  loss {float(loss):.4f}", flush=True)
    if bps.rank() == 0:
        found = np.argmax(logits_of(params, images[n:]), 1)
        print(f"accuracy {np.mean(found == labels[n:]):.3f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
