"""A worker that runs rounds and checks every result until it must stop (tests/faults)."""

import os
import time

import bps
import numpy as np

STALE = 2  # bound of the values of a steady job


class Wholes:
    """Sums of 64-bit integers.

    Methods of this class and of the classes below: declare() returns the tensors of a job. fill()
    writes the input of tensor i for round r, and returns False if the worker abstains. check()
    returns whether the result is right. `ranks` are those whose values it has. Some partitions may
    lack those of the rank `lost`.
    """

    def __init__(self, n_elems, seed):
        self.base = np.random.default_rng(seed).integers(-1000, 1000, n_elems)

    def declare(self, job, names):
        self.rank, self.size = job.rank, job.size
        return job.declare_group([(name, "i64", len(self.base)) for name in names])

    def fill(self, tensor, i, r):
        tensor.input[:] = self.base * (self.rank + 1) + r * (i + 1)
        return True

    def sum(self, ranks, i, r):
        return self.base * sum(k + 1 for k in ranks) + len(ranks) * r * (i + 1)

    def output(self, tensor):
        return tensor.output

    def check(self, tensor, i, r, ranks, lost=None):
        want, got = self.sum(ranks, i, r), self.output(tensor)
        if lost is not None:
            without = self.sum(ranks - {lost}, i, r)
            want = np.where(got == without, without, want)
        return np.array_equal(got, want)


class Blocks(Wholes):
    """Sums of multiples of integers that blocks represent exactly. Each block has the largest
    integer of its type, so its scale is the factor of the multiples."""

    def __init__(self, dtype, n_elems):
        self.dtype, self.n = dtype, 8 * n_elems  # of the size of n_elems i64, or a little less
        self.base = (np.arange(self.n + 7) % 7 + {"q8": 121, "q4": 1}[dtype]).astype(np.float32)

    def declare(self, job, names):
        self.rank, self.size = job.rank, job.size
        return job.declare_group([(name, self.dtype, self.n) for name in names])

    def fill(self, tensor, i, r):
        tensor.fill(self.base[r * (i + 1) % 7 :][: self.n], self.rank + 1)
        return True

    def sum(self, ranks, i, r):
        return self.base[r * (i + 1) % 7 :][: self.n] * np.float32(sum(k + 1 for k in ranks))

    def output(self, tensor):
        return tensor.read()


class Shards(Wholes):
    """Sums of which each worker gets a shard."""

    def declare(self, job, names):
        self.rank, self.size = job.rank, job.size
        self.base = self.base[: len(self.base) // job.size * job.size]
        return [job.declare(name, "i64", len(self.base), sharded=True) for name in names]

    def check(self, tensor, i, r, ranks, lost=None):
        return np.array_equal(tensor.output, self.sum(ranks, i, r)[tensor.shard])


class Abstainers(Wholes):
    """Sums from which each rank abstains in one of three rounds."""

    @staticmethod
    def abstains(rank, i, r):
        return (rank + i + r) % 3 == 0

    def fill(self, tensor, i, r):
        return not self.abstains(self.rank, i, r) and super().fill(tensor, i, r)

    def sum(self, ranks, i, r):
        return super().sum({k for k in ranks if not self.abstains(k, i, r)}, i, r)


class Values(Wholes):
    """Values with a bound. Element e belongs to rank e modulo the size of the job. Only this rank
    adds to it, 1 in each round. So an answer shows how many deltas of each rank are in it."""

    def __init__(self, n_elems):
        self.n, self.before = n_elems, {}

    def declare(self, job, names):
        self.rank, self.size = job.rank, job.size
        return [job.declare(name, "f64", self.n, mode="value", stale=STALE) for name in names]

    def fill(self, tensor, i, r):
        tensor.input[:] = 0
        tensor.input[self.rank :: self.size] = 1
        return True

    def check(self, tensor, i, r, ranks, lost=None):
        got, before = tensor.output.copy(), self.before.get(tensor.name, 0)
        self.before[tensor.name] = got
        counts = [got[k :: self.size] for k in range(self.size)]
        others = [c for k, c in enumerate(counts) if k not in (self.rank, lost)]
        return (
            (got == got.astype(int)).all()
            and (got >= before).all()
            and (counts[self.rank] == r).all()
            and all((c >= max(1, r - STALE)).all() and (c <= r + STALE + 1).all() for c in others)
        )


def kind_of(dtype, n_elems, seed):
    """Return an object for a kind of tensors."""
    if dtype in ("q8", "q4"):
        return Blocks(dtype, n_elems)
    if dtype == "value":
        return Values(n_elems)
    return {"i64": Wholes, "shards": Shards, "abstain": Abstainers}[dtype](n_elems, seed)


def steady(
    stop,
    progress,
    n_elems=50000,
    n_tensors=2,
    seconds=300,
    timeout=30,
    pause=0.002,
    options=None,
    seed=0,
    faults=None,
    slow_rank=None,
    hungry_rank=None,
    lost_rank=None,
    dtype="i64",
):
    """Run rounds and check every sum until the file `stop` appears, or until the job fails.

    All ranks end in the same round. Return the number of rounds, and the duration and the start of
    the longest round. If the job failed, also return the error and its time. Times are from
    CLOCK_MONOTONIC. After each round, each rank writes the index of the round to the file
    `progress`-RANK. Indexes start at 1.

    faults: for each rank, the value of BPS_FAULTS. Rank slow_rank pauses ten times as long as the
    other ranks. Rank hungry_rank allocates memory as long as the file `stop`.eat exists. The sums
    may lack the contribution of lost_rank. dtype: a kind of tensors, see kind_of().
    """
    rank = os.environ["BPS_RANK"]
    if faults and rank in faults:
        os.environ["BPS_FAULTS"] = faults[rank]
    eaten = []
    r, longest, longest_at, code, text, failed_at = 0, 0.0, 0.0, 0, "", 0.0
    end = time.monotonic() + seconds
    kind = kind_of(dtype, n_elems, seed)
    start = time.monotonic()
    try:
        with bps.open(**(options or {})) as job:
            pid_file = f"{progress}-{job.rank}"
            data = kind.declare(job, [f"data{i}" for i in range(n_tensors)])
            votes = job.declare("votes", "i64", 1)
            ranks = set(range(job.size))
            over = False
            while not over:
                r += 1
                given = [t for i, t in enumerate(data) if kind.fill(t, i, r)]
                votes.input[:] = job.rank == 0 and (os.path.exists(stop) or time.monotonic() > end)
                start = time.monotonic()
                for t in data:
                    if t not in given:
                        t.abstain()
                job.push_pull([*given, votes])
                job.wait([*data, votes], timeout)
                took = time.monotonic() - start
                if r > 1 and took > longest:  # round 1 places partitions, so it is slow
                    longest, longest_at = took, start
                for i, t in enumerate(data):
                    # In one round, some partitions may contain lost_rank's contribution and others
                    # may lack it.
                    is_right = kind.check(t, i, r, ranks, lost_rank)
                    assert is_right, f"WRONG SUM: round {r} tensor {i}"
                with open(pid_file + ".new", "w", encoding="ascii") as f:
                    f.write(str(r))
                os.rename(pid_file + ".new", pid_file)
                over = votes.output[0] != 0
                time.sleep(pause * 10 if job.rank == slow_rank else pause)
                while job.rank == hungry_rank and os.path.exists(stop + ".eat"):
                    eaten.append(np.ones(1 << 20))
            start = time.monotonic()
    except bps.Error as e:
        code, text, failed_at = e.code, str(e), time.monotonic()
    return {
        "rounds": r,
        "longest": longest,
        "longest_at": longest_at,
        "code": code,
        "text": text,
        "failed_at": failed_at,
        "call_s": time.monotonic() - start,
        "is_late": end < time.monotonic(),
    }
