"""A trainer of run C: python c_train.py JSON.

The trainer uses PyTorch, and calls bps through ctypes. Environment variables give its job and rank.
The trainer prints one line of JSON. Modes:

    reference    one process trains on the whole batch without bps; its weights go to a file
    arena        gradients are views of memory that the executor allocated
    arena-copy   gradients are copied to memory that the executor allocated, and back
    import       gradients are views of one buffer that PyTorch allocated and the executor maps
    speed        1 GiB per step is summed during matrix products
"""

import ctypes
import hashlib
import json
import statistics
import sys
import time

import numpy as np
import torch

WARM = 10
BATCH = 128
ALIGN = 256


class Cuda:
    """Tensors on the first GPU."""

    device = "cuda"

    def __init__(self):
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.zeros(1, device="cuda")  # makes the CUDA context, from which bps gets the GPU

    def view(self, address, n):
        class Memory:
            __cuda_array_interface__ = {
                "shape": (n,),
                "typestr": "<f4",
                "data": (address, False),
                "version": 3,
                "strides": None,
            }

        view = torch.as_tensor(Memory(), device="cuda")
        assert view.data_ptr() == address, "PyTorch copied the memory instead of using it in place"
        return view

    def has_segments(self):
        """Return whether the allocator has expandable segments, each with several mappings."""
        return any(s.get("is_expandable") for s in torch.cuda.memory_snapshot())

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms_between(self, first, second):
        return first.elapsed_time(second)

    def wait_for(self, mark):
        mark.synchronize()

    def stream(self):
        return torch.cuda.current_stream().cuda_stream

    def other_stream(self):
        return torch.cuda.Stream()

    def synchronize(self):
        torch.cuda.synchronize()

    def products(self):
        """Return a function that queues a matrix product. The product takes about a millisecond."""
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.matmul(a, a)


class Host:
    """Plain memory and CPU tensors in place of a GPU, to test this file."""

    device = "cpu"

    def __init__(self):
        torch.set_num_threads(1)

    def view(self, address, n):
        raw = (ctypes.c_float * n).from_address(address)
        return torch.from_numpy(np.frombuffer(raw, dtype=np.float32))

    def stream(self):
        return 0

    def other_stream(self):
        return None

    def synchronize(self):
        pass

    def has_segments(self):
        return False

    def mark(self):
        return time.perf_counter()

    def ms_between(self, first, second):
        return 1e3 * (second - first)

    def wait_for(self, mark):
        pass

    def products(self):
        a = torch.randn(256, 256)
        return lambda: torch.matmul(a, a)


def model_of(place):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(784, 1024),
        torch.nn.GELU(),
        torch.nn.LayerNorm(1024),
        torch.nn.Linear(1024, 512),
        torch.nn.GELU(),
        torch.nn.Linear(512, 10),
    ).to(place.device)


def batch_of(step, rank, size, place):
    g = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 784, generator=g)[rank::size]
    y = torch.randint(0, 10, (BATCH,), generator=g)[rank::size]
    return x.to(place.device), y.to(place.device)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Exchange:
    """Sums the model's gradients with bps.

    Each gradient is submitted when it is ready. The stream waits for the gradient's sum.
    """

    def __init__(self, job, model, mode, place):
        import bps

        self.bps, self.mode, self.place = bps, mode, place
        self.params = list(model.parameters())
        self.submit_us, self.wait_us, self.n_moved = [], [], 0
        offsets, total = [], 0
        for p in self.params:
            offsets.append(total)
            total += -(-p.numel() * 4 // ALIGN) * ALIGN
        if mode == "import":
            # The allocator does not put a buffer of this size into one block with other tensors.
            self.flat = torch.zeros(max(total // 4, 8 << 20), device=place.device)
            base = self.flat.data_ptr()
            job.gpu_import(base, self.flat.numel() * 4)
            self.views = [
                self.flat[o // 4 : o // 4 + p.numel()].view(p.shape)
                for p, o in zip(self.params, offsets)
            ]
        else:
            base = job.gpu_alloc(total)
            self.views = [
                place.view(base + o, p.numel()).view(p.shape) for p, o in zip(self.params, offsets)
            ]
        self.tensors = [
            job.gpu_declare(f"p{i}", "f32", p.numel(), base + o)
            for i, (p, o) in enumerate(zip(self.params, offsets))
        ]
        for i, p in enumerate(self.params):
            if mode != "arena-copy":
                p.grad = self.views[i]
            p.register_post_accumulate_grad_hook(lambda _, i=i: self.ready(i))

    def ready(self, i):
        p, view = self.params[i], self.views[i]
        # the model may have replaced p.grad with a tensor other than `view`
        if p.grad.data_ptr() != view.data_ptr():
            view.copy_(p.grad)
            self.n_moved += 1
        begin = time.perf_counter_ns()
        self.tensors[i].push_pull(self.bps.AVG, stream=self.place.stream())
        self.submit_us.append((time.perf_counter_ns() - begin) / 1e3)

    def wait(self):
        for i, t in enumerate(self.tensors):
            begin = time.perf_counter_ns()
            t.wait_stream(self.place.stream())
            self.wait_us.append((time.perf_counter_ns() - begin) / 1e3)
            if self.mode == "arena-copy":
                self.params[i].grad.copy_(self.views[i])

    def zero(self):
        for p, view in zip(self.params, self.views):
            if self.mode == "arena-copy":
                p.grad = None
            else:
                view.zero_()
                p.grad = view

    def finish(self):
        self.place.synchronize()
        for t in self.tensors:
            t.wait(60)


def weights_of(model):
    return np.concatenate([p.detach().cpu().numpy().ravel() for p in model.parameters()])


def compare(model, file):
    """Compare the model's weights with those in a file.

    Return a hash of the weights, and the largest difference of a weight, divided by the magnitude
    of the weight plus 0.01.
    """
    weights, want = weights_of(model), np.load(file)
    return {
        "worst": float(np.max(np.abs(weights - want) / (np.abs(want) + 1e-2))),
        "hash": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
    }


def loss_of(model, step, rank, size, place):
    x, y = batch_of(step, rank, size, place)
    return torch.nn.functional.cross_entropy(model(x), y)


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))]


def step_times(place, marks):
    """Return the milliseconds of each step after the first WARM steps.

    The first steps are slower, because they load modules and map memory."""
    place.synchronize()
    return [place.ms_between(a, b) for a, b in zip(marks[WARM:], marks[WARM + 1 :])]


def train_alone(model, size, place, n_steps):
    """Train on 1 of `size` parts of each batch. Return the last loss, and each step's time."""
    optimizer, marks = optimizer_of(model), []
    for step in range(n_steps):
        marks.append(place.mark())
        optimizer.zero_grad()
        loss = loss_of(model, step, 0, size, place)
        loss.backward()
        optimizer.step()
    return float(loss), step_times(place, marks)


def reference(args, place):
    model = model_of(place)
    loss, times = train_alone(model, 1, place, args["steps"])
    np.save(args["file"], weights_of(model))
    _, half = train_alone(model_of(place), 2, place, args["steps"])
    return {"loss": loss, "step_ms": percentile(times, 50), "half_ms": percentile(half, 50)}


def train(args, place):
    import bps

    with bps.open() as job:
        job.gpu_open()
        model = model_of(place)
        exchange = Exchange(job, model, args["mode"], place)
        optimizer, marks = optimizer_of(model), []
        assert not args["has_segments"] or place.has_segments(), (
            "PyTorch makes no expandable segments"
        )
        for step in range(args["steps"]):
            marks.append(place.mark())
            exchange.zero()
            loss = loss_of(model, step, job.rank, job.size, place)
            loss.backward()
            exchange.wait()
            optimizer.step()
        exchange.finish()
        times = step_times(place, marks)
        calls = len(exchange.tensors) * 5  # skip 5 steps that load modules and map memory
        return {
            "rank": job.rank,
            "route": job.gpu_route,
            **compare(model, args["file"]),
            "loss": float(loss),
            "step_ms": percentile(times, 50),
            "step_p99_ms": percentile(times, 99),
            "moved": exchange.n_moved,
            "submit_us": percentile(exchange.submit_us[calls:], 50),
            "submit_p99_us": percentile(exchange.submit_us[calls:], 99),
            "wait_us": percentile(exchange.wait_us[calls:], 50),
            "wait_p99_us": percentile(exchange.wait_us[calls:], 99),
        }


class Traffic:
    """Sums 1 GiB per step. The tensors are submitted on a separate stream."""

    def __init__(self, job, place, n_bytes):
        self.place, self.other = place, place.other_stream()
        self.stream = self.other.cuda_stream if self.other else 0
        n = 16
        each = n_bytes // n
        base = job.gpu_alloc(n_bytes)
        self.tensors = [
            job.gpu_declare(f"bulk{i}", "f32", each // 4, base + i * each) for i in range(n)
        ]

    def push(self):
        for t in self.tensors:
            t.push_pull(stream=self.stream)

    def is_done(self):
        return all(t.poll() for t in self.tensors)

    def wait(self):
        for t in self.tensors:
            t.wait(120)

    def round_s(self):
        begin = time.perf_counter()
        self.push()
        self.wait()
        return time.perf_counter() - begin


def compute(place, product, until):
    """Compute matrix products until `until` returns true. Return the number of products per second.

    Two batches of products are queued ahead.
    """
    n, begin, ahead = 0, time.perf_counter(), []
    while not until():
        for _ in range(16):
            product()
        n += 16
        ahead.append(place.mark())
        if len(ahead) > 2:
            place.wait_for(ahead.pop(0))
    place.synchronize()
    return n / (time.perf_counter() - begin)


def for_seconds(seconds, traffic):
    """Return a function that returns true when the traffic is done and the seconds are over."""
    end = time.perf_counter() + seconds
    return lambda: traffic.is_done() and time.perf_counter() > end


def rounds_of(job, args, round_s):
    """Return how many rounds take about ten seconds: at least 2 and at most args["rounds"].

    Rank 0 computes the number, and all workers get it.
    """
    vote = job.declare("rounds", "i64", 1)
    vote.input[:] = max(2, min(args["rounds"], int(10 / round_s))) if job.rank == 0 else 0
    vote.push_pull()
    return int(vote.wait(120)[0])


def speed(args, place):
    import bps

    with bps.open() as job:
        job.gpu_open()
        traffic = Traffic(job, place, args["bytes"])
        product, is_first = place.products(), job.rank == 0
        first_s = traffic.round_s()  # the first round allocates and pins memory
        rounds, alone, seconds = rounds_of(job, args, traffic.round_s()), [], args["seconds"]
        if is_first:
            compute(place, product, for_seconds(seconds, traffic))  # warm up
            alone.append(compute(place, product, for_seconds(seconds, traffic)))
        job.barrier(120)
        begin = time.perf_counter()
        for _ in range(rounds):
            traffic.push()
            traffic.wait()
        idle_s = (time.perf_counter() - begin) / rounds
        job.barrier(120)
        left = [rounds]

        def until():
            if traffic.is_done():
                left[0] -= 1
                if left[0] > 0:
                    traffic.push()
            return left[0] <= 0

        begin = time.perf_counter()
        traffic.push()
        if is_first:
            beside = compute(place, product, until)
        else:
            for i in range(rounds):
                traffic.wait()
                if i + 1 < rounds:
                    traffic.push()
        busy_s = (time.perf_counter() - begin) / rounds
        job.barrier(120)
        if not is_first:
            return {"rank": job.rank}
        alone.append(compute(place, product, for_seconds(seconds, traffic)))
        return {
            "rank": job.rank,
            "route": job.gpu_route,
            "slowdown": statistics.mean(alone) / beside - 1,
            "alone": alone,
            "rounds": rounds,
            "first_s": first_s,
            "products_s": beside,
            "round_s": idle_s,
            "round_beside_s": busy_s,
            "gbytes_s": args["bytes"] / busy_s / 1e9,
        }


def main():
    args = json.loads(sys.argv[1])
    place = Cuda() if args["place"] == "cuda" else Host()
    do = {"reference": reference, "speed": speed}.get(args["mode"], train)
    print(json.dumps(do(args, place)), flush=True)


if __name__ == "__main__":
    main()
