"""The monitored barrier of the back-end "bps", which names the workers that are missing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from bps._library import CODES, Error


class MonitoredBarriers:
    """The monitored barriers of a group.

    A monitored barrier uses PyTorch's store, not the service. So a failure leaves no operation in
    flight, and the group can be used again. Rank 0 waits for a key of each worker. It then writes
    its result to the store, for which the other workers wait.

    Args:
        store (Store): the store of the group.
        rank (int): this worker's number in the group.
        size (int): number of workers in the group.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._n_operations, self._turn = 0, 0
        self._old: list[str] = []  # keys of the previous barrier, which rank 0 deletes

    def _has_come(self, key: str, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            return self._store.check([key])
        try:
            self._store.wait([key], timedelta(seconds=left))
        except RuntimeError:  # too late; if the store is lost, check() raises that
            return self._store.check([key])
        return True

    def wait(self, n_operations: int, seconds: float, is_listing_all: bool) -> None:
        """Wait until all workers have called this method.

        The texts of the errors contain the sentences of Gloo, for which programs search.

        Args:
            n_operations (int): number of operations of the group that this worker has submitted.
                A worker with another number counts as missing.
            seconds (float): longest wait.
            is_listing_all (bool): name all missing workers, not only the first one.

        Raises:
            Error: a worker did not call this method in time.
        """
        is_first = n_operations != self._n_operations
        self._n_operations, self._turn = n_operations, 1 if is_first else self._turn + 1
        deadline = time.monotonic() + seconds
        prefix = f"monitored/{n_operations}.{self._turn}"
        keys = [f"{prefix}/{rank}" for rank in range(self._size)]  # key 0: rank 0's result
        if self._rank:
            self._store.set(keys[self._rank], "")
            text = f"rank 0 has written no result in {seconds:g} s"
            if self._has_come(keys[0], deadline):
                text = self._store.get(keys[0]).decode()
            if text:
                raise Error(
                    CODES["ETIMEDOUT"],
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors "
                    f"while waiting for send/recv from rank 0: {text}",
                )
            return
        missing: list[int] = []
        for rank in range(1, self._size):
            if not self._has_come(keys[rank], deadline):
                missing.append(rank)
                if not is_listing_all:
                    break
        text, ranks = "", ", ".join(map(str, missing))
        if missing:
            text = (
                f"Rank 0 timed out in monitoredBarrier after {seconds:g} s: "
                f"Rank{'s' * (len(missing) > 1)} {ranks} failed to pass monitoredBarrier"
            )
        self._store.set(keys[0], text)
        if missing:
            raise Error(CODES["ETIMEDOUT"], text, missing[0])
        for key in self._old:  # all workers have read the previous result
            self._store.delete_key(key)
        self._old = keys
