"""Behaviour of Horovod that its users rely on, tested with bps.torch.

Every worker of a job runs these tests in the same order (tests/frontends/run.py).
"""

import copy
import inspect
import math

import barriers
import pytest
import torch

import bps.torch as bps

EMISMATCH = -10003
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SHAPES = [(), (1,), (17,), (4, 5), (2, 3, 4)]


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


@pytest.fixture
def some():
    """Yield a process set of the last two workers."""
    one = bps.add_process_set([bps.size() - 2, bps.size() - 1])
    yield one
    bps.remove_process_set(one)


def ranks():
    return range(bps.size())


def total(value=lambda rank: rank + 1):
    return sum(map(value, ranks()))


def mine(shape, dtype=torch.float32):
    return torch.full(shape, bps.rank() + 1).to(dtype)


def rows(n, dtype=torch.float32, rank=None):
    """Return a tensor of n rows that differ. ``rank``: the worker whose rows these are."""
    first = bps.rank() + 1 if rank is None else rank + 1
    return torch.arange(first, first + n).to(dtype).reshape(n, 1).repeat(1, 2)


def part(n, values):
    """Return this worker's part of a tensor whose n * size rows have these values."""
    return torch.tensor(values[n * bps.rank() : n * (bps.rank() + 1)]).reshape(n, 1).repeat(1, 2)


# ---- barrier ----


def test_a_barrier_waits_for_all_workers_and_that_of_a_set_for_its_own(some, tmp_path):
    path = bps.broadcast_object(tmp_path, 0)
    barriers.check(bps.barrier, path / "all", bps.rank(), ranks())
    barriers.check(lambda: bps.barrier(some), path / "some", bps.rank(), some.ranks)


# ---- allreduce ----


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_allreduce_in_place_takes_every_type_and_shape(dtype, shape):
    x = mine(shape, dtype)
    assert bps.allreduce_(x, op=bps.Sum) is x
    assert torch.equal(x, torch.full(shape, total()).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_min_max_and_product_take_every_type(dtype, op):
    values = [r + 1 for r in ranks()]
    want = {"Min": min, "Max": max, "Product": math.prod}[op](values)
    out = bps.allreduce(mine((5,), dtype), op=getattr(bps, op))
    assert out.dtype == dtype and (out == want).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_averaged(dtype):
    out = bps.allreduce(mine((3,), dtype) * bps.size())
    assert out.dtype == dtype and (out == total()).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_prescale_and_postscale_take_every_floating_point_type(dtype):
    for factors in ((0.5, 1.0), (1.0, 0.5), (0.25, 2.0)):
        out = bps.allreduce(
            mine((6,), dtype), op=bps.Sum, prescale_factor=factors[0], postscale_factor=factors[1]
        )
        assert out.dtype == dtype and (out == total() * 0.5).all()


def test_prescale_in_place_leaves_no_scaled_input_behind():
    x = mine((6,))
    handle = bps.allreduce_async_(x, op=bps.Sum, prescale_factor=0.5)
    assert bps.synchronize(handle) is x and (x == total() / 2).all()


def test_scaled_grouped_allreduce_scales_each_tensor():
    xs = [mine((n,)) for n in (1, 4)]
    for out in bps.grouped_allreduce(xs, op=bps.Sum, postscale_factor=0.5):
        assert (out == total() / 2).all()


def test_tensors_of_all_types_are_in_flight_at_once():
    kinds = [(d, s) for d in FLOATS + INTEGERS for s in SHAPES]
    handles = [bps.allreduce_async(mine(s, d), name=f"all.{d}.{s}", op=bps.Sum) for d, s in kinds]
    for (dtype, shape), handle in zip(kinds, handles):
        out = bps.synchronize(handle)
        assert torch.equal(out, torch.full(shape, total()).to(dtype))


def test_poll_is_true_at_last_and_a_second_wait_returns_the_same():
    handle = bps.allreduce_async(mine((4,)), op=bps.Sum)
    out = bps.synchronize(handle)
    assert bps.poll(handle) and bps.synchronize(handle) is out


def test_allreduce_of_a_parameter_in_place_needs_no_no_grad():
    p = torch.nn.Parameter(mine((3,)))
    bps.allreduce_(p, op=bps.Sum)
    assert (p == total()).all() and p.requires_grad and p.is_leaf


def test_a_result_needs_a_gradient_when_the_input_does():
    assert bps.allreduce(mine((3,)).requires_grad_()).requires_grad
    assert not bps.allreduce(mine((3,))).requires_grad


def test_a_strided_input_gives_a_contiguous_result():
    x = mine((6, 4)).t()
    out = bps.allreduce(x, op=bps.Sum)
    assert out.is_contiguous() and out.shape == (4, 6) and (out == total()).all()


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_the_gradient_of_allreduce_is_reduced_in_the_same_way(op):
    x = mine((5,)).requires_grad_()
    bps.allreduce(x, op=getattr(bps, op)).backward(torch.full((5,), float(bps.rank())))
    want = total(lambda r: r) / (bps.size() if op == "Average" else 1)
    assert torch.allclose(x.grad, torch.full((5,), want))


def test_the_gradient_of_a_scaled_allreduce_is_scaled():
    x = mine((2,)).requires_grad_()
    bps.allreduce(x, op=bps.Sum, prescale_factor=3.0).backward(mine((2,)))
    assert torch.allclose(x.grad, torch.full((2,), 3.0 * total()))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_other_operations_have_no_gradient_and_say_so(op):
    out = bps.allreduce(mine((2,)).requires_grad_(), op=getattr(bps, op))
    with pytest.raises(NotImplementedError, match="only Average and Sum"):
        out.sum().backward()


def test_an_unknown_argument_is_refused_by_name():
    with pytest.raises(TypeError, match="colour"):
        bps.allreduce_async(mine((2,)), colour="red")


def test_old_and_new_form_of_average_agree():
    x = mine((3,)) * bps.size()
    for options in ({"average": True}, {"op": bps.Average}):
        assert (bps.allreduce(x, **options) == total()).all()
    for options in ({"average": False}, {"op": bps.Sum}):
        assert (bps.allreduce(x, **options) == total() * bps.size()).all()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1 << 16, (1 << 20) + 1, 3 << 20])
def test_sizes_around_those_of_pieces(n):
    x = torch.arange(n, dtype=torch.float32)
    for step in range(3):
        out = bps.allreduce(x + bps.rank() + step, op=bps.Sum)
        assert torch.equal(out, (x + step) * bps.size() + sum(ranks()))


# ---- grouped ----


def test_a_group_mixes_types_and_shapes():
    xs = [mine(s, d) for s, d in (((), torch.float64), ((3,), torch.int32), ((2, 2), torch.half))]
    for x, out in zip(xs, bps.grouped_allreduce(xs, op=bps.Sum)):
        assert out.dtype == x.dtype and out.shape == x.shape and (out == total()).all()


def test_a_group_is_averaged_by_default_and_in_place():
    xs = [mine((n,)) for n in (2, 3)]
    assert all(a is b for a, b in zip(bps.grouped_allreduce_(xs), xs))
    assert all(torch.allclose(x, torch.full_like(x, total() / bps.size())) for x in xs)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_a_group_takes_every_operation(op):
    want = {"Min": min, "Max": max, "Product": math.prod}[op]([r + 1 for r in ranks()])
    outs = bps.grouped_allreduce([mine((2,)), mine((4,))], op=getattr(bps, op), name=f"group.{op}")
    assert all((out == want).all() for out in outs)


def test_a_group_has_gradients():
    xs = [mine((2,)).requires_grad_(), mine((3,)).requires_grad_()]
    outs = bps.grouped_allreduce(xs, op=bps.Sum)
    sum(o.sum() * (bps.rank() + i) for i, o in enumerate(outs, 1)).backward()
    for i, x in enumerate(xs):
        assert (x.grad == total() + i * bps.size()).all()


def test_an_empty_group_is_an_empty_list():
    assert bps.grouped_allreduce([]) == [] and bps.grouped_allgather([]) == []


def test_a_group_in_flight_polls_and_synchronizes_as_one():
    handle = bps.grouped_allreduce_async([mine((2,)), mine((3,))], op=bps.Sum, name="one")
    outs = bps.synchronize(handle)
    assert bps.poll(handle) and all((o == total()).all() for o in outs)


def test_shapes_in_a_group_that_differ_between_workers_are_an_error_at_all():
    with pytest.raises(bps.Error, match="workers disagree|declares"):
        bps.grouped_allreduce([torch.ones(2), torch.ones(3 + bps.rank())])
    assert (bps.allreduce(torch.ones(2), op=bps.Sum) == bps.size()).all()


GROUPED = {
    "grouped_allreduce": "(tensors, average, name, compression, op",
    "grouped_allreduce_": "(tensors, average, name, op",
    "grouped_allreduce_async": "(tensors, average, name, op",
    "grouped_allreduce_async_": "(tensors, average, name, op",
    "grouped_allgather": "(tensors, name, process_set)",
    "grouped_allgather_async": "(tensors, name, process_set)",
    "grouped_reducescatter": "(tensors, name, compression, op",
    "grouped_reducescatter_async": "(tensors, name, op, process_set",
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_call_has_the_arguments_of_the_single_call(name):
    call, single = getattr(bps, name), name.removeprefix("grouped_")
    arguments = ", ".join(inspect.signature(call).parameters)
    assert f"({arguments})".startswith(GROUPED[name])
    assert call.__name__ == name and f":func:`{single.rstrip('_')}" in call.__doc__
    with pytest.raises(TypeError, match="colour"):
        call([mine((bps.size(),))], colour="red")
    outs = call([mine((bps.size(), 2)), mine((bps.size(),))], name=f"arguments.{name}")
    assert len(bps.synchronize(outs) if "async" in name else outs) == 2


# ---- allgather ----


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2)])
def test_allgather_takes_every_type_and_shape(dtype, shape):
    out = bps.allgather(torch.full(shape, bps.rank()).to(dtype))
    assert torch.equal(out, torch.cat([torch.full(shape, r).to(dtype) for r in ranks()]))


def test_allgather_of_a_strided_tensor():
    out = bps.allgather(mine((4, 2)).t())
    assert out.shape == (2 * bps.size(), 4) and out[::2, 0].tolist() == [r + 1 for r in ranks()]


def test_allgather_of_nothing_at_all():
    assert bps.allgather(torch.empty(0, 3)).shape == (0, 3)


def test_allgathers_handle_returns_the_rows():
    handle = bps.allgather_async(mine((1, 2)), name="rows")
    assert bps.synchronize(handle)[:, 0].tolist() == [r + 1 for r in ranks()]
    assert bps.poll(handle)


def test_allgather_refuses_types_that_differ_at_all():
    with pytest.raises(bps.Error, match="allgather: rank"):
        bps.allgather(torch.ones(2, dtype=torch.int32 if bps.rank() else torch.int64))
    assert bps.allgather(torch.ones(1)).numel() == bps.size()


def test_grouped_allgather_gathers_each_tensor():
    xs = [mine((bps.rank() + 1,)), mine((1, 2), torch.int64)]
    for outs in (
        bps.grouped_allgather(xs),
        bps.synchronize(bps.grouped_allgather_async(xs, name="group")),
    ):
        assert outs[0].tolist() == [r + 1 for r in ranks() for _ in range(r + 1)]
        assert outs[1].shape == (bps.size(), 2) and outs[1].dtype == torch.int64


def test_grouped_allgather_has_gradients():
    xs = [mine((bps.rank() + 1,)).requires_grad_(), mine((2,)).requires_grad_()]
    (sum(o.sum() for o in bps.grouped_allgather(xs)) * (bps.rank() + 1)).backward()
    assert all(torch.allclose(x.grad, torch.full_like(x, total() / bps.size())) for x in xs)


# ---- broadcast ----


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (0,), (2, 0)])
def test_broadcast_takes_every_shape(shape):
    for root in ranks():
        out = bps.broadcast(mine(shape), root)
        assert out.shape == torch.Size(shape) and (out == root + 1).all()


def test_broadcast_in_place_of_a_strided_tensor():
    base = torch.zeros(4, 6)
    x = base[:, ::2]
    x += bps.rank()
    bps.broadcast_(x, bps.size() - 1)
    assert (base[:, ::2] == bps.size() - 1).all() and (base[:, 1::2] == 0).all()


def test_broadcast_in_place_of_a_parameter_needs_no_no_grad():
    p = torch.nn.Parameter(mine((3,)))
    assert bps.broadcast_(p, 0) is p and (p == 1).all() and p.is_leaf


def test_broadcasts_handles_return_the_values():
    x = mine((2,))
    out = bps.synchronize(bps.broadcast_async(x, 1))
    assert (out == 2).all() and (x == bps.rank() + 1).all()
    assert bps.synchronize(bps.broadcast_async_(x, 0)) is x and (x == 1).all()


def test_broadcast_of_bits_keeps_nan_and_infinity():
    x = torch.tensor([float("nan"), float("-inf"), -0.0]) if bps.rank() == 0 else torch.ones(3)
    out = bps.broadcast(x, 0)
    assert out[0].isnan() and out[1] == -math.inf and math.copysign(1, out[2].item()) == -1


# ---- alltoall ----


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_alltoall_takes_every_type(dtype):
    out, received = bps.alltoall(
        torch.full((2 * bps.size(), 3), bps.rank()).to(dtype), [2] * bps.size()
    )
    want = torch.arange(bps.size()).repeat_interleave(2).to(dtype)
    assert torch.equal(out[:, 0], want) and received.tolist() == [2] * bps.size()


def test_alltoall_where_one_worker_sends_nothing():
    n = 0 if bps.rank() == 0 else 1
    out, received = bps.alltoall(torch.full((n * bps.size(),), bps.rank()), [n] * bps.size())
    assert out.tolist() == list(ranks())[1:] and received.tolist() == [0, *[1] * (bps.size() - 1)]


def test_alltoall_where_one_worker_receives_nothing():
    splits = [0, *[1] * (bps.size() - 1)]
    out, received = bps.alltoall(torch.full((bps.size() - 1,), bps.rank()), splits)
    assert out.tolist() == ([] if bps.rank() == 0 else list(ranks()))
    assert received.tolist() == [int(bps.rank() > 0)] * bps.size()


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor])
def test_alltoall_takes_splits_as_lists_and_tensors(kind):
    out, _ = bps.alltoall(torch.arange(bps.size()), splits=kind([1] * bps.size()))
    assert out.tolist() == [bps.rank()] * bps.size()


def test_alltoalls_handle_returns_rows_and_counts():
    handle = bps.alltoall_async(torch.arange(bps.size()), [1] * bps.size(), name="a2a")
    out, received = bps.synchronize(handle)
    assert out.tolist() == [bps.rank()] * bps.size() and received.tolist() == [1] * bps.size()


def test_alltoall_refuses_types_that_differ_at_all():
    kind = torch.int32 if bps.rank() else torch.int64
    with pytest.raises(bps.Error, match="alltoall: rank"):
        bps.alltoall(torch.ones(bps.size(), dtype=kind))
    assert bps.alltoall(torch.arange(bps.size())).numel() == bps.size()


def test_the_gradient_of_alltoall_with_splits_goes_back():
    splits = [r + 1 for r in ranks()]
    x = torch.ones(sum(splits), 2, requires_grad=True)
    out, _ = bps.alltoall(x, splits)
    (out * (bps.rank() + 1)).sum().backward()
    want = torch.tensor([r + 1.0 for r in ranks()]).repeat_interleave(torch.tensor(splits))
    assert torch.equal(x.grad[:, 0], want)


# ---- reducescatter ----


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_reducescatter_takes_every_type(dtype):
    out = bps.reducescatter(rows(2 * bps.size(), dtype), op=bps.Sum)
    want = part(2, [total() + bps.size() * row for row in range(2 * bps.size())])
    assert out.dtype == dtype and torch.equal(out, want.to(dtype))


def test_reducescatter_averages_by_default():
    out = bps.reducescatter(rows(bps.size()))
    assert torch.allclose(out, torch.full((1, 2), total() / bps.size() + bps.rank()))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_reducescatter_takes_every_operation(op):
    fold = {"Min": min, "Max": max, "Product": math.prod}[op]
    want = fold([r + 1 + bps.rank() for r in ranks()])
    assert bps.reducescatter(rows(bps.size()), op=getattr(bps, op)).tolist() == [[want] * 2]


def test_reducescatter_of_fewer_rows_than_workers_leaves_the_last_without():
    out = bps.reducescatter(mine((1, 3)), op=bps.Sum)
    assert out.shape == ((1, 3) if bps.rank() == 0 else (0, 3)) and (out == total()).all()


def test_reducescatter_scales_before_and_after():
    x = mine((bps.size(),))
    for factors in ({"prescale_factor": 0.5}, {"postscale_factor": 0.5}):
        assert bps.reducescatter(x, op=bps.Sum, **factors).tolist() == [total() / 2]


def test_reducescatter_refuses_scalars_and_adasum():
    with pytest.raises(ValueError, match="one dimension"):
        bps.reducescatter(torch.tensor(1.0))
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.reducescatter(torch.ones(4), op=bps.Adasum)


def test_reducescatter_of_shapes_that_differ_is_an_error_at_all():
    with pytest.raises(bps.Error, match="workers disagree") as caught:
        bps.reducescatter(torch.ones(4 + bps.rank()))
    assert caught.value.code == EMISMATCH


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_the_gradient_of_reducescatter_goes_to_all(op):
    x = torch.ones(2 * bps.size(), requires_grad=True)
    out = bps.reducescatter(x, op=getattr(bps, op))
    (out * (bps.rank() + 1)).sum().backward()
    want = torch.tensor([r + 1.0 for r in ranks()]).repeat_interleave(2)
    assert torch.allclose(x.grad, want / (bps.size() if op == "Average" else 1))


def test_reducescatters_handle_and_groups():
    xs = [rows(bps.size()), rows(2 * bps.size(), torch.int64)]
    want = [part(n, [total() + bps.size() * i for i in range(n * bps.size())]) for n in (1, 2)]
    assert (bps.synchronize(bps.reducescatter_async(xs[0], op=bps.Sum)) == want[0]).all()
    for outs in (
        bps.grouped_reducescatter(xs, op=bps.Sum),
        bps.synchronize(bps.grouped_reducescatter_async(xs, op=bps.Sum, name="scattered")),
    ):
        assert outs[0].dtype == torch.float32 and torch.equal(outs[0], want[0].float())
        assert torch.equal(outs[1], want[1])


def test_reducescatter_with_compression_keeps_the_type():
    out = bps.reducescatter(mine((bps.size(),)), compression=bps.Compression.fp16, op=bps.Sum)
    assert out.dtype == torch.float32 and out.tolist() == [total()]


# ---- several in flight ----

ASYNCHRONOUS = {
    "broadcast": lambda x: bps.broadcast_async(x, 0),
    "broadcast in place": lambda x: bps.broadcast_async_(x, 0),
    "allgather": bps.allgather_async,
    "grouped allgather": lambda x: bps.grouped_allgather_async([x, 2 * x]),
    "alltoall": lambda x: bps.alltoall_async(x, [1] * bps.size()),
    "reducescatter": bps.reducescatter_async,
    "grouped reducescatter": lambda x: bps.grouped_reducescatter_async([x, 2 * x]),
}


def results(what):
    """Return the results of an asynchronous call with ``rows(bps.size())``, as a list."""
    n, me = bps.size(), bps.rank()
    everyones = [rows(n, rank=r) for r in ranks()]
    mean = sum(everyones)[me : me + 1] / n
    return {
        "broadcast": [everyones[0]],
        "broadcast in place": [everyones[0]],
        "allgather": [torch.cat(everyones)],
        "grouped allgather": [torch.cat(everyones), 2 * torch.cat(everyones)],
        "alltoall": [torch.stack([x[me] for x in everyones]), torch.ones(n, dtype=torch.int32)],
        "reducescatter": [mean],
        "grouped reducescatter": [mean, 2 * mean],
    }[what]


def check_results(what, given):
    """Check what ``synchronize`` returned for an asynchronous call with ``rows(bps.size())``."""
    given, want = [given] if torch.is_tensor(given) else list(given), results(what)
    assert len(given) == len(want)
    for out, one in zip(given, want):
        assert out.dtype == one.dtype and out.shape == one.shape and torch.allclose(out, one)


@pytest.mark.parametrize("what", ASYNCHRONOUS)
def test_an_asynchronous_call_returns_before_the_others_have_made_it(what):
    x = rows(bps.size())
    if bps.rank():
        bps.barrier()  # returns after rank 0 has made the asynchronous call
    handle = ASYNCHRONOUS[what](x)
    if bps.rank() == 0:
        assert not bps.poll(handle)
        bps.barrier()
    check_results(what, bps.synchronize(handle))
    assert bps.poll(handle)
    check_results(what, bps.synchronize(handle))


@pytest.mark.parametrize("what", ["allgather", "alltoall"])
def test_a_worker_that_waits_at_once_needs_no_call_of_the_others(what):
    handle = ASYNCHRONOUS[what](rows(bps.size()))
    if bps.rank() == 0:
        check_results(what, bps.synchronize(handle))
    bps.barrier()  # the other ranks reach this line first, and wait for rank 0
    check_results(what, bps.synchronize(handle))


def test_broadcasts_in_flight_of_many_sizes_end_in_any_order():
    sizes = [1, 0, 70_000, 3, 1 << 20, (3 << 20) + 5, 64, 2]
    xs = [torch.full((n,), bps.rank() * 10.0 + i) for i, n in enumerate(sizes)]
    handles = [bps.broadcast_async(x, i % bps.size()) for i, x in enumerate(xs)]
    kept = [x.clone() for x in xs]
    for x in xs:
        x.zero_()  # the values have been copied
    order = list(range(len(xs)))
    for i in order if bps.rank() == 0 else reversed(order):
        out = bps.synchronize(handles[i])
        assert out is not xs[i] and out.shape == (sizes[i],)
        assert torch.equal(out, torch.full_like(kept[i], i % bps.size() * 10.0 + i))


@pytest.mark.parametrize("dtype", [torch.int16, torch.bool, torch.complex64, torch.bfloat16])
def test_broadcasts_in_flight_carry_types_that_cannot_be_summed(dtype):
    xs = [torch.full((4, 2), bps.rank() == i).to(dtype) for i in ranks()]
    handles = [bps.broadcast_async_(x, i) for i, x in enumerate(xs)]
    for x, handle in zip(xs, handles):
        assert bps.synchronize(handle) is x and (x == 1).all()


def test_a_broadcast_in_flight_writes_a_strided_tensor():
    base = torch.zeros(4, 6)
    x = base[:, ::2]
    x += bps.rank() + 1
    handle = bps.broadcast_async_(x, bps.size() - 1)
    assert bps.synchronize(handle) is x and (x == bps.size()).all()
    assert (base[:, 1::2] == 0).all()


def gathered(i, n):
    return torch.cat([torch.full((n + r * (i % 3), 2), r + 10.0 * i) for r in ranks()])


def test_gathers_in_flight_of_many_sizes_end_in_any_order():
    sizes = [1, 0, 5000, 3, 0, 300_000, 64, 2, 90_000]
    xs = [
        torch.full((n + bps.rank() * (i % 3), 2), bps.rank() + 10.0 * i)
        for i, n in enumerate(sizes)
    ]
    handles = [bps.allgather_async(x) for x in xs]
    for x in xs:
        x.zero_()  # the values have been copied
    order = list(range(len(xs)))
    for i in order if bps.rank() == 0 else reversed(order):
        assert torch.equal(bps.synchronize(handles[i]), gathered(i, sizes[i]))


def test_gathers_in_flight_do_not_mix_with_other_operations():
    handles, want = [], []
    for i in range(40):
        x = torch.full((1000 * (i % 4) + 1, 2), float(i))
        own = x + bps.rank()
        handles += [bps.allgather_async(own), bps.allreduce_async(own, op=bps.Sum)]
        handles += [bps.broadcast_async(own, i % bps.size())]
        want += [torch.cat([x + r for r in ranks()]), x * bps.size() + sum(ranks())]
        want += [x + i % bps.size()]
        if i % 10 == 9:
            assert torch.equal(bps.allgather(own), want[-3])
    for handle, one in zip(reversed(handles), reversed(want)):
        assert torch.equal(bps.synchronize(handle), one)


def test_a_gather_of_other_shapes_fails_alone_at_all():
    handles = [
        bps.allgather_async(mine((2, 3))),
        bps.allgather_async(torch.ones(2, 3 + bps.rank())),
        bps.allgather_async(torch.ones(2, 3).to(torch.int32 if bps.rank() else torch.int64)),
        bps.allgather_async(mine((2, 3))),
    ]
    for handle in handles[1:3]:
        for _ in range(2):
            with pytest.raises(bps.Error, match=r"allgather: rank . has shape \[\?, "):
                bps.synchronize(handle)
        assert bps.poll(handle)
    for handle in (handles[0], handles[3]):
        assert bps.synchronize(handle)[::2, 0].tolist() == [r + 1 for r in ranks()]


@pytest.mark.parametrize("other", ["allgather", "size", "type", "root"])
def test_a_broadcast_in_flight_that_differs_is_an_error_at_all(other):
    calls = {
        "allgather": lambda: bps.allgather_async(torch.ones(3)),
        "size": lambda: bps.broadcast_async(torch.ones(99_999), 0),
        "type": lambda: bps.broadcast_async(torch.ones(3, dtype=torch.int16), 0),
        "root": lambda: bps.broadcast_async(torch.ones(3), 1),
    }
    call = calls[other] if bps.rank() else lambda: bps.broadcast_async(torch.ones(3), 0)
    behind = lambda: bps.allgather_async(torch.ones(2))  # noqa: E731
    for handle in [call(), behind()]:
        with pytest.raises(bps.Error, match="workers disagree") as caught:
            bps.synchronize(handle)
        assert caught.value.code == EMISMATCH and bps.poll(handle)
    assert bps.synchronize(behind()).tolist() == [1.0] * 2 * bps.size()
    assert bps.broadcast(mine((2,)), 0).tolist() == [1, 1]


def test_broadcasts_of_16_and_of_32_bits_are_an_error_at_all():
    with pytest.raises(bps.Error, match="workers disagree"):
        bps.broadcast(torch.ones(3, dtype=torch.int16 if bps.rank() else torch.int32), 0)


def test_gathers_and_broadcasts_of_a_set_are_in_flight(some):
    if some.included():
        last = some.ranks[-1]
        handles = [bps.allgather_async(mine((1,)), process_set=some) for _ in range(3)]
        handles += [bps.broadcast_async(mine((1,)), last, process_set=some) for _ in range(3)]
        for i, handle in enumerate(handles):
            want = [r + 1 for r in some.ranks] if i < 3 else [last + 1]
            assert bps.synchronize(handle).tolist() == want


# ---- compression ----


class WithATorchType(bps.Compressor):
    """A compressor that names its type as PyTorch does."""

    wire = torch.bfloat16


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (bps.Compression.fp16, torch.float16),
        (bps.Compression.bf16, torch.bfloat16),
        (WithATorchType, torch.bfloat16),
    ],
)
def test_compression_casts_floats_and_leaves_integers(kind, wire):
    for dtype in FLOATS + INTEGERS:
        x = torch.tensor([1, 2, 3]).to(dtype)
        small, context = kind.compress(x)
        assert small.dtype == (wire if dtype.is_floating_point else dtype)
        out = kind.decompress(small, context)
        assert out.dtype == dtype and torch.equal(out, x)


def test_no_compression_hands_the_tensor_through():
    x = torch.ones(3)
    small, context = bps.Compression.none.compress(x)
    assert small is x and bps.Compression.none.decompress(small, context) is x


# ---- process sets ----


def test_disjoint_sets_reduce_at_the_same_time():
    sets = [bps.add_process_set(ranks()[first::2]) for first in (0, 1)]
    own = sets[bps.rank() % 2]
    for _ in range(3):
        handle = bps.allreduce_async(mine((3,)), op=bps.Sum, process_set=own)
        everyones = bps.allreduce(mine((3,)), op=bps.Sum)
        assert (bps.synchronize(handle) == sum(r + 1 for r in own.ranks)).all()
        assert (everyones == total()).all()
    assert [s.process_set_id for s in sets] == sorted(s.process_set_id for s in sets)
    for one in sets:
        bps.remove_process_set(one)


def test_a_set_may_be_made_of_a_range_and_has_no_rank_twice():
    one = bps.add_process_set(range(bps.size()))
    assert one.ranks == list(ranks()) and one.included() and one.rank() == bps.rank()
    assert (bps.allreduce(mine((2,)), op=bps.Sum, process_set=one) == total()).all()
    bps.remove_process_set(one)


def test_a_set_needs_no_call_of_another_set():
    sets = [bps.add_process_set(ranks()[first::2]) for first in (0, 1)]
    if bps.rank() % 2:
        bps.barrier()  # returns after the other set has reduced
    own = sets[bps.rank() % 2]
    out = bps.allreduce(mine((3,)), op=bps.Sum, process_set=own)
    assert (out == sum(r + 1 for r in own.ranks)).all()
    if bps.rank() % 2 == 0:
        bps.barrier()
    for one in sets:
        bps.remove_process_set(one)


def test_a_sets_average_is_over_its_own_workers(some):
    if some.included():
        out = bps.allreduce(mine((2,)), process_set=some)
        assert torch.allclose(out, torch.full((2,), bps.size() - 0.5))


def test_gradients_of_a_sets_collectives_stay_in_the_set(some):
    if some.included():
        x = mine((2,)).requires_grad_()
        factor = some.rank() + 1
        (bps.allreduce(x, op=bps.Sum, process_set=some).sum() * factor).backward()
        assert (x.grad == 1 + 2).all()
        y = mine((1,)).requires_grad_()
        (bps.allgather(y, process_set=some).sum() * factor).backward()
        assert y.grad.item() == (1 + 2) / 2


def test_mismatches_in_a_set_are_errors_in_the_set_alone(some):
    if some.included():
        with pytest.raises(bps.Error, match="workers disagree"):
            bps.allreduce(torch.ones(3 + some.rank()), process_set=some)
        out = bps.allreduce(mine((3,)), op=bps.Sum, process_set=some)
        assert out.tolist() == [2 * bps.size() - 1] * 3
    assert (bps.allreduce(mine((3,)), op=bps.Sum) == total()).all()


def test_objects_of_a_set(some):
    if some.included():
        last = some.ranks[-1]
        assert bps.broadcast_object({"from": bps.rank()}, last, process_set=some) == {"from": last}
        assert bps.allgather_object(bps.rank(), process_set=some) == some.ranks


# ---- state ----

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {"lr": 0.1},
    "Adamax": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "RMSprop": {"lr": 0.1, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.1},
}


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizers_state_reaches_workers_without_one(name):
    model = torch.nn.Linear(3, 2)
    options = dict(OPTIMIZERS[name], lr=0.1 * (bps.rank() + 1))
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    if bps.rank() == 0:
        step(model, optimizer)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state_dict()
    given = bps.broadcast_object(state, 0)
    assert state["param_groups"] == given["param_groups"]
    assert state["state"].keys() == given["state"].keys()
    for one, other in zip(state["state"].values(), given["state"].values()):
        for key, value in other.items():
            same = torch.equal(one[key], value) if torch.is_tensor(value) else one[key] == value
            assert same and type(one[key]) is type(value), key
    step(model, optimizer)


def test_options_keep_their_types():
    model = torch.nn.Linear(2, 2)
    groups = [{"params": model.weight, "lr": 0.5}, {"params": model.bias, "weight_decay": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.1 * (bps.rank() + 1), momentum=0.5, nesterov=True)
    bps.broadcast_optimizer_state(optimizer, 0)
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"], second["weight_decay"]) == (0.5, 0.1, 0.25)
    assert first["nesterov"] is True and type(first["momentum"]) is float
    assert first["maximize"] is False


def test_state_of_frozen_parameters_is_left_out():
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    bps.broadcast_optimizer_state(optimizer, 0)
    assert model.bias.grad is None and len(optimizer.state_dict()["state"]) == 1


def test_a_second_broadcast_of_the_state_changes_nothing():
    model = torch.nn.Linear(3, 2)
    bps.broadcast_parameters(model.state_dict(), 0)
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    bps.broadcast_optimizer_state(optimizer, 0)
    before = copy.deepcopy(optimizer.state_dict())
    bps.broadcast_optimizer_state(optimizer, 0)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys() and len(before["state"]) == 2
    for one, other in zip(after["state"].values(), before["state"].values()):
        assert one["exp_avg"].any() and one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in other)


def test_parameters_are_broadcast_from_every_root_and_kind_of_list():
    for root in ranks():
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        for p in model.parameters():
            torch.nn.init.constant_(p, float(bps.rank()))
        given = (model.state_dict(), model.named_parameters(), list(model.parameters()))
        bps.broadcast_parameters(given[root % 3], root)
        assert all((p == root).all() for p in model.parameters())


def test_parameters_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="state_dict"):
        bps.broadcast_parameters(None, 0)
    with pytest.raises(ValueError, match="state_dict"):
        bps.broadcast_parameters(torch.ones(3), 0)


# ---- optimizer ----


def wrapped(model, **options):
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return bps.DistributedOptimizer(sgd, model.named_parameters(), **options)


def test_parameters_may_stop_and_start_to_need_gradients_between_steps():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    bps.broadcast_parameters(model.state_dict())
    optimizer = wrapped(model)
    for frozen in (0, 1, 0):
        for i, layer in enumerate(model):
            layer.requires_grad_(i != frozen)
        before = [p.detach().clone() for p in model[frozen].parameters()]
        moving = model[1 - frozen].weight.detach().clone()
        optimizer.zero_grad()
        model(mine((1, 2))).sum().backward()
        optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(model[frozen].parameters(), before))
        assert not torch.equal(model[1 - frozen].weight, moving)
    for layer in model:
        gathered = bps.allgather(layer.weight.detach().reshape(1, -1))
        assert (gathered == gathered[0]).all()


def test_names_are_not_needed():
    model = torch.nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    (model(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    optimizer.synchronize()
    assert torch.allclose(model.bias.grad, torch.full((2,), total() / bps.size()))


def test_sums_instead_of_averages():
    model = torch.nn.Linear(2, 2)
    optimizer = wrapped(model, op=bps.Sum)
    (model(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    optimizer.synchronize()
    assert torch.allclose(model.bias.grad, torch.full((2,), float(total())))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_gradients_are_averaged_or_summed_and_nothing_else(op):
    with pytest.raises(ValueError, match="Average or Sum"):
        wrapped(torch.nn.Linear(2, 2), op=getattr(bps, op))


def test_predivision_needs_an_average():
    with pytest.raises(ValueError, match="needs op=Average"):
        wrapped(torch.nn.Linear(2, 2), op=bps.Sum, gradient_predivide_factor=2.0)


def test_the_number_of_passes_may_change_between_steps():
    model = torch.nn.Linear(2, 2)
    optimizer = wrapped(model)
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        (model(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    optimizer.synchronize()
    assert torch.allclose(model.bias.grad, torch.full((2,), 2 * total() / bps.size()))
    with pytest.raises(ValueError, match="must be 1 or more"):
        optimizer.set_backward_passes_per_step(0)


def test_the_number_of_passes_stays_between_backward_and_step():
    model = torch.nn.Linear(2, 2)
    optimizer = wrapped(model)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="between backward"):
        optimizer.set_backward_passes_per_step(2)
    optimizer.step()


def test_groups_of_horovods_are_accepted():
    model = torch.nn.Linear(2, 2)
    bias = model.bias.detach().clone()
    optimizer = wrapped(model, num_groups=2, groups=[[model.weight], [model.bias]])
    (model(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    optimizer.step()
    mean = total() / bps.size()
    assert all(torch.allclose(p.grad, torch.full_like(p, mean)) for p in model.parameters())
    assert torch.allclose(bias - model.bias, torch.full((2,), mean))


def test_parameters_without_elements_are_trained_with_the_others():
    model = torch.nn.Linear(2, 2)
    model.none = torch.nn.Parameter(torch.empty(0))
    optimizer = wrapped(model)
    bias = model.bias.detach().clone()
    (model(mine((1, 2))).sum() * (bps.rank() + 1) + model.none.sum()).backward()
    optimizer.step()
    assert model.none.grad.shape == (0,)
    squares = total(lambda r: (r + 1) ** 2) / bps.size()
    assert torch.allclose(model.weight.grad, torch.full((2, 2), squares))
    assert torch.allclose(bias - model.bias, torch.full((2,), total() / bps.size()))


def test_a_state_that_is_loaded_is_used():
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    optimizer = bps.DistributedOptimizer(sgd, model.named_parameters())
    (model(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.25
    state["state"][1]["momentum_buffer"].fill_(10.0)  # that of the bias
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.25
    bias = model.bias.detach().clone()
    optimizer.zero_grad()
    (model(torch.ones(1, 2)) * (bps.rank() + 1)).sum().backward()
    optimizer.step()
    moved = 0.25 * (0.9 * 10 + total() / bps.size())
    assert torch.allclose(bias - model.bias, torch.full((2,), moved))


def test_parameters_may_be_added_as_a_group_of_their_own():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5}]
    sgd = torch.optim.SGD(groups, lr=1.0)
    optimizer = bps.DistributedOptimizer(sgd, model.named_parameters())
    bias = [layer.bias.detach().clone() for layer in model]
    (model[1](model[0](torch.ones(1, 2))).sum() * (bps.rank() + 1)).backward()
    optimizer.step()
    assert torch.allclose(bias[1] - model[1].bias, torch.full((2,), 0.5 * total() / bps.size()))
    assert torch.allclose(bias[0] - model[0].bias, model[0].bias.grad)


def test_gradients_of_two_types_travel_together():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double()])
    optimizer = wrapped(model)
    for layer, dtype in zip(model, (torch.float32, torch.float64)):
        (layer(torch.ones(1, 2, dtype=dtype)) * (bps.rank() + 1)).sum().backward()
    optimizer.synchronize()
    for layer in model:
        assert torch.allclose(
            layer.bias.grad, torch.full_like(layer.bias.grad, total() / bps.size())
        )


def test_models_that_differ_between_workers_are_an_error_at_all():
    model = torch.nn.Linear(2 + bps.rank(), 3)
    with pytest.raises(bps.Error, match="declares|disagree") as caught:
        optimizer = wrapped(model, sparse_as_dense=True)
        model(torch.ones(1, 2 + bps.rank())).sum().backward()
        optimizer.step()
    assert caught.value.code == EMISMATCH
    optimizer = None
    bps.barrier()
