"""DiLoCo: workers train alone for many steps, and an outer optimizer applies the average of what
they have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bps import _core
from bps._compression import Compression, Compressor
from bps._residuals import load_residuals, residuals
from bps.torch._optimizer import broadcast_optimizer_state, broadcast_parameters
from bps.torch._reducer import BUCKET_BYTES, Reducer
from bps.torch.recipes._recipe import Averager, Recipe

Means = list[torch.Tensor | None]


class _Fragment:
    """A part of the model, whose parameters are exchanged together.

    The global parameters are equal at all workers, and change only in :meth:`apply`.

    Args:
        module (Module): the part.
        outer (Optimizer): changes the global parameters.
        device (torch.device): device of the global parameters.
        is_pinned (bool): pin them in host memory.
        options: of :class:`Averager`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        outer: torch.optim.Optimizer,
        device: torch.device,
        is_pinned: bool,
        **options: Any,
    ) -> None:
        named = list(module.named_parameters())
        self.names = [name for name, _ in named]
        self.params = [param for _, param in named]
        self.outer = outer
        self.backup = [torch.empty_like(p, device=device) for p in self.params]
        if is_pinned:
            self.backup = [one.pin_memory() for one in self.backup]
        with torch.no_grad():
            for one, param in zip(self.backup, self.params):
                one.copy_(param)
        self._leaves = [one.detach() for one in self.backup]
        self._require_gradients()
        self.averager = Averager(list(zip(self.names, self._leaves)), **options)
        # The average that apply() uses; None: it is not known yet, or has been applied.
        self.means: Means | None = None

    def _require_gradients(self) -> None:
        """Let frozen parameters take no part."""
        for leaf, param in zip(self._leaves, self.params):
            leaf.requires_grad_(param.requires_grad)

    def _changes(self) -> Iterator[torch.Tensor]:
        """Yield the pseudo-gradients: how far this worker is behind the global parameters."""
        for one, param in zip(self.backup, self.params):
            yield one - param.detach().to(one.device)

    def begin(self) -> None:
        """Submit the pseudo-gradients. After a time-out, another call continues this one."""
        if not self.averager.is_in_flight and self.means is None:
            self._require_gradients()
            self.averager.begin(self._changes())

    def receive(self) -> None:
        """Wait for the average, if it is in flight."""
        if self.averager.is_in_flight:
            self.means = self.averager.finish()

    @torch.no_grad()
    def apply(self, alpha: float) -> None:
        """Step the outer optimizer with the average, and move the parameters to the new global
        ones, except for the part alpha of the way. Submit the pseudo-gradients now if this worker
        has left the job since it submitted them."""
        self.begin()
        self.receive()
        assert self.means is not None
        local = [p.detach().clone() for p in self.params] if alpha else self.params
        own = [p.grad for p in self.params]
        for param, one, mean in zip(self.params, self.backup, self.means):
            if mean is not None:
                param.copy_(one)
            param.grad = None if mean is None else mean.to(param.device)
        self._step_outer()
        for param, one, mean, mine in zip(self.params, self.backup, self.means, local):
            if mean is not None:
                one.copy_(param)
                if alpha:
                    param.lerp_(mine, alpha)
        for param, grad in zip(self.params, own):
            param.grad = grad
        self.means = None

    def _step_outer(self) -> None:
        """Run a step of the outer optimizer on the parameters of this fragment only."""
        members, groups = {id(p) for p in self.params}, self.outer.param_groups
        some = [{**g, "params": [p for p in g["params"] if id(p) in members]} for g in groups]
        self.outer.param_groups = [group for group in some if group["params"]]
        try:
            self.outer.step()
        finally:
            self.outer.param_groups = groups

    def state_dict(self) -> dict[str, Any]:
        means = self.means or [None] * len(self.names)
        return {
            "backup": {name: one.clone() for name, one in zip(self.names, self.backup)},
            "means": {n: m.clone() for n, m in zip(self.names, means) if m is not None},
            "is_received": self.means is not None,
            "residuals": residuals(self.averager.reducer.residual_prefix),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state["backup"]) != set(self.names):
            raise ValueError("the state of DiLoCo is that of other fragments, or of another model")
        self.receive()  # the exchange that was in flight before is not used
        self.means = None
        if state["is_received"]:
            means = [state["means"].get(name) for name in self.names]
            self.means = [
                None if mean is None else mean.to(one.device, copy=True)
                for mean, one in zip(means, self.backup)
            ]
        with torch.no_grad():
            for name, one in zip(self.names, self.backup):
                one.copy_(state["backup"][name])
        load_residuals(self.averager.reducer.residual_prefix, state["residuals"])


class DiLoCo(Recipe):
    """Trains each worker alone for many steps. An outer optimizer then applies the average of the
    workers' changes.

    Each worker keeps a copy of the global parameters, which are equal at all workers, bit by bit.
    After ``sync_every`` steps of the inner optimizer, it subtracts its parameters from this copy.
    The average of these pseudo-gradients over all workers is the gradient with which the outer
    optimizer changes the global parameters. Training goes on from them. No server holds a state.

    With several fragments (Streaming DiLoCo), one fragment is exchanged after every
    ``sync_every / len(model_fragments)`` steps, in turn. With ``fragment_sync_delay``, a fragment
    is sent this number of steps earlier, so that the exchange and the steps overlap.

    The arguments are those of torchft's class, except for two. There is no manager: the job that
    :func:`bps.torch.init` has joined takes its place. Pseudo-gradients are always sent in buckets,
    so there is no ``use_bucketization``. Differences in the meaning: an outer optimizer of several
    fragments changes only the parameters of the fragment that is exchanged, ``.grad`` keeps the
    gradients of the inner optimizer, and an error does not drop steps: see
    :func:`bps.torch.elastic.run`.

    Send the parameters of one worker to the others before this class is constructed. All workers
    must make the same number of steps. The inner optimizer's state and the buffers of the model
    stay as they are at each worker. If the job may shrink, the averages lack a lost machine from
    then on. A wait ends with a time-out if another worker is late by more than the job's time-out
    (BPS_TIMEOUT); the next ``step()`` first continues this wait.

    Args:
        model_fragments (list of Module): parts of the model that together have all parameters of
            the inner optimizer; ``[model]`` for DiLoCo without fragments.
        inner_optimizer (Optimizer): updates the parameters of this worker; not a
            ``DistributedOptimizer`` of all workers. Its calls of ``step()`` are counted.
        outer_optimizer (Optimizer or list of Optimizer): changes the global parameters; one for
            all fragments, or one for each. The papers use SGD with ``lr=0.7, momentum=0.9,
            nesterov=True``.
        sync_every (int): number of steps between two exchanges of a fragment; a multiple of the
            number of fragments.
        backup_device (torch.device, optional): device of the copy; None: host memory.
        pin_memory (bool): pin the copy if it is in host memory and there is a GPU.
        bucket_cap_mb (int, optional): size of the groups in which values are sent, in MiB.
        should_quantize (bool): torchft's way to ask for ``compression=Compression.int8``.
        fragment_sync_delay (int): number of steps from sending a fragment to waiting for it; less
            than ``sync_every / len(model_fragments)``.
        fragment_update_alpha (float): part of the worker's own parameters in the mixture with
            which it goes on, from 0 (only the global ones) to 1.
        compression (Compressor): type in which pseudo-gradients are sent.

    Raises:
        ValueError: an argument is not allowed.
        TypeError: the first argument is not a list of modules, for example torchft's manager.

    Example::

        >>> bps.torch.init()
        >>> bps.torch.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        >>> outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        >>> with bps.torch.DiLoCo([model], inner, outer, sync_every=100):
        ...     for inputs, labels in batches:
        ...         inner.zero_grad()
        ...         loss_of(model(inputs), labels).backward()
        ...         inner.step()

    Source: Douillard et al. 2023, arXiv 2311.08105, algorithm 1; Douillard et al. 2025, arXiv
    2501.18512, algorithm 2.
    """

    def __init__(
        self,
        model_fragments: Sequence[torch.nn.Module],
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        sync_every: int,
        backup_device: torch.device | None = None,
        pin_memory: bool = True,
        bucket_cap_mb: int | None = None,
        should_quantize: bool = False,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        compression: type[Compressor] = Compression.none,
    ) -> None:
        super().__init__(inner_optimizer, sync_every)
        fragments = _check_fragments(model_fragments, inner_optimizer)
        outers = _check_outers(outer_optimizer, fragments)
        n = len(fragments)
        if sync_every % n:
            raise ValueError(f"sync_every is {sync_every}, but must be a multiple of {n} fragments")
        if not 0 <= fragment_sync_delay < sync_every // n:
            raise ValueError(
                f"fragment_sync_delay is {fragment_sync_delay}, but must be at least 0 and less "
                f"than {sync_every // n}, the steps between two exchanges"
            )
        if not 0 <= fragment_update_alpha <= 1:
            raise ValueError("fragment_update_alpha must be from 0 to 1")
        if should_quantize and compression is not Compression.none:
            raise ValueError("should_quantize and compression exclude each other: pass one of them")
        device = torch.device(backup_device or "cpu")
        is_pinned = pin_memory and device.type == "cpu" and torch.cuda.is_available()
        options: dict[str, Any] = {
            "compression": Compression.int8 if should_quantize else compression,
            "bucket_bytes": BUCKET_BYTES if bucket_cap_mb is None else int(bucket_cap_mb * 2**20),
        }
        self._period, self._delay = sync_every // n, fragment_sync_delay
        self._alpha = fragment_update_alpha
        self._fragments = [
            _Fragment(fragment, outer, device, is_pinned, **options)
            for fragment, outer in zip(fragments, outers)
        ]
        self._outers = list({id(one): one for one in outers}.values())

    def __exit__(self, *exception: object) -> None:
        super().__exit__()
        if exception[0] is None:
            self._receive()  # no exchange is in flight when the job is closed

    def _act(self) -> None:
        turn, step = divmod(self._n_steps - 1, self._period)
        fragment = self._fragments[turn % len(self._fragments)]
        if step + 1 == self._period - self._delay:
            fragment.begin()
        if step + 1 == self._period:
            fragment.apply(self._alpha)

    def _receive(self) -> None:
        self._continue()
        for fragment in self._fragments:
            fragment.receive()

    @torch.no_grad()
    def restore_parameters(self) -> None:
        """Overwrite the model's parameters with the global ones of the last exchange of each
        fragment, which are equal at all workers, for example to test or to save the model."""
        for fragment in self._fragments:
            for param, one in zip(fragment.params, fragment.backup):
                param.copy_(one)

    @property
    def reducers(self) -> list[Reducer]:
        """The reducers, for an elastic state."""
        return [fragment.averager.reducer for fragment in self._fragments]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the number of steps, the global parameters, the state
        of the outer optimizers, the averages that are not applied yet, and this worker's residuals.
        First wait for the exchange in flight.

        Model, inner optimizer and residuals differ between workers. To go on with the same bits,
        each worker saves its own.
        """
        self._receive()
        return {
            "n_steps": self._n_steps,
            "fragments": [fragment.state_dict() for fragment in self._fragments],
            "outer_optimizers": [outer.state_dict() for outer in self._outers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`.

        Raises:
            ValueError: the state has other fragments or another number of optimizers.
        """
        fragments, outers = state_dict["fragments"], state_dict["outer_optimizers"]
        if (len(fragments), len(outers)) != (len(self._fragments), len(self._outers)):
            raise ValueError(
                f"the state of DiLoCo has {len(fragments)} fragments and {len(outers)} outer "
                f"optimizers, not {len(self._fragments)} and {len(self._outers)}"
            )
        for fragment, state in zip(self._fragments, fragments):
            fragment.load_state_dict(state)
        for outer, state in zip(self._outers, outers):
            outer.load_state_dict(state)
        self._n_steps, self._is_due = state_dict["n_steps"], False

    def broadcast_state(self, root_rank: int = 0) -> None:
        """Give the state of rank ``root_rank``, without its residuals, to all others, as an elastic
        state does. The model's parameters stay as they are."""
        self._receive()
        rt = _core.runtime()
        received = [f.means and [mean is not None for mean in f.means] for f in self._fragments]
        mine = (self._n_steps, received) if rt.job.rank == root_rank else None
        self._n_steps, received = rt.broadcast_object(mine, root_rank, "the state of DiLoCo")
        tensors = []
        for fragment, is_there in zip(self._fragments, received):
            if rt.job.rank != root_rank:
                pairs = zip(fragment.backup, is_there or [])
                means = [torch.empty_like(one) if is_sent else None for one, is_sent in pairs]
                fragment.means = means if is_there else None
            tensors += [*fragment.backup, *(m for m in fragment.means or [] if m is not None)]
        broadcast_parameters(tensors, root_rank)
        for outer in self._outers:
            broadcast_optimizer_state(outer, root_rank)


def _check_fragments(
    fragments: Sequence[torch.nn.Module], inner: torch.optim.Optimizer
) -> list[torch.nn.Module]:
    """Return the fragments as a list.

    Raises:
        TypeError: they are not a list of modules.
        ValueError: a parameter is in two of them, or a parameter of the optimizer is in none.
    """
    is_list = isinstance(fragments, (list, tuple, torch.nn.ModuleList))
    if not is_list or not all(isinstance(one, torch.nn.Module) for one in fragments):
        raise TypeError(
            "model_fragments must be a list of modules, such as [model]; unlike torchft's class, "
            "this one takes no manager"
        )
    found = [id(p) for one in fragments for p in one.parameters()]
    if len(set(found)) < len(found):
        raise ValueError("a parameter is in two of model_fragments")
    if not found:
        raise ValueError("model_fragments have no parameters")
    outside = {id(p) for group in inner.param_groups for p in group["params"]} - set(found)
    if outside:
        raise ValueError(
            f"{len(outside)} parameters of the inner optimizer are in none of model_fragments, so "
            "they would differ between workers: add their modules"
        )
    return list(fragments)


def _check_outers(
    outer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    fragments: list[torch.nn.Module],
) -> list[torch.optim.Optimizer]:
    """Return the outer optimizer of each fragment.

    Raises:
        ValueError: their number is wrong, or one lacks a parameter of its fragment.
    """
    is_one = isinstance(outer, torch.optim.Optimizer)
    outers: list[Any] = [outer] * len(fragments) if is_one else list(outer)
    if len(outers) != len(fragments):
        raise ValueError(f"there are {len(outers)} outer optimizers for {len(fragments)} fragments")
    for i, (one, fragment) in enumerate(zip(outers, fragments)):
        if hasattr(one, "_bps_base"):
            raise ValueError("an outer optimizer must be an optimizer of PyTorch")
        known = {id(p) for group in one.param_groups for p in group["params"]}
        if any(id(p) not in known for p in fragment.parameters()):
            raise ValueError(
                f"the outer optimizer lacks parameters of fragment {i}: construct it with "
                "parameters() of the fragment"
            )
    return outers
