"""Behaviour of torch.distributed that its users rely on, tested with the back-end "bps".

All workers of a job run these tests in the same order (tests/frontends/run.py).
"""

import copy
import datetime
import math
import os
from pathlib import Path

import barriers
import coded
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bps

RANK, SIZE = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])
LIMIT = datetime.timedelta(seconds=60)
EMISMATCH, ETIMEDOUT = -10003, bps.ETIMEDOUT
TOTAL = SIZE * (SIZE + 1) // 2
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16]
TYPES += [torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.complex64]
REDUCTIONS = {"SUM": sum, "MIN": min, "MAX": max, "PRODUCT": math.prod}
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@pytest.fixture(scope="session", autouse=True)
def group():
    import bps.torch  # noqa: F401  registers the rendezvous bps://

    dist.init_process_group("bps", init_method="bps://", timeout=LIMIT)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def together():
    dist.barrier()
    torch.manual_seed(0)


@pytest.fixture
def some():
    """Yield a group of the last two workers, and None at the other workers."""
    one = dist.new_group([SIZE - 2, SIZE - 1])
    is_in = RANK >= SIZE - 2
    yield one if is_in else None
    if is_in:
        dist.destroy_process_group(one)


def since(*version):
    return pytest.mark.skipif(torch.__version__ < version, reason=f"needs PyTorch {version}")


def mine(shape=(4,), dtype=torch.float32):
    return torch.full(shape, RANK + 1).to(dtype)


def parts(n):
    """Return a tensor of n rows for each worker. The rows differ, and no two workers have the same
    rows."""
    return torch.arange(3.0 * n * SIZE).view(n * SIZE, 3) + RANK


def summed_part(n):
    """Return this worker's part of the sum of all workers' ``parts(n)``."""
    return (parts(n) - RANK)[RANK * n : (RANK + 1) * n] * SIZE + TOTAL - SIZE


def reduced(name, members=range(SIZE)):
    return REDUCTIONS[name]([r + 1 for r in members])


def op(name):
    return getattr(dist.ReduceOp, name)


def same_everywhere(tensor):
    all_ = [torch.empty_like(tensor) for _ in range(SIZE)]
    dist.all_gather(all_, tensor.detach().contiguous())
    return all(torch.equal(all_[0], t) for t in all_)


# ---- groups ----


def test_the_back_end_is_available_by_name():
    assert dist.is_initialized() and dist.get_backend() == "bps"
    assert "bps" in dist.Backend.backend_list


def test_a_member_has_a_rank_of_its_own_in_a_group(some):
    if some is not None:
        assert dist.get_rank(some) == RANK - SIZE + 2 and dist.get_world_size(some) == 2
        assert dist.get_global_rank(some, 0) == SIZE - 2
        assert dist.get_group_rank(some, RANK) == dist.get_rank(some)
        assert dist.get_process_group_ranks(some) == [SIZE - 2, SIZE - 1]


def test_a_worker_outside_of_a_group_gets_the_mark_for_it():
    one = dist.new_group(range(SIZE - 1))
    assert (one == dist.GroupMember.NON_GROUP_MEMBER) == (RANK == SIZE - 1)
    if RANK < SIZE - 1:
        dist.all_reduce(x := mine(), group=one)
        assert (x == TOTAL - SIZE).all()
        dist.destroy_process_group(one)


def test_groups_of_the_same_workers_do_not_mix():
    groups = [dist.new_group() for _ in range(2)]
    xs = [mine((3,)) + 100 * i for i in range(2)]
    order = (0, 1) if RANK == 0 else (1, 0)  # the groups' calls may come in any order
    works = {i: dist.all_reduce(xs[i], group=groups[i], async_op=True) for i in order}
    for i in (1, 0):
        works[i].wait()
        assert (xs[i] == TOTAL + 100 * i * SIZE).all()
    for one in groups:
        dist.destroy_process_group(one)


def test_ranks_of_a_group_that_do_not_exist_are_refused():
    with pytest.raises((ValueError, RuntimeError), match="world.size"):
        dist.new_group([0, SIZE])
    with pytest.raises((ValueError, RuntimeError), match="world.size"):
        dist.new_group(range(SIZE + 1))


def monitored_barrier(group=None, seconds=60, wait_all_ranks=False):
    """Call monitored_barrier(). PyTorch before 2.14 accepts only Gloo for this call."""
    timeout = datetime.timedelta(seconds=seconds)
    if torch.__version__ >= (2, 14):
        return dist.monitored_barrier(group, timeout, wait_all_ranks)
    options = dist.BarrierOptions()
    options.timeout = timeout
    return (group or dist.group.WORLD).monitored_barrier(options, wait_all_ranks)


BARRIERS = {
    "at once": dist.barrier,
    "waited for": lambda group=None: dist.barrier(group, async_op=True).wait(),
    "monitored": monitored_barrier,
}


def shared(tmp_path):
    """Return rank 0's folder at all workers."""
    box = [str(tmp_path)]
    dist.broadcast_object_list(box, 0)
    return Path(box[0])


@pytest.mark.parametrize("way", BARRIERS)
def test_a_barrier_of_a_group_waits_for_its_members_alone(some, way, tmp_path):
    path = shared(tmp_path) / "come"
    barriers.check(lambda: BARRIERS[way](some), path, RANK, [SIZE - 2, SIZE - 1])


@pytest.mark.parametrize("way", BARRIERS)
def test_no_worker_leaves_a_barrier_before_the_last_has_come(way, tmp_path):
    barriers.check(BARRIERS[way], shared(tmp_path) / "come", RANK, range(SIZE))


def test_monitored_barriers_follow_each_other():
    for _ in range(3):
        monitored_barrier()
        monitored_barrier()
        dist.all_reduce(x := mine())
        assert (x == TOTAL).all()


@pytest.mark.parametrize("is_listing_all", [False, True])
def test_a_monitored_barrier_names_the_missing_workers_and_the_group_goes_on(is_listing_all):
    if RANK == 0:
        named = "Rank 1 "
        if is_listing_all and SIZE > 2:
            named = f"Ranks {', '.join(map(str, range(1, SIZE)))} "
        with pytest.raises(dist.DistBackendError, match=named + "failed to pass") as caught:
            monitored_barrier(seconds=0.1, wait_all_ranks=is_listing_all)
        assert (caught.value.code, caught.value.rank) == (ETIMEDOUT, 1)
    dist.all_reduce(x := mine())
    assert (x == TOTAL).all()
    monitored_barrier()


def test_workers_that_come_to_a_monitored_barrier_get_an_error_if_another_does_not():
    text = "Rank 1 failed to pass" if RANK == 0 else f"Rank {RANK} successfully reached .*rank 0"
    if RANK != 1:
        with pytest.raises(dist.DistBackendError, match=text):
            monitored_barrier(seconds=0.3)
    dist.barrier()
    monitored_barrier()


# ---- all_reduce and reduce ----


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16, torch.float64])
def test_all_reduce_takes_every_reduction_and_type(name, dtype):
    x = mine(dtype=dtype)
    dist.all_reduce(x, op(name))
    assert x.dtype == dtype and (x == reduced(name)).all()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_all_reduce_in_a_group(name, some):
    if some is not None:
        x = mine()
        dist.all_reduce(x, op(name), group=some)
        assert (x == reduced(name, (SIZE - 2, SIZE - 1))).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_averages_of_every_type(dtype):
    x = mine(dtype=dtype) * 2 * SIZE
    dist.all_reduce(x, op("AVG"))
    assert x.dtype == dtype and (x == 2 * TOTAL).all()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce_takes_every_reduction_and_root(name):
    for root in range(SIZE):
        x = mine()
        dist.reduce(x, root, op(name))
        assert (x == (reduced(name) if RANK == root else RANK + 1)).all()


def test_reduce_in_a_group_names_its_root_by_the_global_rank(some):
    if some is not None:
        x = mine()
        dist.reduce(x, SIZE - 1, group=some)
        assert (x == (2 * SIZE - 1 if RANK == SIZE - 1 else RANK + 1)).all()


def test_all_reduce_of_several_tensors_at_once():
    xs = [mine((n,)) for n in (1, 10, 70_000)]
    dist.all_reduce_coalesced(xs)
    assert all((x == TOTAL).all() for x in xs)


def test_all_reduce_of_complex_numbers_of_both_sizes():
    for dtype in (torch.complex64, torch.complex128):
        x = torch.full((3,), complex(RANK, -RANK), dtype=dtype)
        dist.all_reduce(x)
        assert (x == complex(TOTAL - SIZE, SIZE - TOTAL)).all()


def test_all_reduce_of_large_integers_is_exact():
    x = torch.full((3,), 2**60 // SIZE + RANK, dtype=torch.int64)
    dist.all_reduce(x)
    assert (x == SIZE * (2**60 // SIZE) + TOTAL - SIZE).all()


def test_all_reduce_leaves_autograd_alone():
    x = mine().requires_grad_()
    with torch.no_grad():
        dist.all_reduce(x)
    assert x.requires_grad and x.is_leaf and (x == TOTAL).all()


def sparse(dtype=torch.float32):
    """Return a sparse tensor with an element that no other worker has, and two that all have."""
    rows = torch.tensor([[RANK, SIZE, SIZE], [0, 1, 1]])
    values = torch.arange(6).view(3, 2) + RANK
    return torch.sparse_coo_tensor(rows, values.to(dtype), (SIZE + 1, 2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("is_async", [False, True])
def test_sparse_tensors_are_summed(dtype, is_async):
    x = sparse(dtype)
    want = x.to_dense()
    dist.all_reduce(want)
    work = dist.all_reduce(x, async_op=is_async)
    if is_async:
        assert work.get_future().wait()[0] is x
    assert x.is_sparse and x.dtype == dtype and torch.equal(x.to_dense(), want)
    assert x._nnz() == SIZE + 1


def test_a_sum_of_sparse_tensors_of_which_some_are_empty():
    x = torch.eye(SIZE).to_sparse() if RANK == 1 else torch.zeros(SIZE, SIZE).to_sparse()
    for n in (1, SIZE):
        dist.all_reduce(x)
        assert torch.equal(x.to_dense(), torch.eye(SIZE) * n)
    dist.all_reduce(x := torch.zeros(SIZE, SIZE).to_sparse())
    assert x._nnz() == 0


def test_sparse_tensors_that_differ_are_an_error_at_all_workers():
    shape = (SIZE + (RANK > 0), 2)
    with pytest.raises(dist.DistBackendError, match="workers disagree in all_reduce: rank 0 has"):
        dist.all_reduce(torch.zeros(shape).to_sparse())
    with pytest.raises(dist.DistBackendError, match="workers disagree in all_reduce: rank 0 has"):
        dist.all_reduce(sparse() if RANK else sparse().to_dense())


def test_reductions_of_sparse_tensors_other_than_sums_name_the_way_out():
    with pytest.raises(NotImplementedError, match="SUM.*to_dense"):
        dist.all_reduce(sparse(), op("MAX"))


# ---- work ----


def all_reduce_of_back_end(x):
    """Return the back-end's own work. From PyTorch 2.14 on, dist.all_reduce() returns a work of
    PyTorch, whose is_completed() is always False and whose exception() is always None."""
    if torch.__version__ < (2, 14):
        return dist.all_reduce(x, async_op=True)
    back_end = dist.group.WORLD._get_backend(torch.device("cpu"))
    return back_end.allreduce([x], dist.AllreduceOptions())


def test_a_work_reports_its_state():
    work = all_reduce_of_back_end(x := mine())
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(work.result()[0], x) and (x == TOTAL).all()


def test_a_failed_work_reports_its_state():
    work = all_reduce_of_back_end(mine((3 + RANK,)))
    with pytest.raises(dist.DistBackendError, match="workers disagree"):
        work.wait()
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), dist.DistBackendError)
    error = work.exception()
    assert (error.code, error.host, error.tensor) == (EMISMATCH, None, None)
    assert f"rank {error.rank} has" in str(error)


def test_a_work_may_be_waited_for_again():
    work = dist.all_reduce(x := mine(), async_op=True)
    work.wait()
    assert (x == TOTAL).all()
    x.zero_()
    work.wait()
    assert (x == 0).all()


def test_futures_chain():
    future = dist.all_reduce(mine(), async_op=True).get_future()
    chained = future.then(lambda f: f.value()[0] + 1).then(lambda f: f.value() * 2)
    assert (chained.wait() == 2 * (TOTAL + 1)).all() and future.done()


def test_results_of_works_in_flight_are_not_mixed_up():
    xs = [torch.full((5,), float(i + RANK)) for i in range(100)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for i, work in enumerate(works):
        work.wait()
        assert (xs[i] == i * SIZE + TOTAL - SIZE).all()


# ---- broadcast ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_broadcast_takes_every_type_and_shape(dtype, shape):
    x = torch.full(shape, int(RANK == SIZE - 1)).to(dtype)
    dist.broadcast(x, SIZE - 1)
    assert torch.equal(x, torch.ones(shape).to(dtype))


def test_broadcast_in_a_group_names_its_root_by_the_global_rank(some):
    if some is not None:
        x = mine()
        dist.broadcast(x, SIZE - 1, group=some)
        assert (x == SIZE).all()


def test_broadcast_of_no_elements_and_of_many():
    for n in (0, 5 << 20):
        x = torch.full((n,), float(RANK))
        dist.broadcast(x, 1)
        assert (x == 1).all()


# ---- all_gather ----


@pytest.mark.parametrize("dtype", TYPES)
def test_all_gather_takes_every_type(dtype):
    out = [torch.empty(2, 2, dtype=dtype) for _ in range(SIZE)]
    dist.all_gather(out, torch.full((2, 2), RANK).to(dtype))
    assert all(torch.equal(t, torch.full((2, 2), r).to(dtype)) for r, t in enumerate(out))


def test_all_gather_in_a_group(some):
    if some is not None:
        out = [torch.empty(2) for _ in range(2)]
        dist.all_gather(out, mine((2,)), group=some)
        assert [t[0].item() for t in out] == [SIZE - 1, SIZE]


def test_all_gather_into_outputs_with_gaps():
    base = torch.zeros(SIZE, 3, 4)
    dist.all_gather([base[r, :, ::2] for r in range(SIZE)], mine((3, 2)))
    assert all((base[r, :, ::2] == r + 1).all() for r in range(SIZE))
    assert (base[:, :, 1::2] == 0).all()


def test_all_gather_of_wrong_outputs_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="all_gather: the outputs must be"):
        dist.all_gather([torch.empty(2)] * (SIZE + 1), torch.ones(2))
    with pytest.raises((ValueError, RuntimeError), match="types"):
        dist.all_gather([torch.empty(2, dtype=torch.float64)] * SIZE, torch.ones(2))


def test_all_gather_runs_without_waiting():
    out = [torch.empty(2) for _ in range(SIZE)]
    dist.all_gather(out, mine((2,)), async_op=True).wait()
    assert [t[0].item() for t in out] == [r + 1 for r in range(SIZE)]


def test_all_gather_into_one_tensor_of_a_group(some):
    if some is not None:
        out = torch.empty(2, 3)
        all_gather_single(out, mine((3,)), group=some)
        assert out[:, 0].tolist() == [SIZE - 1, SIZE]


@since(2, 2)
def test_several_all_gathers_at_once():
    outs = [torch.empty(SIZE * n) for n in (1, 5)]
    with dist._coalescing_manager():
        for out, n in zip(outs, (1, 5)):
            all_gather_single(out, mine((n,)))
    for out in outs:
        assert torch.equal(out.view(SIZE, -1)[:, 0], torch.arange(1.0, SIZE + 1))


# ---- gather and scatter ----


@pytest.mark.parametrize("dtype", TYPES)
def test_gather_and_scatter_take_every_type(dtype):
    out = [torch.empty(2, dtype=dtype) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(torch.full((2,), RANK).to(dtype), out, 0)
    for r, t in enumerate(out or []):
        assert torch.equal(t, torch.full((2,), r).to(dtype))
    x = torch.empty(2, dtype=dtype)
    dist.scatter(x, out, 0)
    assert torch.equal(x, torch.full((2,), RANK).to(dtype))


def test_gather_and_scatter_in_a_group(some):
    if some is not None:
        root = SIZE - 1
        out = [torch.empty(2) for _ in range(2)] if RANK == root else None
        dist.gather(mine((2,)), out, root, group=some)
        assert RANK != root or [t[0].item() for t in out] == [SIZE - 1, SIZE]
        x = torch.empty(2)
        dist.scatter(x, out, root, group=some)
        assert (x == RANK + 1).all()


def test_gather_and_scatter_refuse_lists_at_the_wrong_worker():
    with pytest.raises((ValueError, RuntimeError), match="gather_list`* must"):
        dist.gather(mine(), None if RANK == 0 else [mine()] * SIZE, 0)
    with pytest.raises((ValueError, RuntimeError), match="scatter_list`* must"):
        dist.scatter(mine(), None if RANK == 0 else [mine()] * SIZE, 0)


def test_gather_of_outputs_of_another_size_is_refused_at_the_root():
    one = dist.new_group([0])
    if RANK == 0:
        with pytest.raises(ValueError, match="root needs 1 outputs of 4 elements"):
            dist.gather(mine(), [torch.empty(3)], 0, group=one)
        with pytest.raises(ValueError, match="root needs 1 inputs of 3 elements"):
            dist.scatter(torch.empty(3), [mine()], 0, group=one)
        dist.destroy_process_group(one)


def test_objects_are_gathered_at_one_worker():
    out = [None] * SIZE if RANK == 0 else None
    dist.gather_object({"rank": RANK, "text": "x" * RANK * 1000}, out, 0)
    assert RANK != 0 or [o["rank"] for o in out] == list(range(SIZE))


def test_objects_travel_in_a_group(some):
    if some is not None:
        out = [None, None]
        dist.all_gather_object(out, ("from", RANK), group=some)
        assert out == [("from", SIZE - 2), ("from", SIZE - 1)]
        box = [RANK]
        dist.broadcast_object_list(box, SIZE - 2, group=some)
        assert box == [SIZE - 2]


# ---- reduce_scatter ----


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce_scatter_takes_every_reduction(name):
    out = torch.empty(2)
    dist.reduce_scatter(out, [torch.full((2,), RANK + r + 1.0) for r in range(SIZE)], op(name))
    assert (out == REDUCTIONS[name]([r + RANK + 1 for r in range(SIZE)])).all()


def test_reduce_scatter_in_a_group(some):
    if some is not None:
        out, place = torch.empty(3), dist.get_rank(some)
        dist.reduce_scatter(out, [mine((3,)), mine((3,)) + 100], group=some)
        assert (out == 2 * SIZE - 1 + 200 * place).all()
        reduce_scatter_single(out, mine((6,)) + torch.arange(6), group=some)
        assert (out == 2 * SIZE - 1 + 2 * torch.arange(6)[3 * place :][:3]).all()


def test_reduce_scatter_of_wrong_sizes_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="reduce_scatter needs"):
        dist.reduce_scatter(torch.empty(2), [torch.ones(3)] * SIZE)
    with pytest.raises((ValueError, RuntimeError), match="reduce_scatter_single: the input has"):
        reduce_scatter_single(torch.empty(2), torch.ones(2 * SIZE + 1))


@since(2, 2)
def test_several_reduce_scatters_at_once():
    outs = [torch.empty(n, 3) for n in (1, 5)]
    with dist._coalescing_manager():
        for out, n in zip(outs, (1, 5)):
            reduce_scatter_single(out, parts(n))
    assert all(torch.equal(out, summed_part(len(out))) for out in outs)


# ---- all_to_all ----


@pytest.mark.parametrize("dtype", TYPES)
def test_all_to_all_takes_every_type(dtype):
    out = torch.empty(SIZE, 2, dtype=dtype)
    dist.all_to_all_single(out, torch.full((SIZE, 2), RANK).to(dtype))
    assert torch.equal(out[:, 0], torch.arange(SIZE).to(dtype))


def test_all_to_all_in_a_group(some):
    if some is not None:
        out = torch.empty(2)
        dist.all_to_all_single(out, mine((2,)), group=some)
        assert out.tolist() == [SIZE - 1, SIZE]
        parts = [torch.empty(1), torch.empty(1)]
        dist.all_to_all(parts, list(mine((2,)).split(1)), group=some)
        assert [p.item() for p in parts] == [SIZE - 1, SIZE]


def test_all_to_all_of_splits_that_do_not_fit_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="cannot be split"):
        dist.all_to_all_single(torch.empty(SIZE), torch.ones(SIZE), [1] * SIZE, [2] * SIZE)
    dist.barrier()


def test_all_to_all_where_rank_0_sends_all_rows():
    n = SIZE if RANK == 0 else 0
    out = torch.empty(1)
    dist.all_to_all_single(out, torch.arange(float(n)), [1, *[0] * (SIZE - 1)], [int(n > 0)] * SIZE)
    assert out.item() == RANK


# ---- what is missing ----


@pytest.mark.parametrize("name", ["isend", "irecv"])
def test_point_to_point_operations_name_the_way_out(name):
    with pytest.raises(NotImplementedError, match="new_group\\(backend='gloo'\\)"):
        getattr(dist, name)(torch.ones(1), (RANK + 1) % SIZE)


def test_a_gloo_group_beside_serves_point_to_point_operations():
    pair = dist.new_group([0, 1], backend="gloo")
    if RANK == 0:
        dist.send(torch.full((2,), 7.0), 1, group=pair)
    elif RANK == 1:
        x = torch.zeros(2)
        dist.recv(x, 0, group=pair)
        assert (x == 7).all()


# ---- gradients through collectives ----


def test_all_reduce_of_autograd_reduces_gradients():
    from torch.distributed.nn.functional import all_reduce

    x = mine().requires_grad_()
    (all_reduce(x) * (RANK + 1)).sum().backward()
    assert (x.grad == TOTAL).all()


def test_all_gather_of_autograd_sends_gradients_back():
    from torch.distributed.nn.functional import all_gather

    x = mine((1,)).requires_grad_()
    (sum(t.sum() for t in all_gather(x)) * (RANK + 1)).backward()
    assert x.grad.item() == TOTAL


@since(2, 4)
def test_functional_collectives():
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    world = dist.group.WORLD
    assert (functional.all_reduce(mine(), "sum", world) == TOTAL).all()
    gathered = functional.all_gather_tensor(mine((1,)), 0, world)
    assert gathered.tolist() == [r + 1 for r in range(SIZE)]
    scattered = functional.reduce_scatter_tensor(parts(1), "sum", 0, world)
    assert torch.equal(scattered, summed_part(1))


@since(2, 6)
def test_distributed_tensors_are_sharded_and_made_whole():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(4.0 * SIZE).view(2 * SIZE, 2)
    # distribute_tensor takes the values of rank 0.
    sharded = distribute_tensor(whole + 100 * RANK, mesh, [Shard(0)])
    assert isinstance(sharded, DTensor)
    assert torch.equal(sharded.to_local(), whole[2 * RANK : 2 * RANK + 2])
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal((sharded * 2).full_tensor(), whole * 2)
    partial = DTensor.from_local(parts(1), mesh, [Partial()])
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).to_local(), summed_part(1))
    assert (DTensor.from_local(mine(), mesh, [Partial()]).full_tensor() == TOTAL).all()


# ---- DistributedDataParallel ----


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return torch.nn.Sequential(*layers).to(dtype)


def rows():
    torch.manual_seed(7)
    x = torch.randn(12 * SIZE, 6, dtype=torch.float64)
    return x, x[RANK * 12 : (RANK + 1) * 12]


def near(model, other, limit=1e-12):
    return all((p.grad - q.grad).abs().max() <= limit for p, q in zip(model.parameters(), other))


def backward(call, x):
    call(x).pow(2).mean().backward()


def whole_batch(x):
    alone = network()
    backward(alone, x)
    return list(alone.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"broadcast_buffers": False},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.0001},
        {"process_group": "new"},
    ],
    ids=str,
)
def test_ddp_averages_with_every_option(options):
    x, part = rows()
    if "process_group" in options:
        options = {"process_group": dist.new_group()}
    model = network()
    wrapped = DistributedDataParallel(model, **options)
    for _ in range(3):
        wrapped.zero_grad()
        backward(wrapped, part)
        assert near(model, whole_batch(x))


def test_ddp_trains_in_a_group(some):
    if some is not None:
        wrapped = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False), process_group=some)
        (wrapped(torch.ones(1, 2)) * (RANK + 1)).sum().backward()
        assert torch.allclose(wrapped.module.weight.grad, torch.full((1, 2), SIZE - 0.5))


def test_ddp_reports_the_back_end():
    wrapped = DistributedDataParallel(network())
    backward(wrapped, rows()[1])
    data = wrapped._get_ddp_logging_data()
    assert data["world_size"] == SIZE and data["rank"] == RANK


def test_ddp_refuses_models_that_differ_at_all_workers():
    with pytest.raises(RuntimeError, match="not to match sizes" if RANK else "workers disagree"):
        DistributedDataParallel(torch.nn.Linear(2, 2 + RANK))
    # The other ranks compare their models with rank 0's model, and raise an error. Rank 0 raises an
    # error in its next collective, because the other ranks call barrier() instead of that
    # collective.
    if RANK:
        with pytest.raises(dist.DistBackendError, match="workers disagree"):
            dist.barrier()


def test_ddp_refuses_modules_without_gradients():
    with pytest.raises(RuntimeError, match="requires a gradient"):
        DistributedDataParallel(torch.nn.ReLU())


def assert_averaged(grad):
    """Check a gradient that is RANK + 1 at each worker before it is averaged."""
    assert torch.allclose(grad, torch.full_like(grad, TOTAL / SIZE))


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = (torch.nn.Linear(2, 2) for _ in range(2))

    def forward(self, x):
        return self.used(x)


def test_ddp_without_the_search_for_unused_parameters_says_to_turn_it_on():
    wrapped = DistributedDataParallel(Two())
    wrapped(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters"):
        wrapped(torch.ones(1, 2)).sum().backward()


def test_ddp_leaves_parameters_alone_that_nobody_uses():
    wrapped = DistributedDataParallel(Two(), find_unused_parameters=True)
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(mine((1, 2))).sum().backward()
    assert wrapped.module.unused.weight.grad is None
    assert_averaged(wrapped.module.used.weight.grad)


def test_ddp_ignores_frozen_parameters():
    model = Two()
    model.unused.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    wrapped(mine((1, 2))).sum().backward()
    assert model.unused.weight.grad is None
    assert_averaged(model.used.weight.grad)


def test_ddp_ignores_parameters_that_it_is_asked_to_ignore():
    model = Two()
    names = ["unused.weight", "unused.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    with torch.no_grad():
        model.unused.weight.fill_(float(RANK))
    wrapped = DistributedDataParallel(model)
    wrapped(mine((1, 2))).sum().backward()
    assert (model.unused.weight == RANK).all()
    assert_averaged(model.used.weight.grad)


def test_ddp_gives_all_workers_rank_0s_buffers_before_each_forward():
    model = torch.nn.BatchNorm1d(3)
    wrapped = DistributedDataParallel(model)
    for _ in range(2):
        wrapped(torch.randn(8, 3) + RANK).sum().backward()
    with torch.no_grad():
        model.running_mean.fill_(float(RANK))
    wrapped.eval()
    wrapped.train()
    wrapped(torch.zeros(8, 3))
    assert same_everywhere(model.running_mean)


def test_ddp_takes_parameters_of_two_types():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16()])
    model.forward = lambda x: model[0](x) + model[1](x.bfloat16()).float()
    wrapped = DistributedDataParallel(model)
    (wrapped(torch.ones(1, 2)) * (RANK + 1)).sum().backward()
    for layer in model:
        want = torch.full_like(layer.bias.grad, (SIZE + 1) / 2)
        assert torch.allclose(layer.bias.grad, want)


def test_ddp_averages_sparse_gradients():
    torch.manual_seed(0)
    model = torch.nn.Embedding(SIZE + 1, 3, sparse=True)
    alone = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model)
    rows = torch.tensor([[r, SIZE] for r in range(SIZE)])
    wrapped(rows[RANK]).pow(2).mean().backward()
    alone(rows).pow(2).mean().backward()
    assert model.weight.grad.is_sparse
    assert torch.allclose(model.weight.grad.to_dense(), alone.weight.grad.to_dense(), atol=1e-7)


def test_ddp_accumulates_as_many_passes_as_are_wanted():
    x, part = rows()
    model = network()
    wrapped = DistributedDataParallel(model)
    with wrapped.no_sync():
        for _ in range(3):
            backward(wrapped, part)
    assert not same_everywhere(model[0].weight.grad) or SIZE == 1
    backward(wrapped, part)
    assert near(model, [p_times(p, 4) for p in whole_batch(x)])


def p_times(parameter, factor):
    parameter.grad *= factor
    return parameter


def test_ddp_runs_backward_of_checkpointed_layers():
    from torch.utils.checkpoint import checkpoint

    x, part = rows()
    model = network()

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    backward(DistributedDataParallel(Checkpointed()), part)
    assert near(model, whole_batch(x))


def test_ddp_survives_a_copy_and_its_state_a_trip_through_a_file(tmp_path):
    x, part = rows()
    model = DistributedDataParallel(network())
    torch.save(model.state_dict(), tmp_path / "state")
    other = DistributedDataParallel(network())
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.load_state_dict(torch.load(tmp_path / "state"))
    for one in (other, copy.deepcopy(model)):
        assert all(torch.equal(p, q) for p, q in zip(one.parameters(), model.parameters()))
        backward(one, part)
        assert near(one, whole_batch(x)) and model.module[0].weight.grad is None


# Largest differences of the gradients, which are below 1. The hooks round each gradient before the
# sum and the sum, with errors of at most 2^-11 and 2^-8 of the value.
HOOKS = {"allreduce_hook": 1e-6, "fp16_compress_hook": 2**-10, "bf16_compress_hook": 2**-7}


@pytest.mark.parametrize("name", HOOKS)
def test_ddp_takes_the_communication_hooks_of_pytorch(name):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    x, part = rows()
    model = network(torch.float32)
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, getattr(default_hooks, name))
    backward(wrapped, part.float())
    want = whole_batch(x)
    assert max(p.grad.abs().max() for p in want) < 1
    assert near(model, want, HOOKS[name])
    assert near(model, want, 1e-6) == (name == "allreduce_hook")
    assert all(same_everywhere(p.grad) for p in model.parameters())


def test_ddp_takes_the_power_sgd_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    x, part = rows()
    models = [network(torch.float32) for _ in range(2)]
    groups = [dist.group.WORLD, dist.new_group(backend="gloo")]
    wrapped = [DistributedDataParallel(m, process_group=g) for m, g in zip(models, groups)]
    for one, group in zip(wrapped, groups):
        options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2}
        one.register_comm_hook(power.PowerSGDState(group, **options), power.powerSGD_hook)
    for step in range(5):
        for one in wrapped:
            one.zero_grad()
            backward(one, part.float())
        # Before step 2, the hook averages gradients. From then on, the hook approximates them.
        assert near(models[0], list(models[1].parameters()), 1e-6)
        assert near(models[0], whole_batch(x), 1e-6) == (step < 2)
        assert all(same_everywhere(p.grad) for p in models[0].parameters())
    dist.destroy_process_group(groups[1])


def test_the_power_sgd_hook_sends_large_factors_in_blocks():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    bps.torch.compress(None, "int8")
    models = [torch.nn.Linear(16, 20_000, bias=False) for _ in range(2)]
    groups, states = [dist.group.WORLD, dist.new_group(backend="gloo")], []
    for model, group in zip(models, groups):
        options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2}
        states.append(power.PowerSGDState(group, **options))
        model.load_state_dict({"weight": torch.full((20_000, 16), 0.1)})
    wrapped = [DistributedDataParallel(m, process_group=g) for m, g in zip(models, groups)]
    for one, state in zip(wrapped, states):
        one.register_comm_hook(state, power.powerSGD_hook)
    torch.manual_seed(RANK)
    x, scale = torch.randn(4, 16), torch.randn(20_000)
    for step in range(3):
        for one in wrapped:
            one.zero_grad()
            (one(x) * scale).sum().backward()
        mine, want = (model.weight.grad for model in models)
        if step < 2:  # the hook averages the gradients
            most = torch.outer(scale, x.sum(0)).abs().max()
            dist.all_reduce(most, dist.ReduceOp.MAX)
            assert 1e-5 < (mine - want).abs().max() <= coded.bound(127, most)
            whole = want.norm()
    # The hook projects the gradients on a vector, which was sent in blocks. The difference of two
    # projections is at most twice the error of the vector, times the gradient.
    (vector,) = states[1].p_memory_dict.values()
    error = coded.bound(127, vector.abs().max()) * vector.numel() ** 0.5 / vector.norm()
    assert 1e-5 < (mine - want).norm() / whole <= 2 * error
    assert same_everywhere(mine)
    bps.torch.compress(None, "none")
    dist.destroy_process_group(groups[1])


def test_models_are_averaged_every_few_steps():
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = network()
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    for step in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(float(RANK + step))
                p.grad = torch.zeros_like(p)  # the averager leaves out parameters without gradients
        averager.average_parameters(list(model.parameters()))
    assert all((p == (SIZE - 1) / 2 + 2).all() for p in model.parameters())


def test_uneven_inputs_may_raise_at_all_workers_instead():
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match="exhausted|uneven"):
        with model.join(throw_on_early_termination=True):
            for _ in range(RANK + 2):
                model(torch.ones(1, 1)).sum().backward()
    dist.barrier()


@since(2, 2)
def test_a_checkpoint_of_all_workers_is_saved_and_loaded(tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    folder = shared(tmp_path)
    model, other = network(), network()
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    checkpoint.save(model.state_dict(), checkpoint_id=folder)
    state = other.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    assert all(torch.equal(p, state[name]) for name, p in model.state_dict().items())
