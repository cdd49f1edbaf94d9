"""An optimizer that averages gradients over all workers before each step, and functions that
broadcast parameters and the optimizer's state."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

import bps
from bps import _core
from bps._compression import Compression, Compressor
from bps._compression_params import compressor_of_byteps
from bps._ops import check_gradients
from bps._sets import ProcessSet, global_process_set
from bps._values import Bound, check_excluded, choose_bound
from bps.torch._asynchronous import AsynchronousSteps
from bps.torch._broadcast import broadcast_all_
from bps.torch._compression import gradient_coding
from bps.torch._cross_barrier import CrossBarrier
from bps.torch._reducer import BUCKET_BYTES, Reducer
from bps.torch.recipes._one_step_late import OneStepLate


def _name_parameters(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """Return (name, parameter) for all parameters of the optimizer. They have the order of `named`.
    If `named` is None, they have the order of the optimizer."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if named is None:
        pairs = [(f"param.{i}", p) for i, p in enumerate(params)]
    else:
        pairs = list(named)
        if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
            raise ValueError(
                "named_parameters must be a sequence of tuples (name, parameter): pass "
                "model.named_parameters()"
            )
        names = [name for name, _ in pairs]
        twice = (
            sorted({name for name in names if names.count(name) > 1})
            if len(set(names)) < len(names)
            else []
        )
        if twice:
            raise ValueError(
                "names in named_parameters must differ, but these names occur more than once: "
                + ", ".join(twice)
            )
        if len({id(p) for _, p in pairs}) < len(pairs):
            raise ValueError("named_parameters has two names for one parameter")
        unnamed = {id(p) for p in params} - {id(p) for _, p in pairs}
        if unnamed:
            raise ValueError(
                f"named_parameters lacks {len(unnamed)} parameters of the optimizer: pass all of "
                "them"
            )
    mine = {id(p) for p in params}
    return [(name, p) for name, p in pairs if id(p) in mine]


class _DistributedOptimizer(torch.optim.Optimizer):
    """Container of the methods that :func:`DistributedOptimizer` adds to an optimizer's class."""

    _bps_base: type[torch.optim.Optimizer]
    # The wrapped optimizer. A learning-rate scheduler may refer to it.
    _bps_original: torch.optim.Optimizer
    _bps_named: list[tuple[str, torch.Tensor]]  # all parameters of the optimizer
    _bps_options: dict[str, Any]  # arguments of the reducer
    _bps_has_cross: bool
    _bps_is_late: bool
    # None at a worker outside of the process set, which updates its parameters alone, and in a copy
    # of the optimizer before the copy's first step.
    _bps_reducer: Reducer | None
    _bps_is_synchronized: bool
    _bps_is_scaled = False  # GradScaler.step() has reduced the gradients
    _bps_skips: bool
    _bps_n_caught_up: int
    _bps_cross: CrossBarrier | None
    _bps_late: OneStepLate | None
    _bps_bound: Bound | None  # None: steps are synchronous
    _bps_alone: AsynchronousSteps | None

    def synchronize(self) -> None:
        """Wait until the gradients are reduced. To step without another reduction, call
        :meth:`step` inside :meth:`skip_synchronize`.

        With ``cross_barrier=True``, a call of this method after ``step()`` waits until all
        parameters are updated. With ``one_step_late=True``, submit the gradients of this step, and
        wait for those of the step before. With ``asynchronous=True``, do nothing, because gradients
        are not exchanged.
        """
        if self._bps_bound is not None:
            return
        reducer = self._bps_connect()
        if self._bps_late is not None:
            if not self._bps_is_synchronized:
                self._bps_late.exchange()
                self._bps_is_synchronized = True
            return
        if self._bps_cross is not None:
            self._bps_cross.flush()
            if reducer is not None and not reducer.begun:
                return
        if reducer is not None:
            reducer.finish()
        if issubclass(self._bps_base, torch.optim.SparseAdam):
            self._bps_make_sparse()
        self._bps_is_synchronized = True

    def _bps_make_sparse(self) -> None:
        """Make the gradients sparse again that sparse_as_dense has made dense."""
        for _, param in self._bps_named:
            if param.grad is not None and not param.grad.is_sparse:
                param.grad = param.grad.to_sparse(1)

    def _bps_connect(self) -> Reducer | None:
        """Return the reducer. The first call in a copy creates it, so that workers may copy an
        optimizer without the other workers."""
        if self._bps_bound is not None:
            if self._bps_alone is None:
                size = self._bps_options["bucket_bytes"]
                self._bps_alone = AsynchronousSteps(self._bps_named, self._bps_bound, size)
            return None
        process_set = self._bps_options["process_set"]
        if self._bps_reducer is None and process_set.included():
            self._bps_reducer = Reducer(self._bps_named, **self._bps_options)
            if self._bps_has_cross:
                self._bps_cross = CrossBarrier(self, self._bps_base, self._bps_reducer)
            if self._bps_is_late:
                self._bps_late = OneStepLate(self._bps_reducer)
        return self._bps_reducer

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether :meth:`step` of the wrapped optimizer scales gradients.

        ``torch.amp.GradScaler.step`` reads this attribute before it reads the gradients. So the
        gradients are reduced here, and all workers find the same overflows.

        Raises:
            RuntimeError: the optimizer has ``cross_barrier=True`` or ``one_step_late=True``, so its
                gradients are not complete before the next forward pass; or it is asynchronous.
        """
        if self._bps_bound is not None:
            raise RuntimeError(
                "GradScaler needs an optimizer with asynchronous=False, because workers of one "
                "machine would skip different steps: use bfloat16, which needs no scaler"
            )
        if self._bps_late is not None:
            raise RuntimeError(
                "GradScaler needs an optimizer with one_step_late=False, because workers would "
                "skip different steps: use bfloat16, which needs no scaler"
            )
        if self._bps_has_begun:
            if self._bps_cross is not None:
                raise RuntimeError("GradScaler needs an optimizer with cross_barrier=False")
            self.synchronize()
            self._bps_is_scaled = True
        return self.__dict__.get("_step_supports_amp_scaling", False)

    @property
    def _bps_has_begun(self) -> bool:
        """Whether the gradients of this step are being reduced."""
        return self._bps_reducer is not None and self._bps_reducer.begun

    def __reduce__(self) -> tuple[Any, ...]:
        if self._bps_has_begun:
            raise RuntimeError(
                "an optimizer cannot be copied between backward() and step(), because its "
                "gradients are being reduced: copy it after step()"
            )
        if self._bps_late is not None and not self._bps_late.is_empty:
            raise RuntimeError(
                "an optimizer with one_step_late=True cannot be copied while gradients are in "
                "flight: call flush() first"
            )
        if self._bps_cross is not None:
            self._bps_cross.flush()
        own = ("_bps_named", "_bps_options", "_bps_has_cross", "_bps_is_late", "_bps_bound")
        state = {**self._bps_base.__getstate__(self), **{name: getattr(self, name) for name in own}}
        state |= {"_bps_reducer": None, "_bps_cross": None, "_bps_late": None, "_bps_alone": None}
        state |= {"_bps_skips": False, "_bps_is_synchronized": self._bps_is_synchronized}
        state |= {"_bps_n_caught_up": 0}
        return _new, (self._bps_base,), state

    @property
    def is_behind(self) -> bool:
        """Whether the last step did not wait for this worker's machine, because the other workers
        are ahead. Always False in jobs without backup machines. See :meth:`catch_up`."""
        return self._bps_reducer is not None and self._bps_reducer.is_behind

    @property
    def n_caught_up(self) -> int:
        """Number of steps in which :meth:`catch_up` has taken part without gradients."""
        return self._bps_n_caught_up

    def catch_up(self, n_left: int, step: Callable[[], Any] | None = None) -> int:
        """Reach the step of the other workers, after this worker's machine was late.

        In a job with backup machines, a round does not wait for a late machine. After one stall,
        the machine would compute each later step too late. So it takes part in the next steps
        without gradients, and applies the other workers' averages, until they wait for it again. It
        is at most two steps behind. Parameters stay equal at all workers. The number of these steps
        is logged.

        Args:
            n_left (int): the largest number of these steps, which is the number of steps before the
                program does something else, such as an evaluation, or ends. A step beyond them
                would wait for workers that never make it.
            step (callable, optional): applies the averages in ``.grad``; by default :meth:`step`.
                Pass what the program does after each backward pass: clip gradients, call
                ``scaler.step(optimizer)`` and ``scaler.update()``, ``scheduler.step()``.

        Returns:
            int: number of steps. Count them, so that all workers run the same number of steps.

        Raises:
            RuntimeError: the optimizer has ``cross_barrier=True`` or ``one_step_late=True``, or the
                call comes between backward() and step().
            NotImplementedError: gradients are in GPU memory.

        Example::

            >>> while n < n_steps:
            ...     if optimizer.is_behind:
            ...         n += optimizer.catch_up(n_steps - n)
            ...         continue
            ...     loss(next(batches)).backward()
            ...     optimizer.step()
            ...     n += 1
        """
        reducer = self._bps_connect()
        if self._bps_has_cross or self._bps_is_late:
            raise RuntimeError(
                "catch_up() needs an optimizer with cross_barrier=False and one_step_late=False"
            )
        n = 0
        while n < n_left and reducer is not None and reducer.is_behind:
            reducer.abstain()
            with self.skip_synchronize():
                (step or self.step)()
            n += 1
        self._bps_n_caught_up += n
        if n:
            logging.getLogger("bps").warning(
                "rank %d was late and took part in %d steps without its gradients (%d in all)",
                _core.rank(),
                n,
                self._bps_n_caught_up,
            )
        return n

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which :meth:`step` does not reduce the gradients again. Call
        :meth:`synchronize` before the context."""
        self._bps_skips = True
        try:
            yield
        finally:
            self._bps_skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes whose gradients are added up before they are sent."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step is {passes}, but must be 1 or more")
        if self._bps_has_begun:
            raise ValueError("backward_passes_per_step cannot change between backward() and step()")
        _check_late(self._bps_is_late, self._bps_has_cross, passes)
        self._bps_options["passes"] = passes
        if self._bps_reducer is not None:
            self._bps_reducer.passes = passes

    def step(self, closure: Any = None) -> Any:
        """Reduce the gradients over all workers, and update the parameters. With
        ``one_step_late=True``, submit the gradients of this step, and update the parameters with
        those of the step before. With ``asynchronous=True``, update the parameters with the
        gradients of this worker, and exchange the update for the servers' values.

        Args:
            closure (callable, optional): computes the loss and its gradients. The gradients are
                reduced after each call of the closure.
        """
        # A learning-rate scheduler of the original optimizer checks that step() was called.
        # Since PyTorch 2.4 the scheduler reads _opt_called, and in older releases _step_count.
        self._bps_original._opt_called = True
        self._bps_original._step_count = getattr(self._bps_original, "_step_count", 0) + 1
        if self._bps_bound is not None:
            self._bps_connect()
            assert self._bps_alone is not None
            return self._bps_alone.step(lambda: self._bps_base.step(self, closure))
        if self._bps_is_late:
            return self._bps_step_late(closure)
        if self._bps_skips:
            self._bps_is_synchronized = False  # the next step needs new gradients
            return self._bps_base.step(self, closure)
        if closure is not None:

            def reduced() -> Any:
                loss = closure()
                self.synchronize()
                return loss

            return self._bps_base.step(self, reduced)
        self._bps_connect()
        if self._bps_is_scaled and not self._bps_has_begun:
            self._bps_is_scaled = False
        elif self._bps_is_synchronized and not self._bps_has_begun:
            warnings.warn(
                "step() after synchronize() does not reduce the gradients again: call step() "
                "inside 'with optimizer.skip_synchronize():' to avoid this warning",
                stacklevel=2,
            )
        elif self._bps_cross is not None:
            return self._bps_cross.step()
        else:
            self.synchronize()
        self._bps_is_synchronized = False
        return self._bps_base.step(self)

    def _bps_step_late(self, closure: Any) -> Any:
        if closure is not None:
            raise ValueError("step() takes no closure with one_step_late=True: call backward()")
        if self._bps_connect() is not None and not self._bps_skips:
            self.synchronize()
        self._bps_is_synchronized = False
        result = self._bps_base.step(self)
        if self._bps_late is not None:
            # The next exchange writes to this memory before the next gradients are submitted.
            for _, param in self._bps_named:
                param.grad = None
        return result

    def flush(self) -> None:
        """Update the parameters with all gradients that are in flight, with ``cross_barrier=True``
        or ``one_step_late=True``. Otherwise none are. Call this method at all workers after the
        same step, for example after the last one."""
        if self._bps_cross is not None:
            self._bps_cross.flush()
        if self._bps_late is not None:
            self._bps_late.flush(lambda: self._bps_base.step(self))

    def pull_values(self) -> None:
        """With ``asynchronous=True``, wait until all workers have called this method, and overwrite
        the parameters with the servers' values, which then are the same at all workers. Call this
        method before a checkpoint, and after the last step. Otherwise do nothing, because the
        parameters are the same already.

        Raises:
            Timeout: a worker has not called the method before the job's time-out.
        """
        self._bps_connect()
        if self._bps_alone is not None:
            self._bps_alone.pull()

    def reset_values(self) -> None:
        """With ``asynchronous=True``, let the next step set the servers' values to the parameters
        of rank 0. All workers must call this method before the same step, after the parameters were
        changed outside of :meth:`step`. Each call takes new memory of the servers. Otherwise do
        nothing."""
        self._bps_connect()
        if self._bps_alone is not None:
            self._bps_alone.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state. With ``cross_barrier=True``, first wait for all updates.
        With ``one_step_late=True``, the state contains the gradients that are not applied yet, as
        ``"late_gradients"``."""
        if self._bps_cross is not None:
            self._bps_cross.flush()
        state = self._bps_base.state_dict(self)
        if self._bps_late is not None:
            state["late_gradients"] = self._bps_late.state([p for _, p in self._bps_named])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from :meth:`state_dict`. A learning-rate scheduler of the original optimizer
        then uses the loaded parameter groups, too."""
        self._bps_base.load_state_dict(self, state_dict)
        if self._bps_late is not None:
            late = state_dict.get("late_gradients")
            self._bps_late.load([p for _, p in self._bps_named], late)
        shared = {"param_groups": self.param_groups, "state": self.state}
        self._bps_original.__dict__.update(shared)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters. The next :meth:`step` reduces their gradients, too. All
        workers must add the same group before the same step.

        Args:
            param_group (dict): the parameters as ``"params"``, and options of the optimizer.
        """
        self._bps_base.add_param_group(self, param_group)
        i, params = len(self.param_groups) - 1, self.param_groups[-1]["params"]
        new = [(f"group.{i}.param.{j}", p) for j, p in enumerate(params)]
        self._bps_named = [*self._bps_named, *new]
        if self._bps_reducer is not None:
            self._bps_reducer.add(new)
        if self._bps_alone is not None:
            self._bps_alone.add(new)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients. Must not be called between backward() and step()."""
        if self._bps_has_begun:
            # Horovod raises an AssertionError here, too, and scripts may expect that type.
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or synchronize(): "
                "gradients would be lost. Call zero_grad() before backward(). If the loss of "
                "another optimizer has computed these gradients, as in a GAN, call "
                "requires_grad_(False) on the parameters before that backward()"
            )
        self._bps_is_synchronized = self._bps_is_scaled = False
        self._bps_base.zero_grad(self, *args, **kwargs)


def _new(base: type[torch.optim.Optimizer]) -> Any:
    """Return an optimizer without state, whose class adds the methods of
    :class:`_DistributedOptimizer` to a class of PyTorch."""
    hidden = ("__dict__", "__weakref__", "__doc__")
    methods = {k: v for k, v in vars(_DistributedOptimizer).items() if k not in hidden}
    methods |= {"__module__": base.__module__, "__qualname__": base.__qualname__, "_bps_base": base}
    one: Any = object.__new__(type(base.__name__, (base,), methods))
    one._bps_original = one
    return one


def _group_by_name(
    named: list[tuple[str, torch.Tensor]],
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
) -> dict[str, int]:
    """Return the number of the group of each parameter that is in a group, by the name of the
    parameter.

    Raises:
        ValueError: groups is neither a number nor a sequence of sequences of parameters, or a
            parameter is in two groups.
    """
    if groups is None or groups == 0:
        return {}
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}, but must not be negative")
        return {name: i * groups // len(named) for i, (name, _) in enumerate(named)}
    members = [(i, param) for i, group in enumerate(groups) for param in group]
    if not all(isinstance(param, torch.Tensor) for _, param in members):
        raise ValueError("groups must be a number, or a list of lists of parameters")
    numbers = {id(param): i for i, param in members}
    if len(numbers) < len(members):
        raise ValueError("groups has a parameter twice")
    return {name: numbers[id(param)] for name, param in named if id(param) in numbers}


def _check_late(is_late: bool, has_cross: bool, passes: int) -> None:
    """Check the options that `one_step_late` excludes.

    Raises:
        ValueError: an option is not allowed.
    """
    if is_late and has_cross:
        raise ValueError(
            "one_step_late and cross_barrier exclude each other: both delay the update"
        )
    if is_late and passes != 1:
        raise ValueError(
            "one_step_late=True adds gradients up until step(), over any number of backward "
            "passes: leave backward_passes_per_step at 1"
        )


def DistributedOptimizer(  # noqa: N802 - the name that users know
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = bps.AVG,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    cross_barrier: bool = False,
    bucket_bytes: int = BUCKET_BYTES,
    compression_params: Mapping[str, Any] | None = None,
    keeps_gradients: bool = False,
    one_step_late: bool = False,
    asynchronous: bool | None = None,
    stale: int | None = None,
) -> Any:
    """Let an optimizer average gradients over all workers while backward() runs, before each step.

    Args:
        optimizer (Optimizer): an optimizer of PyTorch.
        named_parameters (iterable, optional): ``model.named_parameters()``. Error texts contain the
            names. The order of the parameters must be the same at all workers.
        compression (Compressor): type in which the tensors are sent.
        backward_passes_per_step (int): number of backward passes whose gradients are added up
            before they are sent.
        op (int): Average or Sum.
        gradient_predivide_factor (float): divisor of gradients before the sum. The sum is then
            divided by size / factor. Only with Average.
        num_groups (int): older form of `groups`.
        groups (int or list of list of Tensor, optional): parameters whose gradients are sent
            together: a number of groups of successive parameters, or the parameters of each group.
            Gradients of other parameters are sent in groups of `bucket_bytes` bytes.
        sparse_as_dense (bool): convert sparse gradients to dense gradients and sum them, instead of
            summing only the rows that a worker has. For SparseAdam, the sums are converted back.
        process_set (ProcessSet): the workers over which gradients are averaged. Other workers may
            also create the optimizer, and update their parameters alone.
        cross_barrier (bool): ``step()`` returns at once. In the next forward pass, each module
            first waits for the gradients of its own parameters and updates its parameters. Call
            ``synchronize()`` before other code reads parameters. After ``step()``, ``.grad`` is
            None. With smaller buckets each wait is shorter.
        bucket_bytes (int): size of the groups in which gradients are sent.
        compression_params (dict, optional): BytePS's way to choose a compression, for example
            ``{"compressor": "randomk", "k": 0.01, "ef": "vanilla"}`` or ``{"fp16": True}``.
        keeps_gradients (bool): let this worker's gradients stay in ``.grad`` until ``step()`` or
            ``synchronize()`` replaces them, as Horovod does. This takes more memory. If False, or
            with `cross_barrier`, ``.grad`` is None in between. With `one_step_late`, they always
            stay.
        one_step_late (bool): ``step()`` submits the gradients of this step, and applies the
            averages of those of the step before, which were sent while this step computed. The
            first ``step()`` applies nothing. After the last one, ``flush()`` applies what is left.
            ``synchronize()`` puts the averages of the step before into ``.grad``, for example to
            clip them. Gradients may be added up over any number of backward passes. After
            ``step()``, ``.grad`` is None. GradScaler, ``cross_barrier``, closures, sparse gradients
            and :func:`join` cannot be combined with it.
        asynchronous (bool, optional): gradients are not averaged. ``step()`` updates the parameters
            with the gradients of this worker, sends the update, and overwrites the parameters with
            the servers' values, which have the updates that have arrived so far. The first
            ``step()`` sets these values to the parameters of rank 0. The state of the optimizer
            differs between workers. None: True if BPS_STALE or BYTEPS_ENABLE_ASYNC is set. See
            the guide "Asynchronous training".
        stale (int, optional): with `asynchronous`, the number of steps by which a worker may be
            behind without being waited for; None: that of BPS_STALE, or any number.

    Returns:
        Optimizer: an optimizer whose class is a subclass of the given optimizer's class, with the
            same name. It also has ``synchronize()``, ``skip_synchronize()``, ``flush()``,
            ``set_backward_passes_per_step()``, ``is_behind``, ``catch_up()``, ``pull_values()`` and
            ``reset_values()``. It can be copied and pickled. A copy reduces the gradients of its
            own parameters from its first ``step()`` on.

    Raises:
        ValueError: names are missing or not unique, or op, factor, groups or compression is not
            allowed, or options exclude each other.
        TypeError: `asynchronous` with a parameter that is neither float32, float64, float16 nor
            bfloat16.
        NotImplementedError: for Adasum, and for compressions of BytePS that bps does not have.

    Example::

        >>> bps.torch.init()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> optimizer = bps.torch.DistributedOptimizer(optimizer, model.named_parameters())
        >>> loss.backward()
        >>> optimizer.step()
    """
    check_gradients(op, gradient_predivide_factor)
    _check_late(one_step_late, cross_barrier, backward_passes_per_step)
    if hasattr(optimizer, "_bps_base"):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    bound = choose_bound(asynchronous, stale)
    if bound is not None:
        options = {
            "compression": compression is not Compression.none,
            "compression_params": bool(compression_params),
            "op": op != bps.AVG,
            "gradient_predivide_factor": gradient_predivide_factor != 1.0,
            "num_groups": bool(num_groups),
            "groups": groups is not None,
            "sparse_as_dense": sparse_as_dense,
            "process_set": process_set is not global_process_set,
            "cross_barrier": cross_barrier,
            "one_step_late": one_step_late,
        }
        check_excluded(options)
    process_set.check_added()
    named = _name_parameters(optimizer, named_parameters)
    wrapped = _new(type(optimizer))
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped.__dict__.pop("step", None)  # remove a learning-rate scheduler's wrapper of step()
    wrapped._bps_original = optimizer
    wrapped._bps_skips = wrapped._bps_is_synchronized = False
    wrapped._bps_reducer = wrapped._bps_cross = wrapped._bps_late = None
    wrapped._bps_bound, wrapped._bps_alone = bound, None
    wrapped._bps_n_caught_up = 0
    wrapped._bps_named, wrapped._bps_has_cross = named, cross_barrier
    wrapped._bps_is_late = one_step_late
    wrapped._bps_options = {
        "op": op,
        "passes": backward_passes_per_step,
        "prescale": 1 / gradient_predivide_factor,
        "postscale": gradient_predivide_factor,
        "coding": gradient_coding(
            compressor_of_byteps(compression_params, compression, process_set)
        ),
        "sparse_as_dense": sparse_as_dense,
        "bucket_bytes": bucket_bytes,
        "groups": _group_by_name(named, num_groups if groups is None else groups),
        "is_forward_order": cross_barrier,
        "process_set": process_set,
        "keeps_gradients": keeps_gradients and not cross_barrier,
    }
    wrapped._bps_connect()
    return wrapped


def _tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif params is not None and not isinstance(params, torch.Tensor):
        params = list(params)
        has_names = bool(params) and isinstance(params[0], tuple)
        pairs = params if has_names else [(str(i), p) for i, p in enumerate(params)]
    else:
        raise ValueError(
            "params must be a state_dict, a list of (name, tensor), or a list of tensors"
        )
    return [(name, p) for name, p in pairs if torch.is_tensor(p)]


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite tensors, in place, with the values of the worker with rank ``root_rank``.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()``, or a list of tensors.
        root_rank (int): worker whose values all workers get.
        process_set (ProcessSet): the workers that take part.

    Raises:
        Error: EMISMATCH at all workers if their tensors differ, also if a worker has none.
    """
    broadcast_all_(_tensors(params), root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: torch.nn.Module | None = None
) -> None:
    """Broadcast an optimizer's state to all workers: step counts, momenta, learning rates.

    Args:
        optimizer (Optimizer): any optimizer except LBFGS. It may have no state yet.
        root_rank (int): worker whose state all workers get.
        model (Module, optional): the model. Horovod needs the model to create the state of sparse
            gradients; here each worker receives the state itself, so the result is the same
            without the model.

    Raises:
        ValueError: the optimizer is LBFGS, whose state cannot be broadcast.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast the state of LBFGS")
    tensors: list[torch.Tensor] = []

    def take(value: Any) -> Any:
        if torch.is_tensor(value):
            tensors.append(value)
            return _Missing(tuple(value.shape), value.dtype)
        if isinstance(value, dict):
            return {k: take(v) for k, v in value.items()}
        return [take(v) for v in value] if isinstance(value, list) else value

    state = optimizer.state_dict()
    mine = take(state) if _core.rank() == root_rank else None
    skeleton = _core.runtime().broadcast_object(mine, root_rank, "the state of an optimizer")
    if _core.rank() != root_rank:

        def make(value: Any) -> Any:
            if isinstance(value, _Missing):
                tensors.append(torch.empty(value.shape, dtype=value.dtype, device="cpu"))
                return tensors[-1]
            if isinstance(value, dict):
                return {k: make(v) for k, v in value.items()}
            return [make(v) for v in value] if isinstance(value, list) else value

        state = make(skeleton)
    if tensors:
        broadcast_parameters(tensors, root_rank)
    if _core.rank() != root_rank:
        optimizer.load_state_dict(state)


class _Missing:
    """Placeholder for a tensor in an optimizer's state. The state is sent without its tensors."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
