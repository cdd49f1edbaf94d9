#!/usr/bin/env python3
"""Compare Keras's training steps over bps with those over TensorFlow's MultiWorkerMirroredStrategy.

    tests/bench/keras_steps.py BUILD-FOLDER [--rounds R] [--steps S] [--out FILE]

Two workers train a Keras model of 25 million parameters in seven dense layers, with the same
training loop in a `tf.function`. (`model.fit` of Keras 3 does not work with the strategy.) In each
round, each form of training runs once, in processes of its own:
    mirrored   MultiWorkerMirroredStrategy, with its ring over gRPC on the loopback
    optimizer  bps.keras.DistributedOptimizer, 2 agents, 1 server
    alone      one worker, which exchanges nothing
A figure is the median duration of a step. The ratio of optimizer to mirrored is the median of the
ratios of all rounds. If the environment of the front-ends' tests (tests/frontends/tensorflow.txt)
does not exist, the program makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import page
from harness import Lab, Processes, Suite
from page import Row, row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WARM_UP = 3  # steps that are not measured, in which TensorFlow compiles and bps declares tensors
N_WORKERS = 2
BATCH = 8  # samples of a worker in a step
FORMS = ("mirrored", "optimizer", "alone")
BAR = 0.8


def dense() -> Any:
    """Return a Keras model of 25 million parameters in 14 variables."""
    import keras

    widths = [2048] * 6
    layers = [keras.layers.Dense(n, activation="relu") for n in widths]
    return keras.Sequential([keras.Input((1024,)), *layers, keras.layers.Dense(1000)])


def worker(form: str, steps: int) -> None:
    """Run one worker. The first worker prints the median duration of a step in milliseconds."""
    import keras
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if form == "mirrored":
        ring = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
        is_first = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
    else:
        strategy, is_first = tf.distribute.get_strategy(), True
    if form == "optimizer":
        import bps.keras as bps

        bps.init()
        is_first = bps.rank() == 0
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model, optimizer = dense(), keras.optimizers.SGD(0.01)
        if form == "optimizer":
            optimizer = bps.DistributedOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    rng = np.random.default_rng(1)
    x = tf.constant(rng.random((BATCH, 1024), np.float32))
    y = tf.constant(rng.integers(0, 1000, BATCH))

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    @tf.function
    def step() -> Any:
        return strategy.run(replica_step, args=(x, y))

    times = []
    for _ in range(WARM_UP + steps):
        begin = time.perf_counter()
        float(step())  # waits for the end of the step
        times.append(time.perf_counter() - begin)
    if is_first:
        print(json.dumps({"ms": 1e3 * statistics.median(times[WARM_UP:])}), flush=True)
    if form == "optimizer":
        bps.shutdown()


def free_ports(n: int) -> list[int]:
    """Return n free ports of the loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def run_form(form: str, args: argparse.Namespace, suite: Suite, job: str) -> float:
    """Run the workers of one form of training (FORMS). Return the median milliseconds of a step."""
    command = [
        args.python, Path(__file__).resolve(), args.build, "--worker", form, "--steps", args.steps,
    ]  # fmt: skip
    env = {
        "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": str(ROOT / "libbpsclient" / "python"), "PYTHONDONTWRITEBYTECODE": "1",
        "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    ports = free_ports(N_WORKERS)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    started = []
    for i in range(1 if form == "alone" else N_WORKERS):
        own = dict(env)
        if form == "mirrored":
            task = {"type": "worker", "index": i}
            own["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        elif form == "optimizer":
            own |= {
                "BPS_JOB": job, "BPS_RANK": str(i), "BPS_SIZE": str(N_WORKERS),
                "BPS_LOCAL_RANK": "0", "BPS_LOCAL_SIZE": "1", "BPS_TIMEOUT": "60s",
                "BPS_AGENT_SOCKET": str(suite.sockets[i]),
            }  # fmt: skip
        started.append((suite.agent_hosts[i], command, own))
    out, _ = suite.processes.run(started)
    return json.loads(out.splitlines()[-1])["ms"]


def report(args: argparse.Namespace) -> list[Row]:
    """Run all forms in turn. Return the rows of the table."""
    processes = Processes("nice")
    rounds = []
    with (
        tempfile.TemporaryDirectory(prefix="bps-keras-") as folder,
        Lab(1 + N_WORKERS + 1) as lab,
        Suite(args.build, lab, processes, folder, N_WORKERS, alone=1) as suite,
    ):
        for r in range(args.rounds):
            rounds.append({f: run_form(f, args, suite, f"keras{r}") for f in FORMS})
            print(rounds[-1], file=sys.stderr, flush=True)
    lines = [row(f"{form}, ms a step", "", [r[form] for r in rounds], None) for form in FORMS]
    ratios = [r["optimizer"] / r["mirrored"] for r in rounds]
    lines.append(row("optimizer over mirrored", f"<= {BAR}", ratios, lambda x: x <= BAR))
    return lines


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15, help="measured steps of a form in a round")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--python", help="with TensorFlow; default: the tests' environment")
    parser.add_argument("--worker", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build = args.build.resolve()
    if args.worker:
        worker(args.worker, args.steps)
        return 0
    frontends = ROOT / "tests" / "frontends"
    make = (
        frontends / "environment.py", frontends / "tensorflow.txt", ROOT / "build" / "frontends",
    )  # fmt: skip
    args.python = args.python or subprocess.check_output([sys.executable, *make], text=True).strip()
    page.write(
        "Training steps of Keras",
        (
            "This page has the measured training steps of `bps.keras` beside TensorFlow's",
            "MultiWorkerMirroredStrategy. The measured programs run with niceness -20.",
            "[measure.md](../../guides/measure.md#tensorflow-keras-and-jax) explains the figures.",
        ),
        args.build,
        f"--rounds {args.rounds} --steps {args.steps}",
        lambda: report(args),
        args.out,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
