"""Functions of worker processes for test_device_more.py and test_device_hostile.py."""

import ctypes
import errno
import hashlib
import os
import signal
import threading
import time

import numpy as np

import bps
import workers
from devices import PINNED, Cuda, Plain, device_until_failure, open_device, outcome, touch, until


def gpu_barrier(d, kind):
    """Submit at rank 0 after its call of the barrier has timed out.

    The rank is still at the barrier, so the submission must fail with BPS_EBUSY. The job must work
    afterwards.
    """
    with bps.open(timeout=20) as job:
        device = open_device(job)
        address = job.gpu_alloc(4096)
        t = job.gpu_declare("t", "i64", 512, address)
        h = job.declare("h", "i64", 512)
        got = None
        if job.rank == 0:
            assert outcome(lambda: job.checkpoint_barrier(0.3))[0] == bps.ETIMEDOUT
            got = outcome(
                h.push_pull if kind == "host" else lambda: t.push_pull(stream=device.stream)
            )
            touch(d + "/tried")
        until(d + "/tried")
        job.checkpoint_barrier(20)
        device.write(address, np.full(512, 1, np.int64))
        t.push_pull(stream=device.stream)
        t.wait_stream(device.stream)
        assert np.all(device.read(address, 512, np.int64) == job.size)
        t.wait(20)
        return got


def gpu_release(d):
    """Release memory at rank 0 while a tensor in this memory waits for the other ranks."""
    job = bps.open(timeout=20)
    device = open_device(job)
    address = job.gpu_alloc(1 << 21)
    t = job.gpu_declare("t", "i64", 512, address)
    device.write(address, np.full(512, 1, np.int64))
    got = None
    if job.rank == 0:
        t.push_pull(stream=device.stream)
        got = outcome(lambda: job.gpu_release(address))
        touch(d + "/released")
    until(d + "/released")
    if job.rank != 0:
        t.push_pull(stream=device.stream)
    end = outcome(lambda: t.wait(15))
    job.abort()
    return [got, end]


def gpu_unlike(d, first):
    """Declare a tensor in device memory in one worker and in host memory in the other.

    Both workers must get an error. first: "gpu" or "host", the memory in which rank 0 declares the
    tensor. Rank 1 declares the tensor after rank 0, in the other memory.
    """
    job = bps.open(timeout=20)
    device = open_device(job)
    address = job.gpu_alloc(1 << 21)
    mine = "gpu" if (job.rank == 0) == (first == "gpu") else "host"
    if job.rank == 1:
        until(d + "/declared")
    got, end, stream_s = None, None, None
    try:
        if mine == "gpu":
            t = job.gpu_declare("t", "i64", 512, address)
            t.push_pull(stream=device.stream)
        else:
            t = job.declare("t", "i64", 512)
            t.push_pull()
        got = [0, ""]
    except bps.Error as e:
        got = [e.code, str(e)]
    touch(d + "/declared")
    if got[0] == 0:
        start = time.monotonic()
        end = outcome(lambda: t.wait(8))
        stream_s = time.monotonic() - start
        touch(d + "/over")
    until(d + "/over")
    job.abort()
    return [mine, got, end, stream_s]


def gpu_no_context_then_again(d):
    """Call bps_gpu_open at rank 1 without a CUDA context, so that the call fails.

    Then make a context and call bps_gpu_open again.
    """
    job = (
        bps.open(timeout=20, open_timeout=8)
        if "open_timeout" in bps.open.__code__.co_varnames
        else bps.open(timeout=20)
    )
    first = None
    if job.rank == 1:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        first = outcome(job.gpu_open)
        touch(d + "/first")
    else:
        device = Cuda(job.local_rank)
        second = outcome(job.gpu_open)
    if job.rank == 1:
        device = Cuda(job.local_rank)
        second = outcome(job.gpu_open)
    third = None
    if second[0] == 0:
        address = job.gpu_alloc(1 << 21)
        t = job.gpu_declare("t", "i64", 512, address)
        third = outcome(lambda: (t.push_pull(stream=device.stream), t.wait(10)))
    job.abort()
    return [first, second, third]


def cu_prop(ordinal):
    """Return a CUmemAllocationProp for pinned memory on the device `ordinal`.

    The memory can be exported as a file descriptor.
    """

    class Prop(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int),
            ("handles", ctypes.c_int),
            ("loc_type", ctypes.c_int),
            ("loc_id", ctypes.c_int),
            ("win32", ctypes.c_void_p),
            ("flags", ctypes.c_ubyte * 8),
        ]

    return Prop(1, 1, 1, ordinal, None)


class Access(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


def segments(device, ordinal, chunks):
    """Make an expandable segment from consecutive chunks, as PyTorch does.

    Return the address and the size of the segment.

    chunks: the size of each chunk, in units of 2 MiB.
    """
    grain = 2 << 20
    total = sum(chunks) * grain
    base = ctypes.c_uint64()
    device.call(
        "cuMemAddressReserve",
        ctypes.byref(base),
        ctypes.c_size_t(total),
        ctypes.c_size_t(0),
        ctypes.c_uint64(0),
        ctypes.c_ulonglong(0),
    )
    at = base.value
    for n in chunks:
        handle = ctypes.c_uint64()
        device.call(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(n * grain),
            ctypes.byref(cu_prop(ordinal)),
            ctypes.c_ulonglong(0),
        )
        device.call(
            "cuMemMap",
            ctypes.c_uint64(at),
            ctypes.c_size_t(n * grain),
            ctypes.c_size_t(0),
            handle,
            ctypes.c_ulonglong(0),
        )
        device.call("cuMemRelease", handle)
        at += n * grain
    device.call(
        "cuMemSetAccess",
        base,
        ctypes.c_size_t(total),
        ctypes.byref(Access(1, ordinal, 3)),
        ctypes.c_size_t(1),
    )
    return base.value, total


def gpu_segments(chunks, lead, tail, n_rounds):
    """Import an expandable segment that consists of several chunks, and sum a tensor in it."""
    job = bps.open(timeout=60)
    device = open_device(job)
    base, total = segments(device, job.local_rank, chunks)
    at, size = base + lead, total - lead - tail
    got = outcome(lambda: job.gpu_import(at, size))
    end = None
    if got[0] == 0:
        n = size // 8
        t = job.gpu_declare("t", "i64", n, at)
        for r in range(n_rounds):
            step = (PINNED // 8) // 2
            for k in range(0, n, step):
                device.write(at + 8 * k, np.arange(k, min(n, k + step)) + r)
            t.push_pull(stream=device.stream)
            t.wait_stream(device.stream)
            for k in range(0, n, step):
                m = min(n, k + step) - k
                assert np.array_equal(
                    device.read(at + 8 * k, m, np.int64), job.size * (np.arange(k, k + m) + r)
                ), (r, k)
        end = outcome(lambda: t.wait(20))
        job.gpu_release(at)
    job.barrier(20)
    job.close()
    return [got, end]


def gpu_types(route=None):
    """Test all types and operations with 1 element, and with sizes just above powers of two.

    The values are small integers, which all types represent exactly. Return the wrong results that
    rank 0 found, and a digest of all results of this rank.
    """
    sizes, seen = [1, 129, 65537], hashlib.sha256()
    with bps.open(timeout=60) as job:
        device = open_device(job)
        assert route in (None, job.gpu_route), job.gpu_route
        bad = []
        address = job.gpu_alloc(64)
        for op in ("band", "bor", "bxor"):
            try:
                job.gpu_declare(op, "i32", 1, address).push_pull(
                    getattr(bps, op.upper()), stream=device.stream
                )
                bad.append(["i32", op, "was accepted"])
            except bps.Error as e:
                assert e.code == -errno.EOPNOTSUPP and f"do not compute {op}" in str(e), e
        job.gpu_release(address)
        for dtype in (d for d in bps.DTYPES if d not in bps.BLOCKS):
            kind = bps.DTYPES[dtype][1]
            for op in ("sum", "prod", "max", "min", "avg"):
                # averages of integers are refused, because the sum may overflow
                if op == "avg" and dtype[0] in "iu":
                    address = job.gpu_alloc(64)
                    try:
                        job.gpu_declare(f"{dtype}.{op}", dtype, 1, address).push_pull(
                            bps.AVG, stream=device.stream
                        )
                        bad.append([dtype, op, "was accepted"])
                    except bps.Error as e:
                        assert (
                            e.code == -errno.EOPNOTSUPP and "divide the result of BPS_SUM" in str(e)
                        ), e
                    job.gpu_release(address)
                    continue
                address = job.gpu_alloc(8 * 65536 * 4)
                at, ts = address, []
                for n in sizes:
                    ts.append((job.gpu_declare(f"{dtype}.{op}.{n}", dtype, n, at), n, at))
                    at += -(-n // 64) * 64 * 8
                for r in (1, 2):
                    for t, n, a in ts:
                        device.write(
                            a,
                            pack(
                                (np.arange(n) + r) % 2 + 1 + (job.rank if op != "prod" else 0),
                                dtype,
                                kind,
                            ),
                        )
                        t.push_pull(getattr(bps, op.upper()), stream=device.stream)
                    for t, n, a in ts:
                        t.wait_stream(device.stream)
                        got = device.read(a, n, kind)
                        seen.update(got.tobytes())
                        if job.rank:
                            continue
                        base = (np.arange(n) + r) % 2 + 1
                        ranks = [base + k for k in range(job.size)]
                        want = {
                            "sum": sum(ranks),
                            "prod": base**job.size,
                            "max": base + job.size - 1,
                            "min": base,
                            "avg": sum(ranks) / job.size,
                        }[op]
                        want = unpack(pack(want, dtype, kind), dtype)
                        have = unpack(got, dtype)
                        if not np.allclose(have, want, rtol=0 if op != "avg" else 1e-2):
                            bad.append(
                                [
                                    dtype,
                                    op,
                                    n,
                                    r,
                                    [float(x) for x in have[:4]],
                                    [float(x) for x in want[:4]],
                                ]
                            )
                job.gpu_release(address)
        return bad, seen.hexdigest()


def pack(values, dtype, kind):
    if dtype != "bf16":
        return np.asarray(values).astype(kind)
    return (np.asarray(values).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def unpack(values, dtype):
    if dtype != "bf16":
        return np.asarray(values).astype(np.float64)
    return (np.asarray(values).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def gpu_until(d, n_elems, n_tensors=2, contributors=None):
    """Run rounds and check exact sums, until the ranks agree that the file `stop` exists.

    For each sum, make the stream wait for the sum (wait_stream), and then read the sum on the
    stream. Only after this read, let the host wait for the sum (`wait`). Return the number of
    rounds.
    """
    with bps.open(timeout=60) as job:
        device = open_device(job)
        stride = -(-n_elems // 64) * 64 * 8
        base = job.gpu_alloc(stride * n_tensors)
        ts = [
            (job.gpu_declare(f"t{i}", "i64", n_elems, base + stride * i), base + stride * i)
            for i in range(n_tensors)
        ]
        flag = job.declare("flag", "i64", 1)
        pattern = np.arange(n_elems) % 91
        r = 0
        while True:
            r += 1
            start = time.monotonic()
            flag.input[0] = os.path.exists(d + "/stop")
            flag.push_pull()
            for i, (t, at) in enumerate(ts):
                device.write(at, pattern * (job.rank + 1) + r + i)
                t.push_pull(stream=device.stream)
                t.wait_stream(device.stream)
            for i, (t, at) in enumerate(ts):
                got = device.read(at, n_elems, np.int64)
                t.wait(60)
                ranks = job.size * (job.size + 1) // 2
                want = pattern * ranks + job.size * (r + i)
                assert np.array_equal(got, want), (r, i, got[:5], want[:5])
            if job.rank == 0:
                with open(d + "/rounds.new", "w", encoding="ascii") as f:
                    f.write(str(r))
                os.rename(d + "/rounds.new", d + "/rounds")
            if flag.wait(60)[0]:
                return r
            workers.rest(start)


def gpu_unaligned():
    """Declare an unaligned tensor, and a tensor beyond the end of its region."""
    job = bps.open(timeout=20)
    device = open_device(job)
    address = job.gpu_alloc(1 << 21)
    got = outcome(lambda: job.gpu_declare("t", "f32", 16, address + 2))
    end = stream = None
    if got[0] == 0:
        t = job.gpu_declare("t", "f32", 16, address + 2)
        start = time.monotonic()
        end = outcome(
            lambda: (t.push_pull(stream=device.stream), t.wait_stream(device.stream), t.wait(10))
        )
        device.read(address, 16, np.float32)
        stream = time.monotonic() - start
    good = job.gpu_declare("good", "f32", 16, address + 64)
    device.write(address + 64, np.ones(16, np.float32))
    after = outcome(lambda: (good.push_pull(stream=device.stream), good.wait(10)))
    job.abort()
    return [got, end, stream, after]


def gpu_shared_gpu(gpus, n_rounds=3):
    """Run more workers than there are GPUs, so that workers share GPUs."""
    with bps.open(timeout=60) as job:
        device = Cuda(job.local_rank % gpus) if os.environ.get("TEST_DEVICE") == "cuda" else Plain()
        job.gpu_open()
        n = 50001
        address = job.gpu_alloc(8 * n)
        t = job.gpu_declare("t", "i64", n, address)
        for r in range(n_rounds):
            device.write(address, np.arange(n) + job.rank + r)
            t.push_pull(stream=device.stream)
            t.wait_stream(device.stream)
            want = job.size * (np.arange(n) + r) + job.size * (job.size - 1) // 2
            assert np.array_equal(device.read(address, n, np.int64), want)
        t.wait(20)
        return job.gpu_route


def gpu_fallback(n_elems):
    """Try to declare a tensor in device memory. The tensor exceeds the quota.

    Then sum a small tensor in device memory. Also declare a small tensor in host memory, with
    the name of the refused tensor.
    """
    with bps.open(timeout=20) as job:
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems)
        got = outcome(lambda: job.gpu_declare("big", "i64", n_elems, address))
        small = job.gpu_declare("small", "i64", 512, address)
        device.write(address, np.ones(512, np.int64))
        end = outcome(lambda: (small.push_pull(stream=device.stream), small.wait(10)))
        host = outcome(lambda: job.declare("big", "i64", 512))
        return [got, end, host]


def gpu_open(d=None):
    """Call bps_gpu_open. Return the result and the duration of the call.

    After the call, check the sum of a tensor in host memory.
    """
    with bps.open(timeout=60) as job:
        start = time.monotonic()
        got = outcome(job.gpu_open)
        took = time.monotonic() - start
        t = job.declare("t", "f32", 100)
        t.input[:] = 1
        t.push_pull()
        assert np.all(t.wait(20) == job.size)
        return [got, took]


def gpu_fork_and_die(n_elems, pid_file):
    """Kill rank 1, whose forked child keeps the descriptors of rank 1 open.

    The other ranks run device_until_failure.
    """
    if int(os.environ["BPS_RANK"]) == 1:
        job = bps.open(timeout=60)
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems)
        t = job.gpu_declare("t", "i64", n_elems, address)
        for r in range(1, 4):
            device.write(address, np.full(n_elems, r, np.int64))
            t.push_pull(stream=device.stream)
            t.wait_stream(device.stream)
            device.read(address, n_elems, np.int64)
            t.wait()
        pid = os.fork()
        if pid == 0:
            time.sleep(40)
            os._exit(0)
        with open(pid_file, "w", encoding="ascii") as f:
            f.write(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)
    return device_until_failure(n_elems)


def gpu_nonblocking(n):
    """Submit tensors, and let the stream wait for the sums, while the GPU executes no work.

    Return [longest duration of a submission and its wait, error code of one more submission].
    """
    with bps.open(timeout=60) as job:
        device = open_device(job)
        address = job.gpu_alloc(4096 * n)
        ts = [job.gpu_declare(f"t{i}", "i64", 512, address + 4096 * i) for i in range(n)]
        device.call(
            "cuStreamWaitValue64_v2",
            ctypes.c_void_p(device.stream),
            ctypes.c_uint64(device.gate()),
            ctypes.c_uint64(1),
            0,
        )
        longest = 0
        for _ in range(8):
            for t in ts:
                start = time.monotonic()
                t.push_pull(stream=device.stream)
                t.wait_stream(device.stream)
                longest = max(longest, time.monotonic() - start)
        busy = outcome(lambda: ts[0].push_pull(stream=device.stream))
        device.open_gate()
        for t in ts:
            t.wait(30)
        return [longest, busy[0]]


def gpu_members(
    n_elems,
    n_rounds,
    victim=None,
    at=None,
    progress=None,
    pause=0.0,
    slow=None,
    slow_s=0.5,
    by_stream=True,
    **options,
):
    """Run rounds of a job whose members may change, as workers.elastic does with host memory.

    The sums are in GPU memory. The result has a list of masks for each round. The mask of an
    element of the sum shows the ranks that contributed to this element. Equal masks appear once in
    the list.
    """
    seen, job = [], bps.open(**options)
    try:
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems)
        t = job.gpu_declare("t", "i64", n_elems, address)
        for r in range(1, n_rounds + 1):
            device.write(address, np.full(n_elems, (1 << job.rank) + (r << 16), np.int64))
            if job.rank == slow:
                time.sleep(slow_s)
            t.push_pull(stream=device.stream)
            if job.rank == victim and r == at:
                os.kill(os.getpid(), 9)
            if by_stream:
                t.wait_stream(device.stream)
            else:
                t.wait()
            got = device.read(address, n_elems, np.int64)
            t.wait()
            seen.append(np.unique(workers.members_behind(got, r)).tolist())
            if progress and job.rank == 0:
                with open(progress, "w", encoding="ascii") as f:
                    f.write(str(r))
            time.sleep(pause)
        job.close()
    except bps.Error as e:
        job.abort()
        return {"code": e.code, "text": str(e), "rounds": seen}
    return {"code": 0, "rounds": seen}


def gpu_grow(n_elems, go, progress=None, every=2, **options):
    """Run rounds, with a barrier after each block of rounds.

    `every` is the number of rounds in a block. New workers can join at a barrier. At the start of
    each round, rank 0 checks whether the file `go` exists. The job ends with the round in which
    rank 0 finds the file.
    """
    job = bps.open(elastic=1, **options)
    device = open_device(job)
    address = job.gpu_alloc(8 * n_elems)
    t = job.gpu_declare("t", "i64", n_elems, address)
    stop = job.declare("stop", "i64", 1)
    state = np.zeros(1, np.int64)
    if job.is_new:
        job.broadcast(state, root=job.root)
    sizes, over = [], False
    while not over:
        state[0] += 1
        r = int(state[0])
        stop.input[0] = job.rank == 0 and os.path.exists(go)
        stop.push_pull()
        device.write(address, np.full(n_elems, r, np.int64))
        t.push_pull(stream=device.stream)
        t.wait_stream(device.stream)
        got = device.read(address, n_elems, np.int64)
        t.wait()
        assert np.all(got == got[0]) and got[0] % r == 0, (got[:5], r)
        sizes.append([r, int(got[0] // r)])
        over = stop.wait()[0] > 0
        if progress and job.rank == 0:
            with open(progress, "w", encoding="ascii") as f:
                f.write(str(r))
        time.sleep(0.01)
        if r % every == 0 and not over:
            if job.checkpoint_barrier(30):
                job.broadcast(state, root=job.root)
    job.close()
    return sizes


def gpu_cycles(n_cycles, first=0):
    """Run the jobs of device_cycles, all with one CUDA context."""
    seen, device = [], None
    for i in range(n_cycles):
        with bps.open(job=f"audit{first + i}") as job:
            if device is None:
                device = (
                    Cuda(job.local_rank) if os.environ.get("TEST_DEVICE") == "cuda" else Plain()
                )
            job.gpu_open()
            address = job.gpu_alloc(4 << 20)
            t = job.gpu_declare("t", "i32", 1 << 20, address)
            device.write(address, np.full(1 << 20, job.rank, np.int32))
            t.push_pull(stream=device.stream)
            t.wait(20)
        with open("/proc/self/maps", encoding="ascii") as f:
            maps = sum("memfd" in line for line in f)
        with open("/proc/self/status", encoding="ascii") as f:
            rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        seen.append(
            [len(os.listdir("/proc/self/fd")), maps, len(os.listdir("/proc/self/task")), rss]
        )
    return seen


def gpu_storm():
    """Allocate memory, declare tensors and run rounds, in 32 passes or until a pass fails.

    If there was no error, return [0, "", duration of the slowest pass]. Otherwise return
    [error code, text, duration of the pass that failed].
    """
    longest, job, i = 0.0, None, 0
    try:
        job = bps.open(timeout=30)
        device = open_device(job)
        ts = []
        while i < 30 or i % 8:
            start = time.monotonic()
            n = 1000 + 7 * i
            address = job.gpu_alloc(1 << 21)
            t = job.gpu_declare(f"t{i}", "i64", n, address)
            ts.append((t, address, n))
            if i % 5 == 4:
                job.declare(f"h{i}", "i64", 10)
            for u, at, m in ts[-6:]:
                device.write(at, np.ones(m, np.int64))
                u.push_pull(stream=device.stream)
            for u, at, m in ts[-6:]:
                u.wait_stream(device.stream)
                assert np.all(device.read(at, m, np.int64) == job.size) or u.wait(20)
                u.wait(20)
            if len(ts) > 10:
                job.gpu_release(ts[0][1])
                ts.pop(0)
            longest = max(longest, time.monotonic() - start)
            i += 1
        job.close()
        return [0, "", longest]
    except bps.Error as e:
        longest = time.monotonic() - start if i else 0
        if job:
            job.abort()
        return [e.code, str(e), longest]


def gpu_fault(n_elems):
    """Run rounds until an error. If there is no device, return the error of bps_gpu_open."""
    job = bps.open(timeout=60)
    start = time.monotonic()
    try:
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems)
        t = job.gpu_declare("t", "i64", n_elems, address)
        for r in range(1, 60):
            start = time.monotonic()
            device.write(address, np.full(n_elems, r, np.int64))
            t.push_pull(stream=device.stream)
            t.wait_stream(device.stream)
            got = device.read(address, n_elems, np.int64)
            t.wait()
            assert np.all(got == r * job.size)
        job.close()
        return [0, "", 0]
    except bps.Error as e:
        took = time.monotonic() - start
        job.abort()
        return [e.code, str(e), took]


def gpu_average(n_elems, n_rounds, victim, at, **options):
    """Return the average of the rank numbers in each round. Rank `victim` dies in round `at`."""
    seen, job = [], bps.open(**options)
    try:
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems)
        t = job.gpu_declare("t", "f64", n_elems, address)
        for r in range(1, n_rounds + 1):
            device.write(address, np.full(n_elems, job.rank, np.float64))
            t.push_pull(bps.AVG, stream=device.stream)
            if job.rank == victim and r == at:
                os.kill(os.getpid(), 9)
            t.wait_stream(device.stream)
            got = device.read(address, n_elems, np.float64)
            t.wait()
            seen.append(sorted({float(x) for x in got}))
        job.close()
    except bps.Error as e:
        job.abort()
        return {"code": e.code, "text": str(e), "rounds": seen}
    return {"code": 0, "rounds": seen}


def gpu_large(n_elems):
    """Sum three large tensors in device memory. Return the number of correct sums."""
    with bps.open(timeout=60) as job:
        device = open_device(job)
        address = job.gpu_alloc(8 * n_elems * 3)
        places = [address + i * 8 * n_elems for i in range(3)]
        ts = [job.gpu_declare(f"t{i}", "i64", n_elems, at) for i, at in enumerate(places)]
        for t, at in zip(ts, places):
            device.write(at, np.arange(n_elems))
            t.push_pull(stream=device.stream)
        return sum(
            t.wait(60) is None
            and bool(np.all(device.read(at, n_elems, np.int64) == job.size * np.arange(n_elems)))
            for t, at in zip(ts, places)
        )


def host_large(n_elems):
    """Sum three large tensors in host memory. Return the number of correct sums."""
    with bps.open(timeout=60) as job:
        ts = [job.declare(f"t{i}", "i64", n_elems) for i in range(3)]
        for t in ts:
            t.input[:] = np.arange(n_elems)
            t.push_pull()
        return sum(bool(np.all(t.wait(60) == job.size * np.arange(n_elems))) for t in ts)


def gpu_declare_late(go, n_elems):
    """Sum a tensor now, and another tensor when the file `go` appears.

    Return the number of correct sums.
    """
    n = 0
    with bps.open(timeout=60) as job:
        device = open_device(job)
        for i in range(2):
            if i:
                until(go)
            at = job.gpu_alloc(8 * n_elems)
            t = job.gpu_declare(f"t{i}", "i64", n_elems, at)
            device.write(at, np.full(n_elems, i + 1, np.int64))
            t.push_pull(stream=device.stream)
            t.wait(60)
            n += bool(np.all(device.read(at, n_elems, np.int64) == (i + 1) * job.size))
    return n


def gpu_ask_twice(d):
    """Call bps_gpu_open now, and again when the file `go` appears. Return both results."""
    with bps.open(timeout=60) as job:
        first = outcome(job.gpu_open)
        touch(d + "/told")
        until(d + "/go")
        return [first, outcome(job.gpu_open)]


def gpu_release_beside(n_steps):
    """Release memory that has no tensors, while another thread trains and waits for its stream.

    Return the duration, in seconds, of the longest call of bps_gpu_release.
    """
    with bps.open(timeout=20) as job:
        device = open_device(job)
        address = job.gpu_alloc(4096)
        t = job.gpu_declare("t", "i64", 512, address)
        others = [job.gpu_alloc(4096) for _ in range(100)]
        failed = []

        def train():
            try:
                for _ in range(n_steps):
                    t.push_pull(stream=device.stream)
                    t.wait_stream(device.stream)
            except bps.Error as e:
                failed.append(str(e))

        thread = threading.Thread(target=train)
        thread.start()
        longest = 0
        for other in others:
            start = time.monotonic()
            job.gpu_release(other)
            longest = max(longest, time.monotonic() - start)
        thread.join(60)
        t.wait(20)
        assert not failed, failed
        return longest
