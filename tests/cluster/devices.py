"""Functions of worker processes with device memory.

With back-end `host`, device memory is plain memory, and stream 0 is the only stream. For CUDA, a
fake driver is loaded first, so that the library finds it.
"""

import errno
import ctypes
import hashlib
import os
import signal
import time

import numpy as np

import bps
import workers

OPS = {"sum": bps.SUM, "max": bps.MAX, "min": bps.MIN, "avg": bps.AVG}

PINNED = 64 << 20


def until(path, seconds=60):
    """Wait until a file exists."""
    end = time.monotonic() + seconds
    while not os.path.exists(path):
        assert time.monotonic() < end, f"{path} did not appear within {seconds} s"
        time.sleep(0.01)


def touch(path):
    with open(path, "w", encoding="ascii"):
        pass


def outcome(call):
    """Call a function of the library. Return [error code, error text], or [0, ""]."""
    try:
        call()
        return [0, ""]
    except bps.Error as e:
        return [e.code, str(e)]


class Plain:
    """Device memory of the back-end `host`, which is plain memory.

    Reads and writes complete before they return.
    """

    stream = 0

    def write(self, address, array):
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def read(self, address, n_elems, dtype):
        out = np.empty(n_elems, dtype)
        ctypes.memmove(out.ctypes.data, address, out.nbytes)
        return out


class Cuda:
    """A GPU of the (fake) CUDA driver in LD_LIBRARY_PATH.

    All work of the object is queued on one stream that the object creates.
    """

    def __init__(self, ordinal):
        self.lib = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        self.call("cuInit", 0)
        ctx, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), ordinal)
        self.call("cuCtxSetCurrent", ctx)
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.stream = stream.value
        host = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(PINNED), 0)
        self.host, self.used = host.value, 0

    def call(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        assert rc == 0, f"{name} returned {rc}"

    def pinned(self, n_bytes):
        """Return a piece of pinned host memory.

        When all pieces are in use, wait for the stream and reuse them.
        """
        if self.used + n_bytes > PINNED:
            self.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
            self.used = 0
        at = self.host + self.used
        self.used += -(-n_bytes // 64) * 64
        return at

    def write(self, address, array):
        at = self.pinned(array.nbytes)
        ctypes.memmove(at, array.ctypes.data, array.nbytes)
        self.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(at),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(self.stream),
        )

    def read(self, address, n_elems, dtype):
        out = np.empty(n_elems, dtype)
        at = self.pinned(out.nbytes)
        self.call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(at),
            ctypes.c_uint64(address),
            ctypes.c_size_t(out.nbytes),
            ctypes.c_void_p(self.stream),
        )
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        ctypes.memmove(out.ctypes.data, at, out.nbytes)
        return out

    def gate(self):
        """Return the device address of a counter.

        A stream that waits for this counter continues when open_gate is called.
        """
        address = ctypes.c_uint64()
        self.gate_at = self.pinned(64)
        ctypes.memset(self.gate_at, 0, 64)
        self.call(
            "cuMemHostGetDevicePointer_v2", ctypes.byref(address), ctypes.c_void_p(self.gate_at), 0
        )
        return address.value

    def open_gate(self):
        ctypes.c_uint64.from_address(self.gate_at).value = 1

    def alloc(self, n_bytes):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(n_bytes))
        return address.value


def open_device(job):
    if os.environ.get("TEST_DEVICE") != "cuda":
        job.gpu_open()
        return Plain()
    device = Cuda(job.local_rank)
    job.gpu_open()
    return device


def expected(op, base, size, dtype):
    ranks = np.arange(size)
    want = {
        "sum": size * base + ranks.sum(),
        "max": base + size - 1,
        "min": base,
        "avg": (size * base + ranks.sum()) / size,
    }[op]
    return want.astype(bps.DTYPES[dtype][1])


def device_rounds(sizes, n_rounds, kinds=(("i64", "sum"),), route=None, imported=False):
    """Run rounds of several tensors of each kind. All tensors are in one piece of memory.

    Every worker checks every sum. In odd rounds only the stream waits for the sums. In even rounds
    the program waits.
    """
    with bps.open() as job:
        device = open_device(job)
        assert route in (None, job.gpu_route), job.gpu_route
        n_bytes = 8 * sum(-(-n // 32) * 32 for n in sizes) * len(kinds)
        at = device.alloc(n_bytes) if imported else job.gpu_alloc(n_bytes)
        if imported:
            job.gpu_import(at, n_bytes)
        tensors = []
        for dtype, op in kinds:
            for n in sizes:
                tensors.append(
                    (job.gpu_declare(f"{dtype}.{op}.{n}", dtype, n, at), dtype, op, n, at)
                )
                at += -(-n // 32) * 32 * 8
        patterns = {n: np.arange(n) % 50 for n in sizes}
        for r in range(1, n_rounds + 1):
            for i, (t, dtype, op, n, address) in enumerate(tensors):
                base = patterns[n] * (r % 5) + i
                device.write(address, (base + job.rank).astype(bps.DTYPES[dtype][1]))
                t.push_pull(OPS[op], stream=device.stream)
                if r % 2:
                    t.wait_stream(device.stream)
            for i, (t, dtype, op, n, address) in enumerate(tensors):
                if r % 2 == 0:
                    t.wait(20)
                got = device.read(address, n, bps.DTYPES[dtype][1])
                want = expected(op, patterns[n] * (r % 5) + i, job.size, dtype)
                assert np.array_equal(got, want), (r, dtype, op, n, got[:5], want[:5])
        for t, *_ in tensors:
            t.wait(20)
            assert t.contributors == job.size
        return job.gpu_route


def device_f16_averages(sizes, n_rounds, route):
    """Average values of f16 whose sum is too large for f16, on the given route.

    Elements depend on the rank, so that a wrong weight of a group of GPUs changes the average.
    """
    with bps.open() as job:
        device = open_device(job)
        assert route == job.gpu_route, job.gpu_route
        at = job.gpu_alloc(2 * max(sizes))
        tensors = [(job.gpu_declare(f"mean.{n}", "f16", n, at), n) for n in sizes]
        for r in range(n_rounds):
            for t, n in tensors:
                base = 30000 + 32 * ((np.arange(n) + r) % 50)
                device.write(at, (base + 2048 * job.rank).astype(np.float16))
                t.push_pull(bps.AVG, stream=device.stream)
                t.wait(20)
                got = device.read(at, n, np.float16).astype(np.float64)
                want = base + 2048 * (job.size - 1) / 2
                # Rounding to f16 adds at most 4 for each GPU that divides its value before NCCL
                # adds, and at most 16 for the machine's mean and for the result.
                bound = 4 * job.local_size + 2 * 16
                assert np.all(np.abs(got - want) <= bound), (n, got[:5], want[:5])


def device_ahead(n_elems, n_rounds):
    """Submit rounds like a training program, which does not wait for the sums.

    Wait only when 8 rounds are in flight.
    """
    with bps.open() as job:
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems)
        t = job.gpu_declare("t", "i64", n_elems, address)
        device.write(address, np.full(n_elems, 1, np.int64))
        for _ in range(n_rounds):
            try:
                t.push_pull(stream=device.stream)
            except bps.Error as e:
                assert e.code == bps.EBUSY, e
                t.wait(20)
                t.push_pull(stream=device.stream)
            # the next round's input is this round's sum
            t.wait_stream(device.stream)
        t.wait(20)
        return int(device.read(address, n_elems, np.int64).min())


def device_and_host_tensors(n_elems, n_rounds):
    """Run a job with a tensor in device memory and one in host memory, and check the sums."""
    with bps.open() as job:
        device = open_device(job)
        address = job.gpu_alloc(n_elems * 4)
        on_gpu, on_host = (
            job.gpu_declare("gpu", "f32", n_elems, address),
            job.declare("host", "f32", n_elems),
        )
        for r in range(n_rounds):
            device.write(address, np.full(n_elems, job.rank + r, np.float32))
            on_host.input[:] = job.rank + 2 * r
            on_gpu.push_pull(stream=device.stream)
            on_host.push_pull()
            on_gpu.wait_stream(device.stream)
            total = job.size * (job.size - 1) // 2
            assert np.all(device.read(address, n_elems, np.float32) == total + job.size * r)
            assert np.all(on_host.wait() == total + 2 * job.size * r)
    return True


def device_until_failure(n_elems, die_rank=None, after=3, started=None, absent_rank=None):
    """Run rounds until a call fails.

    Rank die_rank kills itself, and rank absent_rank stops submitting. Return the error's code and
    text, the duration of the last wait, and the code of one more submission. No stream may still
    wait at the end.
    """
    job = bps.open(timeout=60)
    device = open_device(job)
    address = job.gpu_alloc(8 * n_elems)
    t = job.gpu_declare("t", "i64", n_elems, address)
    start = time.monotonic()
    try:
        for r in range(1, 1 << 20):
            start = time.monotonic()
            if r > after and job.rank == die_rank:
                os.kill(os.getpid(), signal.SIGKILL)
            if r > after and job.rank == absent_rank:
                while True:
                    t.poll()
                    time.sleep(0.01)
            device.write(address, np.full(n_elems, r, np.int64))
            t.push_pull(stream=device.stream)
            t.wait_stream(device.stream)
            got = device.read(
                address, n_elems, np.int64
            )  # this call would block if the stream's wait for the sum never ended
            t.wait()
            assert np.all(got == r * job.size)
            workers.rest(start)
            if started and r == after:
                with open(f"{started}.{job.rank}", "w", encoding="ascii"):
                    pass
    except bps.Error as e:
        took = time.monotonic() - start
        device.read(address, n_elems, np.int64)  # would block if the stream still waited
        try:
            t.push_pull(stream=device.stream)
            again = 0
        except bps.Error as e2:
            again = e2.code
        job.abort()
        return [e.code, str(e), took, again]


def device_kept_rounds(sizes, stop, trace, declare_each=0):
    """Run the rounds of workers.kept_rounds in device memory. The vote to stop is in host memory.

    The sum of one tensor is the next round's gradient. The program never waits for this sum, so
    that several rounds are in flight.
    """
    n, over, links, sums = 0, False, 0, hashlib.sha256()
    rng = np.random.default_rng(7 + int(os.environ["BPS_RANK"]))
    with (
        bps.open() as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        device = open_device(job)
        vote = job.declare("vote", "i64", 1)
        tensors = []

        def declare(name, dtype, n_elems):
            address = job.gpu_alloc(8 * n_elems)
            return job.gpu_declare(name, dtype, n_elems, address), dtype, n_elems, address

        chain, _, n_chain, chain_at = declare("chain", "i64", 3000)
        device.write(chain_at, np.ones(n_chain, np.int64))
        for i, size in enumerate(sizes):
            tensors += [declare(f"i{i}", "i64", size), declare(f"f{i}", "f32", size)]
        while not over:
            n += 1
            if declare_each and n % declare_each == 0:
                tensors.append(declare(f"m{n}", "i64", 700))
            vote.input[:] = job.rank == 0 and os.path.exists(stop)
            start = time.monotonic()
            try:
                chain.push_pull(stream=device.stream)
            except bps.Error as e:
                assert e.code == bps.EBUSY, e
                chain.wait(60)
                chain.push_pull(stream=device.stream)
            chain.wait_stream(device.stream)
            links += 1
            for i, (t, dtype, size, at) in enumerate(tensors):
                values = (
                    np.arange(size) * n + job.rank + i
                    if dtype == "i64"
                    else rng.standard_normal(size, dtype=np.float32)
                )
                device.write(at, values.astype(bps.DTYPES[dtype][1]))
                t.push_pull(stream=device.stream)
                if n % 2:
                    t.wait_stream(device.stream)
            vote.push_pull()
            for i, (t, dtype, size, at) in enumerate(tensors):
                if n % 2 == 0:
                    t.wait(60)
                got = device.read(at, size, bps.DTYPES[dtype][1])
                if dtype == "f32":
                    sums.update(got.tobytes())
                    continue
                want = job.size * (np.arange(size) * n + i) + job.size * (job.size - 1) // 2
                assert np.array_equal(got, want), (n, i, got[:4], want[:4])
            over = vote.wait(60)[0] > 0
            f.write(f"{start} {time.monotonic()}\n")
            workers.rest(start)
        chain.wait(60)
        got, want = device.read(chain_at, n_chain, np.int64), pow(job.size, links, 1 << 64)
        assert np.all(got.view(np.uint64) == want), (links, got[:4], want)
    return [n, sums.hexdigest()]


def device_stream_alone(go):
    """Run rounds for which only the stream waits. Then rank 1 kills itself.

    The other ranks wait for the file `go` and return the error of their next call.
    """
    job = bps.open(timeout=60)
    device = open_device(job)
    address = job.gpu_alloc(4096)
    t = job.gpu_declare("t", "i64", 512, address)
    for _ in range(3):
        t.push_pull(stream=device.stream)
        t.wait_stream(device.stream)
        device.read(address, 512, np.int64)
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until(go)
    told = outcome(lambda: t.push_pull(stream=device.stream))
    job.abort()
    return told


def device_refused_tensor(go, seen):
    """Declare a tensor with different sizes at the workers.

    Every use of this tensor must fail, and another tensor must work.
    """
    with bps.open() as job:
        device = open_device(job)
        at = job.gpu_alloc(8192)
        good = job.gpu_declare("good", "i64", 512, at)
        bad = None
        try:
            bad = job.gpu_declare("bad", "i64", 512 if job.rank < 3 else 256, at + 4096)
        except bps.Error as e:
            assert e.code == bps.EMISMATCH, e

        def must_fail():
            try:
                if bad:
                    bad.push_pull(stream=device.stream)
                    bad.wait(20)
                    raise AssertionError("the tensor of different sizes has a sum")
            except bps.Error as e:
                assert e.code == bps.EMISMATCH, e

        def sum_good(value):
            device.write(at, np.full(512, value, np.int64))
            good.push_pull(stream=device.stream)
            good.wait(20)
            assert np.all(device.read(at, 512, np.int64) == value * job.size)

        sum_good(1)
        must_fail()
        with open(f"{seen}.{job.rank}", "w", encoding="ascii"):
            pass
        until(go)
        sum_good(2)
        must_fail()
        sum_good(3)
    return True


def device_late(late_rank):
    """Block the stream of one worker before its gradient is written.

    Return the text of the time-out, which must name the worker.
    """
    job = bps.open(timeout=60)
    device = open_device(job)
    address = job.gpu_alloc(4096)
    t = job.gpu_declare("t", "i64", 512, address)
    if job.rank == late_rank:
        device.call(
            "cuStreamWaitValue64_v2",
            ctypes.c_void_p(device.stream),
            ctypes.c_uint64(device.gate()),
            ctypes.c_uint64(1),
            0,
        )
    t.push_pull(stream=device.stream)
    try:
        t.wait(3)
        text = None
    except bps.Timeout as e:
        text = str(e)
    job.barrier(20)
    if job.rank == late_rank:
        device.open_gate()
    t.wait(20)
    job.close()
    return text


def device_late_open(late_rank, go, told):
    """Let rank late_rank call bps_gpu_open only after the other rank's call has failed.

    With back-end `host`, the other rank's first call times out. With CUDA that first call fails at
    once, because the calling process has no CUDA context yet. The other rank then calls
    bps_gpu_open again, and rounds work.
    """
    with bps.open(open_timeout=3) as job:
        said = None
        if job.rank == late_rank:
            until(go)
        else:
            said = outcome(job.gpu_open)
            touch(told)
        device = open_device(job)
        address = job.gpu_alloc(4096)
        t = job.gpu_declare("t", "i64", 512, address)
        device.write(address, np.full(512, job.rank, np.int64))
        t.push_pull(stream=device.stream)
        t.wait(20)
        assert np.all(device.read(address, 512, np.int64) == 1)
        return [os.getpid(), said]


def device_given_up(go):
    """Call bps_gpu_open only at rank 0, so that it times out. Let rank 2 reach a barrier late."""
    with bps.open(open_timeout=2) as job:
        said = outcome(job.gpu_open) if job.rank == 0 else None
        at = None
        if job.rank != 2:
            at = outcome(lambda: job.checkpoint_barrier(3))
            touch(f"{go}.{job.rank}")
        until(go)
        job.checkpoint_barrier(20)
        return [said, at]


def device_plain_late(late_rank):
    """Let one worker submit late, on a device without streams.

    The call that waits for the sum must time out. Return the code and the text of the error. The
    text names the late worker.
    """
    with bps.open(timeout=2) as job:
        device = open_device(job)
        t = job.gpu_declare("layer", "i64", 512, job.gpu_alloc(4096))
        told = None
        if job.rank != late_rank:
            t.push_pull(stream=device.stream)
            told = outcome(lambda: t.wait_stream(device.stream))
        job.barrier(20)
        if job.rank == late_rank:
            t.push_pull(stream=device.stream)
        t.wait(20)
        return told


def no_device(n_elems):
    """Check that bps_gpu_open fails with a reason, and that sums of host tensors work."""
    with bps.open() as job:
        try:
            job.gpu_open()
            text = None
        except bps.Error as e:
            assert e.code == bps.EDEVICE, e
            text = str(e)
        t = job.declare("t", "f32", n_elems)
        t.input[:] = job.rank
        t.push_pull()
        assert np.all(t.wait() == job.size * (job.size - 1) // 2)
        return text


def device_nonsense():
    """Check that invalid addresses and sizes are refused, and that a valid tensor still works."""
    with bps.open() as job:
        device = open_device(job)
        address = job.gpu_alloc(1 << 20)
        codes = []
        for what in (
            lambda: job.gpu_declare("a", "f32", 1 << 20, address),
            lambda: job.gpu_declare("b", "f32", 16, address - 64),
            lambda: job.gpu_declare("c", "f32", 16, 4096),
            lambda: job.gpu_release(address + 64),
            lambda: job.gpu_open(),
            lambda: job.gpu_alloc(1 << 60),
        ):
            try:
                what()
                codes.append(0)
            except bps.Error as e:
                codes.append(e.code)
        code, sentence = outcome(lambda: job.gpu_declare("d", "q8", 256, address))
        assert code == -errno.EINVAL and "cannot lie in device memory" in sentence, sentence
        t = job.gpu_declare("good", "f32", 16, address)
        device.write(address, np.ones(16, np.float32))
        t.push_pull(stream=device.stream)
        t.wait(20)
        job.gpu_release(address)
        try:
            t.push_pull(stream=device.stream)
            t.wait(20)
            codes.append(0)
        except bps.Error as e:
            codes.append(e.code)
        assert np.all(codes) and codes[-1] == -errno.EINVAL, codes
        job.barrier(20)  # an abort would fail the calls of a slower worker
        job.abort()
    return codes


def device_leave_behind(way, queued):
    """End the job while a gradient, its submission and a wait for its sum are in the stream.

    Rank 0 makes the file `queued` when they are. Other workers end the job after that.
    """
    job = bps.open()
    device = open_device(job)
    address = job.gpu_alloc(1 << 20)
    t = job.gpu_declare("t", "f32", 1024, address)
    t.push_pull(stream=device.stream)
    t.wait(20)
    job.barrier(20)
    for _ in range(3 if job.rank == 0 else 0):
        device.write(address, np.ones(1024, np.float32))
        t.push_pull(stream=device.stream)
        t.wait_stream(device.stream)
    if job.rank == 0:
        touch(queued)
    else:
        until(queued)
    if way == "abort":
        job.abort()
    else:
        try:
            job.close(2)
        except bps.Error as e:
            assert e.code < 0
    device.call("cuStreamSynchronize", ctypes.c_void_p(device.stream))
    return True


def device_cycles(n_cycles):
    """Run jobs in turn. After each job, count this process's descriptors and mappings."""
    seen = []
    for i in range(n_cycles):
        with bps.open(job=f"cycle{i}") as job:
            device = open_device(job)
            address = job.gpu_alloc(4 << 20)
            t = job.gpu_declare("t", "i32", 1 << 20, address)
            device.write(address, np.full(1 << 20, job.rank, np.int32))
            t.push_pull(stream=device.stream)
            t.wait(20)
        with open("/proc/self/maps", encoding="ascii") as f:
            maps = sum("memfd" in line for line in f)
        seen.append([len(os.listdir("/proc/self/fd")), maps])
    return seen
