"""Parameters of the calls of Horovod and BytePS that bps.compat replaces, for the frameworks other
than PyTorch (test_horovod.py). Nothing joins a job here."""

import importlib
import inspect

import jobs
import pytest

import bps.compat.byteps
import bps.compat.horovod  # noqa: F401
from bps._compression import RAW, coding_of, through

SETS = "process_set=global_process_set"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
SCOPE = "name=None, ignore_name_scope=False"
TENSORFLOW_OPTIMIZER = (
    'optimizer, name=None, use_locking=False, device_dense="", device_sparse="", '
    "compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average"
)
TAPE = (
    'gradtape, device_dense="", device_sparse="", compression=Compression.none, '
    "sparse_as_dense=False, op=Average"
)
GROUPS = f"num_groups=0, groups=None, {SETS}"
KERAS_OPTIMIZER = (
    'optimizer, name=None, device_dense="", device_sparse="", compression=Compression.none, '
    "sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, "
    f"average_aggregated_gradients=False, {GROUPS}"
)
SCHEDULE = (
    "start_epoch=0, end_epoch=None, staircase=True, momentum_correction=True, steps_per_epoch=None"
)
WARMUP = "warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0"
MXNET_REDUCE = f"average=None, name=None, priority=0, {SCALES}, {SETS}"
MXNET_GATHER = f"name=None, priority=0, {SETS}"
PLACE = dict.fromkeys(("local_rank", "local_size", "rank", "shutdown", "size"), "")
TIMELINE = {"start_timeline": "file_path, mark_cycles=False", "stop_timeline": ""}

# Public calls of Horovod 0.28.
TENSORFLOW = {
    **PLACE,
    **TIMELINE,
    "add_process_set": "process_set",
    "allgather": f"tensor, {SCOPE}, {SETS}",
    "allgather_object": f"obj, session=None, name=None, {SETS}",
    "allreduce": 'tensor, average=None, device_dense="", device_sparse="", '
    f"compression=Compression.none, op=None, {SCALES}, name=None, {SETS}, ignore_name_scope=False",
    "alltoall": f"tensor, splits=None, {SCOPE}, {SETS}",
    "broadcast": f"tensor, root_rank, {SCOPE}, {SETS}",
    "broadcast_": f"variables, root_rank, name=None, {SETS}",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": 'root_rank, device=""',
    "broadcast_object": f"obj, root_rank=0, session=None, name=None, {SETS}",
    "broadcast_object_fn": f"root_rank=0, session=None, name=None, {SETS}",
    "broadcast_variables": f"variables, root_rank, {SETS}, inplace=False",
    "DistributedGradientTape": f"{TAPE}, gradient_predivide_factor=1.0, {GROUPS}, "
    "scale_local_gradients=True",
    "DistributedOptimizer": f"{TENSORFLOW_OPTIMIZER}, gradient_predivide_factor=1.0, "
    f"average_aggregated_gradients=False, {GROUPS}, scale_local_gradients=True",
    "grouped_allgather": f"tensors, {SCOPE}, {SETS}",
    "grouped_allreduce": 'tensors, average=None, device_dense="", device_sparse="", '
    f"compression=Compression.none, op=None, {SCALES}, {SETS}, ignore_name_scope=False, name=None",
    "grouped_reducescatter": 'tensors, device_dense="", compression=Compression.none, '
    f"op=Average, {SETS}, {SCALES}",
    "init": "comm=None, process_sets=None",
    "is_initialized": "",
    "join": "",
    "local_rank_op": "name=None",
    "local_size_op": "name=None",
    "PartialDistributedGradientTape": f"{TAPE}, gradient_predivide_factor=1.0, {GROUPS}, "
    "local_layers=None, scale_local_gradients=True",
    "process_set_included_op": "process_set_id=0, name=None",
    "rank_op": "name=None",
    "reducescatter": 'tensor, device_dense="", compression=Compression.none, op=Average, '
    f"name=None, {SETS}, ignore_name_scope=False, {SCALES}",
    "remove_process_set": "process_set",
    "size_op": "process_set_id=0, name=None",
    "elastic.TensorFlowKerasState": "model, optimizer=None, backend=None",
    "elastic.TensorFlowState": "variables=None, session=None",
    "elastic.run": "func",
}
KERAS = {
    **PLACE,
    **TIMELINE,
    "allgather": "value, name=None",
    "allreduce": f"value, name=None, average=None, {SCALES}, op=None, compression=Compression.none",
    "broadcast": "value, root_rank, name=None",
    "broadcast_global_variables": "root_rank",
    "DistributedOptimizer": f"{KERAS_OPTIMIZER}, scale_local_gradients=True",
    "init": "comm=None, process_sets=None",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, "
    "compression=Compression.none",
    "PartialDistributedOptimizer": f"{KERAS_OPTIMIZER}, local_layers=None, "
    "scale_local_gradients=True",
    "reducescatter": "value, name=None, op=Average",
    "callbacks.BroadcastGlobalVariablesCallback": 'root_rank, device="", local_variables=None',
    "callbacks.LearningRateScheduleCallback": f"initial_lr, multiplier, {SCHEDULE}",
    "callbacks.LearningRateWarmupCallback": f"initial_lr, {WARMUP}",
    "callbacks.MetricAverageCallback": 'device=""',
    "elastic.CommitStateCallback": "state, batches_per_commit=1",
    "elastic.KerasState": "model, optimizer=None, backend=None",
    "elastic.UpdateBatchStateCallback": "state",
    "elastic.UpdateEpochStateCallback": "state",
    "elastic.run": "func",
}
MXNET = {
    **PLACE,
    **TIMELINE,
    "allgather": f"tensor, {MXNET_GATHER}",
    "allgather_object": f"obj, name=None, {SETS}",
    "allreduce": f"tensor, {MXNET_REDUCE}",
    "allreduce_": f"tensor, {MXNET_REDUCE}",
    "alltoall": f"tensor, splits=None, {MXNET_GATHER}",
    "broadcast": f"tensor, root_rank, {MXNET_GATHER}",
    "broadcast_": f"tensor, root_rank, {MXNET_GATHER}",
    "broadcast_object": f"obj, root_rank=0, name=None, {SETS}",
    "broadcast_parameters": "params, root_rank=0, prefix=None",
    "DistributedOptimizer": "optimizer, gradient_predivide_factor=1.0, num_groups=0, " + SETS,
    "DistributedTrainer": "params, optimizer, optimizer_params=None, compression=None, "
    f"gradient_predivide_factor=1.0, prefix=None, num_groups=0, {SETS}",
    "grouped_allgather": f"tensors, {MXNET_GATHER}",
    "grouped_allreduce": f"tensors, {MXNET_REDUCE}",
    "grouped_allreduce_": f"tensors, {MXNET_REDUCE}",
    "grouped_reducescatter": f"tensors, op=Average, name=None, priority=0, {SCALES}, {SETS}",
    "init": "comm=None, process_sets=None",
    "reducescatter": f"tensor, op=Average, name=None, priority=0, {SCALES}, {SETS}",
}
# Public calls of BytePS 0.2.
BYTEPS_TENSORFLOW = {
    **PLACE,
    "broadcast": 'tensor, root_rank, scope="", name=None, is_variable=True',
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": 'root_rank, device=""',
    "broadcast_variables": 'variables, root_rank, scope=""',
    "DistributedGradientTape": TAPE,
    "DistributedOptimizer": TENSORFLOW_OPTIMIZER,
    "init": "lazy=True",
    "push_pull": 'tensor, scope="", average=None, device_dense="", device_sparse="", '
    "compression=Compression.none, op=None, enable_async=False",
    "resume": "num_workers, num_servers, global_rank, context=None",
    "suspend": "",
}
BYTEPS_KERAS = {
    **PLACE,
    "broadcast": "value, root_rank, name=None",
    "broadcast_global_variables": "root_rank",
    "DistributedOptimizer": 'optimizer, name=None, device_dense="", device_sparse="", '
    "compression=Compression.none, sparse_as_dense=False",
    "init": "lazy=True",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, "
    "compression=Compression.none",
    "push_pull": "value, name=None, average=True",
    "callbacks.BroadcastGlobalVariablesCallback": 'root_rank, device=""',
    "callbacks.LearningRateScheduleCallback": f"multiplier, {SCHEDULE}",
    "callbacks.LearningRateWarmupCallback": WARMUP,
    "callbacks.MetricAverageCallback": 'device=""',
}
BYTEPS_MXNET = {
    **PLACE,
    "broadcast_parameters": "params, root_rank=0",
    "byteps_declare_tensor": "name",
    "byteps_push_pull": "tensor, version=0, priority=0, name=None, is_average=True",
    "DistributedOptimizer": "optimizer",
    "DistributedTrainer": "params, optimizer, optimizer_params=None, root_rank=0, "
    "compression_params=None",
    "init": "lazy=True",
    "resume": "num_workers, num_servers, global_rank, context=None",
    "suspend": "",
}
MODULES = {
    "horovod.tensorflow": TENSORFLOW,
    "horovod.keras": KERAS,
    "horovod.tensorflow.keras": KERAS,
    "horovod.mxnet": MXNET,
    "byteps.tensorflow": BYTEPS_TENSORFLOW,
    "byteps.keras": BYTEPS_KERAS,
    "byteps.mxnet": BYTEPS_MXNET,
}


def is_here(module):
    """Return whether the list of requirements has the framework of the module."""
    needed = {"keras"} if module.endswith("keras") else {module.split(".")[1]}
    return needed <= set(jobs.FRAMEWORKS)


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [(m, *row) for m, rows in MODULES.items() if is_here(m) for row in rows.items()],
)
def test_a_call_has_the_parameters_of_the_call_that_it_replaces(module, name, parameters):
    found = importlib.import_module(module)
    call = found
    for part in name.split("."):
        call = getattr(call, part)
    want = inspect.signature(eval(f"lambda {parameters}: 0", vars(found).copy())).parameters
    have = list(inspect.signature(call).parameters.values())
    assert len(have) >= len(want), have
    for one, other in zip(want.values(), have):
        assert one.name == other.name and other.kind is other.POSITIONAL_OR_KEYWORD
        assert other.default == one.default or one.default is one.empty
    for other in have[len(want) :]:
        assert other.default is not other.empty or other.kind is other.VAR_KEYWORD


@pytest.mark.parametrize(
    "module", filter(is_here, ["horovod.tensorflow", "horovod.mxnet", "byteps.tensorflow"])
)
def test_scripts_derive_compressors_from_those_of_horovod(module):
    found = importlib.import_module(f"{module}.compression")

    class Mine(found.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor + 1, tensor

        @staticmethod
        def decompress(tensor, context):
            return tensor - context

    assert through(Mine, [5.0], lambda given: [3 * given[0]]) == [13.0] and coding_of(Mine) == RAW
    assert found.NoneCompressor is found.Compression.none
