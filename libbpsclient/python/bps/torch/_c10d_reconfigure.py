"""Process groups of the back-end "bps" whose workers may change, for PyTorch 2.14 and later.

``init_process_group("bps", enable_reconfigure=True)`` creates a group without a job. Each call of
``reconfigure`` leaves the group's job, and opens the job of the workers whose handles it gets. This
is the interface that torchft's manager uses: after a worker is lost, the others go on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from typing import Any

import torch
import torch.distributed as dist

from bps import _core
from bps._job import open as open_job
from bps._library import Error
from bps._runtime import Runtime
from bps.torch._c10d_group import Group
from bps.torch._c10d_monitor import MonitoredBarriers
from bps.torch._c10d_work import failure


class Reconfigurable(Group):
    """A group whose workers may change.

    Args:
        rank (int): this worker's number in the group until the first :meth:`reconfigure`.
        size (int): number of workers in the group until then.
        timeout (float): default time-out of an operation, in seconds.
        title (str): name of the group in messages.
        store (Store): PyTorch's store of the group.
    """

    supports_reconfigure = True

    def __init__(self, rank: int, size: int, timeout: float, title: str, store: Any) -> None:
        no_runtime: Any = None
        super().__init__(no_runtime, rank, size, timeout, title, self._leave_job, store)
        self._store = store
        self._handle = json.dumps({"id": uuid.uuid4().hex, "host": _core.host_key()})
        self._job: Any = None

    def _leave_job(self, has_failed: bool) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        if has_failed:
            job.abort()
            return
        with contextlib.suppress(Error):  # workers of this group may be lost at any time
            job.close()

    def new_work(self, what: str, output: Any, opts: Any) -> Any:
        """Return a work without operations, see the base class.

        Raises:
            RuntimeError: the group has no workers yet.
        """
        if self._job is None and not self.closing.is_set():
            raise RuntimeError(
                f"{what}: group '{self.title}' has no workers yet: call reconfigure first"
            )
        return super().new_work(what, output, opts)

    def get_reconfigure_handle(self) -> str:
        """Return the text that names this worker to the others in :meth:`reconfigure`."""
        return self._handle

    def reconfigure(self, opts: Any) -> torch._C._distributed_c10d.Work:
        """Leave the group's job, and open a job with other workers. All workers of the new job must
        call this method. Operations in flight fail.

        Args:
            opts (ReconfigureOptions): ``handles``, one for each worker, whose order gives the ranks
                (a set is sorted); ``uuid``, a number that differs in each call; ``timeout``, the
                time within which all workers must come.

        Returns:
            Work: a complete operation.

        Raises:
            ValueError: the handles are not those of this back-end, or lack this worker.
            DistBackendError: not all workers came in time. The text names those that are missing.
        """
        handles = opts.handles if isinstance(opts.handles, list) else sorted(opts.handles)
        hosts = [_host_of(handle) for handle in handles]
        if self._handle not in handles:
            raise ValueError(
                f"reconfigure of group '{self.title}': this worker's handle is not among the "
                f"{len(handles)} handles"
            )
        self._leave_job(True)
        self._rank, self._size = rank, size = handles.index(self._handle), len(handles)
        seconds = opts.timeout.total_seconds() if opts.timeout else 0
        digest = hashlib.sha256(json.dumps([opts.uuid, handles]).encode()).hexdigest()[:16]
        try:
            self._job = open_job(
                job=f"group.{digest}",
                rank=rank,
                size=size,
                local_rank=hosts[:rank].count(hosts[rank]),
                local_size=hosts.count(hosts[rank]),
                timeout=self._timeout,
                open_timeout=seconds if seconds > 0 else self._timeout,
            )
        except Error as error:
            raise failure(f"reconfigure of group '{self.title}'", error) from error
        self._runtime = Runtime(self._job)
        self._monitor = MonitoredBarriers(dist.PrefixStore(digest, self._store), rank, size)
        self._n_operations = 0
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return torch._C._distributed_c10d._create_work_from_future(done)


def _host_of(handle: str) -> str:
    try:
        return json.loads(handle)["host"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"reconfigure: {handle!r} is not a handle of the back-end bps: all workers of the "
            "group need this back-end, and get_reconfigure_handle() returns the handle"
        ) from None
