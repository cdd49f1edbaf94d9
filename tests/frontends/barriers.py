"""Check that a barrier holds its workers back until the last of them has come to it."""

import mmap
import time
from pathlib import Path

LIMIT_S = 60
ROUNDS = 30
LEFT = 255


def check(barrier, path, rank, members):
    """Call a barrier ROUNDS times. No member may leave it before all members have come to it.

    A worker that is no member calls nothing of the job until the members have left the last
    barrier. So a barrier that waits for this worker, too, never ends.

    Args:
        barrier (callable): the barrier of the members.
        path (Path): a new file, the same at all workers. It has a counter for each member, in one
            byte.
        rank (int): this worker.
        members (sequence of int): the workers that call the barrier.
    """
    with Path(path).open("a+b") as file:
        file.truncate(max(members) + 1)
        come = mmap.mmap(file.fileno(), max(members) + 1)
    if rank in members:
        try:
            for n in range(1, ROUNDS + 1):
                come[rank] = n
                barrier()
                assert all(come[m] >= n for m in members), f"barrier {n} was left too early"
        finally:
            come[rank] = LEFT
    else:
        deadline = time.monotonic() + LIMIT_S
        while not all(come[m] == LEFT for m in members):
            assert time.monotonic() < deadline, "the barrier waits for more than its members"
            time.sleep(0.01)
