"""A trainer of run C that uses bps.torch: python c_torch.py JSON.

Environment variables give the trainer's job and rank. The trainer trains the model of c_train.py on
its part of each batch, and compares the weights with those of a single process, which are in a
file. It prints one line of JSON. Modes:

    optimizer       bps.torch.DistributedOptimizer
    side_stream     the same, on a stream that is not the default stream
    cross_barrier   the same, and each layer is updated before its next forward pass
    bf16            the same as optimizer, but gradients are sent as bf16
    wrapper         bps.torch.DistributedDataParallel
    hook            PyTorch's DistributedDataParallel over Gloo, with bps.torch.ddp_hook
    backend         PyTorch's DistributedDataParallel over the back-end "bps"
    collectives     operations on tensors of several types; no training
"""

import contextlib
import json
import sys

import c_train
import torch
import torch.distributed as dist

import bps.torch as bps

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def wrap(mode, model, optimizer, file):
    """Return the model and the optimizer as a user of this mode wraps them."""
    if mode in ("hook", "backend"):
        name = "gloo" if mode == "hook" else "bps"
        dist.init_process_group(
            name, init_method=f"file://{file}.{mode}", rank=bps.rank(), world_size=bps.size()
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
        if mode == "hook":
            model.register_comm_hook(bps.HookState(), bps.ddp_hook)
        return model, optimizer
    if mode == "wrapper":
        return bps.DistributedDataParallel(model), optimizer
    bps.broadcast_parameters(model.state_dict(), 0)
    bps.broadcast_optimizer_state(optimizer, 0)
    compression = bps.Compression.bf16 if mode == "bf16" else bps.Compression.none
    return model, bps.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        compression=compression,
        cross_barrier=mode == "cross_barrier",
    )


def stream_of(mode, place):
    """Return a context in which the work runs on the stream of this mode."""
    stream = place.other_stream() if mode == "side_stream" else None
    return torch.cuda.stream(stream) if stream else contextlib.nullcontext()


def train(args, place):
    """Train, and compare the weights with the reference. Return what the run prints."""
    mode, plain, marks = args["mode"], c_train.model_of(place), []
    with stream_of(mode, place):
        model, optimizer = wrap(mode, plain, c_train.optimizer_of(plain), args["file"])
        for step in range(args["steps"]):
            marks.append(place.mark())
            optimizer.zero_grad()
            c_train.loss_of(model, step, bps.rank(), bps.size(), place).backward()
            optimizer.step()
        if mode == "cross_barrier":
            optimizer.synchronize()
    times = c_train.step_times(place, marks)
    return {
        **c_train.compare(plain, args["file"]),
        "step_ms": c_train.percentile(times, 50),
        "step_p99_ms": c_train.percentile(times, 99),
    }


def collectives(place):
    """Check the operations on tensors of this place. Return the names of those that failed."""
    rank, size, bad = bps.rank(), bps.size(), []

    def check(name, got, want):
        if got.device.type != place.device or not torch.equal(got.cpu(), want):
            bad.append(name)

    for dtype in TYPES:
        name = str(dtype).removeprefix("torch.")
        values = torch.arange(70_000).remainder(50)
        mine = (values + rank).to(dtype).to(place.device)
        total = (values * size + sum(range(size))).to(dtype)
        check(f"allreduce {name}", bps.allreduce(mine, op=bps.Sum, name=f"sum {name}"), total)
        check(f"broadcast {name}", bps.broadcast(mine, 1), (values + 1).to(dtype))
        rows = torch.cat([(values[: 10 + r] + r).to(dtype) for r in range(size)])
        check(f"allgather {name}", bps.allgather(mine[: 10 + rank]), rows)
        bps.allreduce_(mine, op=bps.Sum, name=f"in place {name}")
        check(f"allreduce_ {name}", mine, total)
    return bad


def main():
    args = json.loads(sys.argv[1])
    place = c_train.Cuda() if args["place"] == "cuda" else c_train.Host()
    bps.init()
    result = {"rank": bps.rank()}
    if args["mode"] == "collectives":
        result["bad"] = collectives(place)
    else:
        result |= train(args, place)
    if dist.is_initialized():
        dist.destroy_process_group()
    bps.shutdown()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
