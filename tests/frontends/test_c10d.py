"""torch.distributed's back-end "bps". All workers of a job run these tests in the same order."""

import datetime
import functools
import operator
import os
import re
import subprocess
import sys
import time

import coded
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bps
from bps import _slots

RANK, SIZE = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
LIMIT = datetime.timedelta(seconds=120)
TOTAL = SIZE * (SIZE + 1) // 2
TYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.fixture(scope="session", autouse=True)
def group():
    import bps.torch  # noqa: F401  registers the rendezvous bps://

    dist.init_process_group("bps", init_method="bps://", timeout=LIMIT)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def together():
    dist.barrier()
    torch.manual_seed(RANK)


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(
        dtype
    )


def batch():
    torch.manual_seed(7)
    return torch.randn(24, 6, dtype=torch.float64), torch.randn(24, 3, dtype=torch.float64)


def mine():
    return slice(RANK * 24 // SIZE, (RANK + 1) * 24 // SIZE)


def fields(error):
    return error.code, error.rank, error.host, error.tensor


def same_everywhere(tensor):
    all_ = [torch.empty_like(tensor) for _ in range(SIZE)]
    dist.all_gather(all_, tensor.detach().contiguous())
    return all(torch.equal(all_[0], t) for t in all_)


def near(model, other):
    return all(
        (p.grad - q.grad).abs().max() <= 1e-12
        for p, q in zip(model.parameters(), other.parameters())
    )


# ---- group ----


def test_the_group_has_the_jobs_place():
    assert (dist.get_backend(), dist.get_rank(), dist.get_world_size()) == (
        "bps",
        RANK,
        SIZE,
    )


def test_libraries_find_the_place_in_torchruns_variables():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert [int(os.environ[name]) for name in names[:2]] == [RANK, SIZE]
    assert [os.environ[name] for name in names[2:]] == [
        os.environ["BPS_LOCAL_RANK"],
        os.environ["BPS_LOCAL_SIZE"],
    ]
    sockets = [None] * SIZE
    dist.all_gather_object(sockets, os.environ["BPS_AGENT_SOCKET"])
    nodes = list(dict.fromkeys(sockets))
    assert os.environ["GROUP_RANK"] == str(nodes.index(sockets[RANK]))
    meeting = [f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"] * SIZE
    found = [None] * SIZE
    dist.all_gather_object(found, meeting[0])
    assert found == meeting


def test_the_address_bps_sets_the_variables_of_torchrun_that_a_launcher_does_not_set(monkeypatch):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    launched = {name: os.environ[name] for name in names}
    for name in (*names, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name)
    store, rank, size = next(dist.rendezvous("bps://"))
    dist.barrier()  # rank 0's store must not end before the others have connected
    assert {name: os.environ[name] for name in names} == launched
    assert (rank, size) == (RANK, SIZE)
    assert os.environ["MASTER_PORT"] == str(store.port)


# ---- reductions ----


@pytest.mark.parametrize("dtype", TYPES)
def test_all_reduce_sums_every_type(dtype):
    x = torch.full((3, 5), RANK + 1).to(dtype)
    dist.all_reduce(x)
    assert x.dtype == dtype and torch.equal(x, torch.full((3, 5), SIZE * (SIZE + 1) // 2).to(dtype))


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (dist.ReduceOp.SUM, sum(range(1, SIZE + 1))),
        (dist.ReduceOp.AVG, (SIZE + 1) / 2),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.MAX, SIZE),
        (dist.ReduceOp.PRODUCT, torch.arange(1, SIZE + 1).prod().item()),
    ],
    ids=["sum", "avg", "min", "max", "product"],
)
def test_all_reduce_has_five_operations(op, want):
    x = torch.full((7,), RANK + 1.0)
    dist.all_reduce(x, op)
    assert torch.allclose(x, torch.full((7,), float(want)))


BITWISE = {
    dist.ReduceOp.BAND: operator.and_,
    dist.ReduceOp.BOR: operator.or_,
    dist.ReduceOp.BXOR: operator.xor,
}


@pytest.mark.parametrize("op", BITWISE, ids=["band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", [t for t in TYPES if not t.is_floating_point])
def test_bitwise_operations_on_integers(op, dtype):
    given = [((torch.arange(9) * 37 + 91 * (rank + 1)) % 128).to(dtype) for rank in range(SIZE)]
    want = functools.reduce(BITWISE[op], given)
    x = given[RANK].clone()
    dist.all_reduce(x, op)
    assert torch.equal(x, want)
    piece = torch.empty(3, dtype=dtype)
    dist.reduce_scatter_tensor(piece, given[RANK][:3].repeat(SIZE), op)
    assert torch.equal(piece, want[:3])


@pytest.mark.parametrize("op", BITWISE, ids=["band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bitwise_operations_on_floats_are_refused(op, dtype):
    with pytest.raises((ValueError, RuntimeError), match="needs tensors of integers"):
        dist.all_reduce(torch.ones(3, dtype=dtype), op)


def test_all_reduce_of_complex_scalar_empty_and_bool_tensors():
    x = torch.full((4,), complex(RANK, 1))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((4,), complex(sum(range(SIZE)), SIZE)))
    with pytest.raises((ValueError, RuntimeError), match="complex"):
        dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    scalar, empty, flag = (
        torch.tensor(RANK + 1.0),
        torch.empty(0),
        torch.tensor([RANK == 0, False]),
    )
    dist.all_reduce(scalar)
    dist.all_reduce(empty)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    assert scalar == TOTAL and flag.tolist() == [True, False]


def test_all_reduce_of_a_tensor_with_gaps():
    base = torch.zeros(6, 6)
    x = base.t()[::2]
    x += RANK + 1
    dist.all_reduce(x)
    assert (
        torch.equal(x, torch.full((3, 6), float(sum(range(1, SIZE + 1))))) and base.sum() == x.sum()
    )


@pytest.mark.parametrize("n", [1 << 10, 100_000, 3_000_000])
def test_a_size_that_comes_back_gives_each_time_its_own_sum(n):
    for step in range(6):
        x = torch.arange(n, dtype=torch.float32) + RANK + step
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.allclose(x, torch.arange(n) + step + (SIZE - 1) / 2)


def test_many_operations_in_flight_end_in_any_order():
    xs = [torch.full((40_000 if i % 3 else 9,), RANK + 1.0 + i) for i in range(40)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for i in reversed(range(40)):
        works[i].wait()
        assert (xs[i] == TOTAL + i * SIZE).all()


def test_futures_complete_with_the_result_without_a_wait():
    works = [dist.all_reduce(torch.full((5,), RANK + 1.0 + i), async_op=True) for i in range(8)]
    futures = [w.get_future() for w in works]
    doubled = [f.then(lambda f: f.value()[0] * 2) for f in futures]
    for i in reversed(range(8)):
        assert torch.equal(doubled[i].wait(), torch.full((5,), 2.0 * (TOTAL + i * SIZE)))


def test_reduce_writes_root_alone():
    for root in range(SIZE):
        x = torch.full((4,), RANK + 1.0)
        dist.reduce(x, root)
        assert (x == (sum(range(1, SIZE + 1)) if RANK == root else RANK + 1)).all()


def test_coalesced_reductions():
    xs = [torch.full((n,), float(RANK)) for n in (1, 20, 300)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert all((x == sum(range(SIZE))).all() for x in xs)


# ---- moves ----


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool, torch.complex64])
def test_broadcast_gives_every_root_its_turn(dtype):
    for root in range(SIZE):
        x = torch.full((2, 3), RANK % 2 if dtype == torch.bool else RANK + 1).to(dtype)
        dist.broadcast(x, root)
        assert torch.equal(
            x,
            torch.full((2, 3), root % 2 if dtype == torch.bool else root + 1).to(dtype),
        )


def test_broadcast_of_nan_and_of_a_tensor_with_gaps():
    x = torch.full((3, 4), float("nan") if RANK == 0 else 1.0).t()
    dist.broadcast(x, 0)
    assert x.isnan().all()


def test_all_gather_of_equal_and_of_uneven_tensors():
    for shapes in (
        [(2, 3)] * SIZE,
        [(r + 1, 2) for r in range(SIZE)],
        [(r, 2) for r in range(SIZE)],
    ):
        out = [torch.empty(s) for s in shapes]
        dist.all_gather(out, torch.full(shapes[RANK], float(RANK)))
        assert all((t == r).all() for r, t in enumerate(out))


def test_all_gather_into_a_tensor():
    for shape in ((SIZE * 3, 2), (SIZE, 3, 2)):
        out = torch.empty(shape)
        all_gather_single(out, torch.full((3, 2), float(RANK)))
        assert torch.equal(
            out.view(SIZE, -1), torch.arange(SIZE).float().view(-1, 1).expand(SIZE, 6)
        )
    with pytest.raises((ValueError, RuntimeError), match="elements"):
        all_gather_single(torch.empty(SIZE * 3 + 1), torch.ones(3))


def test_gather_and_scatter_have_one_root():
    for root in range(SIZE):
        out = [torch.empty(3) for _ in range(SIZE)] if RANK == root else None
        dist.gather(torch.full((3,), float(RANK)), out, root)
        assert RANK != root or all((t == r).all() for r, t in enumerate(out))
        x = torch.empty(3)
        dist.scatter(
            x,
            [torch.full((3,), r + 10.0) for r in range(SIZE)] if RANK == root else None,
            root,
        )
        assert (x == RANK + 10).all()


@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX])
def test_reduce_scatter_of_a_list_and_of_a_tensor(op):
    def reduced(value):
        """Return the reduction of value + 2 * r over the workers r."""
        last = 2 * (SIZE - 1)
        if op == dist.ReduceOp.SUM:
            return value * SIZE + last * SIZE / 2
        return value + (last / 2 if op == dist.ReduceOp.AVG else last)

    out = torch.empty(RANK + 1)
    dist.reduce_scatter(out, [torch.full((r + 1,), r + 2.0 * RANK) for r in range(SIZE)], op)
    assert (out == reduced(RANK)).all()
    out = torch.empty(2, 3)
    x = torch.arange(SIZE * 6.0).view(SIZE * 2, 3)
    reduce_scatter_single(out, x + 2 * RANK, op)
    assert torch.equal(out, reduced(x.view(SIZE, 2, 3)[RANK]))


def test_all_to_all_of_equal_and_of_uneven_parts():
    out = torch.empty(SIZE)
    dist.all_to_all_single(out, torch.arange(SIZE) + 10.0 * RANK)
    assert out.tolist() == [10.0 * r + RANK for r in range(SIZE)]
    out = [torch.empty(RANK + 1, 2) for _ in range(SIZE)]
    dist.all_to_all(out, [torch.full((r + 1, 2), float(RANK)) for r in range(SIZE)])
    assert all((t == r).all() for r, t in enumerate(out))
    out = torch.empty(SIZE * RANK, 2)
    rows = sum(range(SIZE))
    dist.all_to_all_single(
        out, torch.full((rows, 2), float(RANK)), [RANK] * SIZE, list(range(SIZE))
    )
    assert torch.equal(out[:, 0], torch.arange(SIZE).repeat_interleave(RANK).float())


def test_send_and_recv_name_the_way_out():
    with pytest.raises(NotImplementedError, match="gloo"):
        dist.send(torch.ones(1), (RANK + 1) % SIZE)
    with pytest.raises(NotImplementedError, match="gloo"):
        dist.recv(torch.ones(1), (RANK + 1) % SIZE)


def test_objects_reach_all_workers():
    things = [None] * SIZE
    dist.all_gather_object(things, {"rank": RANK, "text": "ä" * 1000 * RANK})
    assert [t["rank"] for t in things] == list(range(SIZE))
    box = [["from", RANK], "x" * 5000 * RANK]
    dist.broadcast_object_list(box, 1)
    assert box == [["from", 1], "x" * 5000]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(SIZE)] if RANK == 0 else None, 0)
    assert got == [f"for {RANK}"]


# ---- groups ----


def test_a_group_of_all_and_a_group_of_some():
    everyone, some, others = (
        dist.new_group(),
        dist.new_group([0, 1]),
        dist.new_group(range(1, SIZE)),
    )
    for group, members in (
        (everyone, range(SIZE)),
        (some, (0, 1)),
        (others, range(1, SIZE)),
    ):
        if RANK in members:
            for _ in range(3):
                x = torch.full((100_000,), RANK + 1.0)
                dist.all_reduce(x, group=group)
                assert (x == sum(r + 1 for r in members)).all()
            dist.barrier(group)
    for group in (everyone, some, others):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def test_device_mesh_of_two_dimensions():
    device_mesh = pytest.importorskip("torch.distributed.device_mesh", reason="PyTorch 2.2")
    shape = (2, SIZE // 2) if SIZE % 2 == 0 else (1, SIZE)
    mesh = device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    first = RANK // shape[1] * shape[1]
    members = {
        "shard": range(first, first + shape[1]),
        "replicate": range(RANK % shape[1], SIZE, shape[1]),
    }
    for name, ranks in members.items():
        group, x = mesh.get_group(name), torch.full((3,), 2.0**RANK)
        dist.all_reduce(x, group=group)
        assert (x == sum(2**r for r in ranks)).all()
        rows = torch.empty(len(ranks))
        all_gather_single(rows, torch.tensor([float(RANK)]), group=group)
        assert rows.tolist() == list(ranks)
    dist.all_reduce(x := torch.full((3,), RANK + 1.0), group=mesh.get_group("shard"))
    dist.all_reduce(x, group=mesh.get_group("replicate"))
    assert (x == TOTAL).all()


def test_sends_in_a_batch_are_refused_with_the_way_out():
    peers = [dist.P2POp(dist.isend, torch.ones(1), (RANK + 1) % SIZE)]
    peers.append(dist.P2POp(dist.irecv, torch.ones(1), (RANK - 1) % SIZE))
    with pytest.raises(NotImplementedError, match="new_group\\(backend='gloo'\\)"):
        dist.batch_isend_irecv(peers)


@pytest.mark.parametrize("factor", [0.5, torch.tensor([0.5])], ids=["number", "tensor"])
def test_premul_sum_scales_at_each_worker(factor):
    x = torch.arange(5.0) + RANK
    dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
    assert torch.equal(x, 0.5 * (SIZE * torch.arange(5.0) + SIZE * (SIZE - 1) / 2))
    with pytest.raises(ValueError, match="PREMUL_SUM needs floating-point"):
        dist.all_reduce(torch.ones(3).int(), dist._make_nccl_premul_sum(0.5))


@pytest.mark.skipif(
    torch.__version__ < (2, 14), reason="before PyTorch 2.14, the group is not notified"
)
def test_operations_are_coalesced_and_groups_are_not_split():
    x, y = torch.ones(2), torch.full((3,), float(RANK))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        dist.all_reduce(x)
        dist.all_reduce(y)
    works.wait()
    assert (x == SIZE).all() and (y == SIZE * (SIZE - 1) / 2).all()
    with pytest.raises(RuntimeError, match="not support splitting"):
        dist.split_group(split_ranks=[[rank] for rank in range(SIZE)])


# ---- errors ----


@pytest.mark.parametrize("n", [10, 20_000, 2_000_000])
def test_shapes_that_differ_between_workers_are_an_error_at_all_and_the_group_goes_on(n):
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"workers disagree in all_reduce: rank 0"):
            dist.all_reduce(torch.ones(n + 1000 * (RANK > 0)))
        assert time.monotonic() - begun < LIMIT.total_seconds() / 4
        x = torch.ones(n)
        dist.all_reduce(x)
        assert (x == SIZE).all()


def test_other_roots_types_and_calls_are_an_error_at_all():
    calls = (
        (lambda: dist.broadcast(torch.ones(3), 0), lambda: dist.broadcast(torch.ones(3), 1)),
        (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3).int())),
        (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.barrier()),
        (lambda: dist.reduce(torch.ones(3), 0), lambda: dist.reduce(torch.ones(3), 1)),
    )
    for first, others in calls:
        with pytest.raises(dist.DistBackendError, match="workers disagree in .*rank"):
            (first if RANK == 0 else others)()


def test_a_future_fails_when_workers_disagree_and_a_wait_then_raises_the_fields():
    work = dist.all_reduce(torch.ones(30_000 * (RANK + 1)), async_op=True)
    with pytest.raises(RuntimeError, match="workers disagree"):
        work.get_future().wait()
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match="workers disagree") as caught:
            work.wait()
        code, rank, *others = fields(caught.value)
        assert code == bps.EMISMATCH and f"rank {rank} has" in str(caught.value)
        assert others == [None, None]


def test_many_operations_that_are_one_raise_the_fields_too():
    with pytest.raises(dist.DistBackendError, match="workers disagree") as caught:
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(3 + RANK)])
    assert fields(caught.value)[0] == bps.EMISMATCH


def test_a_wait_that_is_late_is_an_error_and_may_be_repeated():
    group = dist.new_group()
    if RANK == 0:
        work = dist.all_reduce(x := torch.full((3,), RANK + 1.0), group=group, async_op=True)
        with pytest.raises(dist.DistBackendError, match="all_reduce .*not complete"):
            work.wait(datetime.timedelta(seconds=0.2))
    dist.barrier()
    if RANK:
        work = dist.all_reduce(x := torch.full((3,), RANK + 1.0), group=group, async_op=True)
    work.wait()
    assert (x == TOTAL).all()
    dist.destroy_process_group(group)


@pytest.mark.skipif(
    torch.__version__ < (2, 14), reason="before PyTorch 2.14, the group is not notified"
)
def test_an_operation_of_a_group_that_was_left_is_refused():
    group = dist.new_group([0, 1])
    if RANK < 2:
        work = group._get_backend(torch.device("cpu"))
        dist.destroy_process_group(group)
        with pytest.raises(dist.DistBackendError, match="shut down") as caught:
            work.allreduce([torch.ones(1)], dist.AllreduceOptions())
        assert fields(caught.value) == (bps.ECLOSED, None, None, None)


# From PyTorch 2.5 on, PyTorch imports the back-end by itself.
IMPORT = "" if torch.__version__ >= (2, 5) else "import bps.torch"
SCRIPT = f"""
import os, sys, torch, torch.distributed as dist, datetime
{IMPORT}
dist.init_process_group("bps", timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
x = torch.ones(3)
dist.all_reduce(x)
if rank == 1:
    os._exit(1)
try:
    dist.all_reduce(x, async_op=True).get_future().wait()
except Exception as error:
    print(error, flush=True)
    os._exit(0)
"""


def spawn(script, port):
    """Run a script as a job of two processes, and return the output of each process.

    The processes have the variables that torchrun sets. Only rank 0 of the tests calls this
    function.
    """
    children = []
    for r in range(2):
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("BPS_") or k in ("BPS_LIBRARY", "BPS_AGENT_SOCKET")
        }
        env |= {
            "RANK": str(r),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(r),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "again",
        }
        command = [sys.executable, "-c", script]
        children.append(
            subprocess.Popen(
                command,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return [child.communicate(timeout=60)[0] for child in children]


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_lost_worker_is_named_in_the_future_of_the_others():
    if RANK == 0:
        said = spawn(SCRIPT, free_port())[0]
        assert "DistBackendError: all_reduce" in said and "rank 1" in said, said


def test_torchruns_variables_and_no_import_are_enough_and_a_run_can_be_repeated():
    script = f"""
import torch, torch.distributed as dist
{IMPORT}
dist.init_process_group("bps")
x = torch.ones(3)
dist.all_reduce(x)
dist.destroy_process_group()
print(x.tolist())
"""
    if RANK == 0:
        for _ in range(2):
            assert [s.strip() for s in spawn(script, free_port())] == ["[2.0, 2.0, 2.0]"] * 2


# ---- training ----


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_ddp_equals_training_with_the_whole_batch(options):
    model, alone = network(), network()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0005, **options)
    x, y = batch()
    for _ in range(5):
        for net, call, rows in ((model, wrapped, mine()), (alone, alone, slice(None))):
            net.zero_grad()
            ((call(x[rows]) - y[rows]) ** 2).mean().backward()
        assert near(model, alone)
        with torch.no_grad():
            for p in (*model.parameters(), *alone.parameters()):
                p -= 0.1 * p.grad


def test_ddp_starts_with_rank_0s_parameters_and_buffers():
    model = network(seed=RANK)
    model.append(torch.nn.BatchNorm1d(3).double())
    model[3].running_mean += RANK
    DistributedDataParallel(model)
    assert all(same_everywhere(t) for t in model.state_dict().values())
    assert (
        torch.equal(model[0].weight, network(seed=0)[0].weight)
        and (model[3].running_mean == 0).all()
    )


def test_ddp_adds_up_gradients_in_no_sync():
    model, alone = network(), network()
    wrapped = DistributedDataParallel(model)
    x = batch()[0]
    with wrapped.no_sync():
        wrapped(x[mine()]).mean().backward()
    wrapped(x[mine()]).mean().backward()
    for _ in range(2):
        alone(x).mean().backward()
    assert near(model, alone)


def test_ddp_finds_parameters_that_only_some_workers_use():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (
                torch.nn.Linear(2, 2, bias=False),
                torch.nn.Linear(2, 2, bias=False),
            )

        def forward(self, x):
            return (self.a if RANK == 0 else self.b)(x)

    model = DistributedDataParallel(Two(), find_unused_parameters=True)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        assert torch.allclose(model.module.a.weight.grad, torch.full((2, 2), 1 / SIZE))
        assert torch.allclose(model.module.b.weight.grad, torch.full((2, 2), (SIZE - 1) / SIZE))


def test_ddp_takes_uneven_inputs_with_join():
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    weight, start = model.module.weight, model.module.weight.item()
    # Rank r takes r + 1 steps. Workers that have ended add zeros to the average over all workers.
    means = [sum(r + 1 for r in range(step, SIZE)) / SIZE for step in range(SIZE)]
    with model.join():
        for step in range(RANK + 1):
            model.zero_grad()
            model(torch.full((1, 1), RANK + 1.0)).sum().backward()
            assert weight.grad.item() == pytest.approx(means[step])
            with torch.no_grad():
                weight -= weight.grad
    # At the end, all workers get the weights of the last one.
    assert weight.item() == pytest.approx(start - sum(means), abs=1e-5)


def test_ddp_runs_with_a_communication_hook_of_pytorchs_own():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, alone = network(dtype=torch.float32), network(dtype=torch.float32)
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    x = batch()[0].float()
    wrapped(x[mine()]).mean().backward()
    alone(x).mean().backward()
    for p, q in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(p.grad, q.grad, rtol=0.05, atol=2e-3) and same_everywhere(p.grad)


def test_sharded_modules_equal_training_with_the_whole_batch():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("fully_shard came with PyTorch 2.6")
    fully_shard = fsdp.fully_shard
    model, alone = network(), network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    mesh_sgd, sgd = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.optim.SGD(alone.parameters(), lr=0.1),
    )
    x, y = batch()
    for _ in range(4):
        for net, optimizer, rows in (
            (model, mesh_sgd, mine()),
            (alone, sgd, slice(None)),
        ):
            optimizer.zero_grad()
            ((net(x[rows]) - y[rows]) ** 2).mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), alone.parameters()):
        assert (p.full_tensor() - q).abs().max() <= 1e-12


def test_zero_redundancy_optimizer_steps_like_one():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, alone = network(), network()
    wrapped = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    reference = torch.optim.Adam(alone.parameters(), lr=0.01)
    x = batch()[0]
    for _ in range(3):
        for call, o, rows in (
            (wrapped, optimizer, mine()),
            (alone, reference, slice(None)),
        ):
            o.zero_grad()
            call(x[rows]).mean().backward()
            o.step()
    assert all((p - q).abs().max() <= 1e-12 for p, q in zip(model.parameters(), alone.parameters()))


def test_a_time_out_names_its_length_and_the_missing_ranks():
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.6))
    if RANK == 0:
        work = dist.barrier(group, async_op=True)
        match = r"barrier .*Timed out after 0\.6 s: .*rank 1 .*has not"
        with pytest.raises(dist.DistBackendError, match=match):
            work.wait()
    dist.barrier()
    if RANK:
        work = dist.barrier(group, async_op=True)
    work.wait(LIMIT)
    dist.destroy_process_group(group)


def test_an_all_to_all_of_other_lengths_is_an_error_at_all_workers():
    x = torch.ones(SIZE)
    out = torch.empty(SIZE + (RANK == 0))
    parts = [1] * (SIZE - 1) + [1 + (RANK == 0)]
    with pytest.raises(ValueError, match=f"rank {SIZE - 1} sends 1 elements to rank 0, but .* 2"):
        dist.all_to_all_single(out, x, parts, [1] * SIZE)
    dist.all_reduce(x)
    assert x.tolist() == [SIZE] * SIZE


# ---- blocks: these tests are the last, because tensors of an error may be in later texts ----


@pytest.fixture(params=[("int8", 127), ("int4", 7)])
def levels(request):
    """Send large tensors in blocks, and return the largest number of a value."""
    kind, levels = request.param
    bps.torch.compress(None, kind)
    yield levels
    bps.torch.compress(dist.group.WORLD, "none")


def close(tensor, want, levels):
    return 1e-5 < (tensor.double() - want).abs().max() <= coded.bound(levels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, dist.ReduceOp.AVG])
@pytest.mark.parametrize("n", [20_000, 70_001])
def test_large_tensors_are_summed_in_blocks(levels, dtype, op, n, monkeypatch):
    monkeypatch.setattr(_slots, "PIECES", tuple(1 << n for n in range(8, 16)))
    mean = torch.from_numpy(coded.mean((n,)))
    for _ in range(2):
        x = torch.from_numpy(coded.values(RANK, (n,))).to(dtype)
        dist.all_reduce(x, op)
        assert close(x / (SIZE if op == dist.ReduceOp.SUM else 1), mean, levels)
        assert same_everywhere(x)


def test_rows_are_reduced_in_blocks(levels):
    n = 30_001 * SIZE
    x, mean = torch.from_numpy(coded.values(RANK, (n,))), torch.from_numpy(coded.mean((n,)))
    part, want = torch.empty(n // SIZE), mean.view(SIZE, -1)[RANK]
    reduce_scatter_single(part, x)
    assert close(part / SIZE, want, levels)
    parts = list(x.split([n // SIZE] * SIZE))
    dist.reduce_scatter(part, parts)
    assert close(part / SIZE, want, levels)
    columns = torch.empty(2, 60_000)[:, ::2]  # not contiguous
    columns[:] = x[:60_000].view(2, -1)
    dist.all_reduce(columns, dist.ReduceOp.AVG)
    assert close(columns, mean[:60_000].view(2, -1), levels)


def test_all_else_is_sent_as_it_is(levels):
    x = torch.from_numpy(coded.values(RANK))
    everyones = torch.stack([torch.from_numpy(coded.values(r)) for r in range(SIZE)])
    small, numbers, largest = x[:1000].clone(), torch.arange(40_000) + RANK, x.clone()
    dist.all_reduce(small)
    assert torch.allclose(small, everyones[:, :1000].sum(0), atol=1e-5)
    dist.all_reduce(numbers)
    assert (numbers == torch.arange(40_000) * SIZE + TOTAL - SIZE).all()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert (largest == everyones.amax(0)).all()
    dist.reduce(largest, 0)
    assert RANK or torch.allclose(largest, everyones.amax(0) * SIZE)
    halves = x.clone()
    dist.all_reduce(halves, dist._make_nccl_premul_sum(0.5))
    assert torch.allclose(halves, everyones.sum(0) / 2, atol=1e-5)


def test_compressions_of_a_group_are_checked():
    with pytest.raises(ValueError, match="'sign' needs a residual"):
        bps.torch.compress(None, "sign")
    with pytest.raises(ValueError, match="'int8', 'int4' or 'none', not 'q8'"):
        bps.torch.compress(None, "q8")
    other, group = dist.new_group(backend="gloo"), dist.new_group()
    with pytest.raises(TypeError, match="another back-end"):
        bps.torch.compress(other)
    x = torch.from_numpy(coded.values(RANK))
    bps.torch.compress(group)
    y = x.clone()
    dist.all_reduce(x, dist.ReduceOp.AVG, group)
    dist.all_reduce(y, dist.ReduceOp.AVG)
    mean = torch.from_numpy(coded.mean())
    assert close(x, mean, 127) and torch.allclose(y.double(), mean, atol=1e-6)
    for one in (group, other):
        dist.destroy_process_group(one)


def test_a_worker_without_compression_is_an_error_at_all():
    for n in (20_000, 300_000):
        if RANK == SIZE - 1:
            bps.torch.compress(None, "int8")
        with pytest.raises(dist.DistBackendError, match="disagree in all_reduce") as caught:
            dist.all_reduce(torch.ones(n))
        text = str(caught.value)
        assert "sum sent as q8" in text and re.search(r"float32, sum[.,]", text), text
        bps.torch.compress(None, "none")
        x = torch.ones(n)
        dist.all_reduce(x)
        assert (x == SIZE).all()
