"""Calls of Horovod and BytePS in scripts of PyTorch, as bps.compat provides them.

All workers of a job run these tests in the same order (tests/frontends/run.py).
"""

import bps.compat.byteps
import bps.compat.horovod

import byteps.torch as byteps
import horovod.torch as hvd
import pytest
import torch

import bps.torch

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
