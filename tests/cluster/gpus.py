"""What worker processes with GPUs do, over tests/gpu/fake: the driver as a framework would call it, by ctypes. Device memory
cannot be looked at; it is copied."""

import ctypes

import numpy as np

import bps

_cu = None


def check(code, what):
    assert code == 0, f"{what}: CUDA error {code}"


def use_gpu(ordinal):
    """Load the driver, and make the context of that GPU current in this thread."""
    global _cu
    _cu = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    dev, ctx = ctypes.c_int(), ctypes.c_void_p()
    check(_cu.cuInit(0), "cuInit")
    check(_cu.cuDeviceGet(ctypes.byref(dev), ordinal), "cuDeviceGet")
    check(_cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), dev), "cuDevicePrimaryCtxRetain")
    check(_cu.cuCtxSetCurrent(ctx), "cuCtxSetCurrent")


class Stream:
    def __init__(self):
        self.raw = ctypes.c_void_p()
        check(_cu.cuStreamCreate(ctypes.byref(self.raw), 1), "cuStreamCreate")

    def synchronize(self):
        check(_cu.cuStreamSynchronize(self.raw), "cuStreamSynchronize")


def alloc(n_bytes):
    address = ctypes.c_uint64()
    check(_cu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(n_bytes)), "cuMemAlloc")
    return address.value


def write(address, values):
    raw = np.ascontiguousarray(values)
    data = raw.ctypes.data_as(ctypes.c_void_p)
    check(_cu.cuMemcpyHtoD_v2(ctypes.c_uint64(address), data, ctypes.c_size_t(raw.nbytes)), "cuMemcpyHtoD")


def read(address, n_elems, dtype):
    values = np.empty(n_elems, dtype)
    data = values.ctypes.data_as(ctypes.c_void_p)
    check(_cu.cuMemcpyDtoH_v2(data, ctypes.c_uint64(address), ctypes.c_size_t(values.nbytes)), "cuMemcpyDtoH")
    return values


def gpu_rounds(sizes, n_rounds, mode="arena", route=None):
    """Rounds of i32 tensors; every sum is compared, at every worker. mode: whose memory it is."""
    with bps.open() as job:
        use_gpu(job.local_rank)
        stream = Stream()
        job.gpu_open()
        assert route in (None, job.gpu_route), job.gpu_route
        step = [-(-n * 4 // 256) * 256 for n in sizes]
        if mode == "arena":
            base = job.gpu_alloc(sum(step))
        else:
            base = alloc(sum(step))
            job.gpu_import(base, sum(step))
        places = [base + sum(step[:i]) for i in range(len(sizes))]
        tensors = [job.gpu_declare(f"t{i}", "i32", n, places[i]) for i, n in enumerate(sizes)]
        for r in range(1, n_rounds + 1):
            for i, t in enumerate(tensors):
                write(places[i], (np.arange(sizes[i]) % 100 * r + job.rank + i).astype("i4"))
                t.push_pull(bps.SUM, stream=stream.raw)
            for i, t in enumerate(tensors):
                t.wait_stream(stream.raw)
                stream.synchronize()
                want = job.size * (np.arange(sizes[i]) % 100 * r + i) + job.size * (job.size - 1) // 2
                got = read(places[i], sizes[i], "i4")
                assert np.array_equal(got, want.astype("i4")), (r, i, got[:5], want[:5])
        for t in tensors:
            t.wait(20)
        return job.gpu_route
