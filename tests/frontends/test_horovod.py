"""Calls of Horovod and BytePS in scripts of PyTorch, as bps.compat provides them.

All workers of a job run these tests in the same order (tests/frontends/run.py).
"""

import inspect
import time

import bps.compat.byteps
import bps.compat.horovod

import byteps.torch as byteps
import coded
import horovod.torch as hvd
import numpy as np
import pytest
import timelines
import torch

import bps.torch
from bps import _residuals
from bps._tensor import Tensor

EMISMATCH = -10003


@pytest.fixture(scope="session", autouse=True)
def job():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def together():
    """Wait until all workers have ended the previous test."""
    hvd.barrier()
    torch.manual_seed(0)


def ranks():
    return range(hvd.size())


def mine(n=3):
    return torch.full((n,), hvd.rank() + 1.0)


def total():
    return float(sum(r + 1 for r in ranks()))


# ---- errors ----

DIFFERENT = {
    "allreduce": lambda: hvd.allreduce(torch.ones(3 + hvd.rank())),
    "allgather": lambda: hvd.allgather(torch.ones(2, 3 + hvd.rank())),
    "alltoall": lambda: hvd.alltoall(torch.ones(hvd.size(), 3 + hvd.rank())),
    "sparse": lambda: hvd.synchronize(
        hvd.sparse_allreduce_async(torch.eye(3 + hvd.rank()).to_sparse(), "s", hvd.Sum)
    ),
}


@pytest.mark.parametrize("call", DIFFERENT)
def test_calls_that_differ_raise_horovods_class_a_runtime_error(call):
    with pytest.raises(RuntimeError) as caught:
        DIFFERENT[call]()
    assert isinstance(caught.value, hvd.HorovodInternalError)
    assert caught.value.code == EMISMATCH
    assert (hvd.allreduce(mine(), op=hvd.Sum) == total()).all()


def test_the_class_of_errors_is_where_horovod_has_it():
    import horovod.torch.elastic
    import horovod.torch.mpi_ops
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

    for module in (hvd, horovod.torch.mpi_ops, horovod.torch.elastic):
        assert module.HorovodInternalError is HorovodInternalError is bps.torch.Error
    assert issubclass(HostsUpdatedInterrupt, RuntimeError)


# ---- init ----


def test_a_second_init_is_local_and_returns_at_once():
    if hvd.rank() == 0:
        for init in (hvd.init, byteps.init, bps.torch.init):
            init()
    assert (hvd.allreduce(mine(), op=hvd.Sum) == total()).all()


def test_a_second_init_accepts_sets_that_exist():
    one = hvd.add_process_set([0, 1])
    hvd.init(process_sets=[[0, 1]])
    with pytest.raises(ValueError, match="add_process_set"):
        hvd.init(process_sets=[[1]])
    hvd.remove_process_set(one)


def test_reducescatter_without_gradients():
    x = torch.ones(2 * hvd.size(), requires_grad=True)
    with torch.no_grad():
        assert (hvd.reducescatter(x, op=hvd.Sum) == hvd.size()).all()


def test_sets_that_init_creates():
    """Leave the job, and join a job of the same name again."""
    even = list(ranks())[::2]
    hvd.shutdown()
    one = hvd.ProcessSet(even)
    with pytest.raises(ValueError, match="has ProcessSet.* twice"):
        hvd.init(process_sets=[one, hvd.ProcessSet(even)])
    assert not hvd.is_initialized()
    hvd.init(process_sets=[one])
    assert hvd.get_process_set_ids_and_ranks() == {0: list(ranks()), one.process_set_id: even}
    if hvd.rank() == 0:
        hvd.init(process_sets=[one])
        with pytest.raises(ValueError, match="add_process_set"):
            hvd.init(process_sets=[hvd.ProcessSet([0])])
    if one.included():
        assert (hvd.allreduce(mine(), op=hvd.Sum, process_set=one) == sum(even) + len(even)).all()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert hvd.get_process_set_ids_and_ranks() == {0: list(ranks())}


# ---- timelines ----


def reduced(name):
    hvd.allreduce(mine(), name=name)


def test_a_timeline_has_the_rounds_between_start_and_stop(tmp_path):
    timelines.check_between_start_and_stop(hvd, tmp_path, reduced)


def test_a_timeline_that_cannot_be_written_is_refused_at_the_start():
    timelines.check_what_is_refused(hvd)


def test_the_end_of_the_job_writes_a_timeline(tmp_path):
    timelines.check_end_of_the_job(hvd, tmp_path, reduced)


def test_an_abort_of_the_job_leaves_a_warning(tmp_path):
    hvd.start_timeline(str(tmp_path / "timeline.json"))
    hvd.barrier()
    hvd.barrier()  # all workers have left the first one
    job = bps._core.runtime().job
    if hvd.rank() == 0:
        with pytest.warns(UserWarning, match="has no rounds, because the job was aborted"):
            job._stop(is_abort=True)
    else:
        job._stop(is_abort=True)
    with pytest.raises(ValueError, match="no timeline was started"):
        hvd.stop_timeline()


# ---- names and arguments ----

# Public calls of Horovod 0.28, with their parameters in order and the defaults. A default is an
# expression over the names of the module.
HOROVOD = {
    "allgather": "tensor, name=None, process_set=global_process_set",
    "allgather_async": "tensor, name=None, process_set=global_process_set",
    "allgather_object": "obj, name=None",
    "allreduce": "tensor, average=None, name=None, compression=Compression.none, op=None, "
    "prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set",
    "allreduce_": "tensor, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set",
    "allreduce_async": "tensor, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set",
    "allreduce_async_": "tensor, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set",
    "alltoall": "tensor, splits=None, name=None, process_set=global_process_set",
    "alltoall_async": "tensor, splits=None, name=None, process_set=global_process_set",
    "add_process_set": "process_set",
    "barrier": "process_set=global_process_set",
    "broadcast": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_async": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=global_process_set",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_parameters": "params, root_rank",
    "cross_rank": "",
    "cross_size": "",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=Compression.none, "
    "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, "
    "groups=None, sparse_as_dense=False, process_set=global_process_set",
    "get_process_set_ids_and_ranks": "",
    "grouped_allgather": "tensors, name=None, process_set=global_process_set",
    "grouped_allgather_async": "tensors, name=None, process_set=global_process_set",
    "grouped_allreduce": "tensors, average=None, name=None, compression=Compression.none, "
    "op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set",
    "grouped_allreduce_": "tensors, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set",
    "grouped_allreduce_async": "tensors, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set",
    "grouped_allreduce_async_": "tensors, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set",
    "grouped_reducescatter": "tensors, name=None, compression=Compression.none, op=Average, "
    "process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter_async": "tensors, name=None, op=Average, "
    "process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0",
    "init": "comm=None, process_sets=None",
    "is_homogeneous": "",
    "is_initialized": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "join": "device=-1",
    "local_rank": "",
    "local_size": "",
    "poll": "handle",
    "rank": "",
    "reducescatter": "tensor, name=None, compression=Compression.none, op=Average, "
    "process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0",
    "reducescatter_async": "tensor, name=None, op=Average, process_set=global_process_set, "
    "prescale_factor=1.0, postscale_factor=1.0",
    "remove_process_set": "process_set",
    "shutdown": "",
    "size": "",
    "sparse_allreduce_async": "tensor, name, op, process_set=global_process_set",
    "SyncBatchNorm": "num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True",
    "synchronize": "handle",
    "elastic.ElasticSampler": "dataset, shuffle=True, seed=0",
    "elastic.ElasticSampler.get_indices": "self, batch_idx, batch_size",
    "elastic.ElasticSampler.load_state_dict": "self, state_dict",
    "elastic.ElasticSampler.record_batch": "self, batch_idx, batch_size",
    "elastic.ElasticSampler.record_indices": "self, indices",
    "elastic.ElasticSampler.set_epoch": "self, epoch",
    "elastic.TorchState": "model=None, optimizer=None",
    "elastic.run": "func",
}
# Public calls of BytePS 0.2.
BYTEPS = {
    "broadcast_object": "obj, root_rank=0, name=None",
    "broadcast_optimizer_state": 'optimizer, root_rank, prefix="Parameter."',
    "broadcast_parameters": 'params, root_rank, prefix="Parameter."',
    "byteps_declare_tensor": "name",
    "byteps_push_pull": "tensor, average=True, name=None, version=0, priority=0",
    "byteps_push_pull_group": "tensor, average=True, name=None, version=0, priority=0",
    "byteps_torch_set_num_grads": "num_grads_",
    "declare": "name",
    "DistributedDataParallel": "module, device_ids=None, broadcast_buffers=True, "
    "compression=Compression.none",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=Compression.none, "
    "backward_passes_per_step=1, staleness=0, pipesgd_warmup_iter=0",
    "init": "lazy=True",
    "local_rank": "",
    "local_size": "",
    "poll": "handle",
    "push_pull": "tensor, average=True, name=None, version=0, priority=0, "
    "compression=Compression.none",
    "push_pull_async": "tensor, average=True, name=None, version=0, priority=0",
    "push_pull_async_inplace": "tensor, average=True, name=None, version=0, priority=0",
    "push_pull_group_sync_inplace": "tensor, average=True, name=None, version=0, priority=0",
    "push_pull_inplace": "tensor, average=True, name=None, version=0, priority=0",
    "rank": "",
    "resume": "num_workers, num_servers, global_rank, context=None",
    "shutdown": "",
    "size": "",
    "suspend": "",
    "synchronize": "handle",
}


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [(module, *row) for module, rows in ((hvd, HOROVOD), (byteps, BYTEPS)) for row in rows.items()],
)
def test_a_call_has_the_parameters_of_the_call_that_it_replaces(module, name, parameters):
    call = module
    for part in name.split("."):
        call = getattr(call, part)
    want = inspect.signature(eval(f"lambda {parameters}: 0", vars(module).copy())).parameters
    have = inspect.signature(call).parameters
    for one, other in zip(want.values(), have.values()):
        assert one.name == other.name
        assert other.kind is other.POSITIONAL_OR_KEYWORD
        assert other.default == one.default or one.default is one.empty
    assert len(have) >= len(want)
    further = list(have.values())[len(want) :]
    assert all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in further)


def test_arguments_may_be_positional_as_in_horovod():
    x, n = torch.full((2 * hvd.size(),), hvd.rank() + 1.0), 2 * hvd.size()
    none = hvd.Compression.none
    assert hvd.allreduce_(x.clone(), None, "n", hvd.Sum).tolist() == [total()] * n
    handle = hvd.allreduce_async(x, None, "n", hvd.Sum, 2.0, 0.5, hvd.global_process_set)
    assert hvd.synchronize(handle).tolist() == [total()] * n
    some = hvd.add_process_set(ranks()[-2:])
    if some.included():
        want = [2.0 * hvd.size() - 1] * hvd.size()
        assert hvd.reducescatter(x, "n", none, hvd.Sum, some).tolist() == want
        handle = hvd.reducescatter_async(x, "n", hvd.Sum, some)
        assert hvd.synchronize(handle).tolist() == want
    hvd.remove_process_set(some)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    hvd.broadcast_optimizer_state(optimizer, 0, model)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_sampler_of_horovod_knows_what_remains():
    sampler, n = hvd.elastic.ElasticSampler(list(range(10 * hvd.size() + 1)), shuffle=False), 3
    whole = list(range(10 * hvd.size() + 1))
    assert (sampler.num_replicas, sampler.rank) == (hvd.size(), hvd.rank())
    assert (sampler.num_samples, sampler.total_size) == (11, 11 * hvd.size())
    assert sampler.remaining_indices == whole and sampler.processed_num == 0
    assert sampler.get_indices(1, n) == [hvd.rank() + hvd.size() * (n + i) for i in range(n)]
    sampler.record_batch(1, n)
    assert sampler.processed_num == n * hvd.size()
    assert sampler.processed_indices == set(sampler.get_indices(1, n))
    sampler.load_state_dict({"epoch": 1, "processed_indices": {0, 1}})
    assert sampler.remaining_indices == whole[2:] and sampler.processed_num == 2
    sampler.set_epoch(2)
    assert sampler.remaining_indices == whole and sampler.processed_num == 0


def test_groups_of_byteps_count_their_tensors():
    byteps.byteps_torch_set_num_grads(2)
    xs = [mine(), mine(2), mine(4)]
    handles = [byteps.push_pull_group_sync_inplace(x, False, f"g{i}") for i, x in enumerate(xs)]
    assert [n for _, n in handles] == [1, 2, 1]
    for handle, _ in handles:
        byteps.synchronize(handle)
    assert all((x == total()).all() for x in xs)
    x = mine()
    byteps.synchronize(byteps.byteps_push_pull(x, average=False, name="x"))
    assert (x == total()).all()


# ---- what a call does with its arguments ----


def test_the_handle_of_a_sparse_sum_is_called_for_the_result():
    handle = hvd.sparse_allreduce_async(torch.eye(3).to_sparse(), "s", hvd.Average)
    assert torch.equal(handle().to_dense(), torch.eye(3))


def test_a_commit_before_the_first_sync_does_not_interrupt():
    state = hvd.elastic.TorchState(epoch=1)
    state.commit()
    state.epoch = 5
    state.restore()
    assert state.epoch == 1
    state.sync()
    state.commit()


def test_splits_must_be_integers():
    for splits in (torch.ones(hvd.size()), [1.5] * hvd.size()):
        with pytest.raises(ValueError, match="must be integers"):
            hvd.alltoall(torch.ones(hvd.size()), splits)
    splits = torch.ones(hvd.size(), dtype=torch.int32)
    assert hvd.alltoall(mine(hvd.size()), splits)[0].tolist() == [r + 1 for r in ranks()]


class Halved:
    """A compressor in Horovod's form."""

    @staticmethod
    def compress(tensor):
        return (tensor / 2).half(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx) * 2


class Derived(hvd.Compression.fp16):
    compress, decompress = Halved.compress, Halved.decompress


@pytest.mark.parametrize("compression", [Halved, Derived, Halved()])
def test_a_compressor_of_ones_own_works_in_calls_and_is_refused_for_gradients(compression):
    x = hvd.allreduce(mine(), op=hvd.Sum, compression=compression)
    assert x.dtype == torch.float32 and (x == total()).all()
    model = torch.nn.Linear(2, 2)
    for wrap in (
        lambda: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=compression
        ),
        lambda: byteps.DistributedDataParallel(model, compression=compression),
    ):
        with pytest.raises(ValueError, match=r"compress\(\) of .*Halved|Derived.*'wire'"):
            wrap()


def test_operations_that_do_not_exist_are_refused_with_those_that_do():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotImplementedError, match="Adasum is not supported: use Average"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    for op in (torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.AVG, "sum"):
        for call in (
            lambda op=op: hvd.allreduce(mine(), op=op),
            lambda op=op: hvd.reducescatter(mine(), op=op),
            lambda op=op: hvd.DistributedOptimizer(optimizer, op=op),
        ):
            with pytest.raises(ValueError, match="is not an operation: use Average, Sum"):
                call()


def test_options_of_byteps_are_used_or_refused():
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotImplementedError, match="staleness: sums are synchronous"):
        byteps.DistributedOptimizer(sgd, staleness=1)
    optimizer = byteps.DistributedOptimizer(sgd, compression_params={"fp16": True})
    (model(torch.full((1, 2), 1 + 2**-12)) * 1.0).sum().backward()
    optimizer.synchronize()
    assert (model.weight.grad == 1).all()


def averaged(params, n=20_000):
    """Return the average of gradients that differ between workers, and the true average."""
    param = torch.nn.Parameter(torch.zeros(n))
    sgd = torch.optim.SGD([param], lr=0.1)
    optimizer = byteps.DistributedOptimizer(sgd, [("p", param)], compression_params=params)
    (param * torch.from_numpy(coded.values(hvd.rank(), (n,)))).sum().backward()
    optimizer.synchronize()
    return param.grad, torch.from_numpy(coded.mean((n,)))


def test_compressors_of_byteps_are_replaced():
    with pytest.warns(UserWarning, match="k have no effect with dithering"):
        got, want = averaged({"compressor": "dithering", "k": 4, "ef": "vanilla"})
    assert 1e-5 < (got - want).abs().max() <= coded.bound(127)
    assert max(np.abs(r).max() for r in _residuals.compression_state_dict().values()) > 0
    params = {"compressor": "onebit", "scaling": True, "ef": None, "k": 1, "fp16": False}
    if coded.shares_a_machine():
        with pytest.warns(UserWarning, match="int4 is used in its place"):
            got, want = averaged(params)
        assert 1e-5 < (got - want).abs().max() <= coded.bound(7)
    got, want = averaged({"compressor": "randomk", "k": 0.1, "seed": 9})
    assert 1990 <= (got != 0).sum() <= 2000
    assert torch.allclose(got[got != 0].double(), want[got != 0], atol=1e-6)


def test_byteps_smallest_size_of_a_compressed_tensor_is_read(monkeypatch):
    params = {"compressor": "randomk", "k": 100}
    for n_bytes, is_small in (("80001", True), ("80000", False)):
        monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", n_bytes)
        got, _ = averaged(params)
        assert ((got != 0).sum() > 100) == is_small
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", "1k")
    with pytest.raises(ValueError, match="is not a number of bytes"):
        averaged(params)


WRONG = [
    (
        {"compressor": "topk", "k": 2},
        NotImplementedError,
        "use randomk with ef, or Compression.int4",
    ),
    ({"compressor": "onebit", "momentum": "nesterov"}, NotImplementedError, "of the optimizer"),
    ({"compressor": "zip"}, NotImplementedError, "does not support the compressor 'zip'"),
    ({"compressor": "randomk"}, ValueError, "randomk needs k"),
    ({"compressor": "randomk", "k": -1}, ValueError, "k must be a fraction"),
    ({"compressor": "randomk", "k": 2, "ef": "x"}, NotImplementedError, "ef must be 'vanilla'"),
    ({"compressor": "randomk", "k": 2, "fp16": True}, ValueError, "exclude each other"),
    ({"ef": "vanilla"}, ValueError, "ef need the key compressor"),
    ({"level": 3}, NotImplementedError, "does not support level: use some of compressor, ef"),
]


@pytest.mark.parametrize(("params", "error", "text"), WRONG)
def test_other_compressors_of_byteps_are_refused_in_words(params, error, text):
    with pytest.raises(error, match=text):
        averaged(params)


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_the_gradient_of_reducescatter_is_horovods(op):
    op, n = getattr(hvd, op), hvd.size()
    x = torch.ones(n, 2, requires_grad=True)
    hvd.reducescatter(x, op=op).sum().backward()
    ys = [torch.ones(n, 2, requires_grad=True) for _ in range(2)]
    sum(y.sum() for y in hvd.grouped_reducescatter(ys, op=op)).backward()
    for one in (x, *ys):
        assert (one.grad == (n if op == hvd.Sum else 1)).all()
    z = torch.ones(n, 2, requires_grad=True)
    bps.torch.reducescatter(z, op=op).sum().backward()
    assert torch.allclose(z.grad * n, x.grad)


# ---- groups, priorities and names ----


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (lambda p: {}, [{0, 1, 2, 3}]),
        (lambda p: {"num_groups": 2}, [{0, 1}, {2, 3}]),
        (lambda p: {"groups": 4}, [{0}, {1}, {2}, {3}]),
        (lambda p: {"groups": [[p[0], p[2]], [p[1]]]}, [{0, 2}, {1}, {3}]),
        (lambda p: {"groups": [[p[0], p[2]]], "bucket_bytes": 1}, [{0, 2}, {1}, {3}]),
    ],
)
def test_the_gradients_of_a_group_are_sent_together(options, want):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1), model.named_parameters(), **options(params)
    )
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(1, 2)) * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    at = {id(p): i for i, p in enumerate(params)}
    buckets = optimizer._bps_reducer._buckets
    assert sorted(want, key=min) == sorted(
        ({at[id(place.param)] for place in bucket.places} for bucket in buckets), key=min
    )
    weights = hvd.allgather(params[0].detach().reshape(1, -1))
    assert (weights == weights[0]).all()


def test_groups_that_are_none_are_refused():
    model = torch.nn.Linear(2, 2)
    wrong = {-1: "negative", "names": [["weight"]], "twice": [[model.bias], [model.bias]]}
    for text, groups in (("negative", -1), ("lists", wrong["names"]), ("twice", wrong["twice"])):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), groups=groups)


def test_priorities_are_those_of_the_call_or_follow_the_declarations(monkeypatch):
    seen = {}

    def spy(tensor, op, priority):
        seen[tensor.name] = priority
        return push_pull(tensor, op, priority)

    push_pull = Tensor.push_pull
    monkeypatch.setattr(Tensor, "push_pull", spy)
    for name in ("declared second", "declared third"):
        (byteps.declare if "second" in name else byteps.byteps_declare_tensor)(name)
    byteps.declare("declared second")
    for name in ("declared third", "declared second", "not declared"):
        byteps.push_pull(mine(), name=name)
    byteps.push_pull(mine(), name="chosen", priority=7)
    second, third = (seen[f"u/declared {name}"] for name in ("second", "third"))
    assert second - third == 1 and seen["u/not declared"] == bps.PRIORITY_AUTO
    assert seen["u/chosen"] == 7
    byteps.synchronize(byteps.push_pull_async(mine(), name="declared third", priority=-3))
    assert seen["u/declared third"] == -3


NAMED = {
    "allgather": lambda n="d": hvd.allgather_async(mine(), name=n),
    "allreduce": lambda n="d": hvd.allreduce_async(mine(), name=n),
    "alltoall": lambda n="d": hvd.alltoall_async(mine(hvd.size()), name=n),
    "broadcast": lambda n="d": hvd.broadcast_async(mine(), 0, name=n),
    "broadcast_": lambda n="d": hvd.broadcast_async_(mine(), 0, name=n),
    "reducescatter": lambda n="d": hvd.reducescatter_async(mine(), name=n),
    "grouped_allgather": lambda n="d": hvd.grouped_allgather_async([mine()], name=n),
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_name_may_be_in_flight_once(kind):
    handle = NAMED[kind]()
    with pytest.raises(ValueError, match="'d.*' is in flight already: synchronize"):
        NAMED[kind]()
    first = hvd.synchronize(handle)
    again = hvd.synchronize(NAMED[kind]())
    assert str(first) == str(again)
    NAMED[kind]()  # the caller loses the handle
    hvd.synchronize(NAMED["allgather" if kind != "allgather" else "alltoall"]())


def test_a_name_is_free_after_a_failure():
    handle = hvd.allgather_async(torch.ones(2, 3 + hvd.rank()), name="failed")
    with pytest.raises(hvd.HorovodInternalError, match="has shape"):
        hvd.synchronize(handle)
    assert hvd.allgather(mine(1), name="failed").tolist() == [r + 1 for r in ranks()]


@pytest.mark.parametrize("kind", NAMED)
def test_a_name_in_flight_is_refused_before_the_others_have_begun(kind):
    begin = NAMED[kind]
    if hvd.rank() == 0:
        begin("lost")  # the caller loses the handle
        with pytest.raises(ValueError, match="in flight already"):
            begin("lost")
    hvd.barrier()  # the others are here while rank 0 begins
    if hvd.rank() > 0:
        begin("lost")
    end = time.monotonic() + 20
    while True:
        try:
            hvd.synchronize(begin("lost"))
            break
        except ValueError:  # the lost operation is not complete yet
            assert time.monotonic() < end


# The same call with the name n. The shapes and types are the same for all names.
CALLED = {
    "allgather": lambda n: hvd.allgather(mine(), n),
    "allgather_async": lambda n: hvd.synchronize(hvd.allgather_async(mine(), n)),
    "alltoall": lambda n: hvd.alltoall(mine(hvd.size()), name=n),
    "alltoall_async": lambda n: hvd.synchronize(hvd.alltoall_async(mine(hvd.size()), name=n)),
    "broadcast": lambda n: hvd.broadcast(mine(), 0, n),
    "broadcast_": lambda n: hvd.broadcast_(mine(), 0, n),
    "broadcast_async": lambda n: hvd.synchronize(hvd.broadcast_async(mine(), 0, n)),
    "broadcast_object": lambda n: hvd.broadcast_object(1, 0, n),
    "allgather_object": lambda n: hvd.allgather_object(1, n),
}


@pytest.mark.parametrize("call", CALLED)
def test_names_that_differ_between_workers_are_an_error_at_all(call):
    for names in ("ab", (None, "b")):
        with pytest.raises(hvd.HorovodInternalError, match="workers disagree"):
            CALLED[call](names[min(hvd.rank(), 1)])
    CALLED[call]("b")


def test_broadcasts_in_another_order_at_a_worker_are_an_error_and_not_mixed():
    names = ["first", "second"][:: 1 if hvd.rank() == 0 else -1]
    handles = [hvd.broadcast_async_(mine(), 0, name) for name in names]
    for handle, text in zip(handles, ("'first' of float32", "already differed")):
        with pytest.raises(hvd.HorovodInternalError, match=text):
            hvd.synchronize(handle)
    assert (hvd.broadcast(mine(), 0, "first") == 1).all()


def test_an_empty_list_of_parameters_is_compared_with_the_others():
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 has tensor '0' of float32 \[3\]"):
        hvd.broadcast_parameters([] if hvd.rank() == 0 else [mine()], root_rank=0)
    for nothing in ([], {}, iter(())):
        hvd.broadcast_parameters(nothing, root_rank=0)


# ---- what Horovod's tests check, see behaviours.txt ----


def test_a_job_is_left_and_joined_again_with_the_same_place():
    place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.is_initialized()
    assert place == (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())


def test_sets_are_added_listed_removed_and_added_again():
    everyone = list(ranks())
    assert hvd.get_process_set_ids_and_ranks() == {0: everyone}
    assert hvd.global_process_set.ranks == everyone
    one, others = hvd.add_process_set([0]), hvd.add_process_set(reversed(everyone[1:]))
    for _ in range(2):
        ids = hvd.get_process_set_ids_and_ranks()
        assert ids == {0: everyone, one.process_set_id: [0], others.process_set_id: everyone[1:]}
        assert hvd.allgather_object(ids) == [ids] * hvd.size()
        with pytest.raises(ValueError, match="has been added already"):
            hvd.add_process_set([0])
        assert hvd.remove_process_set(one) and one.process_set_id is None
        assert hvd.get_process_set_ids_and_ranks().keys() == {0, others.process_set_id}
        assert hvd.add_process_set(one) is one
    for some in (one, others):
        hvd.remove_process_set(some)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="is not part of the job"):
        hvd.allreduce(mine(), process_set=hvd.ProcessSet([hvd.rank()]))


@pytest.fixture
def halves():
    """Return the set of the even ranks and the set of the odd ranks, this worker's set first."""
    sets = [hvd.add_process_set(ranks()[first::2]) for first in (0, 1)]
    yield sets[:: 1 if hvd.rank() % 2 == 0 else -1]
    for one in sets:
        hvd.remove_process_set(one)


def test_groups_run_in_process_sets(halves):
    here, n = {"process_set": halves[0]}, halves[0].size()
    sums, mean = sum(r + 1 for r in halves[0].ranks), sum(r + 1 for r in halves[0].ranks) / n
    xs = [torch.full((4 * n, 2), hvd.rank() + 1.0) for _ in range(3)]
    for x in hvd.grouped_allreduce(xs, op=hvd.Sum, **here):
        assert x.shape == (4 * n, 2) and (x == sums).all()
    for x in hvd.grouped_allgather(xs, **here):
        assert x[:: 4 * n, 0].tolist() == [r + 1 for r in halves[0].ranks]
    for op, want in ((hvd.Sum, sums), (hvd.Average, mean)):
        for x in hvd.grouped_reducescatter(xs, op=op, **here):
            assert x.shape == (4, 2) and (x == want).all()


def test_gradients_of_all_calls_stay_in_their_process_set(halves):
    here, n, me = {"process_set": halves[0]}, halves[0].size(), halves[0].rank()

    def gradient(call, rows):
        x = torch.ones(rows, 2, requires_grad=True)
        call(x).sum().backward()
        return x.grad

    root = halves[0].ranks[-1]
    splits = [me + 1] * n
    calls = {
        "allreduce": (lambda x: hvd.allreduce(x, op=hvd.Sum, **here), 4, n),
        "group": (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum, **here)[0], 4, n),
        "allgather": (lambda x: hvd.allgather(x, **here), hvd.rank() + 1, 1),
        "gathers": (lambda x: hvd.grouped_allgather([x], **here)[0], hvd.rank() + 1, 1),
        "broadcast": (lambda x: hvd.broadcast(x, root, **here), 4, int(hvd.rank() == root)),
        "alltoall": (lambda x: hvd.alltoall(x, splits, **here)[0], sum(splits), 1),
        "equal": (lambda x: hvd.alltoall(x, **here), 2 * n, 1),
        "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum, **here), 4 * n, n),
        "averages": (lambda x: hvd.reducescatter(x, **here), 4 * n, 1),
    }
    for name, (call, rows, want) in calls.items():
        assert (gradient(call, rows) == want).all(), name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16, torch.float64])
def test_reducescatters_are_scaled_before_and_after(dtype):
    x = torch.arange(4 * hvd.size(), dtype=torch.float64).to(dtype).reshape(-1, 1)
    own, factor = x[4 * hvd.rank() : 4 * hvd.rank() + 4], 0.4
    exact = torch.float32 if dtype == torch.float16 else torch.float64
    before = (own.to(exact) * factor).to(dtype) * hvd.size()
    after = ((own * hvd.size()).to(exact) * factor).to(dtype)
    for scale, want in (("prescale_factor", before), ("postscale_factor", after)):
        one = hvd.reducescatter(x, op=hvd.Sum, **{scale: factor})
        (other,) = hvd.grouped_reducescatter([x], op=hvd.Sum, **{scale: factor})
        assert one.dtype == dtype and torch.allclose(one.double(), want.double(), rtol=1e-3)
        assert torch.equal(one, other)


def test_reducescatter_refuses_numbers_also_in_groups():
    number = torch.tensor(1.0)
    for call in (
        lambda: hvd.reducescatter(number),
        lambda: hvd.grouped_reducescatter([torch.zeros(3, 1), number]),
    ):
        with pytest.raises(ValueError, match="at least one dimension"):
            call()


def test_a_barrier_may_follow_calls_in_flight():
    handles = [
        hvd.broadcast_async(mine(), 0),
        hvd.allgather_async(torch.eye(5)),
        hvd.allgather_async(torch.zeros(5, 5)),
        hvd.allreduce_async(torch.eye(5)),
    ]
    hvd.barrier()
    assert torch.equal(hvd.synchronize(handles[3]), torch.eye(5))
    assert torch.equal(hvd.synchronize(handles[1]), torch.eye(5).repeat(hvd.size(), 1))
    assert (hvd.synchronize(handles[0]) == 1).all() and not hvd.synchronize(handles[2]).any()


def test_parameters_that_need_gradients_have_them_behind_a_broadcast_of_the_state():
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert model.bias.grad is None
    assert torch.equal(hvd.broadcast(model.weight.grad, 0), torch.zeros(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert (model.weight.grad == 1).all()


def test_a_gan_of_two_optimizers_reads_its_gradients_before_the_step():
    nets = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)]
    optimizers = []
    for net in nets:
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizers.append(hvd.DistributedOptimizer(sgd, net.named_parameters()))
    for step in range(6):
        for i, net in enumerate(nets):
            net.requires_grad_(i == step % 2)
            optimizers[i].zero_grad()
        nets[1](nets[0](torch.full((1, 2), hvd.rank() + 1.0))).sum().backward()
        for i, net in enumerate(nets):
            for p in net.parameters():
                is_moved = p.grad is not None and bool(p.grad.any())
                assert is_moved == (i == step % 2)
        optimizers[step % 2].step()
    values = torch.cat([p.detach().reshape(-1) for net in nets for p in net.parameters()])
    every = hvd.allgather(values.reshape(1, -1))
    assert (every == every[0]).all()


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_adam_trains_an_embedding_with_other_batches_at_each_worker(as_dense):
    torch.manual_seed(1)
    layers = [torch.nn.Embedding(10, 3, sparse=True) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    batches = [torch.tensor([[1, 2, 4, 5], [4, 3, 2, 9]]), torch.tensor([[1, 3, 4], [4, 7, 9]])]
    given = [batches[min(r, 1)] for r in ranks()]
    own, alone = (torch.optim.SparseAdam(list(x.parameters()), lr=0.1) for x in layers)
    own = hvd.DistributedOptimizer(own, sparse_as_dense=as_dense)
    layers[0](given[hvd.rank()]).sum().backward()
    own.step()
    (sum(layers[1](x).sum() for x in given) / hvd.size()).backward()
    alone.step()
    assert torch.allclose(layers[0].weight, layers[1].weight)


def test_sparse_sums_in_flight_equal_dense_sums_also_in_sets(halves):
    torch.manual_seed(hvd.rank())
    for one in (hvd.global_process_set, halves[0]):
        xs = [torch.rand(n, 10) * (torch.rand(n, 10) > 0.8) for n in (17, 32, 1)]
        dense = [hvd.allreduce(x, process_set=one) for x in xs]
        handles = [
            hvd.sparse_allreduce_async(x.to_sparse(), str(i), hvd.Average, one)
            for i, x in enumerate(xs)
        ]
        for handle, want in zip(handles, dense):
            assert torch.allclose(handle().to_dense(), want)


def test_default_names_of_parameters_are_unique_and_the_same_at_all_workers():
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 10))
    groups = [{"params": layer.parameters()} for layer in model]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    names = [name for name, _ in optimizer._bps_named]
    assert len(names) == len(set(names)) == 4
    assert hvd.allgather_object(names) == [names] * hvd.size()


def test_a_torch_state_is_sent_restored_and_committed():
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for p in model.parameters():
        torch.nn.init.constant_(p, hvd.rank() + 1.0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.001)
    state = hvd.elastic.TorchState(model, sgd, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    state.sync()
    assert all((p == 1).all() for p in state.model.parameters())
    assert (state.batch, state.epoch) == (20, 10)
    for commits in (False, True):
        model.load_state_dict(other.state_dict())
        state.batch, state.epoch = 21, 11
        if commits:
            state.commit()
        state.restore()
        want = other.weight if commits else torch.ones(2, 2)
        assert torch.equal(model.weight, want)
        assert (state.batch, state.epoch) == ((21, 11) if commits else (20, 10))


def test_an_elastic_sampler_goes_on_where_all_workers_are():
    data, n = list(range(8 * hvd.size())), 2
    sampler = hvd.elastic.ElasticSampler(data, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=n, sampler=sampler)
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, _ in enumerate(loader):
            sampler.record_batch(i, n)
            assert sampler.processed_num == n * (i + 1) * hvd.size()
        assert i + 1 == 8 // n
    assert len(list(loader)) == 8 // n  # without a new epoch the loader repeats the samples
    sampler.set_epoch(2)
    for i in range(2):
        sampler.record_batch(i, n)
    state.commit()
    sampler.record_batch(2, n)
    state.restore()
    assert len(sampler.processed_indices) == 2 * n
    state.sync()
    assert sampler.processed_num == 2 * n * hvd.size() and len(sampler) == 2 * n
    sampler.record_batch(0, n)
    state.commit()
    state.sync()
    done = hvd.allgather_object(sorted(sampler.processed_indices))
    assert len(done[0]) == 3 * n * hvd.size() == sampler.processed_num
    assert done == [done[0]] * hvd.size()
    assert len(sampler) == n and not {*sampler} & {*done[0]}
    rest = [i for part in hvd.allgather_object([*sampler]) for i in part]
    assert sorted(rest + done[0]) == data
    sampler.set_epoch(3)
    assert len(sampler) == len([*sampler]) == 8
