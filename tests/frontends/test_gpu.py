"""Tests of gradients in device memory.

The executor emulates GPUs in host memory (bps-agent-host), so PyTorch's tensors are on the device
`cpu`. Everything else is as on a GPU: the executor allocates the buckets, and results replace the
values in place.
"""

import os

import pytest
import torch

import bps.torch as bps
from bps import _core
from bps._job import Job
from bps.torch import _channels, _memory

IS_ALONE = os.environ.get("BPS_SIZE") == "1"


class PlainMemory:
    """Access to the executor's memory, which is plain host memory in place of GPU memory."""

    @staticmethod
    def open(job: Job, device: torch.device) -> None:
        job.gpu_open()

    @staticmethod
    def view(address: int, dtype: torch.dtype, n_values: int, device: torch.device) -> torch.Tensor:
        return _memory.view(address, dtype, n_values)

    @staticmethod
    def stream(device: torch.device) -> int:
        return 0


@pytest.fixture(scope="session", autouse=True)
def job():
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def device(monkeypatch):
    bps.barrier()
    monkeypatch.setitem(_channels.KINDS, "cpu", PlainMemory)


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(
        dtype
    )


def batch(dtype=torch.float64):
    torch.manual_seed(7)
    return torch.randn(24, 6, dtype=dtype), torch.randn(24, 3, dtype=dtype)


def train(model, optimizer, rows=slice(None), steps=10, set_to_none=True, passes=1):
    x, y = batch(next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(passes):
            (((model(x[rows]) - y[rows]) ** 2).mean() / passes).backward()
        optimizer.step()


def reference(**options):
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **options)
    return model


def optimizer_of(model, **options):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return bps.DistributedOptimizer(sgd, model.named_parameters(), **options)


def mine():
    return slice(bps.rank(), None, bps.size())


def assert_equals(model, other, tolerance=1e-12):
    for p, q in zip(model.parameters(), other.parameters()):
        assert (p - q).abs().max() <= tolerance
        rows = bps.allgather(p.detach().reshape(1, -1))
        assert all(torch.equal(rows[0], row) for row in rows)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_workers_train_as_one_worker_with_the_whole_batch(set_to_none):
    model = network()
    train(model, optimizer_of(model), mine(), set_to_none=set_to_none)
    assert_equals(model, reference())


@pytest.mark.skipif(IS_ALONE, reason="one worker has no executor")
def test_buckets_lie_in_memory_of_the_executor():
    model = network()
    train(model, optimizer_of(model), mine(), steps=1)
    grads = [p.grad for p in model.parameters()]
    assert len({g.untyped_storage().data_ptr() for g in grads}) == 1
    first = min(g.data_ptr() for g in grads)
    regions = [line.split() for line in open("/proc/self/maps")]
    inside = [
        r[-1] for r in regions if int(r[0].split("-")[0], 16) <= first < int(r[0].split("-")[1], 16)
    ]
    assert any("/memfd:" in name or "(deleted)" in name for name in inside), inside


def test_gradients_of_several_passes_add_up_in_place():
    model = network()
    optimizer = optimizer_of(model, backward_passes_per_step=3)
    train(model, optimizer, mine(), set_to_none=False, passes=3)
    assert_equals(model, reference())


def test_factors_scale_gradients_in_place():
    model = network()
    train(model, optimizer_of(model, gradient_predivide_factor=4.0), mine(), set_to_none=False)
    assert_equals(model, reference())


def test_bf16_travels_in_a_region_of_its_own():
    model = network()
    optimizer = optimizer_of(model, compression=bps.Compression.bf16)
    train(model, optimizer, mine())
    assert_equals(model, reference(), tolerance=0.05)


def test_cross_barrier_updates_layers_before_their_forward_pass():
    model = network()
    optimizer = optimizer_of(model, cross_barrier=True, bucket_bytes=64)
    train(model, optimizer, mine())
    optimizer.synchronize()
    assert_equals(model, reference())


def test_a_parameter_without_a_gradient_adds_zeros():
    model = network()
    optimizer = optimizer_of(model)
    optimizer.zero_grad()
    if bps.rank() == 0:
        model(batch()[0]).sum().backward()
    optimizer.step()
    total = network()
    total(batch()[0]).sum().backward()
    for p, q in zip(model.parameters(), total.parameters()):
        assert torch.allclose(p.grad, q.grad / bps.size(), atol=1e-12)


def test_a_gradient_in_the_memory_of_another_is_an_error():
    first, second = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([first, second], lr=0.1), [("first", first), ("second", second)]
    )
    (first.sum() + second.sum()).backward()
    optimizer.step()
    first.grad, second.grad = second.grad, first.grad
    with pytest.raises(RuntimeError, match="'first' shares memory with another"):
        optimizer.synchronize()


def test_module_wrapper_averages_during_backward():
    model = network()
    wrapped = bps.DistributedDataParallel(model)
    x, y = batch()
    ((wrapped(x[mine()]) - y[mine()]) ** 2).mean().backward()
    whole = network()
    ((whole(x) - y) ** 2).mean().backward()
    for p, q in zip(model.parameters(), whole.parameters()):
        assert torch.allclose(p.grad, q.grad, atol=1e-12)


@pytest.mark.skipif(IS_ALONE, reason="one worker has no executor")
def test_gradients_on_two_devices_are_refused():
    job = _core.runtime().job
    assert _channels._open_gpu(job, torch.device("cpu"))
    with pytest.raises(NotImplementedError, match="a worker uses one GPU"):
        _channels._open_gpu(job, torch.device("cuda", 1))


@pytest.mark.skipif(not IS_ALONE, reason="several workers have an executor")
def test_one_worker_needs_no_executor():
    model = network()
    optimizer = optimizer_of(model)
    train(model, optimizer)
    (bucket,) = optimizer._bps_reducer._buckets
    assert isinstance(bucket.channel, _channels.LonelyChannel)
    assert_equals(model, reference())
