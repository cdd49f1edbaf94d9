"""bps.torch: all workers of a job run these tests in the same order."""

import copy
import gc
import inspect
import io
import os
import pickle
import re
import time
import uuid
import warnings
import weakref

import pytest
import torch

import bps.torch as bps
from bps import _core
from bps import _tensor as bps_tensor
from bps.torch import _reducer
from bps.torch._channels import open_channels


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


EMISMATCH = -10003
NEEDS_SCALER = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="PyTorch 2.3")
RANK_TYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
]


def ranks():
    return range(bps.size())


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(
        dtype
    )


def batch():
    torch.manual_seed(7)
    return torch.randn(24, 6, dtype=torch.float64), torch.randn(24, 3, dtype=torch.float64)


def same_everywhere(tensor):
    all_ = bps.allgather(tensor.detach().reshape(1, -1))
    return all(torch.equal(all_[0], row) for row in all_)


def train(model, optimizer, steps=10, rows=slice(None)):
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(x[rows]) - y[rows]) ** 2).mean().backward()
        optimizer.step()


def mine():
    """Return the slice of the batch's rows that this worker uses."""
    return slice(bps.rank() * 24 // bps.size(), (bps.rank() + 1) * 24 // bps.size())


# ---- place ----


def test_place_is_that_of_the_launcher():
    assert sorted(bps.allgather_object(bps.rank())) == list(ranks())
    hosts = bps.allgather_object(os.environ["BPS_AGENT_SOCKET"])
    mine = hosts[bps.rank()]
    assert bps.local_size() == hosts.count(mine)
    assert bps.local_rank() == hosts[: bps.rank()].count(mine)
    assert bps.is_initialized()


# ---- allreduce ----


@pytest.mark.parametrize("dtype", [*RANK_TYPES, torch.bfloat16, torch.int16])
@pytest.mark.parametrize("shape", [(17,), (17, 17), (3, 5, 7)])
def test_allreduce_sums_every_type_and_shape(dtype, shape):
    x = torch.full(shape, bps.rank() + 1).to(dtype)
    out = bps.allreduce(x, op=bps.Sum)
    assert out.dtype == dtype and out.shape == x.shape
    assert torch.equal(out, torch.full(shape, sum(r + 1 for r in ranks())).to(dtype))


def test_allreduce_averages_by_default():
    out = bps.allreduce(torch.full((5,), float(bps.rank())))
    assert torch.allclose(out, torch.full((5,), sum(ranks()) / bps.size()))


@pytest.mark.parametrize(("op", "fold"), [(bps.Min, min), (bps.Max, max)])
def test_allreduce_takes_the_least_and_the_most(op, fold):
    values = [torch.tensor([r, -r, 2 * r]) for r in ranks()]
    want = torch.tensor([fold(v[i].item() for v in values) for i in range(3)])
    assert torch.equal(bps.allreduce(values[bps.rank()], op=op), want)


def test_allreduce_multiplies():
    out = bps.allreduce(torch.full((3,), float(bps.rank() + 2)), op=bps.Product)
    assert torch.equal(out, torch.full((3,), float(torch.tensor([r + 2 for r in ranks()]).prod())))


def test_allreduce_scales_before_and_after():
    x = torch.full((4,), float(bps.rank() + 1))
    out = bps.allreduce(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.allclose(out, torch.full((4,), 2.0 * sum(r + 1 for r in ranks())))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("name", [None, "scaled"])
def test_allreduce_scales_integers_in_f64(dtype, name):
    def reduce(values, op=bps.Sum, **factors):
        x = torch.tensor(values, dtype=dtype)
        return bps.allreduce(x, op=op, name=name, **factors).tolist()

    n = bps.size()
    assert reduce([10, 21], prescale_factor=0.5) == [5 * n, 10 * n]
    assert reduce([10, 21], postscale_factor=0.5) == [5 * n, 21 * n // 2]
    assert reduce([10, 21], prescale_factor=0.1, postscale_factor=3.0) == [3 * n, 6 * n]
    assert reduce([2 + bps.rank(), 5], bps.Average, postscale_factor=3.0) == [
        sum(2 + r for r in ranks()) * 3 // n,
        15,
    ]
    if dtype == torch.int64:
        assert reduce([2**40 + 1], postscale_factor=1 / n) == [2**40 + 1]
    with pytest.raises(ValueError, match="bools cannot be scaled"):
        bps.allreduce(torch.ones(3, dtype=torch.bool), op=bps.Sum, prescale_factor=0.5)


def test_allreduce_leaves_its_input_alone():
    x = torch.full((100,), float(bps.rank()))
    bps.allreduce(x, op=bps.Sum)
    assert torch.equal(x, torch.full((100,), float(bps.rank())))


def test_allreduce_in_place_writes_its_input():
    x = torch.full((4, 4), float(bps.rank()))
    assert bps.allreduce_(x, op=bps.Sum) is x
    assert torch.equal(x, torch.full((4, 4), float(sum(ranks()))))


def test_allreduce_in_place_of_a_strided_tensor():
    base = torch.zeros(6, 6)
    x = base.t()[::2]
    x += bps.rank() + 1
    bps.allreduce_(x, op=bps.Sum)
    assert torch.equal(x, torch.full((3, 6), float(sum(r + 1 for r in ranks()))))
    assert base.sum() == x.sum()


def test_allreduce_of_more_than_the_pieces_in_flight():
    x = torch.arange(5_000_000, dtype=torch.float32) + bps.rank()
    out = bps.allreduce(x, op=bps.Average)
    assert torch.allclose(out, torch.arange(5_000_000) + sum(ranks()) / bps.size())


def test_allreduce_of_nothing_and_of_a_scalar():
    assert bps.allreduce(torch.empty(0)).shape == (0,)
    assert bps.allreduce(torch.tensor(2.0 * bps.rank()), op=bps.Sum) == 2.0 * sum(ranks())


def test_allreduce_of_bools_is_or_with_max():
    x = torch.tensor([bps.rank() == 0, False, True])
    assert bps.allreduce(x, op=bps.Max).tolist() == [True, False, True]


def test_many_operations_in_flight_end_in_any_order():
    handles = [
        bps.allreduce_async(torch.full((9,), i + 1.0 * bps.rank()), name=f"flight.{i}", op=bps.Sum)
        for i in range(50)
    ]
    for i in reversed(range(50)):
        want = torch.full((9,), float(i * bps.size() + sum(ranks())))
        assert torch.equal(bps.synchronize(handles[i]), want)
        assert bps.poll(handles[i])


def test_many_operations_without_a_name_in_flight():
    own = [torch.full((9,), i + 1.0 * bps.rank()) for i in range(50)]
    handles = [bps.allreduce_async(x, op=bps.Sum) for x in own]
    for i, handle in enumerate(handles):
        want = torch.full((9,), float(i * bps.size() + sum(ranks())))
        assert torch.equal(bps.synchronize(handle), want)


def test_a_name_in_flight_is_refused_a_second_time():
    own, total = torch.full((3,), bps.rank() + 1.0), sum(r + 1 for r in ranks())
    h = bps.allreduce_async(own, name="twice", op=bps.Sum)
    with pytest.raises(ValueError, match="'twice' is in flight"):
        bps.allreduce_async(7 * own, name="twice", op=bps.Sum)
    assert bps.synchronize(h).tolist() == [total] * 3
    assert bps.allreduce(2 * own, name="twice", op=bps.Sum).tolist() == [2 * total] * 3


def test_a_name_may_come_back_with_another_shape():
    for n in (3, 5, 3):
        out = bps.allreduce(torch.full((n,), bps.rank() + 1.0), name="shapes", op=bps.Sum)
        assert out.tolist() == [float(sum(r + 1 for r in ranks()))] * n


def test_shapes_that_differ_between_workers_are_an_error_at_all():
    with pytest.raises(bps.Error, match="differ"):
        bps.allreduce(torch.ones(3 + bps.rank()), name="differ")


# Pairs of different calls without a name. The first rank makes the first call of a pair, the other
# ranks make the second call.
DIFFERENT = {
    "a few elements": (lambda: bps.allreduce(torch.ones(3)), lambda: bps.allreduce(torch.ones(4))),
    "many elements": (
        lambda: bps.allreduce(torch.ones(20_000)),
        lambda: bps.allreduce(torch.ones(70_000)),
    ),
    "no elements": (lambda: bps.allreduce(torch.ones(0)), lambda: bps.allreduce(torch.ones(4))),
    "type": (lambda: bps.allreduce(torch.ones(3)), lambda: bps.allreduce(torch.ones(3).double())),
    "operation": (
        lambda: bps.allreduce(torch.ones(3), op=bps.Sum),
        lambda: bps.allreduce(torch.ones(3), op=bps.Max),
    ),
    "root": (lambda: bps.broadcast(torch.ones(3), 0), lambda: bps.broadcast(torch.ones(3), 1)),
    "size of a broadcast": (
        lambda: bps.broadcast(torch.ones(3), 0),
        lambda: bps.broadcast(torch.ones(99_999), 0),
    ),
    "type of a broadcast": (
        lambda: bps.broadcast(torch.ones(3), 0),
        lambda: bps.broadcast(torch.ones(3).int(), 0),
    ),
    "kind": (lambda: bps.allreduce(torch.ones(3)), lambda: bps.broadcast(torch.ones(3), 0)),
    "object": (lambda: bps.broadcast_object(1, 0), lambda: bps.allgather_object(1)),
    "object and sparse tensor": (
        lambda: bps.allgather_object(1),
        lambda: bps.sparse_allreduce_async(torch.eye(2).to_sparse()),
    ),
    "object and process set": (
        lambda: bps.allgather_object(1),
        lambda: bps.add_process_set([0]),
    ),
    "object and state": (
        lambda: bps.broadcast_object(1, 0),
        lambda: bps.broadcast_optimizer_state(torch.optim.SGD([torch.ones(1)], lr=0.1), 0),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ_between_workers_are_an_error_at_all_and_training_goes_on(what):
    for _ in range(2):
        with pytest.raises(bps.Error, match="workers disagree in .*rank") as caught:
            DIFFERENT[what][bps.rank() > 0]()
        assert caught.value.code == EMISMATCH
        own = torch.full((3,), float(bps.rank()))
        assert bps.allreduce(own, op=bps.Sum).tolist() == [sum(ranks())] * 3
        x = torch.arange(70_000.0)
        assert torch.equal(bps.allreduce(x + 2 * bps.rank()), x + bps.size() - 1)


CALLS = {
    "allreduce": bps.allreduce,
    "allreduce, named": lambda x: bps.allreduce(x, name="shapes differ"),
    "grouped_allreduce": lambda x: bps.grouped_allreduce([x])[0],
    "broadcast": lambda x: bps.broadcast(x, 0),
    "broadcast_parameters": lambda x: bps.broadcast_parameters([x, torch.ones(2)], 0),
    "reducescatter": bps.reducescatter,
    "push_pull": bps.push_pull,
}


@pytest.mark.parametrize("what", CALLS)
def test_equal_sizes_with_other_shapes_or_types_are_an_error_that_names_both(what):
    for other, text in (
        (torch.ones(3, 4), "float32 [3, 4]"),
        (torch.ones(2, 6).int(), "int32 [2, 6]"),
    ):
        if "named" in what and other.dtype == torch.int32:
            continue  # the name has the shape of the first call
        x = other if bps.rank() else torch.ones(2, 6)
        before = x.clone()
        with pytest.raises(bps.Error, match="workers disagree in .*") as caught:
            CALLS[what](x)
        assert caught.value.code == EMISMATCH
        assert "rank 0 has float32 [2, 6]" in str(caught.value)
        assert re.search(rf"rank [1-9] has {re.escape(text)}", str(caught.value))
        assert torch.equal(x, before)
        assert bps.allreduce(torch.ones(3), op=bps.Sum).tolist() == [bps.size()] * 3


def test_a_name_with_two_shapes_fails_again_and_other_names_work():
    x = torch.ones((3, 2) if bps.rank() else (2, 3))
    first = bps.allreduce_async(x, name="again differs")
    other = bps.allreduce_async(torch.ones(2, 3), name="again alike", op=bps.Sum)
    assert (bps.synchronize(other) == bps.size()).all()
    match = "tensor 'again differs': rank 0 has float32"
    with pytest.raises(bps.Error, match=match):
        bps.synchronize(first)
    with pytest.raises(bps.Error, match=match):
        bps.allreduce(x, name="again differs")
    # A shape that is new to all workers but one.
    total = bps.allreduce(torch.ones(2, 3), name="again differs", op=bps.Sum)
    assert (total == bps.size()).all()


def test_a_named_tensor_without_elements_is_compared_too():
    with pytest.raises(bps.Error, match=r"rank 0 has float32 \[0\], rank [1-9] has float32 \[3\]"):
        bps.allreduce(torch.ones(3 if bps.rank() else 0), name="empty differs")
    for _ in range(2):
        assert bps.allreduce(torch.ones(0, 2), name="empty").shape == (0, 2)


def test_the_second_shape_of_a_name_is_no_other_name():
    for name, n in (("clash", 2), ("clash", 3), ("clash#2", 4), ("clash#2", 4), ("2/clash", 5)):
        half = torch.full((n,), 0.5)
        assert bps.allreduce(half, name=name, op=bps.Sum).tolist() == [bps.size() / 2] * n


def test_names_may_be_compared_in_another_order_at_each_worker():
    names = ["order a", "order b", "order c"]
    given = names[bps.rank() % 3 :] + names[: bps.rank() % 3]
    handles = {n: bps.allreduce_async(torch.full((4,), float(ord(n[-1]))), name=n) for n in given}
    for name in reversed(names):
        assert (bps.synchronize(handles[name]) == ord(name[-1])).all()


def test_parameters_of_other_sizes_are_not_broadcast_across_each_other():
    sizes = (4, 2) if bps.rank() else (2, 4)
    model = {name: torch.full((n,), float(bps.rank())) for name, n in zip("ab", sizes)}
    match = r"tensor 'a': rank 0 has float32 \[2\], rank 1 has float32 \[4\]"
    with pytest.raises(bps.Error, match=match):
        bps.broadcast_parameters(model, 0)
    assert [(t == bps.rank()).all() for t in model.values()]


@pytest.mark.parametrize("root", [0, 1])
def test_parameters_are_broadcast_by_name(root):
    named = [(name, torch.full((3,), 10.0 * bps.rank() + i)) for i, name in enumerate("abc")]
    bps.broadcast_parameters(named[bps.rank() :] + named[: bps.rank()], root)
    assert [t.tolist() for _, t in named] == [[10.0 * root + i] * 3 for i in range(3)]


def test_a_parameter_that_one_worker_lacks_is_named():
    names = "abc" if bps.rank() else "ab"
    with pytest.raises(bps.Error, match=r"rank 1 has tensor 'c' of float32 \[3\], which rank 0"):
        bps.broadcast_parameters([(name, torch.ones(3)) for name in names], 0)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_an_optimizer_refuses_gradients_of_other_sizes(sparse_as_dense):
    sizes = (4, 2) if bps.rank() else (2, 4)
    params = [(name, torch.nn.Parameter(torch.zeros(n))) for name, n in zip("ab", sizes)]
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([p for _, p in params], lr=1.0), params, sparse_as_dense=sparse_as_dense
    )
    sum(p.sum() for _, p in params).backward()
    with pytest.raises(bps.Error, match=r"tensor 'a': rank 0 has float32 \[2\], rank 1 has"):
        optimizer.step()
    assert all((p == 0).all() for _, p in params)


@pytest.mark.parametrize("cross_barrier", [False, True])
def test_gradients_are_averaged_by_name(cross_barrier):
    parts = {name: torch.nn.Parameter(torch.zeros(3)) for name in "abc"}
    given = [*parts.items()]
    given = given[bps.rank() :] + given[: bps.rank()]
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(parts.values(), lr=1.0), given, cross_barrier=cross_barrier
    )
    for step in range(1, 4):
        optimizer.zero_grad()
        sum((10**i * (bps.rank() + 1) * p).sum() for i, p in enumerate(parts.values())).backward()
        optimizer.step()
        optimizer.synchronize() if cross_barrier else None
        mean = sum(range(1, bps.size() + 1)) / bps.size()
        for i, p in enumerate(parts.values()):
            assert torch.allclose(p.detach(), torch.full((3,), -step * mean * 10**i))


def equal_everywhere(model):
    rows = bps.allgather(torch.cat([p.detach().view(-1) for p in model.parameters()]).view(1, -1))
    return bool((rows == rows[0]).all())


def trained_alone(steps):
    """Train the model of :func:`two_layers` in this process, on the data of all workers.

    Args:
        steps: for each step, the parameters that are trained.
    """
    model = two_layers()
    for trained in steps:
        for p in model.parameters():
            p.grad = None
        total = 0.0
        for rank in range(bps.size()):
            total = total + model(torch.full((2, 4), rank + 1.0)).sum() / bps.size()
        total.backward()
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p -= 0.1 * p.grad * (i in trained)
    return model


def two_layers():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def train_layers(model, optimizer, wrapped=None, n=2):
    for _ in range(n):
        optimizer.zero_grad()
        (wrapped or model)(torch.full((2, 4), bps.rank() + 1.0)).sum().backward()
        optimizer.step()
    if hasattr(optimizer, "synchronize") and n:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.synchronize() if optimizer._bps_cross else None


@pytest.mark.parametrize("kind", ["optimizer", "cross_barrier", "module"])
@pytest.mark.parametrize("at_first", [0, 1])
def test_parameters_that_are_released_later_are_reduced(kind, at_first):
    model, wrapped = two_layers(), None
    frozen, trained = ((0, 1), (2, 3)) if at_first == 0 else ((2, 3), (0, 1))
    for i in frozen:
        [*model.parameters()][i].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "module":
        wrapped = bps.DistributedDataParallel(model)
    else:
        optimizer = bps.DistributedOptimizer(
            optimizer, model.named_parameters(), cross_barrier=kind == "cross_barrier"
        )
    train_layers(model, optimizer, wrapped)
    for p in model.parameters():
        p.requires_grad_(not p.requires_grad)
    train_layers(model, optimizer, wrapped)
    for p in model.parameters():
        p.requires_grad_(True)
    train_layers(model, optimizer, wrapped)
    assert equal_everywhere(model)
    expected = trained_alone([trained] * 2 + [frozen] * 2 + [range(4)] * 2)
    for p, q in zip(model.parameters(), expected.parameters()):
        assert torch.allclose(p.detach(), q.detach(), atol=1e-6)


@pytest.mark.parametrize("cross_barrier", [False, True])
def test_parameters_that_are_added_later_are_reduced(cross_barrier):
    model = two_layers()
    head = model[1]
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(head.parameters(), lr=0.1), cross_barrier=cross_barrier
    )
    train_layers(model, optimizer)
    model.zero_grad()
    optimizer.add_param_group({"params": model[0].parameters()})
    train_layers(model, optimizer, n=1)
    model, optimizer = copy.deepcopy((model, optimizer))
    train_layers(model, optimizer, n=2)
    assert equal_everywhere(model)
    expected = trained_alone([(2, 3)] * 2 + [range(4)] * 3)
    for p, q in zip(model.parameters(), expected.parameters()):
        assert torch.allclose(p.detach(), q.detach(), atol=1e-6)


def test_a_frozen_parameter_does_not_decay():
    model = two_layers()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), model.named_parameters()
    )
    train_layers(model, optimizer, n=1)
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    train_layers(model, optimizer, n=2)
    assert torch.equal(model[0].weight, before)


def test_an_optimizer_whose_parameters_are_in_a_newer_one_refuses_to_step():
    model = two_layers()
    both = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    head = bps.DistributedOptimizer(torch.optim.SGD(model[1].parameters(), lr=0.1))
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="parameter '1.weight' is also in .* wrapped later"):
        both.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    head.step()
    assert equal_everywhere(model[1])


@NEEDS_SCALER
@pytest.mark.parametrize("is_clipped", [False, True])
def test_a_gradient_scaler_steps_with_the_averages(is_clipped):
    model = two_layers()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), bps.rank() + 1.0)).sum()
            scaler.scale(loss).backward()
            if is_clipped:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
    assert equal_everywhere(model)
    for p, q in zip(model.parameters(), trained_alone([range(4)] * 3).parameters()):
        assert torch.allclose(p.detach(), q.detach(), atol=1e-6)


@NEEDS_SCALER
def test_an_overflow_at_one_worker_skips_the_step_at_all():
    model = two_layers()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.full((2, 4), float("inf") if bps.rank() else 1.0)
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    assert scaler.get_scale() == 4.0


@NEEDS_SCALER
def test_a_gradient_scaler_needs_an_optimizer_that_waits():
    model = two_layers()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), cross_barrier=True
    )
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    with pytest.raises(RuntimeError, match="GradScaler needs .*cross_barrier=False"):
        scaler.step(optimizer)
    optimizer.step()
    optimizer.synchronize()


def test_two_losses_of_a_gan_get_the_call_that_helps():
    torch.manual_seed(3)
    made, judged = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    optimizers = [
        bps.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=0.1))
        for part in (made, judged)
    ]
    judged(made(torch.ones(1, 2))).sum().backward()
    with pytest.raises(AssertionError, match="as in a GAN, call requires_grad_"):
        optimizers[1].zero_grad()
    for optimizer in optimizers:
        optimizer.step()
    for step in range(4):
        for part, is_trained in ((made, step % 2), (judged, step % 2 == 0)):
            for p in part.parameters():
                p.requires_grad_(bool(is_trained))
        optimizer = optimizers[step % 2 == 0]
        optimizer.zero_grad()
        judged(made(torch.full((1, 2), bps.rank() + 1.0))).sum().backward()
        optimizer.step()
    assert equal_everywhere(made) and equal_everywhere(judged)


def test_an_optimizer_refuses_other_options_at_one_worker():
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([p], lr=1.0), gradient_predivide_factor=2.0 if bps.rank() else 1.0
    )
    p.sum().backward()
    with pytest.raises(
        bps.Error, match="has avg, factors 1 and 1,.* rank 1 has avg, factors 0.5 and"
    ):
        optimizer.step()


def test_a_difference_fails_the_operations_that_are_in_flight_behind_it_too():
    handles = [bps.allreduce_async(torch.ones(100 + (i == 0) * bps.rank())) for i in range(3)]
    for handle in handles:
        with pytest.raises(bps.Error, match="workers disagree"):
            handle.wait()
        assert handle.poll()
    assert bps.allreduce(torch.ones(100), op=bps.Sum).tolist() == [bps.size()] * 100


def test_average_and_op_exclude_each_other():
    with pytest.raises(ValueError, match="exclude"):
        bps.allreduce(torch.ones(3), average=True, op=bps.Sum)


def test_adasum_and_unknown_operations_are_refused():
    with pytest.raises(NotImplementedError, match="Adasum"):
        bps.allreduce(torch.ones(3), op=bps.Adasum)
    with pytest.raises(ValueError, match="op=77 is not an operation"):
        bps.allreduce(torch.ones(3), op=77)


def test_complex_and_sparse_tensors_are_refused_in_words():
    with pytest.raises(TypeError, match="complex64"):
        bps.allreduce(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(NotImplementedError, match="to_dense"):
        bps.allreduce(torch.eye(3).to_sparse())


def test_allreduce_is_differentiable():
    x = torch.ones(5, requires_grad=True)
    bps.allreduce(x, op=bps.Sum).backward(torch.full((5,), float(bps.rank())))
    assert torch.equal(x.grad, torch.full((5,), float(sum(ranks()))))


@pytest.mark.parametrize("kind", [bps.Compression.fp16, bps.Compression.bf16])
def test_compression_changes_the_type_on_the_wire_only(kind):
    out = bps.allreduce(torch.full((8,), 0.5 + bps.rank()), compression=kind, op=bps.Sum)
    assert out.dtype == torch.float32
    assert torch.allclose(out, torch.full((8,), sum(0.5 + r for r in ranks())))


def test_grouped_allreduce_returns_all_outputs():
    group = [torch.full((n,), float(bps.rank())) for n in (1, 100, 10_000)]
    for out in (
        bps.grouped_allreduce(group, op=bps.Sum),
        bps.grouped_allreduce_(group, name="group", op=bps.Sum),
    ):
        assert [o.numel() for o in out] == [1, 100, 10_000]
        assert all((o == sum(ranks())).all() for o in out)


def test_push_pull_has_byteps_defaults():
    x = torch.full((6,), float(bps.rank()))
    assert torch.allclose(bps.push_pull(x, name="pp"), torch.full((6,), sum(ranks()) / bps.size()))
    assert torch.equal(bps.push_pull(x, average=False), torch.full((6,), float(sum(ranks()))))
    h = bps.push_pull_async_inplace(x, average=False, name="ppi", version=3, priority=-5)
    assert bps.synchronize(h) is x and (x == sum(ranks())).all()


# ---- broadcast, gather, scatter ----


@pytest.mark.parametrize("dtype", [*RANK_TYPES, torch.bool, torch.bfloat16])
def test_broadcast_gives_every_root_its_turn(dtype):
    for root in ranks():
        x = torch.full((3, 4), bps.rank()).to(dtype)
        assert torch.equal(bps.broadcast(x, root), torch.full((3, 4), root).to(dtype))
        assert torch.equal(x, torch.full((3, 4), bps.rank()).to(dtype))
        bps.broadcast_(x, root)
        assert torch.equal(x, torch.full((3, 4), root).to(dtype))


def test_broadcast_from_an_unknown_rank_is_refused():
    with pytest.raises(bps.Error, match="root 99"):
        bps.broadcast(torch.ones(1), 99)


def test_broadcast_sends_gradients_to_the_root():
    x = torch.ones(4, requires_grad=True)
    bps.broadcast(x, 0).backward(torch.full((4,), float(bps.rank())))
    want = sum(ranks()) / bps.size() if bps.rank() == 0 else 0.0
    assert torch.allclose(x.grad, torch.full((4,), want))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bool])
def test_allgather_concatenates_different_first_dimensions(dtype):
    out = bps.allgather(torch.full((bps.rank() + 1, 2, 3), bps.rank()).to(dtype))
    assert torch.equal(out, torch.cat([torch.full((r + 1, 2, 3), r).to(dtype) for r in ranks()]))


def test_allgather_of_an_empty_part():
    out = bps.allgather(torch.full((bps.rank(), 2), float(bps.rank())))
    assert torch.equal(out, torch.cat([torch.full((r, 2), float(r)) for r in ranks()]))


def test_allgather_refuses_other_shapes_and_types_at_all():
    with pytest.raises(bps.Error, match="allgather: rank"):
        bps.allgather(torch.ones(2, 3 + bps.rank()))
    with pytest.raises(ValueError, match="one dimension"):
        bps.allgather(torch.tensor(1.0))


def test_allgather_is_differentiable():
    x = torch.ones(bps.rank() + 1, 2, requires_grad=True)
    out = bps.allgather(x)
    out.backward(torch.arange(out.numel(), dtype=torch.float32).view(out.shape))
    first = sum(r + 1 for r in range(bps.rank()))
    want = torch.arange(out.numel(), dtype=torch.float32).view(out.shape)[
        first : first + bps.rank() + 1
    ]
    assert torch.allclose(x.grad, want)


def test_reducescatter_gives_the_first_ranks_one_row_more():
    rows = 2 * bps.size() + 1
    x = torch.arange(rows * 3.0).view(rows, 3)
    out = bps.reducescatter(x + bps.rank(), op=bps.Sum)
    assert out.shape == (3 if bps.rank() == 0 else 2, 3)
    assert torch.equal(bps.allgather(out), bps.size() * x + sum(ranks()))


def test_objects_reach_all_workers():
    assert bps.broadcast_object({"rank": bps.rank(), "text": "ä" * 5000}, 1) == {
        "rank": 1,
        "text": "ä" * 5000,
    }
    assert bps.allgather_object([bps.rank()] * bps.rank()) == [[r] * r for r in ranks()]


# ---- optimizer ----


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]
)
def test_training_with_all_workers_equals_one_with_the_whole_batch(kind):
    model, alone = network(), network()
    train(alone, kind(alone.parameters(), lr=0.01))
    optimizer = bps.DistributedOptimizer(
        kind(model.parameters(), lr=0.01), model.named_parameters()
    )
    assert isinstance(optimizer, kind) and type(optimizer).__name__ == kind.__name__
    train(model, optimizer, rows=mine())
    for p, q in zip(model.parameters(), alone.parameters()):
        assert (p - q).abs().max() <= 1e-12
        assert same_everywhere(p)


def test_backward_passes_add_up_before_they_are_sent():
    model, alone = network(), network()
    x, y = batch()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        backward_passes_per_step=2,
    )
    for _ in range(3):
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(2):
            (model(x[mine()]) - y[mine()]).pow(2).mean().backward()
            (alone(x) - y).pow(2).mean().backward()
        optimizer.step()
        reference.step()
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))


def test_gradients_can_be_clipped_between_synchronize_and_step():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    model(batch()[0][mine()]).sum().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    before = [p.detach().clone() for p in model.parameters()]
    with optimizer.skip_synchronize():
        optimizer.step()
    moved = torch.cat([(p - b).view(-1) for p, b in zip(model.parameters(), before)])
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-6)
    assert same_everywhere(moved)


def test_a_worker_without_gradients_takes_part_behind_a_clipped_step():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), op=bps.Sum
    )
    model(batch()[0]).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    want = [p.grad / bps.size() for p in model.parameters()]
    model.zero_grad()
    if bps.rank() == 0:
        model(batch()[0]).sum().backward()
    optimizer.step()
    assert all(torch.allclose(p.grad, w) for p, w in zip(model.parameters(), want))


WRITES = {
    "none": lambda grad: None,
    "mul_": lambda grad: grad.mul_(10),
    "data": lambda grad: grad.data.fill_(7),
    "numpy": lambda grad: grad.numpy().__setitem__(..., 3),
    "one element": lambda grad: grad.view(-1)[-1:].zero_(),
}


@pytest.mark.parametrize("way", WRITES)
def test_writes_to_gradients_last_until_the_next_step_and_are_private(way):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(300, 200), torch.nn.Linear(200, 2)]  # large and small gradients
    model = torch.nn.Sequential(*layers)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), op=bps.Sum
    )
    kept = []
    for step in range(8):
        optimizer.zero_grad(set_to_none=step % 4 != 3)
        inputs = torch.full((1, 300), float(step + bps.rank()))
        model(inputs).sum().backward()
        optimizer.step()
        weights = layers[1].weight.detach().sum(0)
        factor = sum(step + rank for rank in ranks())
        for row, weight in zip(layers[0].weight.grad, weights):
            assert torch.allclose(row, weight * factor, rtol=1e-3, atol=1e-3)
        assert torch.allclose(layers[1].bias.grad, torch.full((2,), float(bps.size())))
        bps.barrier()
        if bps.rank() == 0 and step % 3 != 1:
            for p in model.parameters():
                WRITES[way](p.grad)
        bps.barrier()
        if bps.rank() == 1:  # rank 1 shares memory with rank 0 if both use the same agent
            assert torch.allclose(layers[1].bias.grad, torch.full((2,), float(bps.size())))
        kept.append([p.grad for p in model.parameters()])
    assert all(grad.isfinite().all() for grads in kept for grad in grads)


def test_gradients_with_a_graph_are_averaged():
    model, alone = network(), network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1)
    x = batch()[0]
    for _ in range(3):
        for net, one, rows in ((model, optimizer, mine()), (alone, sgd, slice(None))):
            one.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns of a cycle of references
                net(x[rows]).pow(2).mean().backward(create_graph=True)
            one.step()
    for p, q in zip(model.parameters(), alone.parameters()):
        assert not p.grad.requires_grad and (p - q).abs().max() <= 1e-12


def test_predivided_gradients_are_the_same_average():
    model, other = network(), network()
    train(
        model,
        bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        ),
        rows=mine(),
    )
    scaled = bps.DistributedOptimizer(
        torch.optim.SGD(other.parameters(), lr=0.1),
        other.named_parameters(),
        gradient_predivide_factor=2.0,
    )
    train(other, scaled, rows=mine())
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), other.parameters()))


def test_a_parameter_that_only_some_workers_use_gets_zeros_of_the_others():
    model = torch.nn.ModuleList(
        [torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)]
    )
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    used = model[0] if bps.rank() == 0 else model[1]
    used(torch.ones(1, 2)).sum().backward()
    optimizer.synchronize()
    assert torch.allclose(model[0].weight.grad, torch.full((2, 2), 1 / bps.size()))
    assert torch.allclose(model[1].weight.grad, torch.full((2, 2), (bps.size() - 1) / bps.size()))


def test_zero_grad_between_backward_and_step_is_refused():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(batch()[0]).sum().backward()
    with pytest.raises(AssertionError, match="before step"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def test_more_backward_passes_than_agreed_are_refused():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(batch()[0]).sum().backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(batch()[0]).sum().backward()
    optimizer.step()


def test_names_that_are_missing_or_come_twice_are_refused():
    model = network()
    named = list(model.named_parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="lacks 1"):
        bps.DistributedOptimizer(sgd, named[1:])
    with pytest.raises(ValueError, match="more than once: w"):
        bps.DistributedOptimizer(sgd, [("w", p) for _, p in named])
    with pytest.raises(ValueError, match="sequence of tuples"):
        bps.DistributedOptimizer(sgd, model.parameters())


@pytest.mark.parametrize(
    "options", [{}, {"sparse_as_dense": True}, {"cross_barrier": True}, {"op": bps.Sum}]
)
def test_sparse_gradients_are_summed_as_rows_or_made_dense(options):
    def embedding(is_sparse):
        layer = torch.nn.Sequential(
            torch.nn.Embedding(9, 2, sparse=is_sparse), torch.nn.Linear(2, 1)
        ).double()
        for p in layer.parameters():
            torch.nn.init.ones_(p)
        return layer

    model, alone = embedding(True), embedding(False)
    factor = bps.size() if options.get("op") == bps.Sum else 1
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1 * factor)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
    )
    for step in range(3):
        rows = torch.tensor([[r, r + step, 8] for r in ranks()])
        for net, one, taken in ((model, optimizer, rows[bps.rank()]), (alone, sgd, rows)):
            one.zero_grad()
            net(taken).pow(2).mean().backward()
            one.step()
    optimizer.synchronize()
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))


def test_a_sparse_parameter_that_only_one_worker_uses():
    layers = torch.nn.ModuleList([torch.nn.Embedding(5, 2, sparse=True) for _ in range(2)])
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=1.0), layers.named_parameters()
    )
    if bps.rank() == 1:
        layers[0](torch.tensor([3])).sum().backward()
    optimizer.synchronize()
    assert layers[0].weight.grad.to_dense()[3].tolist() == pytest.approx([1 / bps.size()] * 2)
    assert layers[0].weight.grad.to_dense().sum().item() == pytest.approx(2 / bps.size())
    assert layers[1].weight.grad is None or not layers[1].weight.grad.any()


def test_sparse_allreduce_sums_rows():
    x = torch.sparse_coo_tensor([[0, bps.rank()]], torch.ones(2, 3), (5, 3), check_invariants=True)
    total = bps.synchronize(bps.sparse_allreduce_async(x, op=bps.Sum)).to_dense()
    assert total[:, 0].tolist() == [bps.size() + 1.0] + [float(r < bps.size()) for r in range(1, 5)]
    with pytest.raises(ValueError, match="is dense"):
        bps.sparse_allreduce_async(torch.ones(2))


def table(dtype, n_dims=1):
    """Return a sparse tensor of whole numbers. Some rows are there twice, some only at one worker.
    With several workers, rank 1 has no rows."""
    rng = torch.Generator().manual_seed(bps.rank())
    shape, n = (300, 5, 2), 0 if bps.rank() == 1 else 200
    at = torch.stack([torch.randint(0, k, (n,), generator=rng) for k in shape[:n_dims]])
    values = torch.randint(0, 4, (n, *shape[n_dims:]), generator=rng).to(dtype)
    return torch.sparse_coo_tensor(at, values, shape, check_invariants=True)


@pytest.mark.parametrize(
    "dtype", [*RANK_TYPES[2:], torch.bfloat16, torch.complex64, torch.int16], ids=str
)
@pytest.mark.parametrize("n_dims", [1, 2, 3])
def test_sparse_sum_equals_the_dense_sum(dtype, n_dims):
    x = table(dtype, n_dims)
    parts = torch.view_as_real(x.to_dense()) if dtype.is_complex else x.to_dense()
    want = bps.allreduce(parts, op=bps.Sum)
    total = bps.synchronize(bps.sparse_allreduce_async(x, op=bps.Sum))
    assert total.dtype == dtype and total.is_coalesced() and total.sparse_dim() == n_dims
    given = torch.view_as_real(total.to_dense()) if dtype.is_complex else total.to_dense()
    assert torch.equal(given, want) and same_everywhere(total.indices())
    mean = bps.synchronize(bps.sparse_allreduce_async(x, op=bps.Average))
    if not (dtype.is_complex or dtype == torch.int16):  # dense tensors of these have other results
        assert mean.dtype == dtype
        assert torch.allclose(mean.to_dense(), bps.allreduce(x.to_dense()), rtol=0.01)


@pytest.mark.parametrize("kind", [None, bps.Compression.fp16, bps.Compression.bf16])
def test_sparse_gradients_of_several_tables_are_compressed_as_dense_ones(kind):
    """The values are whole numbers, which each type holds. Rank 1 does not use the last table."""
    options = {} if kind is None else {"compression": kind}
    grads = []
    for is_sparse in (True, False):
        torch.manual_seed(bps.rank())
        layers = [torch.nn.Embedding(n, 8, sparse=is_sparse) for n in (1000, 20_000, 5)]
        named = [(f"{i}.weight", layer.weight) for i, layer in enumerate(layers)]
        sgd = torch.optim.SGD([p for _, p in named], lr=1.0)
        optimizer = bps.DistributedOptimizer(sgd, named, op=bps.Sum, **options)
        for step in range(2):
            optimizer.zero_grad()
            for layer in layers[: 2 if bps.rank() == 1 else 3]:
                layer(torch.randint(0, layer.num_embeddings, (50,))).sum().backward()
            optimizer.synchronize()
        grads.append([p.grad for _, p in named])
    for sparse, dense in zip(*grads):
        assert sparse.is_sparse and torch.equal(sparse.to_dense(), dense)


def test_indices_of_sparse_tensors_must_be_rows_of_the_table():
    x = torch.sparse_coo_tensor([[7]], torch.ones(1, 3), (5, 3), check_invariants=False)
    with pytest.raises(IndexError, match="has row 7, but its table has 5 rows"):
        bps.sparse_allreduce_async(x)


def test_failed_sparse_sum_keeps_no_tensor():
    x = torch.eye(3 + bps.rank()).to_sparse()
    ref = weakref.ref(x)
    with pytest.raises(bps.Error, match="workers disagree"):
        bps.sparse_allreduce_async(x)
    del x
    gc.collect()
    assert ref() is None


def test_several_buckets_and_bf16_on_the_wire():
    model, alone = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        bps.Compression.bf16,
        bucket_bytes=100,
    )
    x = batch()[0].float()
    model(x[mine()]).mean().backward()
    alone(x).mean().backward()
    optimizer.synchronize()
    for p, q in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(p.grad, q.grad, rtol=0.02, atol=1e-3) and same_everywhere(p.grad)


class LargeAsHalves(bps.Compression.fp16):
    """Sends tensors of 400 bytes or more as float16."""

    min_bytes = 400


def test_small_tensors_are_not_compressed():
    fine = 1 + 2**-12  # 1 in float16
    params = [torch.nn.Parameter(torch.ones(n)) for n in (99, 100, 1)]
    named = [(str(len(p)), p) for p in params]
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(params, lr=1.0), named, compression=LargeAsHalves
    )
    sum((p * fine).sum() for p in params).backward()
    optimizer.synchronize()
    for p in params:
        want = torch.full_like(p, 1 if len(p) == 100 else fine)
        assert torch.equal(p.grad, want)
        out = bps.allreduce(torch.full((len(p),), fine), compression=LargeAsHalves)
        assert torch.equal(out, want)


@pytest.mark.parametrize("kind", ["plain", "cross_barrier", "wrapper"])
def test_first_layers_are_declared_first_only_with_cross_barrier(monkeypatch, kind):
    declared = []

    def spy(rt, decls, coding):
        declared.extend(name.rpartition(".")[2] for name, *_ in decls)
        return open_channels(rt, decls, coding)

    monkeypatch.setattr(_reducer, "open_channels", spy)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    if kind == "wrapper":
        bps.DistributedDataParallel(model, bucket_bytes=80)(torch.ones(2, 4)).sum().backward()
    else:
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            cross_barrier=kind == "cross_barrier",
            bucket_bytes=80,
        )
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.synchronize()
    assert declared == (["0", "1", "2"] if kind == "cross_barrier" else ["2", "1", "0"])


def test_channels_last_gradients_keep_their_strides():
    layer = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    torch.nn.init.ones_(layer.weight)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0), layer.named_parameters()
    )
    (layer(torch.arange(75.0).view(1, 3, 5, 5)) * (bps.rank() + 1)).sum().backward()
    own = layer.weight.grad.clone()
    optimizer.synchronize()
    assert layer.weight.grad.stride() == layer.weight.stride() == own.stride()
    mean = sum(r + 1 for r in ranks()) / bps.size()
    assert torch.allclose(layer.weight.grad, own / (bps.rank() + 1) * mean)


def test_a_learning_rate_scheduler_drives_the_wrapped_optimizer():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, steps=1, rows=mine())
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_broadcast_parameters_makes_all_models_roots():
    model = network(seed=bps.rank())
    model.register_buffer("count", torch.tensor(bps.rank()))
    bps.broadcast_parameters(model.state_dict(), root_rank=1)
    want = network(seed=1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), want.parameters()))
    assert model.count == 1
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float(bps.rank()))
    bps.broadcast_parameters(list(model.named_parameters()), root_rank=0)
    assert all((p == 0).all() for p in model.parameters()) and model.count == 1


def test_broadcast_optimizer_state_gives_newcomers_roots_state():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (bps.rank() + 1), betas=(0.8, 0.9))
    if bps.rank() == 0:
        train(model, optimizer, steps=3)
    bps.broadcast_parameters(model.state_dict())
    bps.broadcast_optimizer_state(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.param_groups[0]["betas"] == (
        0.8,
        0.9,
    )
    for p in model.parameters():
        assert optimizer.state[p]["step"] == 3
        assert same_everywhere(optimizer.state[p]["exp_avg"])
    with pytest.raises(ValueError, match="LBFGS"):
        bps.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()))


# ---- modules ----


def test_module_wrapper_averages_during_backward():
    model, alone = network(seed=bps.rank()), network(seed=0)
    wrapped = bps.DistributedDataParallel(model)
    x = batch()[0]
    for _ in range(3):
        model.zero_grad()
        alone.zero_grad()
        wrapped(x[mine()]).mean().backward()
        alone(x).mean().backward()
        assert all(
            (p.grad - q.grad).abs().max() <= 1e-12
            for p, q in zip(model.parameters(), alone.parameters())
        )


def test_module_wrapper_adds_up_gradients_in_no_sync():
    model, alone = network(), network()
    wrapped = bps.DistributedDataParallel(model)
    x = batch()[0]
    with wrapped.no_sync():
        wrapped(x[mine()]).mean().backward()
    wrapped(x[mine()]).mean().backward()
    for _ in range(2):
        alone(x).mean().backward()
    assert all(
        (p.grad - q.grad).abs().max() <= 1e-12
        for p, q in zip(model.parameters(), alone.parameters())
    )


def test_module_wrapper_keeps_buffers_equal():
    model = torch.nn.BatchNorm1d(6).double()
    wrapped = bps.DistributedDataParallel(model)
    for _ in range(2):
        wrapped(batch()[0][mine()] + bps.rank()).sum().backward()
    assert not same_everywhere(model.running_mean)
    model.running_mean.fill_(float(bps.rank()))
    wrapped(torch.zeros(2, 6, dtype=torch.float64))  # first takes rank 0's buffers, which are 0
    assert not model.running_mean.any()
    model.running_mean.fill_(float(bps.rank()))
    wrapped.eval()(torch.zeros(2, 6, dtype=torch.float64))
    assert (model.running_mean == bps.rank()).all()
    with pytest.raises(ValueError, match="no parameter"):
        bps.DistributedDataParallel(torch.nn.ReLU())


def test_ddp_hook_averages_like_gloo():
    dist = torch.distributed
    store = bps.broadcast_object(f"/tmp/bps-frontend-{uuid.uuid4()}")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=bps.rank(), world_size=bps.size()
    )
    try:
        models = [
            torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.0005)
            for _ in range(2)
        ]
        models[1].register_comm_hook(bps.HookState(), bps.ddp_hook)
        x = batch()[0][mine()]
        for _ in range(4):
            for model in models:
                model.zero_grad()
                (model(x) ** 2).mean().backward()
            for p, q in zip(*(m.parameters() for m in models)):
                assert (p.grad - q.grad).abs().max() <= 1e-12
    finally:
        dist.destroy_process_group()


def test_ddp_hook_of_buckets_that_differ_is_an_error_at_all_workers():
    dist = torch.distributed
    store = bps.broadcast_object(f"/tmp/bps-frontend-{uuid.uuid4()}")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=bps.rank(), world_size=bps.size()
    )
    try:
        # With find_unused_parameters, DDP keeps the buckets that it made at the start, whose sizes
        # differ between the workers. Otherwise DDP would use rank 0's buckets at all workers after
        # the first step.
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(4)]),
            bucket_cap_mb=0.5 if bps.rank() == 0 else 25,
            find_unused_parameters=True,
        )
        model.register_comm_hook(bps.HookState(), bps.ddp_hook)
        begun = time.monotonic()
        with pytest.raises(Exception, match=r"rank \d has float32 \[\d+\].*, rank \d"):
            model(torch.ones(2, 400)).sum().backward()
        assert time.monotonic() - begun < 5
    finally:
        dist.destroy_process_group()


def test_ddp_hook_of_a_bucket_that_only_one_worker_has_is_an_error_at_all_workers():
    class Bucket:
        def __init__(self, is_last):
            self.is_last = lambda: is_last

        index = staticmethod(lambda: 0)
        buffer = staticmethod(lambda: torch.ones(10))

    with pytest.raises(bps.Error, match=r"rank 0 has float32 \[10\], the last bucket, rank \d"):
        bps.HookState().channel(Bucket(bps.rank() == 0))


def test_a_backward_pass_that_raises_does_not_spoil_the_next():
    model, alone = network(), network()
    wrapped = bps.DistributedDataParallel(model, bucket_bytes=100)
    x = batch()[0]

    def fail(grad):
        raise RuntimeError("on purpose")

    hook = model[0].weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        wrapped(x[mine()]).mean().backward()
    hook.remove()
    model.zero_grad()
    wrapped.synchronize()
    model.zero_grad()
    wrapped(x[mine()]).mean().backward()
    alone(x).mean().backward()
    assert all(
        (p.grad - q.grad).abs().max() <= 1e-12
        for p, q in zip(model.parameters(), alone.parameters())
    )


def test_step_with_a_closure_reduces_after_the_closure():
    model, alone = network(), network()
    x, y = batch()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)

    def closure(net, opt, rows):
        opt.zero_grad()
        loss = (net(x[rows]) - y[rows]).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(lambda: closure(model, optimizer, mine()))
        reference.step(lambda: closure(alone, reference, slice(None)))
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))


def test_step_behind_synchronize_does_not_reduce_twice():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=bps.Sum
    )
    model(batch()[0][mine()]).sum().backward()
    optimizer.synchronize()
    want = [p.detach() - p.grad for p in model.parameters()]
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), want))


def test_a_second_optimizer_takes_the_first_ones_place():
    model, alone = network(), network()
    bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    train(model, optimizer, rows=mine())
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.01))
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))
    with pytest.raises(ValueError, match="already"):
        bps.DistributedOptimizer(optimizer, model.named_parameters())


def test_a_scheduler_made_before_changes_the_rate_without_a_warning():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    wrapped = bps.DistributedOptimizer(optimizer, model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(3):
            wrapped.zero_grad()
            model(batch()[0][mine()]).sum().backward()
            wrapped.step()
            scheduler.step()
            assert wrapped.param_groups[0]["lr"] == 0.5 ** (n + 1)
            # The broadcast replaces param_groups at all ranks except rank 0.
            bps.broadcast_optimizer_state(wrapped, 0)


def test_an_object_that_cannot_be_pickled_is_an_error_at_all():
    with pytest.raises(ValueError, match="rank 0 cannot pickle"):
        bps.broadcast_object((lambda: 0) if bps.rank() == 0 else None, 0)
    with pytest.raises(ValueError, match="cannot pickle"):
        bps.allgather_object((lambda: 0) if bps.rank() == 0 else 1)


def test_ddp_hook_leaves_nothing_pending():
    dist = torch.distributed
    store = bps.broadcast_object(f"/tmp/bps-frontend-{uuid.uuid4()}")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=bps.rank(), world_size=bps.size()
    )
    try:
        model, alone = network(), network()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        state = bps.HookState()
        wrapped.register_comm_hook(state, bps.ddp_hook)
        x = batch()[0]
        for _ in range(3):
            model.zero_grad()
            alone.zero_grad()
            wrapped(x[mine()]).mean().backward()
            alone(x).mean().backward()
            assert all(
                (p.grad - q.grad).abs().max() <= 1e-12
                for p, q in zip(model.parameters(), alone.parameters())
            )
        assert not state.pending
    finally:
        dist.destroy_process_group()


# ---- all-to-all ----


def test_alltoall_sends_rows_by_splits():
    me, n = bps.rank(), bps.size()
    splits = [me + r for r in ranks()]
    rows = torch.cat([torch.full((k, 2), 10.0 * me + r) for r, k in enumerate(splits)])
    out, received = bps.alltoall(rows, splits=torch.tensor(splits))
    assert received.tolist() == [r + me for r in ranks()]
    assert torch.equal(out, torch.cat([torch.full((r + me, 2), 10.0 * r + me) for r in ranks()]))
    even = bps.synchronize(bps.alltoall_async(torch.arange(2 * n) + 100 * me))
    assert even.tolist() == [100 * r + 2 * me + i for r in ranks() for i in range(2)]


def test_alltoall_of_no_rows_and_of_wrong_splits():
    out, received = bps.alltoall(torch.empty(0, 3), splits=[0] * bps.size())
    assert out.shape == (0, 3) and received.tolist() == [0] * bps.size()
    for splits in ([1] * (bps.size() + 1), [-1, *[5] * (bps.size() - 1)], None):
        with pytest.raises(ValueError, match="cannot be split"):
            bps.alltoall(torch.ones(2 * bps.size() + 1), splits=splits)


def test_alltoall_is_differentiable():
    x = torch.ones(bps.size(), requires_grad=True)
    bps.alltoall(x).backward(torch.arange(float(bps.size())) + 10 * bps.rank())
    assert x.grad.tolist() == [10.0 * r + bps.rank() for r in ranks()]


# ---- process sets ----


def test_a_process_set_runs_collectives_of_its_own():
    last = bps.size() - 1
    some = bps.add_process_set([last, last - 1])
    assert some.ranks == [last - 1, last] and some.size() == 2 and some.process_set_id > 0
    assert some.included() == (bps.rank() >= last - 1)
    if some.included():
        options, x = {"process_set": some}, torch.full((3,), float(bps.rank()))
        total = 2.0 * last - 1
        assert some.rank() == bps.rank() - last + 1
        assert torch.equal(bps.allreduce(x, op=bps.Sum, **options), torch.full((3,), total))
        assert torch.equal(bps.allreduce(x, name="named", **options), torch.full((3,), total / 2))
        assert (bps.grouped_allreduce([x], op=bps.Max, **options)[0] == last).all()
        assert (bps.broadcast(x, last, **options) == last).all()
        assert bps.allgather(x[:1], **options).tolist() == [last - 1.0, float(last)]
        assert bps.reducescatter(x, op=bps.Sum, **options).tolist() == [total] * (2 - some.rank())
        assert bps.alltoall(x[:2], **options).tolist() == [last - 1.0, float(last)]
        assert bps.broadcast_object(bps.rank(), last, **options) == last
        assert bps.allgather_object(bps.rank(), **options) == [last - 1, last]
        bps.barrier(some)
        if bps.size() > 2:
            with pytest.raises(ValueError, match=r"rank 0 is not in ProcessSet\(\[1, 2\]\)"):
                bps.broadcast(x, 0, **options)
    else:
        with pytest.raises(ValueError, match="is not in"):
            bps.allreduce(torch.ones(1), process_set=some)
    assert bps.remove_process_set(some) and not bps.remove_process_set(some)
    assert not bps.remove_process_set(bps.global_process_set)
    if bps.rank() == last:
        with pytest.raises(ValueError, match="add_process_set"):
            bps.allreduce(torch.ones(1), process_set=some)


def test_an_optimizer_averages_over_its_process_set():
    # A set of all workers, and sets of the workers of even and of odd ranks.
    sets = [bps.add_process_set(bps.ProcessSet(ranks()[i::n])) for i, n in ((0, 1), (0, 2), (1, 2))]
    alone = network()
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1))
    for some in sets:
        if not some.included():
            continue
        model, n = network(), 24 // some.size()
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=some
        )
        train(model, optimizer, rows=slice(some.rank() * n, (some.rank() + 1) * n))
        for p, q in zip(model.parameters(), alone.parameters()):
            assert (p - q).abs().max() <= 1e-12
        with torch.no_grad():
            model[0].bias.fill_(float(bps.rank()))
        bps.broadcast_parameters(model.state_dict(), some.ranks[-1], process_set=some)
        assert (model[0].bias == some.ranks[-1]).all()
    for some in sets:
        bps.remove_process_set(some)


def test_process_sets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="adds a process set of"):
        bps.add_process_set([0] if bps.rank() == 0 else [1])
    with pytest.raises(ValueError, match="outside of the job"):
        bps.add_process_set([0, bps.size()])
    with pytest.raises(ValueError, match="no rank twice"):
        bps.ProcessSet([1, 1])
    some = bps.add_process_set([0])
    for again in (some, [0]):
        with pytest.raises(ValueError, match="added already"):
            bps.add_process_set(again)
    bps.remove_process_set(some)
    bps.remove_process_set(bps.add_process_set(some))


def test_a_worker_outside_of_a_set_updates_its_parameters_alone():
    some = bps.add_process_set([bps.size() - 1])
    for options in ({}, {"cross_barrier": True}, {"backward_passes_per_step": 2}):
        model = torch.nn.Linear(2, 2).double()
        alone = copy.deepcopy(model)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), process_set=some, **options
        )
        other = torch.optim.SGD(alone.parameters(), lr=0.1)
        for _ in range(3):
            for net, one in ((model, optimizer), (alone, other)):
                one.zero_grad()
                for _ in range(options.get("backward_passes_per_step", 1)):
                    net(torch.full((1, 2), bps.rank() + 1.0).double()).sum().backward()
                one.step()
        optimizer.synchronize()
        for p, q in zip(model.parameters(), alone.parameters()):
            assert (p - q).abs().max() <= 1e-12
    bps.remove_process_set(some)
    with pytest.raises(ValueError, match="add_process_set"):
        bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=some)


# ---- copies ----


def train_like_one_process(model, optimizer, alone, other, steps=3):
    """Train a model on this worker's rows, and another model on all rows. Check that both have the
    same parameters after each step."""
    x, y = batch()
    for _ in range(steps):
        for net, one, rows in ((model, optimizer, mine()), (alone, other, slice(None))):
            one.zero_grad()
            torch.nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            one.step()
        if getattr(optimizer, "synchronize", None):
            optimizer.synchronize()
        for p, q in zip(model.parameters(), alone.parameters()):
            assert (p - q).abs().max() <= 1e-12


def through_pickle(objects):
    file = io.BytesIO()
    torch.save(objects, file)
    file.seek(0)
    known = "weights_only" in inspect.signature(torch.load).parameters
    return torch.load(file, **({"weights_only": False} if known else {}))


COPIES = {"deepcopy": copy.deepcopy, "torch.save": through_pickle}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("cross", [False, True])
def test_a_copy_of_an_optimizer_goes_on_like_the_optimizer(way, cross):
    model, alone = network(), network()
    options = {"lr": 0.1, "momentum": 0.9}
    optimizer = torch.optim.SGD(model.parameters(), **options)
    other = torch.optim.SGD(alone.parameters(), **options)
    optimizer = bps.DistributedOptimizer(
        optimizer, model.named_parameters(), cross_barrier=cross, bucket_bytes=300
    )
    train_like_one_process(model, optimizer, alone, other)
    kept = copy.deepcopy((alone, other))
    copies = COPIES[way]((model, optimizer))
    if bps.rank() == 0:
        COPIES[way]((model, optimizer))  # a worker may make a copy without the others
    train_like_one_process(model, optimizer, alone, other)
    train_like_one_process(*copies, *kept)
    assert type(copies[1]).__name__ == "SGD" and copies[1].state_dict()["state"]


def test_an_optimizer_is_not_copied_while_its_gradients_are_in_flight():
    model = network()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(batch()[0]).sum().backward()
    with pytest.raises(RuntimeError, match="copy it after step"):
        copy.deepcopy(optimizer)
    optimizer.step()


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_wrapped_module_goes_on_like_the_module(way):
    model, alone = network(), network()
    wrapped = bps.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    other = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    train_like_one_process(wrapped, optimizer, alone, other)
    kept = copy.deepcopy((alone, other))
    copies = COPIES[way]((wrapped, optimizer))
    if bps.rank() == 0:
        with torch.no_grad():
            COPIES[way](wrapped)(batch()[0])
    averaged = torch.optim.swa_utils.AveragedModel(wrapped)
    averaged.update_parameters(wrapped)
    train_like_one_process(wrapped, optimizer, alone, other)
    train_like_one_process(*copies, *kept)
    with copies[0].no_sync():
        copies[0](batch()[0][mine()]).sum().backward()
    assert not same_everywhere(copies[0].module[0].weight.grad)


def test_process_sets_of_copies_are_the_same():
    some = bps.add_process_set([0])
    for one in (some, bps.global_process_set):
        layer = bps.SyncBatchNorm(2, process_set=one)
        assert copy.deepcopy(layer).process_set is one
    assert through_pickle(layer).process_set is bps.global_process_set
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(some)
    bps.remove_process_set(some)


@pytest.mark.parametrize("buffers", [True, False])
def test_two_forward_passes_may_precede_a_backward_pass(buffers):
    torch.manual_seed(0)
    inner = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    model = bps.DistributedDataParallel(inner, broadcast_buffers=buffers)
    torch.manual_seed(bps.rank())
    for _ in range(2):
        a, b = model(torch.randn(8, 4)), model(torch.randn(8, 4))
        (a.mean() - b.mean() + a.pow(2).mean()).backward()
        assert all(same_everywhere(p.grad) for p in model.parameters())
        model.zero_grad()
    model(torch.randn(8, 4))
    mean = inner[1].running_mean.clone()
    model(torch.randn(8, 4))
    assert not torch.equal(mean, inner[1].running_mean)


# ---- join ----


@pytest.mark.parametrize("options", [{}, {"cross_barrier": True}, {"bucket_bytes": 100}])
def test_workers_that_join_early_add_zeros(options):
    model, alone = network(), network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
    )
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1)
    x, y = batch()
    for step in range(bps.size()):
        losses = [(alone(x[r::4]) - y[r::4]).pow(2).mean() for r in ranks() if step <= r]
        sgd.zero_grad()
        (sum(losses) / bps.size()).backward()
        sgd.step()
        if step <= bps.rank():
            optimizer.zero_grad()
            (model(x[bps.rank() :: 4]) - y[bps.rank() :: 4]).pow(2).mean().backward()
            optimizer.step()
    newest = bps.join()
    assert newest == bps.size() - 1
    bps.broadcast_parameters(model.state_dict(), newest)
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))
    assert bps.join() in ranks()  # a worker may join twice, without a step in between


def test_join_before_the_first_step_and_with_two_optimizers():
    nets = [network(seed=i) for i in range(2)]
    optimizers = [
        bps.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
        for net in nets
    ]
    if bps.rank() == 0:
        alone = [network(seed=i) for i in range(2)]
        for i in (0, 0, 1, 0):
            nets[i](batch()[0]).sum().backward()
            optimizers[i].step()
            optimizers[i].zero_grad()
            sgd = torch.optim.SGD(alone[i].parameters(), lr=0.1 / bps.size())
            alone[i](batch()[0]).sum().backward()
            sgd.step()
            sgd.zero_grad()
        for net, other in zip(nets, alone):
            for p, q in zip(net.parameters(), other.parameters()):
                assert torch.allclose(p, q, rtol=1e-12)
    assert bps.join() == 0


# ---- cross barrier ----


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
@pytest.mark.parametrize("n_bytes", [100, 1 << 20])
def test_steps_without_a_barrier_equal_those_with_one(kind, n_bytes):
    model, alone = network(), network()
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}]
    optimizer = bps.DistributedOptimizer(
        kind(groups, lr=0.01), model.named_parameters(), cross_barrier=True, bucket_bytes=n_bytes
    )
    groups = [{"params": alone[0].parameters(), "lr": 0.02}, {"params": alone[2].parameters()}]
    reference = kind(groups, lr=0.01)
    schedules = [
        torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in (optimizer, reference)
    ]
    for _ in range(4):
        train(model, optimizer, 1, mine())
        assert all(p.grad is None for p in model.parameters())
        train(alone, reference, 1)
        for schedule in schedules:
            schedule.step()
    with torch.inference_mode():
        assert torch.allclose(model(batch()[0]), alone(batch()[0]), rtol=0, atol=1e-12)
    train(model, optimizer, 1, mine())
    train(alone, reference, 1)
    assert optimizer.state_dict()["state"].keys() == reference.state_dict()["state"].keys()
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))


def test_a_layer_waits_for_its_own_gradients_only():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        cross_barrier=True,
        bucket_bytes=1,
    )
    train(model, optimizer, 1, mine())
    before = [p.detach().clone() for p in model.parameters()]
    model[0](batch()[0])
    is_changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before)]
    assert is_changed == [True, True, False, False]
    optimizer.synchronize()
    assert all(not torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_gradients_can_be_clipped_with_cross_barrier():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), cross_barrier=True
    )
    train(model, optimizer, 2, mine())
    model(batch()[0][mine()]).sum().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    before = torch.cat([p.detach().view(-1) for p in model.parameters()])
    with optimizer.skip_synchronize():
        optimizer.step()
    moved = torch.cat([p.detach().view(-1) for p in model.parameters()]) - before
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-6)


def test_a_parameter_that_no_forward_waits_for_is_an_error():
    # The program uses the parameters directly, and never calls this module's method forward().
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), cross_barrier=True
    )

    def use():
        torch.nn.functional.linear(
            torch.ones(1, 2), model[0].weight, model[0].bias
        ).sum().backward()

    use()
    optimizer.step()
    with pytest.raises(RuntimeError, match="used before its update.*cross_barrier=False"):
        use()
    optimizer.synchronize()


# ---- batch normalization ----


@pytest.mark.parametrize("shape", [(24, 4), (24, 4, 3), (24, 4, 3, 2)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_normalization_is_over_all_workers(shape, momentum):
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=torch.float64) * 3 + 100
    weight = torch.randn(shape, dtype=torch.float64)
    cuts = [
        0,
        *[24 * (r + 1) // bps.size() - (r < bps.size() - 1) for r in ranks()],
    ]  # batches of different sizes
    rows = slice(cuts[bps.rank()], cuts[bps.rank() + 1])
    layer = bps.SyncBatchNorm(4, momentum=momentum).double()
    alone = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)](
        4, momentum=momentum
    ).double()
    for _ in range(2):
        a, b = x[rows].clone().requires_grad_(), x.clone().requires_grad_()
        out, want = layer(a), alone(b)
        (out * weight[rows]).sum().backward()
        (want * weight).sum().backward()
        assert torch.allclose(out, want[rows], rtol=0, atol=1e-9)
        assert torch.allclose(a.grad, b.grad[rows], rtol=0, atol=1e-9)
    total = bps.allreduce(layer.weight.grad, op=bps.Sum)
    assert torch.allclose(total, alone.weight.grad, rtol=0, atol=1e-9)
    assert torch.allclose(layer.running_mean, alone.running_mean) and layer.num_batches_tracked == 2
    assert torch.allclose(layer.running_var, alone.running_var)
    assert torch.allclose(layer.eval()(x), alone.eval()(x))


def test_batch_normalization_keeps_the_type_of_its_input():
    out = bps.SyncBatchNorm(3).bfloat16()(torch.randn(8, 3).bfloat16())
    assert out.dtype == torch.bfloat16 and out.isfinite().all()
    with pytest.raises(ValueError, match="2 dimensions"):
        bps.SyncBatchNorm(3)(torch.ones(3))


def test_a_step_may_be_repeated_after_a_time_out_of_its_comparison(monkeypatch):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    x, y = batch()
    ((model(x[mine()]) - y[mine()]) ** 2).mean().backward()
    if bps.rank() == 0:
        with monkeypatch.context() as patch:
            wait = bps_tensor.Tensor.finish
            patch.setattr(bps_tensor.Tensor, "finish", lambda self, **_: wait(self, 0.05))
            for _ in range(3):
                with pytest.raises(bps.Timeout):
                    optimizer.step()
    bps.barrier()
    optimizer.step()
    train(model, optimizer, 2, mine())
    assert same_everywhere(model[0].weight)


def test_tensors_of_one_name_are_not_mistaken_for_each_other():
    tensors = [torch.full((2,), 10.0 * bps.rank() + i) for i in range(3)]
    names = ["b", "a", "a"] if bps.rank() else ["a", "b", "a"]
    with pytest.raises(bps.Error, match="rank 0 has two tensors of the name 'a'"):
        bps.broadcast_parameters(list(zip(names, tensors)))
    bps.broadcast_parameters([("a", one) for one in tensors])
    assert [one.tolist() for one in tensors] == [[i, i] for i in range(3)]


@pytest.mark.parametrize("name", ["", "#", "#0", "#1", "#\u00b2", "#\u0663", "\u00fc" * 300])
def test_tensors_of_unusual_names_are_compared(name):
    for mine in (
        [(name, torch.ones(2 + (bps.rank() > 0)))],
        [(name if bps.rank() else "other", torch.ones(2))],
        [(name, torch.ones(2)), *[("other", torch.ones(2))] * (bps.rank() > 0)],
    ):
        with pytest.raises(bps.Error, match="workers disagree in .*rank [01] has"):
            bps.broadcast_parameters(mine)
    one = torch.full((2,), float(bps.rank()))
    bps.broadcast_parameters([(name, one)])
    assert one.tolist() == [0, 0]


def test_lists_in_different_orders_take_no_new_memory_in_each_call():
    rt = _core.runtime()
    named = [("a", torch.full((300_000,), float(bps.rank()))), ("b", torch.ones(2))]
    slots = []
    for _ in range(2):
        with pytest.raises(bps.Error, match="rank 0 has float32"):
            bps.broadcast_parameters([torch.ones(2 + (bps.rank() > 0)), torch.ones(2)])
        bps.broadcast_parameters(named if bps.rank() else named[::-1])
        assert (named[0][1] == 0).all()
        slots.append(list(map(id, rt.slots.all())))
    assert slots[0] == slots[1]


def test_sparse_gradients_of_optimizers_in_different_orders_are_not_mixed():
    models = [torch.nn.Embedding(4, 1, sparse=True) for _ in range(2)]
    optimizers = [
        bps.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=1.0), m.named_parameters())
        for m in models
    ]
    for order, goes_on in (([0, 1], True), ([0, 1] if bps.rank() else [1, 0], False)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (models[0](torch.tensor([0])) + 100 * models[1](torch.tensor([0]))).sum().backward()
        if goes_on:
            for i in order:
                optimizers[i].step()
        else:
            with pytest.raises(bps.Error, match="sparse gradients"):
                optimizers[order[0]].step()


@pytest.mark.parametrize("options", [{"sparse_as_dense": True}, {"op": bps.Sum}])
def test_options_of_optimizers_that_differ_are_an_error_at_all_workers(options):
    model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    mine = options if bps.rank() else {}
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), **mine)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(bps.Error, match="rank 0 has avg, .*, rank [1-9] has") as caught:
        optimizer.step()
    assert caught.value.code == EMISMATCH
    assert bps.allreduce(torch.ones(3), op=bps.Sum).tolist() == [bps.size()] * 3


def test_a_worker_may_join_before_its_first_step_with_unfrozen_parameters():
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    train(model, optimizer, 1, mine())
    model[0].requires_grad_(True)
    if bps.rank() == 0:
        train(model, optimizer, 2, mine())
    assert bps.join() == 0


def test_a_copy_of_a_module_averages_gradients_of_parameters_unfrozen_after_the_copy():
    model = network()
    model[0].requires_grad_(False)
    other = copy.deepcopy(bps.DistributedDataParallel(model))
    other.module[0].requires_grad_(True)
    other.module[2].requires_grad_(False)
    x, y = batch()
    for _ in range(2):
        ((other(x[mine()]) - y[mine()]) ** 2).mean().backward()
        assert same_everywhere(other.module[0].weight.grad)
        other.zero_grad()
    other.module[2].requires_grad_(True)
    ((other(x[mine()]) - y[mine()]) ** 2).mean().backward()
    assert same_everywhere(other.module[2].weight.grad)
    assert same_everywhere(other.module[0].weight.grad)


@pytest.mark.parametrize("cross", [False, True])
def test_parameters_that_workers_take_in_at_different_steps_are_an_error_at_all(cross):
    model = network()
    model[0].requires_grad_(False)
    unused = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    named = [*model.named_parameters(), ("unused", unused)]
    optimizer = torch.optim.SGD([param for _, param in named], lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, named, cross_barrier=cross)
    train(model, optimizer, 2 + (bps.rank() > 0), mine())
    model[0].requires_grad_(True)
    with pytest.raises(bps.Error, match="rank 0 .* after 2 steps, rank [1-9] .* after 3 steps"):
        train(model, optimizer, 1, mine())
    assert bps.allreduce(torch.ones(3), op=bps.Sum).tolist() == [bps.size()] * 3


def test_differences_in_a_process_set_name_ranks_of_the_job():
    last = bps.add_process_set(range(1, bps.size()))
    x = torch.ones(2 + bps.rank())
    calls = [
        lambda: bps.allreduce(x, name="in a set", process_set=last),
        lambda: bps.allreduce(x, process_set=last),
        lambda: bps.broadcast_parameters([x, torch.ones(1)], 1, last),
    ]
    for call in calls if last.included() and last.size() > 1 else []:
        with pytest.raises(
            bps.Error, match=r"rank 1 has float32 \[3\].*, rank 2 has float32 \[4\]"
        ):
            call()
    calls = [
        lambda: bps.allgather(x.reshape(1, -1), process_set=last),
        lambda: bps.alltoall(x.repeat(last.size(), 1), process_set=last),
        lambda: bps.broadcast(x, 1, process_set=last),
        lambda: bps.broadcast(torch.ones(2), bps.rank(), process_set=last),
        lambda: bps.broadcast_object(lambda: None, 1, process_set=last),
    ]
    for call in calls if last.included() and last.size() > 1 else []:
        with pytest.raises(
            (bps.Error, ValueError), match="rank [12] has .*(rank 2|this worker) has|^rank 1 cannot"
        ) as caught:
            call()
        assert "root 0" not in str(caught.value) and "rank 0" not in str(caught.value)
    bps.barrier()
    bps.remove_process_set(last)
