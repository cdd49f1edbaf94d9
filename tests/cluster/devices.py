"""What worker processes with device memory do. On back-end host an address is plain memory, and the stream is 0."""

import ctypes
import os
import signal
import time

import numpy as np

import bps


def view(address, n_elems, dtype):
    kind = np.dtype(bps.DTYPES[dtype][1])
    raw = (ctypes.c_char * (n_elems * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=kind)


def device_rounds(sizes, n_rounds, dtype="i64", op="sum", ahead=1, route=None):
    """Rounds of several tensors in one piece of memory; every sum is compared, at every worker."""
    ops = {"sum": bps.SUM, "max": bps.MAX, "min": bps.MIN, "avg": bps.AVG}
    with bps.open() as job:
        job.gpu_open()
        assert route in (None, job.gpu_route), job.gpu_route
        item = np.dtype(bps.DTYPES[dtype][1]).itemsize
        base = job.gpu_alloc(sum(-(-n * item // 256) * 256 for n in sizes))
        tensors, at = [], base
        for i, n in enumerate(sizes):
            tensors.append((job.gpu_declare(f"t{i}", dtype, n, at), view(at, n, dtype)))
            at += -(-n * item // 256) * 256
        for r in range(1, n_rounds + 1):
            for i, (t, v) in enumerate(tensors):
                v[:] = np.arange(len(v)) % 100 * r + job.rank + i
                t.push_pull(ops[op])
            for i, (t, v) in enumerate(tensors):
                if r % 2:
                    t.wait_stream()
                else:
                    t.wait(20)
                base_v = np.arange(len(v)) % 100 * r + i
                ranks = np.arange(job.size)
                want = {
                    "sum": job.size * base_v + ranks.sum(),
                    "max": base_v + job.size - 1,
                    "min": base_v,
                    "avg": (job.size * base_v + ranks.sum()) / job.size,
                }[op]
                if dtype.startswith("i") and op == "avg":
                    want = np.floor(want)
                assert np.array_equal(v, want.astype(v.dtype)), (r, i, v[:5], want[:5])
            for t, _ in tensors:
                t.wait(20)
                assert t.contributors == job.size
        return job.gpu_route


def device_and_host_tensors(n_elems, n_rounds):
    """A job may have tensors of both kinds."""
    with bps.open() as job:
        job.gpu_open()
        address = job.gpu_alloc(n_elems * 4)
        on_gpu, v = job.gpu_declare("gpu", "f32", n_elems, address), view(address, n_elems, "f32")
        on_host = job.declare("host", "f32", n_elems)
        for r in range(n_rounds):
            v[:] = job.rank + r
            on_host.input[:] = job.rank + 2 * r
            on_gpu.push_pull()
            on_host.push_pull()
            on_gpu.wait_stream()
            total = job.size * (job.size - 1) // 2
            assert np.all(v == total + job.size * r)
            assert np.all(on_host.wait() == total + 2 * job.size * r)
    return True
