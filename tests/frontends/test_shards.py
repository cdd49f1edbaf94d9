"""Sums of which each worker gets a part: reduce-scatter of the back-end "bps", and the optimizer
whose state is divided. All workers of a job run these tests in the same order."""

import collections
import copy
import os

import pytest
import torch
import torch.distributed as dist

import bps
import bps.torch
from bps import _slots
from bps._tensor import Tensor
from bps.torch import _c10d_collectives, _parts

RANK, SIZE = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
ROWS = 6 * SIZE  # of a batch of all workers
WAYS = {
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("bps", init_method="bps://")
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def together():
    dist.barrier()
    torch.manual_seed(0)


# ---- reduce-scatter ----


@pytest.mark.parametrize("pieces", ["pieces", "own slots"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("n", [1, 1000, 90_001])
def test_parts_are_those_of_the_whole_sum(n, dtype, pieces, monkeypatch):
    if pieces == "pieces":
        monkeypatch.setattr(_slots, "PIECES", tuple(1 << k for k in range(8, 16)))
        monkeypatch.setattr(_slots, "OWN_SLOT_BYTES", 1 << 40)
    for turn in range(3):
        x = (torch.arange(n * SIZE) * 7 + turn) % 5 + RANK
        out = torch.empty(n, dtype=dtype)
        reduce_scatter_single(out, x.to(dtype))
        want = (x[RANK * n : RANK * n + n] - RANK) * SIZE + SIZE * (SIZE - 1) // 2
        assert torch.equal(out, want.to(dtype))


@pytest.mark.parametrize("op", [dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT])
def test_every_reduction_of_a_list_of_parts(op):
    parts = [torch.full((300,), 1.0 + r + RANK) for r in range(SIZE)]
    whole = torch.stack([torch.full((300,), 1.0 + RANK + r) for r in range(SIZE)])
    want = {
        dist.ReduceOp.AVG: whole.mean(0),
        dist.ReduceOp.MAX: whole.amax(0),
        dist.ReduceOp.PRODUCT: whole.prod(0),
    }[op]
    out = torch.empty(300)
    dist.reduce_scatter(out, parts, op)
    assert torch.allclose(out, want)


def test_complex_numbers_and_columns():
    x = torch.arange(4.0 * SIZE).to(torch.complex64) * (1 + 1j) + RANK
    out = torch.empty(4, 2, dtype=torch.complex64)[:, 0]  # not contiguous
    reduce_scatter_single(out, x)
    want = (x - RANK)[RANK * 4 : RANK * 4 + 4] * SIZE + SIZE * (SIZE - 1) / 2
    assert torch.allclose(out, want)


def test_lists_of_other_lengths_are_a_mismatch():
    sizes = [2] * SIZE if RANK else [1] * (SIZE - 1) + [SIZE + 1]
    out = torch.empty(sizes[RANK])
    with pytest.raises(Exception, match="in equal parts"):
        dist.reduce_scatter(out, [torch.ones(n) for n in sizes])


def test_only_equal_parts_are_sent_in_shards(monkeypatch):
    """tests/cluster/test_shards.py counts the bytes."""
    scattered = []

    def scatter(rt, wire, op, given, taken, agreement):
        scattered.append(taken.numel())
        return _parts.scatter_sums(rt, wire, op, given, taken, agreement)

    monkeypatch.setattr(_c10d_collectives, "scatter_sums", scatter)
    reduce_scatter_single(torch.empty(5), torch.ones(5 * SIZE))
    dist.reduce_scatter(torch.empty(6), [torch.ones(6)] * SIZE)
    dist.reduce_scatter(torch.empty(RANK + 1), [torch.ones(r + 1) for r in range(SIZE)])
    assert scattered == [5, 6]


# ---- gathers ----


@pytest.mark.parametrize("n", [10, 1 << 20])
def test_a_worker_sends_only_its_own_part_of_a_large_gather(n, monkeypatch):
    calls = collections.Counter()
    for name in ("push_pull", "abstain"):

        def call(tensor, *args, name=name, original=getattr(Tensor, name)):
            calls[name] += tensor.dtype == "u8"  # not the comparisons of calls
            return original(tensor, *args)

        monkeypatch.setattr(Tensor, name, call)
    for turn in range(2):
        calls.clear()
        x = torch.full((n,), RANK + turn, dtype=torch.uint8)
        out = torch.empty(n * SIZE, dtype=torch.uint8)
        all_gather_single(out, x)
        assert (out.view(SIZE, n) == torch.arange(SIZE)[:, None] + turn).all()
        # Small values of all workers share one piece.
        assert calls == ({"push_pull": 1} if n == 10 else {"push_pull": 1, "abstain": SIZE - 1})


def test_other_lengths_with_the_same_total_are_a_mismatch():
    sizes = [50_000] * SIZE if RANK else [49_999] + [50_000] * (SIZE - 2) + [50_001]
    with pytest.raises(Exception, match="elements of float32"):
        dist.all_gather([torch.empty(n) for n in sizes], torch.ones(sizes[RANK]))


def test_gathers_of_uneven_and_of_empty_parts():
    sizes = [(50_000 * r * r) % 170_000 for r in range(SIZE)]
    outs = [torch.empty(n) for n in sizes]
    dist.all_gather(outs, torch.full((sizes[RANK],), float(RANK)))
    assert all((out == r).all() for r, out in enumerate(outs))
    parts = [torch.full((40_000 + r + RANK,), 10.0 * RANK + r) for r in range(SIZE)]
    outs = [torch.empty(40_000 + r + RANK) for r in range(SIZE)]
    dist.all_to_all(outs, parts)
    assert all((out == 10.0 * r + RANK).all() for r, out in enumerate(outs))


# ---- an optimizer whose state is divided ----


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 33),
        torch.nn.Tanh(),
        torch.nn.Unflatten(1, (3, 11, 1)),
        torch.nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last),
        torch.nn.Flatten(),
        torch.nn.Linear(44, 2, bias=False),
    )


def grouped(model):
    """Return groups of parameters: a learning rate of its own for the last layer."""
    last = list(model[-1].parameters())
    return [{"params": list(model[:-1].parameters())}, {"params": last, "lr": 0.02}]


def train(model, optimizer, rows, n_steps, first=0):
    """Train with some rows of the batches of the steps from `first` on."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(first, first + n_steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(ROWS, 5, generator=generator), torch.randn(ROWS, 2, generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()


MINE = slice(RANK * ROWS // SIZE, (RANK + 1) * ROWS // SIZE)


def same(model, other):
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(model.parameters(), other.parameters())
    )


@pytest.mark.parametrize("sums", ["shards", "whole sums"])
@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_one_worker(way, sums, monkeypatch):
    if sums == "whole sums":  # as in a job that goes on without a machine
        monkeypatch.setattr(_slots.Slots, "may_shard", lambda slots: False)
    kind, options = WAYS[way]
    alone, model = network(), network()
    train(alone, kind(grouped(alone), **options), slice(None), 5)
    size = 900  # several buckets
    optimizer = bps.torch.ShardedOptimizer(grouped(model), kind, bucket_bytes=size, **options)
    train(model, optimizer, MINE, 5)
    assert same(model, alone)
    everyones = bps.torch.allgather_object([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for one in everyones for a, b in zip(one, everyones[0]))


def test_each_worker_keeps_its_part_of_the_state():
    model = network()
    optimizer = bps.torch.ShardedOptimizer(model.parameters(), torch.optim.Adam)
    train(model, optimizer, MINE, 1)
    n = sum(p.numel() for p in model.parameters())
    kept = sum(
        v.numel()
        for _, _, bucket in optimizer._all()
        for v in bucket.optimizer.state[bucket.shard].values()
        if isinstance(v, torch.Tensor) and v.dim()
    )
    assert kept == 2 * -(-n // SIZE)


@pytest.mark.parametrize("way", WAYS)
def test_state_moves_to_a_plain_optimizer_and_back(way):
    kind, options = WAYS[way]
    model = network()
    optimizer = bps.torch.ShardedOptimizer(grouped(model), kind, bucket_bytes=300, **options)
    train(model, optimizer, MINE, 3)
    with pytest.raises(RuntimeError, match="call consolidate_state_dict"):
        optimizer.state_dict()
    optimizer.consolidate_state_dict()
    state = optimizer.state_dict()
    first = copy.deepcopy(state)  # plain optimizers change the tensors that they load
    alone, other = network(), network()
    for one in (alone, other):
        one.load_state_dict(model.state_dict())
    plain = kind(grouped(alone), **options)
    plain.load_state_dict(state)
    train(alone, plain, slice(None), 2, first=3)
    train(model, optimizer, MINE, 2, first=3)
    assert same(model, alone)
    loaded = bps.torch.ShardedOptimizer(grouped(other), kind, **options)
    loaded.load_state_dict(first)
    train(other, loaded, MINE, 2, first=3)
    assert same(model, other)
    loaded.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="other groups"):
        loaded.load_state_dict(torch.optim.SGD(alone.parameters(), lr=1).state_dict())


def test_weights_may_be_loaded_after_the_optimizer_was_made():
    alone, model = network(), network()
    optimizer = bps.torch.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for one in (alone, model):
        for param in one.parameters():
            param.detach().mul_(0.5)
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), slice(None), 2)
    train(model, optimizer, MINE, 2)
    assert same(model, alone)


def test_parameter_without_gradient_counts_as_zeros():
    model, alone = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    alone.load_state_dict(model.state_dict())
    optimizer = bps.torch.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    if RANK == 0:
        model(torch.ones(1, 3)).sum().backward()
    alone(torch.ones(1, 3)).sum().backward()
    for p in alone.parameters():
        p.grad /= SIZE
    optimizer.step()
    torch.optim.SGD(alone.parameters(), lr=1.0).step()
    assert same(model, alone)


def test_parameters_of_several_types():
    params = [torch.nn.Parameter(torch.ones(7, dtype=d)) for d in (torch.float64, torch.bfloat16)]
    optimizer = bps.torch.ShardedOptimizer(params, torch.optim.SGD, lr=1.0)
    for p in params:
        p.grad = torch.full_like(p, RANK)
    assert optimizer.step(lambda: 5) == 5
    assert all((p == 1 - (SIZE - 1) / 2).all() for p in params)


def test_what_cannot_be_divided_is_refused():
    param = torch.nn.Parameter(torch.ones(4))
    with pytest.raises(ValueError, match="cannot divide LBFGS"):
        bps.torch.ShardedOptimizer([param], torch.optim.LBFGS)
    with pytest.raises(ValueError, match="floating-point parameters, not torch.complex64"):
        bps.torch.ShardedOptimizer([torch.ones(2, dtype=torch.complex64)], torch.optim.SGD, lr=1)
    with pytest.raises(ValueError, match="gaps between its elements"):
        bps.torch.ShardedOptimizer([torch.ones(4, 4)[:, ::2]], torch.optim.SGD, lr=1)
    optimizer = bps.torch.ShardedOptimizer([param], torch.optim.SGD, lr=1.0)
    with pytest.raises(NotImplementedError, match="pass all groups to the constructor"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


def test_scaler_is_refused_at_every_worker():
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = bps.torch.ShardedOptimizer([param], torch.optim.SGD, lr=1.0)
    if not hasattr(torch.amp, "GradScaler"):  # before PyTorch 2.3, a scaler needs a GPU
        optimizer.found_inf = torch.ones(1)
        with pytest.raises(NotImplementedError, match="train with bfloat16"):
            optimizer.step()
        return
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((param * (float("inf") if RANK == 0 else 1.0)).sum()).backward()
    with pytest.raises(NotImplementedError, match="train with bfloat16"):
        scaler.step(optimizer)


def test_different_models_are_a_mismatch():
    for shape in ((40 + (RANK == 0),), (8, 5) if RANK else (5, 8)):
        param = torch.nn.Parameter(torch.ones(shape))
        optimizer = bps.torch.ShardedOptimizer([param], torch.optim.SGD, lr=1.0)
        param.grad = torch.ones_like(param)
        with pytest.raises(bps.Error, match="1 parameters of float32"):
            optimizer.step()
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            optimizer.step()


def test_state_of_every_kind_of_optimizer_can_be_loaded():
    kinds = ("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop")
    for name in kinds:
        kind = getattr(torch.optim, name)
        model, other = network(), network()
        optimizer = bps.torch.ShardedOptimizer(model.parameters(), kind, lr=0.01, bucket_bytes=300)
        train(model, optimizer, MINE, 2)
        optimizer.consolidate_state_dict()
        other.load_state_dict(model.state_dict())
        loaded = bps.torch.ShardedOptimizer(other.parameters(), kind, lr=0.01, bucket_bytes=300)
        loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer, MINE, 2, first=2)
        train(other, loaded, MINE, 2, first=2)
        assert same(model, other), name


def test_parameter_without_state_has_zeros():
    """A plain optimizer has no state for a parameter that never had a gradient."""
    options = {"lr": 0.1, "momentum": 0.9}
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(3)]
    plain = torch.optim.SGD(params, **options)
    params[1].grad = torch.ones(5)
    plain.step()
    assert list(plain.state_dict()["state"]) == [1]
    loaded = bps.torch.ShardedOptimizer(params, torch.optim.SGD, **options)
    loaded.load_state_dict(plain.state_dict())
    for p in params:
        p.grad = torch.ones(5)
    plain_params = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = torch.optim.SGD(plain_params, **options)
    again.load_state_dict(copy.deepcopy(plain.state_dict()))
    for p in plain_params:
        p.grad = torch.ones(5)
    again.step()
    loaded.step()
    for mine, want in zip(params, plain_params):
        assert torch.allclose(mine, want)


def test_parameters_may_get_other_memory():
    model = torch.nn.Linear(3, 3)
    optimizer = bps.torch.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(torch.zeros_like(vector), model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all((p == -1).all() for p in model.parameters())


def test_frozen_parameter_stays_as_it_is():
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(3)]
    params[0].requires_grad_(False)
    optimizer = bps.torch.ShardedOptimizer(params, torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    for turn in range(2):
        for p in params:
            p.grad = torch.ones(5) if p.requires_grad else None
        optimizer.step()
        params[1].requires_grad_(False)
        if turn == 0:
            first = params[1].detach().clone()
    assert (params[0] == 1).all()
    assert torch.equal(params[1], first)
    assert (params[2] != 1).all()


def test_sparse_gradients_and_empty_parameters():
    table, empty = torch.nn.Embedding(7, 3, sparse=True), torch.nn.Parameter(torch.empty(0, 4))
    alone = torch.nn.Embedding(7, 3, _weight=table.weight.detach().clone())
    optimizer = bps.torch.ShardedOptimizer(
        [{"params": [empty]}, {"params": [empty.detach().clone().requires_grad_(), table.weight]}],
        torch.optim.Adam,
        lr=0.1,
    )
    plain = torch.optim.Adam(alone.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        table(torch.tensor([1, 2, 2])).sum().backward()
        alone(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()
        plain.step()
    assert same(table, alone)
    optimizer.consolidate_state_dict()
    optimizer.load_state_dict(optimizer.state_dict())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)


def test_options_of_a_group_may_be_tensors_and_amsgrad():
    model, alone = network(), network()
    options = {"lr": torch.tensor(0.01), "amsgrad": True}
    optimizer = bps.torch.ShardedOptimizer(model.parameters(), torch.optim.Adam, **options)
    plain = torch.optim.Adam(alone.parameters(), lr=0.01, amsgrad=True)
    train(model, optimizer, MINE, 2)
    train(alone, plain, slice(None), 2)
    optimizer.consolidate_state_dict()
    state = copy.deepcopy(optimizer.state_dict())
    assert any("max_exp_avg_sq" in s for s in state["state"].values())
    assert same(model, alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.float64])
@pytest.mark.parametrize("n", [0, 3, 70_000])
def test_parts_of_no_and_of_few_values(n, dtype):
    x = torch.arange(2 * n * SIZE).view(2, n * SIZE)[1].remainder(200).to(dtype)
    out = torch.empty(n, dtype=dtype)
    for _ in range(3):
        reduce_scatter_single(out, x, dist.ReduceOp.MAX)
        assert torch.equal(out, x[RANK * n : RANK * n + n])


def test_parts_of_a_group_of_some_workers():
    group = dist.new_group([0, SIZE - 1], backend="bps")
    if RANK in (0, SIZE - 1):
        out = torch.empty(30_000)
        for _ in range(3):
            reduce_scatter_single(out, torch.full((60_000,), RANK + 1.0), group=group)
            assert (out == SIZE + 1).all()
        dist.destroy_process_group(group)
