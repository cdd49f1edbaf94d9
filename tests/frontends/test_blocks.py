"""Gradients in blocks: all workers of a job run these tests in the same order."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import bps.torch as bps
import coded
from bps import _core
from bps._compression import Coding
from bps._library import Error
from bps.torch import _blocks
from bps.torch._channels import open_channels

NEEDS_SCALER = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="PyTorch 2.3")


@pytest.fixture(scope="session", autouse=True)
def job():
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    bps.barrier()
    torch.manual_seed(bps.rank())


def ranks():
    return range(bps.size())


def is_same_everywhere(tensor):
    all_ = bps.allgather(tensor.detach().reshape(1, -1).float())
    return all(torch.equal(all_[0], row) for row in all_)


def values_of(rank, n=50_000, step=0):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.rand(n, generator=generator) * 2 - 1


def network(dtype=torch.float32):
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 11), torch.nn.Flatten(), torch.nn.Linear(576, 128)
    )
    return model.to(dtype).to(memory_format=torch.channels_last)


def loss_of(model, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(4, 3, 13, 13, generator=generator).to(dtype)
    return (model(x).float() ** 2).mean()


def true_gradients(dtype=torch.float32):
    """Return, without bps, for each parameter the average over all workers of the gradients, and
    the largest value of one worker's gradient."""
    each = []
    for r in ranks():
        model = network(dtype)
        loss_of(model, r, dtype).backward()
        each.append([p.grad.float() for p in model.parameters()])
    return [(sum(grads) / len(grads), max(g.abs().max() for g in grads)) for grads in zip(*each)]


@pytest.mark.parametrize(("compression", "levels"), coded.KINDS)
def test_tensors_are_reduced_in_blocks(compression, levels):
    mine, want = values_of(bps.rank()), sum(map(values_of, ranks()))
    bound = 1.5 * bps.size() / levels
    for name in (None, f"one.{levels}"):
        out = bps.allreduce(mine, name=name, compression=compression, op=bps.Sum)
        assert 0 < (out - want).abs().max() <= bound
        assert is_same_everywhere(out)
    small = bps.allreduce(mine[:100], compression=compression, op=bps.Sum)
    assert torch.allclose(small, want[:100], atol=1e-5), "small tensors are sent as they are"
    rows = bps.reducescatter(mine.view(-1, 100), compression=compression, op=bps.Sum)
    assert (bps.allgather(rows).view(-1) - want).abs().max() <= bound
    x = mine.clone().requires_grad_()
    bps.allreduce(x, compression=compression, op=bps.Sum).sum().backward()
    assert (x.grad == bps.size()).all()


def distributed(way, model, compression):
    """Let an optimizer, a module or a hook of PyTorch's module average the model's gradients.
    Return the model, and an optimizer with a learning rate of 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    if way == "optimizer":
        named = model.named_parameters()
        optimizer = bps.DistributedOptimizer(optimizer, named, compression=compression)
    elif way == "module":
        model = bps.DistributedDataParallel(model, compression=compression)
    else:
        torch.distributed.init_process_group(
            "gloo", init_method="env://", rank=bps.rank(), world_size=bps.size()
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(bps.HookState(compression=compression), bps.ddp_hook)
    return model, optimizer


@pytest.mark.parametrize(("compression", "levels"), coded.KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["optimizer", "module", "hook"])
def test_gradients_are_averaged_in_blocks(compression, levels, dtype, way):
    model, optimizer = distributed(way, network(dtype), compression)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, bps.rank(), dtype).backward()
        optimizer.step()
    if way == "hook":
        torch.distributed.destroy_process_group()
    true = true_gradients(dtype)
    # DDP puts gradients of several sizes into one block.
    most = max(largest for _, largest in true)
    for param, (want, largest) in zip(model.parameters(), true):
        error = (param.grad.float() - want).abs().max()
        bound = coded.bound(levels, most if way == "hook" else largest)
        assert error <= bound * (1.1 if dtype == torch.bfloat16 else 1) + 1e-6
        assert is_same_everywhere(param.grad)
        # DDP puts small gradients into the blocks of large ones
        if way != "hook" and dtype == torch.float32:
            assert (error > 1e-6) == (param.numel() * 4 >= 1 << 16), "the wrong gradients are coded"


def test_factors_and_several_passes_apply_to_blocks():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0),
        model.named_parameters(),
        compression=bps.Compression.int8,
        backward_passes_per_step=2,
        gradient_predivide_factor=4.0,
    )
    for _ in range(2):
        loss_of(model, bps.rank()).backward()
    optimizer.synchronize()
    for param, (want, largest) in zip(model.parameters(), true_gradients()):
        assert (param.grad / 2 - want).abs().max() <= coded.bound(127, largest) + 1e-6


def test_residuals_make_up_for_the_errors_and_are_saved():
    grad, steps = values_of(bps.rank(), 20_000) * 0.01, 40
    grad[::256] = 1  # a large value in each block, beside which the others are lost
    want, lost = -bps.allreduce(grad) * steps, []
    for compression in (bps.Compression.int8, bps.Compression.int8.with_residual()):
        param = torch.nn.Parameter(torch.zeros(20_000))
        optimizer = torch.optim.SGD([param], lr=1)
        optimizer = bps.DistributedOptimizer(optimizer, [("w", param)], compression=compression)
        for step in range(steps):
            param.grad = None
            (param * grad).sum().backward()
            optimizer.step()
            if step == 20:
                state = bps.compression_state_dict()
                bps.load_compression_state_dict({})
                bps.load_compression_state_dict(state)
        lost.append((param.detach() - want).abs().mean().item())
    # The sums of machines and of the server are encoded without a residual.
    assert lost[1] < 0.8 * lost[0], lost
    state = {k: v for k, v in bps.compression_state_dict().items() if "grad/" in k}
    assert state and all(0 < np.abs(residual).max() <= 1 / 127 for residual in state.values())
    bps.scale_compression_state(0.5)
    scaled = bps.compression_state_dict()
    assert all((scaled[k] == v / 2).all() for k, v in state.items())


def test_infinities_arrive_as_nan_and_clear_the_residual():
    param = torch.nn.Parameter(torch.zeros(20_000))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=1),
        [("v", param)],
        compression=bps.Compression.int8.with_residual(),
    )
    grad = values_of(bps.rank(), 20_000)
    if bps.rank() == bps.size() - 1:
        grad[1000] = float("inf")
    (param * grad).sum().backward()
    optimizer.synchronize()
    block = slice(1000 // 256 * 256, 1000 // 256 * 256 + 256)
    assert param.grad[block].isnan().all() and param.grad.isnan().sum() == 256
    if bps.rank() == bps.size() - 1:
        residual = bps.compression_state_dict()[f"grad/{optimizer._bps_reducer.number}.0"]
        assert not residual[block].any() and residual.any()


@NEEDS_SCALER
def test_mixed_precision_skips_a_step_with_an_overflow():
    param = torch.nn.Parameter(torch.zeros(20_000))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=1), [("u", param)], compression=bps.Compression.int4
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    grad = torch.ones(20_000)
    grad[7] = float("inf") if bps.rank() == 0 else 1
    scaler.scale((param * grad).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    assert not param.detach().any() and scaler.get_scale() == 2.0


def test_a_worker_that_has_joined_sends_zeros():
    param = torch.nn.Parameter(torch.zeros(20_000))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=1), [("j", param)], op=bps.Sum, compression=bps.Compression.int8
    )
    for _ in range(1 + bps.rank()):
        param.grad = None
        param.sum().backward()
        optimizer.synchronize()
    bps.join()
    assert torch.allclose(param.grad, torch.ones(20_000), rtol=1e-2) or bps.rank() + 1 < bps.size()


@pytest.mark.parametrize("kind", _blocks.LAYOUTS)
def test_pytorch_and_the_library_encode_to_the_same_bytes(kind):
    job = _core.runtime().job
    for n in (1, 63, 1000, 5000):
        x = values_of(bps.rank(), n) * torch.exp2(torch.arange(n) % 40 - 20)
        if n > 2000:
            x[7], x[1500], x[4200] = float("nan"), float("inf"), 3e38
            x[2048:4096] = 0
        t = job.declare(f"same.{kind}.{n}", kind, n)
        t.fill(x.numpy())
        blocks = _blocks.encode(kind, x)
        assert (blocks.numpy() == t.input).all()
        t.push_pull()
        got = t.wait()
        want = t.read()
        decoded = _blocks.decode(kind, torch.from_numpy(got.copy()), n)
        assert np.array_equal(decoded.numpy(), want, equal_nan=True)


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_the_way_of_a_device_equals_that_of_the_host(kind):
    """The operations of a device run here on the processor."""
    n, cpu = 3000, torch.device("cpu")
    decls = [(f"{way}.{kind}", kind, n, cpu) for way in ("host", "device")]
    host, device = open_channels(_core.runtime(), decls, Coding(kind, has_residual=True))
    for step in range(3):
        x = values_of(bps.rank(), n, step)
        host.encode(0, x, 0.3)
        device.encode_on_device(0, x, 0.3)
        results = []
        for channel, decode in ((host, host.decode), (device, device.decode_on_device)):
            channel.push(bps.Sum)
            channel.finish()
            out = torch.empty(n)
            decode(out, 0.5)
            results.append(out)
        assert torch.equal(*results)
    state = bps.compression_state_dict()
    pair = [
        state[k]
        for k in sorted(state)
        if k.endswith(f"host.{kind}") or k.endswith(f"device.{kind}")
    ]
    assert np.array_equal(*pair)


@pytest.mark.parametrize("way", ["optimizer", "module", "hook"])
def test_some_values_of_gradients_are_averaged(way):
    compression = bps.Compression.randomk(0.1, seed=4)
    model, optimizer = distributed(way, network(), compression)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, bps.rank()).backward()
        optimizer.step()
        seen.append([p.grad != 0 for p in model.parameters()])
    if way == "hook":
        torch.distributed.destroy_process_group()
    true = [want for want, _ in true_gradients()]
    for param, want, first, last in zip(model.parameters(), true, seen[0], seen[-1]):
        assert is_same_everywhere(param.grad)
        assert torch.allclose(param.grad[last], want[last], atol=1e-6)
        if param.numel() * 4 >= 1 << 16:
            assert (first != last).any() and last.float().mean() == pytest.approx(0.1, rel=0.05)
        elif way != "hook":
            assert torch.allclose(param.grad, want, atol=1e-6)


def test_values_that_were_not_sent_are_sent_later():
    grad, steps = values_of(bps.rank(), 20_000), 50
    param = torch.nn.Parameter(torch.zeros(20_000))
    compression = bps.Compression.randomk(2000).with_residual()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=1), [("w", param)], op=bps.Sum, compression=compression
    )
    bps.load_compression_state_dict({})
    for _ in range(steps):
        param.grad = None
        (param * grad).sum().backward()
        optimizer.step()
    (mine,) = (v for k, v in bps.compression_state_dict().items() if "grad/" in k)
    kept = bps.allreduce(torch.from_numpy(mine), op=bps.Sum)
    want = steps * bps.allreduce(grad, op=bps.Sum)
    assert torch.allclose(kept - param.detach(), want, atol=1e-2), "a value was lost"


def test_a_worker_that_has_joined_sends_zeros_of_some_values():
    param = torch.nn.Parameter(torch.zeros(20_000))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=1),
        [("k", param)],
        op=bps.Sum,
        compression=bps.Compression.randomk(10**6),
    )
    for _ in range(1 + bps.rank()):
        param.grad = None
        param.sum().backward()
        optimizer.synchronize()
    bps.join()
    assert (param.grad == 1).all() or bps.rank() + 1 < bps.size()


def test_named_tensors_on_both_sides_of_the_limit_are_a_mismatch():
    n = 20_000 if bps.rank() == 0 else 100
    with pytest.raises(Error, match="workers disagree"):
        bps.allreduce(values_of(0, n), name="limit", compression=bps.Compression.int8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_named_tensors_keep_their_type(dtype):
    for n in (100, 10_000, 40_000):
        x = values_of(bps.rank(), n).to(dtype)
        out = bps.allreduce(x, name=f"{dtype}.{n}", op=bps.Sum, compression=bps.Compression.int8)
        want = sum(values_of(r, n).to(dtype).double() for r in ranks())
        assert out.dtype == dtype
        assert (out.double() - want).abs().max() <= 1.5 * bps.size() / 127 + 0.01 * bps.size()


def test_compressors_of_blocks_are_refused_where_they_cannot_work():
    x = values_of(bps.rank())
    with pytest.raises(ValueError, match="max needs the values themselves"):
        bps.allreduce(x, op=bps.Max, compression=bps.Compression.int8)
    for k in (0, -1, 1.5, True, "0.1", float("inf"), float("nan")):
        with pytest.raises(ValueError, match="k must be a fraction between 0 and 1"):
            bps.Compression.randomk(k)
    for wrong in ("int8", bps.Compression.int8.with_residual):
        with pytest.raises(TypeError, match="is not a compressor: pass a value of Compression"):
            bps.HookState(compression=wrong)
    some = bps.allreduce(x, op=bps.Sum, compression=bps.Compression.randomk(100))
    assert 98 <= (some != 0).sum() <= 100
    with pytest.raises(ValueError, match="needs the argument name"):
        bps.allreduce(x, compression=bps.Compression.int8.with_residual())
    with pytest.raises(NotImplementedError, match="pass the class as the argument"):
        bps.Compression.int8.compress(x)
    if coded.shares_a_machine():
        with pytest.raises(ValueError, match=r"use Compression\.int4"):
            bps.allreduce(x, name="s", compression=bps.Compression.sign)


@pytest.mark.parametrize("kind", ["gaps", "transposed"])
def test_gradients_of_parameters_with_gaps_in_memory_are_in_their_places(kind):
    whole = torch.zeros(128, 512)[:, :256]
    param = torch.nn.Parameter(whole if kind == "gaps" else whole.t())
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=0), [("w", param)], compression=bps.Compression.int8
    )
    grads = [values_of(r, param.numel()).view(param.shape) for r in ranks()]
    want = sum(grads) / bps.size()
    (param * grads[bps.rank()]).sum().backward()
    optimizer.step()
    assert (param.grad - want).abs().max() <= coded.bound(127)


@pytest.mark.parametrize("other", ["int8", "none", "fp16"])
def test_workers_that_disagree_about_the_coding_get_an_error(other):
    compression = bps.Compression.sign if bps.rank() == 0 else getattr(bps.Compression, other)
    with pytest.raises(Error, match=r"rank 0 has .*sent as sign"):
        bps.allreduce(values_of(0), name=f"mixed.{other}", compression=compression)


class Bucket:
    """A bucket of PyTorch's DistributedDataParallel."""

    index, is_last = staticmethod(lambda: 0), staticmethod(lambda: True)

    def __init__(self, n):
        self.buffer = lambda: values_of(0, n)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (bps.Compression.randomk(100), bps.Compression.randomk(100, seed=1)),
        (bps.Compression.randomk(1234567), bps.Compression.randomk(1234568)),
        (bps.Compression.sign, bps.Compression.int8),
        (bps.Compression.int8, bps.Compression.none),
    ],
)
def test_hooks_that_disagree_about_the_coding_get_an_error(kind, other):
    state = bps.HookState(compression=kind if bps.rank() == 0 else other)
    with pytest.raises(Error, match=r"bucket 0.*rank 0 has float32 \[50000\].*rank 1 has"):
        state.channel(Bucket(50_000))


def test_hooks_that_send_some_values_of_other_buckets_get_an_error():
    state = bps.HookState(compression=bps.Compression.randomk(100))
    with pytest.raises(Error, match=r"rank 0 has float32 \[40000\]"):
        state.channel(Bucket(40_000 + bps.rank()))


def test_a_hook_keeps_no_residual_of_a_bucket_that_is_gone():
    state = bps.HookState(compression=bps.Compression.int4.with_residual())
    for n in (40_000, 50_000):
        channel = state.channel(Bucket(n))
        channel.encode(0, values_of(0, n), 1.0)
    names = [k for k in bps.compression_state_dict() if f"ddp/{state.number}.0#" in k]
    assert names == [f"ddp/{state.number}.0#2"]
    with pytest.raises(ValueError, match="wire or compression"):
        bps.HookState(torch.float16, bps.Compression.int8)


@pytest.fixture(params=["float64", "bfloat16", "meta"])
def defaults(request):
    """Set another default type or device of PyTorch."""
    before = torch.get_default_dtype()
    if request.param == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(getattr(torch, request.param))
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_defaults_of_pytorch_do_not_matter(defaults, dtype):
    given = [torch.from_numpy(coded.values(r)).to(dtype) for r in ranks()]
    want = sum(one.double() for one in given) / bps.size()
    near = coded.bound(127) + 1e-2
    out = bps.allreduce(given[bps.rank()], compression=bps.Compression.int8)
    assert (out.double() - want).abs().max() <= near
    rows = bps.reducescatter(given[bps.rank()].view(-1, 100), compression=bps.Compression.int8)
    assert (bps.allgather(rows).double().view(-1) - want).abs().max() <= near
    param = torch.nn.Parameter(torch.zeros(coded.N, dtype=dtype, device="cpu"))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([param], lr=1), [("d", param)], compression=bps.Compression.int8
    )
    (param * given[bps.rank()]).sum().backward()
    optimizer.synchronize()
    assert (param.grad.double() - want).abs().max() <= near
    param.grad = None
    if bps.rank() == 0:
        (param * given[0]).sum().backward()
        optimizer.synchronize()
    bps.join()


def test_threads_send_signs_at_the_same_time():
    if coded.shares_a_machine():
        pytest.skip("two workers share an agent")

    def work(i):
        for _ in range(5):
            bps.allreduce(values_of(i), name=f"thread.{i}", compression=bps.Compression.sign)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))  # raises the errors of the threads
