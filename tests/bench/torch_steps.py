#!/usr/bin/env python3
"""Compare PyTorch's training steps over bps with those of DistributedDataParallel (DDP) over Gloo.

    tests/bench/torch_steps.py BUILD-FOLDER [--only GROUPS] [--rounds R] [--steps S]
        [--old BUILD-FOLDER] [--out FILE] [--strict]

The gradients have the sizes of a model in tests/traces. The backward pass makes the gradients
without computing. All forms of training run in the same processes, in turn in every round. Each
printed ratio is the median of the ratios of the single rounds. Groups:
    loopback   2 workers on 2 agents, 1 server; ResNet-50's gradients
    shaped     4 workers on 4 agents, 4 servers, hosts with cards of 1 Gbit/s (needs root)
    overlap    2 workers on 2 agents, 2 servers, the same cards; layers sleep as long as a GPU would
               compute: ResNet-50 with the optimizer, VGG-16 with and without cross_barrier
    blocks     as `shaped`, and with cards of 250 Mbit/s: gradients as int8, beside f32 and beside
               DDP's hook of bf16. On two cores the processors are full at 1 Gbit/s, so the bars
               apply to the slower cards.
    zero       4 workers at 1 Gbit/s and 8 at 100 Mbit/s, as many servers on other hosts: a step of
               ShardedOptimizer, beside reduce-scatter and all-gather over Gloo
    hooks      time that the hooks add to a step of 161 tiny parameters
    start      2 workers on 2 agents: declaration of all gradients, broadcast of all parameters;
               import of bps. Each round has a new cluster.
With --old, the program also compares this build with an old one: in every round of the group
`loopback`, a cluster of this build runs between two clusters of the old build. page.old_limit has
the limit. With --strict, the exit status is 1 if a bar does not hold.
If the environment of the front-ends' tests (tests/frontends/torch.txt) does not exist, the program
makes it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import page
from page import Row, row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RATE, SLOW_RATE = "1gbit", "250mbit"
PAYLOAD_MB_S = 125 * 1448 / 1514  # payload on a RATE link, for MTU 1500 and TCP timestamps
# Group `overlap`: total seconds for which the layers of a model sleep in a step. The gradients of
# ResNet-50 need 0.86 s on the wire, those of VGG-16 4.6 s.
RESNET_S = 0.6
# If communication dominates, cross_barrier can save no more than the forward pass, which is a third
# of the computing time. So only computing times near the communication time can meet a bar of 15 %.
# The other computing time is for comparison, without a bar.
VGG_BARS = {2.3: None, 4.2: 0.85}
FORMS = ("ddp", "ddp-views", "hook", "hook-views", "backend", "backend-views", "optimizer")
# Forms of the group `shaped`. With all of FORMS, four workers would need more than 24 GiB.
SHAPED_FORMS = ("ddp", "ddp-views", "hook-views", "backend-views", "optimizer")
BLOCK_FORMS = ("ddp-bf16", "optimizer", "optimizer-int8", "optimizer-int4")
# Group `zero`: number of workers, cards, MiB of the parameters, and least ratio to Gloo.
ZERO = ((4, RATE, 64, 1.15), (8, "100mbit", 32, 1.45))
BARS = {
    "loopback": {"optimizer": 0.6, "hook": 0.75, "backend": 0.8},
    "shaped": {"optimizer": 0.72, "hook": 0.72, "backend": 0.72},
}


def sizes(model: str) -> list[int]:
    """Return the number of elements of each parameter of a model, starting with the first layer."""
    lines = (ROOT / "tests" / "traces" / f"{model}.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [int(row[1]) for row in rows[1:]]


# ---- a worker: one process of the job ----


def make_model(counts: list[int], forward_s: float = 0.0, backward_s: float = 0.0) -> Any:
    """Return a module whose backward pass makes a gradient per parameter without computing.

    Args:
        counts (list[int]): elements of each parameter.
        forward_s, backward_s (float): seconds that each layer sleeps in the forward and the
            backward pass.
    """
    import torch

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(weight)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if backward_s:
                time.sleep(backward_s)
            return grad, torch.ones_like(ctx.saved_tensors[0])

    class Layer(torch.nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(n))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if forward_s:
                time.sleep(forward_s)
            return Gradient.apply(x, self.weight)

    return torch.nn.Sequential(*(Layer(n) for n in counts))


def make_step(form: str, model: Any, group: Any, **options: Any) -> Callable[[], None]:
    """Return a function that runs a training step. `form` is one of FORMS or BLOCK_FORMS, or
    'none'. With 'none', the step exchanges nothing."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    import bps.torch

    class Idle(torch.optim.SGD):
        """An optimizer whose step does nothing."""

        def step(self, closure: Any = None) -> None:
            pass

    optimizer = Idle(model.parameters(), lr=0.1)
    kind, _, way = form.partition("-")
    if kind == "optimizer":
        options["compression"] = getattr(bps.torch.Compression, way or "none")
        optimizer = bps.torch.DistributedOptimizer(
            optimizer, list(model.named_parameters()), **options
        )
    elif kind != "none":
        model = DistributedDataParallel(
            model,
            process_group=group if kind == "backend" else None,
            gradient_as_bucket_view=way == "views",
        )
        if way == "bf16":
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        if kind == "hook":
            model.register_comm_hook(bps.torch.HookState(), bps.torch.ddp_hook)
    x = torch.zeros(1, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).sum().backward()
        optimizer.step()

    return step


def seconds(
    step: Callable[[], None], n: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Run n steps. Return the duration of each step in seconds."""
    times = []
    for _ in range(n):
        start = clock()
        step()
        times.append(clock() - start)
    return times


def steps_of_forms(args: argparse.Namespace, counts: list[int], group: Any) -> Iterator[Any]:
    """For each round, yield {form: median duration of a step, in milliseconds}."""
    import bps.torch

    names = {"shaped": SHAPED_FORMS, "blocks": BLOCK_FORMS}.get(args.worker, FORMS)
    if args.forms:
        names = args.forms.split(",")
    forms = {f: make_step(f, make_model(counts), group) for f in ("none", *names)}
    for step in forms.values():
        seconds(step, 3)  # the first steps declare tensors, and DDP rebuilds its buckets
    for _ in range(args.rounds):
        figures = {}
        for form, step in forms.items():
            bps.torch.barrier()
            seconds(step, 1)
            figures[form] = 1e3 * statistics.median(seconds(step, args.steps))
        yield figures


def steps_of_overlap(args: argparse.Namespace, counts: list[int], group: Any) -> Iterator[Any]:
    """For each round, yield the median duration in seconds of a step of each form in args.forms.

    The layers of the models sleep to simulate computation: in the form "backward" during the
    backward pass, in the forms "barrier" and "cross" during both passes. The form "compute"
    exchanges nothing. The form "cross" uses cross_barrier.
    """
    import bps.torch

    pause = args.compute / len(counts)
    both = (pause / 3, pause * 2 / 3)
    small = {"bucket_bytes": 4 << 20}
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        "compute": lambda: make_step("none", make_model(counts, 0.0, pause), group),
        "backward": lambda: make_step("optimizer", make_model(counts, 0.0, pause), group),
        "barrier": lambda: make_step("optimizer", make_model(counts, *both), group, **small),
        "cross": lambda: make_step(
            "optimizer", make_model(counts, *both), group, cross_barrier=True, **small
        ),
    }
    forms = {name: makers[name]() for name in args.forms.split(",")}
    for step in forms.values():
        seconds(step, 3)
    for _ in range(args.rounds):
        figures = {}
        for form, step in forms.items():
            bps.torch.barrier()
            seconds(step, 1)
            figures[form] = statistics.median(seconds(step, args.steps))
        yield figures


def steps_of_zero(args: argparse.Namespace, counts: list[int], group: Any) -> Iterator[Any]:
    """For each round, yield the median duration in seconds of a ZeRO step without computing.

    The form "optimizer" is :class:`bps.torch.ShardedOptimizer`. The other forms call the two
    collectives: "gloo" for the whole, "gloo-buckets" for buckets of 4 MiB, of which several are in
    flight. args.forms: MiB of the parameters.
    """
    import torch
    import torch.distributed as dist

    import bps.torch

    class Idle(torch.optim.SGD):
        """An optimizer whose step does nothing."""

        def step(self, closure: Any = None) -> None:
            pass

    size, n = dist.get_world_size(), int(args.forms) << 18
    param = torch.nn.Parameter(torch.zeros(n))
    param.grad = grads = torch.ones(n)
    params, shard = torch.empty(n), torch.empty(n // size)
    optimizer = bps.torch.ShardedOptimizer([param], Idle, lr=0.1)
    cuts = [t.split((1 << 20) // m) for t, m in ((grads, 1), (params, 1), (shard, size))]

    def whole() -> None:
        dist.reduce_scatter_tensor(shard, grads)
        dist.all_gather_into_tensor(params, shard)

    def in_buckets() -> None:
        ahead, reduced, gathered = 3, [], []
        for i in range(len(cuts[0]) + ahead):
            if i < len(cuts[0]):
                reduced.append(dist.reduce_scatter_tensor(cuts[2][i], cuts[0][i], async_op=True))
            if i >= ahead:
                reduced[i - ahead].wait()
                mine, all_ = cuts[2][i - ahead], cuts[1][i - ahead]
                gathered.append(dist.all_gather_into_tensor(all_, mine, async_op=True))
        for work in gathered:
            work.wait()

    forms = {"optimizer": optimizer.step, "gloo": whole, "gloo-buckets": in_buckets}
    for form in forms.values():
        seconds(form, 2)
    for _ in range(args.rounds):
        figures = {}
        for name, form in forms.items():
            dist.barrier()
            figures[name] = statistics.median(seconds(form, args.steps))
        yield figures


def hooks(args: argparse.Namespace, counts: list[int], group: Any) -> Iterator[Any]:
    """For each round, yield the CPU time in microseconds that the hook of one parameter takes.

    Each parameter of the model has one element.
    """
    tiny = [1] * len(counts)
    bare, hooked = (make_step(f, make_model(tiny), group) for f in ("none", "optimizer"))
    for step in (bare, hooked):
        seconds(step, 10)
    for _ in range(args.rounds):
        # In turn, because the speed of a virtual machine changes within a round.
        more = [
            seconds(hooked, 1, time.thread_time)[0] - seconds(bare, 1, time.thread_time)[0]
            for _ in range(20 * args.steps)
        ]
        yield {"hook_us": 1e6 * statistics.median(more) / len(tiny)}


def start(args: argparse.Namespace, counts: list[int], group: Any) -> Iterator[Any]:
    """For each round, yield two durations in seconds: that of a broadcast of all parameters, and
    that of the declaration of all gradients."""
    import bps.torch

    for _ in range(args.rounds):
        step = make_step("optimizer", model := make_model(counts), group)
        bps.torch.barrier()
        begin = time.perf_counter()
        bps.torch.broadcast_parameters(model.state_dict(), root_rank=0)
        broadcast_s = time.perf_counter() - begin
        bps.torch.barrier()
        first = seconds(step, 1)[0]
        yield {
            "broadcast_s": broadcast_s,
            "declare_s": first - statistics.median(seconds(step, 3)),
        }


MEASURES = {
    "loopback": steps_of_forms,
    "shaped": steps_of_forms,
    "blocks": steps_of_forms,
    "overlap": steps_of_overlap,
    "zero": steps_of_zero,
    "start": start,
    "hooks": hooks,
}


def worker(args: argparse.Namespace) -> None:
    """Run one worker of the job and measure its steps. Rank 0 prints the figures."""
    import torch

    import bps.torch

    torch.set_num_threads(1)
    bps.torch.init()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{args.store}",
        rank=bps.torch.rank(),
        world_size=bps.torch.size(),
    )
    group = torch.distributed.new_group(backend="bps")
    figures = list(MEASURES[args.worker](args, sizes(args.model), group))
    if bps.torch.rank() == 0:
        print(json.dumps(figures))
    torch.distributed.barrier()
    bps.torch.shutdown()


# ---- the program that starts the workers ----


def package(build: Path) -> Path:
    """Return the folder of the Python package in the tree of a build folder, or in this tree."""
    folder = Path("libbpsclient", "python")
    return next(top / folder for top in (build.parents[1], ROOT) if (top / folder).exists())


def measure(
    args: argparse.Namespace,
    group: str,
    model: str,
    n: int,
    rate: str | None,
    forms: str = "",
    compute_s: float = 0,
) -> list[Any]:
    """Run one group on a separate cluster. Return the figures of its rounds.

    Args:
        args: the program's arguments.
        group, model (str): what the workers measure.
        n (int): number of workers. Each has a host and an agent.
        rate (str, optional): speed of the hosts' network cards; None: all programs use loopback.
        forms (str): forms of the group `overlap`, separated by commas.
        compute_s (float): seconds for which the layers sleep in a step of the group `overlap`.
    """
    from harness import Lab, Processes, Suite

    servers = n if rate else 1
    processes = Processes("nice")
    with (
        tempfile.TemporaryDirectory(prefix="bps-torch-") as folder,
        Lab(1 + n + servers, rate) as lab,
        Suite(args.build, lab, processes, folder, n, alone=servers) as suite,
    ):
        command = [
            args.python, Path(__file__).resolve(), args.build, "--worker", group, "--model", model,
            "--store", Path(folder) / "store", "--rounds", args.rounds, "--steps", args.steps,
            "--forms", forms, "--compute", compute_s,
        ]  # fmt: skip
        started = [
            (
                host,
                command,
                {
                    "BPS_JOB": group, "BPS_RANK": str(i), "BPS_SIZE": str(n), "BPS_TIMEOUT": "60s",
                    "BPS_LOCAL_RANK": "0", "BPS_LOCAL_SIZE": "1",
                    "BPS_AGENT_SOCKET": str(suite.sockets[i]), "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "eth0" if rate else "lo",
                    "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"),
                    "PYTHONPATH": str(package(args.build)),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
            )
            for i, host in enumerate(suite.agent_hosts)
        ]  # fmt: skip
        out, _ = processes.run(started)
    return json.loads(out.splitlines()[-1])


def measure_once(args: argparse.Namespace, *what: Any) -> dict[str, float]:
    """Run one round of a group on a new cluster, and return its figures. See :func:`measure`."""
    (figures,) = measure(argparse.Namespace(**{**vars(args), "rounds": 1}), *what)
    return figures


def rows_of_forms(group: str, rounds: list[dict[str, float]]) -> Iterator[Row]:
    """Yield the rows of the groups `loopback` and `shaped`."""
    measured = SHAPED_FORMS if group == "shaped" else FORMS
    for form in ("none", *measured):
        yield row(f"{group}: {form}, ms a step", "", [r[form] for r in rounds], None)
    for name, bar in BARS[group].items():
        forms = [f for f in measured if f.partition("-")[0] == name]
        best = min(forms, key=lambda f: statistics.median(r[f] for r in rounds))
        ratios = [r[best] / min(r["ddp"], r["ddp-views"]) for r in rounds]
        what = f"{group}: {best} over the better form of DDP + Gloo"
        yield row(what, f"<= {bar}", ratios, lambda x, bar=bar: x <= bar)


def rows_of_blocks(args: argparse.Namespace) -> Iterator[Row]:
    """Measure the forms of the group `blocks`, and yield their rows."""
    for rate in (RATE, SLOW_RATE):
        rounds = measure(args, "blocks", "resnet50", 4, rate)
        title = f"blocks, {rate}"
        for form in ("none", *BLOCK_FORMS):
            yield row(f"{title}: {form}, ms a step", "", [r[form] for r in rounds], None)
        for other, what, bar in (
            ("optimizer", "without compression", 0.35),
            ("ddp-bf16", "DDP + Gloo with its hook of bf16", 0.5),
        ):
            ratios = [r["optimizer-int8"] / r[other] for r in rounds]
            limit, check = "", None
            if rate == SLOW_RATE:
                limit, check = f"<= {bar}", lambda x, bar=bar: x <= bar
            yield row(f"{title}: int8 over {what}", limit, ratios, check)


def rows_of_overlap(args: argparse.Namespace) -> Iterator[Row]:
    """Measure the forms of the group `overlap`, and yield their rows."""
    counts = sizes("resnet50")
    wire_s = 4 * sum(counts) / PAYLOAD_MB_S / 1e6
    last_s = min(16 << 20, 4 * sum(counts)) / PAYLOAD_MB_S / 1e6
    rounds = measure(args, "overlap", "resnet50", 2, RATE, "compute,backward", RESNET_S)
    limits = [1.1 * max(r["compute"], wire_s) + last_s for r in rounds]
    yield row("resnet50: bytes over the payload rate, s", "", [wire_s], None)
    for name in ("compute", "backward"):
        yield row(f"resnet50: {name}, s a step", "", [r[name] for r in rounds], None)
    yield row(
        "resnet50: step over 1.1 max(compute, communication) + last bucket", "<= 1",
        [r["backward"] / limit for r, limit in zip(rounds, limits)], lambda x: x <= 1,
    )  # fmt: skip
    wire_s = 4 * sum(sizes("vgg16")) / PAYLOAD_MB_S / 1e6
    yield row("vgg16: bytes over the payload rate, s", "", [wire_s], None)
    for compute_s, bar in VGG_BARS.items():
        rounds = measure(args, "overlap", "vgg16", 2, RATE, "barrier,cross", compute_s)
        for name in ("barrier", "cross"):
            what = f"vgg16, computing {compute_s} s: {name}, s a step"
            yield row(what, "", [r[name] for r in rounds], None)
        yield row(
            f"vgg16, computing {compute_s} s: cross_barrier over the same without",
            f"<= {bar}" if bar else "",
            [r["cross"] / r["barrier"] for r in rounds],
            (lambda x, bar=bar: x <= bar) if bar else None,
        )


def rows_of_zero(args: argparse.Namespace) -> Iterator[Row]:
    """Measure the group `zero`, and yield its rows."""
    for n, rate, mib, bar in ZERO:
        rounds = measure(args, "zero", "resnet50", n, rate, str(mib))
        title = f"zero, {n} workers, {rate}, {mib} MiB"
        for name in ("optimizer", "gloo", "gloo-buckets"):
            yield row(f"{title}: {name}, s a step", "", [r[name] for r in rounds], None)
        ratios = [min(r["gloo"], r["gloo-buckets"]) / r["optimizer"] for r in rounds]
        what = f"{title}: the better form of Gloo over the optimizer"
        yield row(what, f">= {bar}", ratios, lambda x, bar=bar: x >= bar)


def rows_of_old(args: argparse.Namespace) -> Iterator[Row]:
    """Measure this build between two copies of the old build in every round, and yield the rows."""
    forms = ("optimizer", "hook-views", "backend-views")
    old = argparse.Namespace(**{**vars(args), "build": args.old})
    rounds = [
        [
            measure_once(build, "loopback", "resnet50", 2, None, ",".join(forms))
            for build in (old, args, old)
        ]
        for _ in range(args.rounds)
    ]
    for form in forms:
        first, ours, second = zip(*([r[form] for r in builds] for builds in rounds))
        limit = page.old_limit(first, second)
        ratios = [b / statistics.mean((a, c)) for a, b, c in zip(first, ours, second)]
        what = f"loopback: {form} over the same of the old build"
        yield row(what, f"<= {limit:.3f}", ratios, lambda x, limit=limit: x <= limit)


def import_seconds(args: argparse.Namespace) -> list[float]:
    """Import bps in a new process in each round. Return how long the imports take, in seconds."""
    script = "import time; t = time.perf_counter(); import bps; print(time.perf_counter() - t)"
    env = {
        **os.environ,
        "BPS_LIBRARY": str(args.build / "libbpsclient.so.0"),
        "PYTHONPATH": str(package(args.build)),
    }
    return [
        float(subprocess.check_output([args.python, "-c", script], env=env))
        for _ in range(args.rounds)
    ]


def report(args: argparse.Namespace) -> list[Row]:
    """Run the chosen groups. Return the rows of their table."""
    lines = []
    for group in args.only.split(","):
        print(group, file=sys.stderr, flush=True)
        if group in BARS:
            n, rate = (4, RATE) if group == "shaped" else (2, None)
            lines += rows_of_forms(group, measure(args, group, "resnet50", n, rate))
            if args.old and group == "loopback":
                lines += rows_of_old(args)
        elif group == "blocks":
            lines += rows_of_blocks(args)
        elif group == "overlap":
            lines += rows_of_overlap(args)
        elif group == "zero":
            lines += rows_of_zero(args)
        elif group == "hooks":
            rounds = measure(args, group, "resnet50", 2, None)
            per = [r["hook_us"] for r in rounds]
            total = [x * len(sizes("resnet50")) / 1e3 for x in per]
            lines.append(row("hooks: us per parameter", "<= 5", per, lambda x: x <= 5))
            lines.append(row("hooks: ms per step of ResNet-50", "<= 1", total, lambda x: x <= 1))
        elif group == "start":
            rounds = [measure_once(args, group, "resnet50", 2, None) for _ in range(args.rounds)]
            for key, bar in (("declare_s", 0.5), ("broadcast_s", 0.15)):
                values = [r[key] for r in rounds]
                lines.append(
                    row(f"start: {key}, 102 MB", f"<= {bar}", values, lambda x, bar=bar: x <= bar)
                )
            imports = import_seconds(args)
            lines.append(row("start: import bps, s", "<= 0.15", imports, lambda x: x <= 0.15))
    return lines


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument(
        "--only", default="loopback,hooks,start,shaped,blocks,overlap", metavar="GROUPS"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of each form in a round")
    parser.add_argument("--old", type=Path, help="build folder of the build to compare with")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--strict", action="store_true", help="fail if a bar does not hold")
    parser.add_argument("--python", help="with PyTorch; default: the tests' environment")
    parser.add_argument("--worker", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--forms", help=argparse.SUPPRESS)
    parser.add_argument("--compute", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build, args.old = args.build.resolve(), args.old and args.old.resolve()
    if args.worker:
        worker(args)
        return 0
    unknown = set(args.only.split(",")) - set(MEASURES)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}: use some of {', '.join(MEASURES)}")
    frontends = ROOT / "tests" / "frontends"
    make = (frontends / "environment.py", frontends / "torch.txt", ROOT / "build" / "frontends")
    args.python = args.python or subprocess.check_output([sys.executable, *make], text=True).strip()
    chosen = "" if args.only == parser.get_default("only") else f"--only {args.only} "
    holds = page.write(
        "Training steps of PyTorch",
        (
            "This page has the measured training steps of `bps.torch` beside",
            "DistributedDataParallel over Gloo. The measured programs run with niceness -20.",
            "[measure.md](../../guides/measure.md#pytorch) explains each figure.",
        ),
        args.build,
        f"{chosen}--rounds {args.rounds} --steps {args.steps}",
        lambda: report(args),
        args.out,
    )
    return 0 if holds or not args.strict else 1


if __name__ == "__main__":
    sys.exit(main())
