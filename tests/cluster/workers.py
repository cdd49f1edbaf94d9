"""Functions of worker processes. Each worker runs one function, and writes its result as JSON."""

import contextlib
import hashlib
import itertools
import os
import resource
import time

import numpy as np

import blocks
import bps
import reference as ref


def rest(start):
    """Sleep as long as the round that began at `start` took, but at most 20 ms.

    A job that runs until a test has seen what it waits for leaves processor time to other tests.
    """
    time.sleep(min(time.monotonic() - start, 0.02))


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def matrix(dtypes, ops, sizes, rounds=1, deterministic=None, part_bytes=0, seed=1):
    """Run every combination of dtype, operation and size, all in flight at the same time.

    Return digests of the results. Rank 0 also compares its results with the reference. The digests
    of all ranks must be the same (reference.same_everywhere).
    """
    digests = {}
    with bps.open(deterministic=deterministic, part_bytes=part_bytes) as job:
        for dtype in dtypes:
            tensors = job.declare_group([(f"{dtype}.{n}", dtype, n) for n in sizes])
            for op in ops:
                for r in range(rounds):
                    for t, n in zip(tensors, sizes):
                        t.input[:] = ref.values(dtype, op, n, job.rank, seed + r)
                    job.push_pull(tensors, getattr(bps, op.upper()))
                    for t, n in zip(tensors, sizes):
                        out = t.wait()
                        if job.rank == 0:
                            what = f"{dtype} {op} {n} round {r}"
                            ref.check(out, dtype, op, n, job.size, seed + r, what)
                        assert t.contributors == job.size
                        digests[f"{dtype} {op} {n} {r}"] = digest(out)
    return digests


def f16_average(values):
    """Average one f16 per element and rank, given as rows of a matrix. Return the average."""
    with bps.open() as job:
        t = job.declare("mean", "f16", len(values[0]))
        t.input[:] = np.array(values[job.rank], np.float16)
        t.push_pull(bps.AVG)
        return t.wait().astype(float).tolist()


def block_values(n, rank, round_):
    """Return values of different sizes for one worker and round. The last round has a NaN."""
    rng = np.random.default_rng([n, rank, round_])
    x = rng.standard_normal(n).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 20, n)
    if round_ == 3 and rank == 1:
        x[n // 2] = np.nan
    return x.astype(np.float32)


def block_sums(dtypes, ops, sizes, placement, rounds=3, part_bytes=0):
    """Reduce blocks, and compare all bytes with a plain reference. Return digests of the bytes.

    Args:
        placement: number of each rank's machine, in ascending order, from which the order of the
            additions follows.
    """
    digests = {}
    with bps.open(deterministic=1, part_bytes=part_bytes) as job:
        for dtype, op, n in itertools.product(dtypes, ops, sizes):
            t = job.declare(f"{dtype}.{op}.{n}", dtype, n)
            for r in range(1, rounds + 1):
                t.fill(block_values(n, job.rank, r))
                t.push_pull(getattr(bps, op.upper()))
                out = t.wait()
                machines = [
                    [block_values(n, k, r) for k, m in enumerate(placement) if m == machine]
                    for machine in sorted(set(placement))
                ]
                want = blocks.reduced(dtype, machines, op)
                bad = np.flatnonzero((out != want).any(axis=1))
                assert bad.size == 0, f"{dtype} {op} {n} round {r}: block {bad[0]} is wrong"
                got = t.read()
                assert np.array_equal(got, blocks.decode(dtype, want, n), equal_nan=True)
                digests[f"{dtype} {op} {n} {r}"] = digest(out)
    return digests


def wait_for_file(path, limit_s=60):
    end = time.monotonic() + limit_s
    while not os.path.exists(path):
        assert time.monotonic() < end, path
        time.sleep(0.005)


def leaving(way, leavers, n_rounds, on_agent_loss=None, pause=0.0, gone=None, hold=None):
    """Let the leavers close the job after some rounds, while the others go on in the given way.

    Ways: "round", "declare", "barrier" and "broadcast" need a worker that has closed the job.
    "late" and "unused" need nothing more: the others compute for a while before they wait for the
    last round, or declare a tensor that they do not use. "abandoned" needs nothing more either: the
    others have submitted a tensor for which they do not wait, and the leavers have not declared it
    ("abandoned") or not submitted it ("unsubmitted"). Then the highest rank is late for the last
    round. "group" needs a leaver's submission: the others wait for two tensors, and the highest
    rank is late for the first one. Return [error code, text, rank that the error names, seconds
    until the error].

    gone: path of a file. The leavers give up closing the job after a moment, and exit. The others
    go on when the file exists.
    hold: path of a file. The leavers make the file `hold`.at before they leave, and leave when the
    file `hold` exists.
    """
    job = bps.open(on_agent_loss=on_agent_loss)
    t, data = job.declare("t0", "i64", 1000), np.zeros(8)
    begun = time.monotonic()
    try:
        for _ in range(n_rounds):
            t.push_pull()
            t.wait()
        if way == "late" and (job.rank in leavers or not gone):
            t.push_pull()
        if way in ("unsubmitted", "group") or way == "abandoned" and job.rank not in leavers:
            lone = job.declare("lone", "f32", 10)
            if job.rank not in leavers:
                lone.push_pull()
        if way in ("abandoned", "unsubmitted", "group"):
            if job.rank == job.size - 1:
                time.sleep(pause)
            t.push_pull()
        begun = time.monotonic()
        if job.rank in leavers and hold:
            open(f"{hold}.at", "w", encoding="ascii").close()
            wait_for_file(hold)
        if job.rank in leavers:
            with contextlib.suppress(bps.Timeout):
                job.close(0.2 if gone else None)
            return [0, "", -1, time.monotonic() - begun]
        if gone:
            wait_for_file(gone)
        begun = time.monotonic()
        if way == "late":
            if gone:
                t.push_pull()
            time.sleep(pause)
            t.wait()
        elif way in ("abandoned", "unsubmitted"):
            t.wait()
        elif way == "group":
            job.wait([t, lone])
        elif way == "unused":
            job.declare("unused", "f32", 10)
            time.sleep(pause)
        elif way == "declare":
            late = job.declare("late", "f32", 10)
            late.push_pull()
            late.wait()
        elif way == "barrier":
            job.checkpoint_barrier()
        elif way == "broadcast":
            job.broadcast(data, 1)
        else:
            t.push_pull()
            t.wait()
        job.close()
        return [0, "", -1, time.monotonic() - begun]
    except bps.Error as e:
        return [e.code, str(e), e.rank, time.monotonic() - begun]


def rounds(
    n_elems,
    n_rounds,
    n_tensors=1,
    dtype="i64",
    pause=0.0,
    sleep_rank=None,
    timeout=None,
    progress=None,
):
    """Run many rounds of exact integer sums. Return the duration of the longest round."""
    longest = 0.0
    with bps.open(timeout=timeout) as job:
        tensors = job.declare_group([(f"t{i}", dtype, n_elems) for i in range(n_tensors)])
        base = np.arange(n_elems, dtype=np.int64)
        for r in range(1, n_rounds + 1):
            for i, t in enumerate(tensors):
                t.input[:] = base * r + job.rank + i
            if pause and job.rank == sleep_rank:
                time.sleep(pause)
            start = time.monotonic()
            job.push_pull(tensors)
            job.wait(tensors)
            longest = max(longest, time.monotonic() - start)
            for i, t in enumerate(tensors):
                want = job.size * (base * r + i) + job.size * (job.size - 1) // 2
                assert np.array_equal(t.output, want), f"round {r} tensor {i}"
            if progress and job.rank == 0:
                with open(progress, "w", encoding="ascii") as f:
                    f.write(str(r))
    return {"longest": longest, "rounds": n_rounds}


def gaps(n_rounds, gap):
    """Run rounds between which all workers compute for some seconds."""
    with bps.open() as job:
        t = job.declare("t", "i64", 1000)
        for _ in range(n_rounds):
            t.push_pull()
            t.wait()
            time.sleep(gap)


def averages(n_elems, n_rounds=None, stop=None, progress=None, victim=None, at=None, **options):
    """Check rounds of integers from the full range of each type. Every third round is a sum.

    The other rounds are averages. The job ends after n_rounds, or in the round in which a rank
    finds the file `stop`. Rank `victim` kills itself in round `at`. Return digests of the outputs.

    options: options of bps.open with which a round may complete without one worker. If options
    are given, each element of an output may lack the contribution of one worker.
    """
    digests, job, r, over = [], bps.open(**options), 0, False
    tensors = job.declare_group([(d, d, n_elems) for d in ref.INT])
    vote = job.declare("vote", "i64", 1)
    while not over:
        r += 1
        op = "sum" if r % 3 == 0 else "avg"
        for t in tensors:
            t.input[:] = ref.values(t.dtype, op, n_elems, job.rank, r)
        vote.input[:] = r >= n_rounds if n_rounds else os.path.exists(stop)
        job.push_pull(tensors, getattr(bps, op.upper()))
        vote.push_pull()
        if job.rank == victim and r == at:
            os.kill(os.getpid(), 9)
        job.wait([*tensors, vote], 60)
        for t in tensors:
            all_values = [ref.values(t.dtype, op, n_elems, k, r) for k in range(job.size)]
            reduce = (
                ref.floor_mean if op == "avg" else lambda values, _: ref.reduce_int("sum", values)
            )
            ok = t.output == reduce(all_values, t.dtype)
            if options:
                for k in range(job.size):
                    ok |= t.output == reduce(all_values[:k] + all_values[k + 1 :], t.dtype)
            assert ok.all(), (
                f"round {r} {op} {t.dtype}: element {np.flatnonzero(~ok)[0]} of {n_elems}"
            )
            assert t.info.round == r
            assert t.contributors in ((job.size, job.size - 1) if options else (job.size,))
            digests.append(digest(t.output))
        if progress and job.rank == 0:
            with open(progress, "w", encoding="ascii") as f:
                f.write(str(r))
        over = vote.output[0] != 0
    job.close()
    return digests


def averages_after_resume(n_elems):
    """Check averages in a job that is suspended and resumed between some of its rounds."""
    with bps.open() as job:
        t = job.declare("t", "u8", n_elems)
        size, rank = job.size, job.rank
        for phase in range(3):
            for r in (1, 2, 3):
                t.input[:] = ref.values("u8", "avg", n_elems, rank, 10 * phase + r)
                t.push_pull(bps.AVG)
                t.wait()
                ref.check(
                    t.output, "u8", "avg", n_elems, size, 10 * phase + r, f"phase {phase} round {r}"
                )
                assert t.info[:3] == (r, size, size)
            if phase < 2:
                job.suspend()
                assert t.output is None
                job.resume(size, rank=rank)


def average_against_sum():
    """Let rank 0 average a tensor that the other ranks sum. Return the error's code and text."""
    with bps.open(timeout=20) as job:
        t = job.declare("w", "u8", 10)
        t.push_pull(bps.AVG if job.rank == 0 else bps.SUM)
        try:
            t.wait()
        except bps.Error as e:
            job.abort()
            return [e.code, str(e)]
    return [0, ""]


def average_of_two_types():
    """Declare a tensor as u8 at rank 0 and as i8 at the other ranks, and average it.

    Return the error's code and text.
    """
    with bps.open(timeout=20) as job:
        try:
            t = job.declare("w", "u8" if job.rank == 0 else "i8", 10)
            t.push_pull(bps.AVG)
            t.wait()
        except bps.Error as e:
            job.abort()
            return [e.code, str(e)]
    return [0, ""]


def first_of_several(done, n=8):
    """Sum n tensors. Rank 1 delays the last one until rank 0 has the sums of all other tensors.

    Return the names of the tensors, in the order in which this rank got the sums.
    """
    with bps.open() as job:
        tensors = job.declare_group([(f"t{i}", "i64", 1000 * (n - i)) for i in range(n)])
        for t in tensors:
            t.input[:] = job.rank
        job.push_pull(tensors[:-1])
        left, order = list(tensors), []
        while job.rank == 1 and not os.path.exists(done):
            time.sleep(0.005)
        tensors[-1].push_pull()
        while left:
            for t in job.wait_some(left, 60):
                assert np.all(t.wait() == 1)
                left.remove(t)
                order.append(t.name)
            if job.rank == 0 and len(left) == 1:
                open(done, "w", encoding="ascii").close()
        return order


def types_until(n_values, stop):
    """Sum tensors of some types once. Stay in the job until the file `stop` appears.

    n_values: for each type, the numbers of values of its tensors.
    """
    with bps.open() as job:
        for dtype, numbers in n_values.items():
            tensors = [job.declare(f"{dtype}.{n}", dtype, n) for n in numbers]
            job.push_pull(tensors)
            job.wait(tensors)
        while not os.path.exists(stop):
            time.sleep(0.01)
    return True


def rounds_until(n_elems, stop, progress, seconds):
    """Run rounds and check every sum until the file `stop` appears.

    All ranks end in the same round.
    """
    with bps.open() as job:
        data, votes = job.declare("data", "i64", n_elems), job.declare("votes", "i64", 1)
        end = time.monotonic() + seconds
        r = 0
        while True:
            r += 1
            start = time.monotonic()
            data.input[:] = np.arange(n_elems) * (job.rank + 1) + r
            votes.input[:] = job.rank == 0 and (os.path.exists(stop) or time.monotonic() > end)
            for t in (data, votes):
                t.push_pull()
            for t in (data, votes):
                t.wait(20)
            ranks = job.size * (job.size + 1) // 2
            assert np.array_equal(data.output, np.arange(n_elems) * ranks + job.size * r), r
            rest(start)
            if job.rank == 0:
                with open(progress + ".new", "w") as f:
                    f.write(str(r))
                os.rename(progress + ".new", progress)
            if votes.output[0]:
                assert os.path.exists(stop), f"nobody stopped the job within {seconds} s"
                return r


def rounds_while(n_elems, n_tensors, stop, progress):
    """Run rounds of exact integer sums until the ranks agree that the file `stop` exists.

    Return the number of rounds, and the longest and the median duration in seconds.
    """
    times = []
    with bps.open() as job:
        tensors = job.declare_group([(f"t{i}", "i64", n_elems) for i in range(n_tensors)])
        flag = job.declare("stop", "i64", 1)
        base = np.arange(n_elems, dtype=np.int64)
        while not times or not flag.output[0]:
            r = len(times) + 1
            flag.input[0] = os.path.exists(stop)
            for i, t in enumerate(tensors):
                t.input[:] = base * r + job.rank + i
            start = time.monotonic()
            job.push_pull([*tensors, flag])
            job.wait([*tensors, flag])
            times.append(time.monotonic() - start)
            for i, t in enumerate(tensors):
                want = job.size * (base * r + i) + job.size * (job.size - 1) // 2
                assert np.array_equal(t.output, want), f"round {r} tensor {i}"
            if job.rank == 0:
                with open(progress, "w", encoding="ascii") as f:
                    f.write(str(r))
    return {"rounds": len(times), "longest": max(times), "median": sorted(times)[len(times) // 2]}


def stranded(go, told, n_elems=1000):
    """Run a round while a server runs, and a second round when no server runs.

    A wait that ends with an error is repeated until the sum is complete. Return the error's text.
    """
    text = ""
    with bps.open() as job:
        t = job.declare("x", "i64", n_elems)
        for r in (1, 2):
            while r == 2 and not os.path.exists(go):
                time.sleep(0.01)
            t.input[:] = r * (job.rank + 1)
            job.push_pull([t])
            for _ in range(1000):
                try:
                    job.wait([t], 60)
                    break
                except bps.Error as e:
                    assert e.code == bps.ENOSERVER, e
                    text = text or str(e)
                    with open(f"{told}-{job.rank}", "w", encoding="ascii"):
                        pass
                    time.sleep(0.05)
            assert np.array_equal(t.output, np.full(n_elems, r * job.size * (job.size + 1) // 2)), r
    return text


def limits(n_elems):
    """Declare a tensor that exceeds a limit of the process. Other tensors must still work.

    Without the limit, the same declaration must work, too.
    """
    said = {}
    with bps.open() as job:
        small = job.declare("small", "i64", 100)

        def goes_on(tensor, round_):
            tensor.input[:] = round_ + job.rank
            tensor.push_pull()
            assert (tensor.wait() == 2 * round_ + 1).all()

        goes_on(small, 1)
        job.barrier()  # the barrier's tensor is declared before the limit is set
        for round_, which in enumerate((resource.RLIMIT_NOFILE, resource.RLIMIT_AS), 2):
            before = resource.getrlimit(which)
            if job.rank == 0:
                used = os.open("/dev/null", os.O_RDONLY)
                if which == resource.RLIMIT_AS:
                    used = int(
                        open("/proc/self/statm", encoding="ascii").read().split()[0]
                    ) * 4096 + (1 << 20)
                resource.setrlimit(which, (used, before[1]))
                try:
                    job.declare(f"large{which}", "i64", n_elems)
                except bps.Error as e:
                    said[which] = (e.code, str(e))
                resource.setrlimit(which, before)
            goes_on(small, round_)
            goes_on(job.declare(f"large{which}", "i64", n_elems), 1)
            job.barrier()
        goes_on(job.declare("later", "i64", 4 * n_elems), 4)
    return [said.get(resource.RLIMIT_NOFILE), said.get(resource.RLIMIT_AS)]


def declare_again(sizes, timeout=None):
    """Declare tensors as often as it takes. Check a sum of each. Return the codes of the errors."""
    codes, tensors = [], None
    with bps.open(timeout=timeout, open_timeout=30) as job:
        while not tensors and len(codes) < 20:
            try:
                tensors = job.declare_group([(f"t{i}", "i64", n) for i, n in enumerate(sizes)])
            except bps.Error as e:
                codes.append(e.code)
        for i, t in enumerate(tensors):
            t.input[:] = job.rank + i
        job.push_pull(tensors)
        job.wait(tensors, 30)
        for i, t in enumerate(tensors):
            assert (t.output == job.size * (job.size - 1) // 2 + job.size * i).all()
        job.close(30)
    return codes


def open_limited(n_free):
    """Open a job with only n_free descriptors, which are too few. Return the error."""
    bps._job.lib.bps_version()  # load the library before the limit is set
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(n_free + 1)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fds[-1], before[1]))
    for fd in fds[:-1]:
        os.close(fd)
    try:
        bps.open()
    except bps.Error as e:
        return e.code, str(e)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return None


def timed_rounds(n_elems, stop, trace, pause=0.001):
    """Run rounds with pauses until the file `stop` appears.

    Rank 0 writes the start and end of each round to `trace`.
    """
    n, over = 0, False
    with (
        bps.open() as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        t = job.declare("w", "f32", n_elems)
        t.input[:] = job.rank
        while not over:
            t.input[0] = os.path.exists(stop)
            start = time.monotonic()
            t.push_pull()
            out = t.wait()
            f.write(f"{start} {time.monotonic()}\n")
            over = out[0] > 0
            assert out[1] == out[-1] == job.size * (job.size - 1) // 2
            n += 1
            time.sleep(pause)
    return n


def opposite_orders(n_elems, n_tensors):
    """Submit one half of the tensors if the rank is even, or the other half if the rank is odd.

    After a barrier, submit the remaining half. Return the longest time from the first submission to
    the end of the barrier.
    """
    longest = 0.0
    with bps.open() as job:
        tensors = job.declare_group([(f"t{i}", "i64", n_elems) for i in range(n_tensors)])
        halves = tensors[: n_tensors // 2], tensors[n_tensors // 2 :]
        for r in range(4):
            for i, t in enumerate(tensors):
                t.input[:] = i + r + job.rank
            job.barrier()
            start = time.monotonic()
            job.push_pull(halves[job.rank % 2])
            job.barrier()
            if r > 0:  # round 0 is slow: servers do not have the tensors yet
                longest = max(longest, time.monotonic() - start)
            job.push_pull(halves[1 - job.rank % 2])
            for i, t in enumerate(tensors):
                assert np.all(t.wait() == job.size * (i + r) + job.size * (job.size - 1) // 2)
    return longest


def collectives():
    with bps.open() as job:
        job.barrier()
        data = np.arange(100003, dtype=np.float32) * (1 if job.rank == 1 % job.size else 0)
        data[7] = -0.0 if job.rank == 1 % job.size else 1.0
        job.broadcast(data, root=1 % job.size)
        assert np.array_equal(
            data.view(np.uint32)[:7], np.arange(7, dtype=np.float32).view(np.uint32)
        )
        assert np.signbit(data[7])
        everyone = job.allgather(np.array([job.rank, 10 * job.rank], dtype=np.int32))
        assert everyone.tolist() == [[r, 10 * r] for r in range(job.size)]
        for _ in range(20):
            job.barrier()
        return [job.rank, job.size, job.local_rank, job.local_size, digest(data)]


def traffic(n_elems, n_rounds):
    """Run n_rounds of an f32 tensor.

    Return the bytes that the agent has sent and received for these rounds.
    """
    with bps.open() as job:
        t = job.declare("w", "f32", n_elems)
        t.push_pull()
        t.wait()
        before = job.traffic()
        for _ in range(n_rounds):
            t.push_pull()
            t.wait()
        after = job.traffic()
    assert before.instance == after.instance != 0
    return after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes


def error(what, linger=0.0, **kw):
    """Run a function of class Errors, which must fail. Return the error's code, text and fields.

    linger: seconds until the worker leaves the job, which ends the job for the other workers.
    """
    start = time.monotonic()
    job = None
    try:
        job = bps.open(**kw.get("open", {}))
        getattr(Errors, what)(job, **kw.get("args", {}))
    except bps.Error as e:
        result = {"code": e.code, "text": str(e), "seconds": time.monotonic() - start}
        result |= {"rank": e.rank, "host": e.host, "tensor": e.tensor}
    else:
        result = {"code": 0, "text": "", "seconds": time.monotonic() - start}
    if job:
        time.sleep(linger)
        job.abort()
    return result


class Errors:
    @staticmethod
    def nothing(job):
        job.close()

    @staticmethod
    def barrier(job):
        job.checkpoint_barrier(20)
        job.close()

    @staticmethod
    def one_is_missing(job, missing_rank, timeout):
        t = job.declare("w", "f32", 5000)
        t.push_pull()
        t.wait()
        if job.rank == missing_rank:
            time.sleep(timeout + 4)
            return
        t.push_pull()
        t.wait(timeout)

    @staticmethod
    def mismatch(job, odd_rank):
        t = job.declare("w", "f32" if job.rank != odd_rank else "f64", 1000)
        t.push_pull()
        t.wait(20)

    @staticmethod
    def op_mismatch(job, odd_rank):
        t = job.declare("w", "f32", 1000)
        t.push_pull(bps.SUM if job.rank != odd_rank else bps.MAX)
        t.wait(20)

    @staticmethod
    def undeclared(job, missing_rank, timeout):
        if job.rank == missing_rank:
            time.sleep(timeout + 4)
            return
        t = job.declare("w", "f32", 1000)
        t.push_pull()
        t.wait(timeout)

    @staticmethod
    def killed(job, victim):
        t = job.declare("w", "f32", 1000)
        for _ in range(3):
            t.push_pull()
            t.wait(20)
        if job.rank == victim:
            os.kill(os.getpid(), 9)
        t.push_pull()
        t.wait(20)

    @staticmethod
    def killed_with_a_child(job, victim):
        """Kill the victim while a forked child still has the victim's socket open."""
        if job.rank == victim:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        Errors.killed(job, victim)

    @staticmethod
    def wait_for_servers(job, timeout, n_elems=5000):
        t = job.declare("w", "f32", n_elems)
        t.push_pull()
        t.wait(timeout)
        # Without this call, the worker would abort the job and end the other worker's wait.
        job.close()

    @staticmethod
    def input_changed(job, n_elems, writer):
        t = job.declare("w", "i32", n_elems)
        for r in range(200):
            t.input[:] = r
            t.push_pull()
            while not t.poll():
                if job.rank == writer:
                    t.input[:] += 1
        raise AssertionError("a submitted buffer was changed 200 times without an error")


def idle(seconds, ready):
    with bps.open() as job:
        t = job.declare("w", "f32", 5000)
        t.push_pull()
        t.wait()
        job.barrier()
        if job.rank == 0:
            open(ready, "w", encoding="ascii").close()
        before = time.process_time()
        time.sleep(seconds)
        used = time.process_time() - before
        job.barrier()
        return used


def huge(n_elems):
    """Sum one tensor of n_elems elements of type i8 through a server.

    The tensor is filled and checked in pieces to save memory.
    """
    piece = 1 << 26
    pattern = np.random.default_rng(5).integers(
        -128, 127, piece + 251, dtype=np.int8, endpoint=True
    )
    with bps.open(timeout=600) as job:
        t = job.declare("huge", "i8", n_elems)
        for start in range(0, n_elems, piece):
            n = min(piece, n_elems - start)
            t.input[start : start + n] = pattern[start // piece : start // piece + n]
        t.push_pull()
        out = t.wait()
        for start in range(0, n_elems, piece):
            n = min(piece, n_elems - start)
            want = pattern[start // piece : start // piece + n].copy()
            want *= np.int8(job.size)
            assert np.array_equal(out[start : start + n], want), f"piece at {start}"
    return n_elems


def many(n_tensors, chunk):
    with bps.open() as job:
        tensors = job.declare_group([(f"t{i}", "i64", 4) for i in range(n_tensors)])
        for i in range(0, n_tensors, chunk):
            for t in tensors[i : i + chunk]:
                t.input[:] = job.rank + i
            job.push_pull(tensors[i : i + chunk])
            job.wait(tensors[i : i + chunk])
            for t in tensors[i : i + chunk]:
                assert t.output.tolist() == [job.size * i + job.size * (job.size - 1) // 2] * 4
    return n_tensors


def hold(n, what):
    """Declare n small tensors and wait until the job is ended."""
    with bps.open() as job:
        job.declare_group([(f"{what}{i}", "i32", 5) for i in range(n)])
        while True:
            time.sleep(1)


def many_tensors(n):
    """Declare n small tensors in one call. Run rounds of all these tensors.

    In each round, submit all tensors in one call, and wait for all tensors in one call.
    """
    start = time.monotonic()
    with bps.open() as job:
        tensors = job.declare_group([(f"t{i}", "i32", 5) for i in range(n)])
        for r in range(1, 4):
            for i, t in enumerate(tensors):
                t.input[:] = i + r + job.rank
            job.push_pull(tensors)
            job.wait(tensors)
            for i, t in enumerate(tensors):
                assert t.output[4] == job.size * (i + r) + job.size * (job.size - 1) // 2
    return time.monotonic() - start


def leave_in_flight(n_tensors):
    """Submit one round of each tensor. Only rank 0 waits; the others leave the job at once."""
    with bps.open() as job:
        tensors = job.declare_group([(f"t{i}", "i64", 4) for i in range(n_tensors)])
        for i, t in enumerate(tensors):
            t.input[:] = i + job.rank
        job.push_pull(tensors)
        if job.rank == 0:
            job.wait(tensors)
            for i, t in enumerate(tensors):
                assert t.output.tolist() == [2 * i + 1] * 4
    return n_tensors


def slow_while(n_elems, slow_rank, flag, pause):
    """Run rounds without end, with a pause before each round.

    While the file `flag` exists, rank slow_rank pauses ten times as long as the other ranks.
    """
    with bps.open() as job:
        t = job.declare("w", "f32", n_elems)
        while True:
            time.sleep(pause if job.rank == slow_rank and os.path.exists(flag) else pause / 10)
            t.input[:] = 1
            job.push_pull([t])
            job.wait([t])


BIT_COUNTS = np.zeros(1, np.int64)  # number of bits that are set in each 16-bit number
for _ in range(16):
    BIT_COUNTS = np.concatenate([BIT_COUNTS, BIT_COUNTS + 1])


def members_behind(out, r):
    """Return a mask for each element: bit i is set if the sum has the contribution of rank i.

    The inputs must be those of `elastic`. Check the remaining bits of each element.
    """
    masks = out & 0xFFFF
    assert np.array_equal(out >> 16, BIT_COUNTS[masks] * r), f"round {r}"
    return masks


def elastic(
    n_elems,
    n_rounds,
    n_tensors=2,
    victim=None,
    at=None,
    progress=None,
    pause=0.0,
    slow=None,
    **options,
):
    """Run rounds of a job whose members may change.

    In round `at`, rank `victim` submits its tensors and kills itself. The result has for each round
    a digest of the sums, a list of rank masks, and the time from submission to sum. A mask shows
    the ranks that contributed to a partition. Equal masks appear once in the list.
    """
    seen, times, job = [], [], bps.open(**options)
    try:
        tensors = job.declare_group([(f"t{i}", "i64", n_elems) for i in range(n_tensors)])
        for r in range(1, n_rounds + 1):
            for t in tensors:
                t.input[:] = (1 << job.rank) + (r << 16)
            if slow and slow["rank"] == job.rank and slow["first"] <= r <= slow["last"]:
                time.sleep(slow.get("seconds", 0))
                while "until" in slow and not os.path.exists(slow["until"]):
                    time.sleep(0.005)
            start = time.monotonic()
            job.push_pull(tensors)
            if job.rank == victim and r == at:
                os.kill(os.getpid(), 9)
            job.wait(tensors)
            times.append(time.monotonic() - start)
            masks = [members_behind(t.output, r) for t in tensors]
            for t, m in zip(tensors, masks):
                fewest = min(int(x).bit_count() for x in np.unique(m))
                assert t.contributors == fewest, (t.contributors, fewest)
            seen.append(
                [
                    digest(np.concatenate([t.output for t in tensors])),
                    np.unique(np.concatenate(masks)).tolist(),
                ]
            )
            if progress and job.rank == 0:
                with open(progress, "w", encoding="ascii") as f:
                    f.write(str(r))
            time.sleep(pause)
        people = [w._asdict() for w in job.workers()]
        missing = [w.rank for w in tensors[0].contributor_list() if w.is_missing]
        job.close()
    except bps.Error as e:
        job.abort()
        return {"code": e.code, "text": str(e), "rounds": seen}
    return {"code": 0, "rounds": seen, "people": people, "missing": missing, "times": times}


def kept_rounds(
    sizes, stop, trace, n_rounds=None, deterministic=None, declare_each=0, barrier_each=0
):
    """Run rounds of one integer tensor and one float tensor for each of `sizes`.

    The rounds end after n_rounds. If n_rounds is None, they end when the file `stop` appears. The
    function checks the integer sums, and that no input changes. If declare_each is given, the job
    declares new tensors in every declare_each-th round. If barrier_each is given, all ranks meet at
    a barrier after every barrier_each-th round. Rank 0 writes the start and end of each round to
    the file `trace`. Return the number of rounds and a digest of all float sums.
    """
    n, over, sums = 0, False, hashlib.sha256()
    rng = np.random.default_rng(7 + int(os.environ["BPS_RANK"]))
    with (
        bps.open(deterministic=deterministic) as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        ints = job.declare_group([(f"i{i}", "i64", n) for i, n in enumerate(sizes)])
        floats = job.declare_group([(f"f{i}", "f32", n) for i, n in enumerate(sizes)])
        vote = job.declare("vote", "i64", 1)
        bases = [np.arange(t.input.size, dtype=np.int64) for t in ints]
        while not over and n != n_rounds:
            n += 1
            if declare_each and n % declare_each == 0:
                more = job.declare_group([(f"m{n}.{i}", "i64", 700) for i in range(3)])
                ints += more
                bases += [np.arange(700, dtype=np.int64) for _ in more]
            for i, t in enumerate(ints):
                t.input[:] = bases[i] * n + job.rank + i
            for t in floats:
                t.input[:] = rng.standard_normal(t.input.size, dtype=np.float32)
            vote.input[:] = job.rank == 0 and n_rounds is None and os.path.exists(stop)
            before = [t.input.copy() for t in ints + floats]
            start = time.monotonic()
            job.push_pull(floats + ints + [vote])
            job.wait(floats + ints + [vote])
            f.write(f"{start} {time.monotonic()}\n")
            for t, was in zip(ints + floats, before):
                assert t.input.tobytes() == was.tobytes(), f"round {n}: an input has changed"
                assert t.contributors == job.size
            for i, t in enumerate(ints):
                want = job.size * (bases[i] * n + i) + job.size * (job.size - 1) // 2
                assert np.array_equal(t.output, want), f"round {n} tensor {i}"
            for t in floats:
                sums.update(t.output.tobytes())
            over = vote.output[0] > 0
            if barrier_each and n % barrier_each == 0:
                job.checkpoint_barrier(60)
            rest(start)
    return [n, sums.hexdigest()]


def growing(
    n_elems, n_rounds, every, progress=None, pause=0.0, victim=None, at=None, go=None, **options
):
    """Run steps of a job that new workers may join.

    Each sum is added to weights, which newcomers receive by a broadcast. The job runs at least
    n_rounds rounds. If the path `go` is given, the job does not end before the file `go` exists.
    Return the weights' digest, and for each step the ranks whose contributions are in its sum.
    """
    job, first, seen = None, 0, {}
    # state[0]: the step's number; state[1]: 1 if the job is over, else 0; the rest: the weights
    state = np.zeros(n_elems + 2, np.int64)
    try:
        job = bps.open(**options)
        if job.is_new:
            job.broadcast(state, root=job.root)
            first = int(state[0])
        t = job.declare("g", "i64", n_elems)
        over = job.declare("over", "i64", 1)
        mean = job.declare("mean", "u8", 10)
        while not state[1]:
            r = int(state[0]) + 1
            t.input[:] = (1 << job.rank) + (r << 16)
            over.input[:] = r >= n_rounds and (go is None or os.path.exists(go))
            mean.input[:] = 200 + job.rank
            job.push_pull([t, over])
            mean.push_pull(bps.AVG)
            if job.rank == victim and r == at:
                os.kill(os.getpid(), 9)
            job.wait([t, over, mean])
            assert 200 <= mean.output[0] < 200 + job.size and np.all(mean.output == mean.output[0])
            masks = members_behind(t.output, r)
            seen[r] = np.unique(masks).tolist()
            state[2:] += t.output
            state[0] = r
            state[1] = over.output[0] > 0
            if progress and job.rank == 0:
                with open(progress, "w", encoding="ascii") as f:
                    f.write(str(r))
            if r % every == 0 and not state[1] and job.checkpoint_barrier():
                job.broadcast(state, root=job.root)
            time.sleep(pause)
        people = [w._asdict() for w in job.workers()]
        job.close()
    except bps.Error as e:
        if job:
            job.abort()
        return {"code": e.code, "text": str(e)}
    return {"code": 0, "first": first, "weights": digest(state), "masks": seen, "people": people}


def barrier_late(late_rank, timeout):
    """Let one rank reach a barrier late.

    In the other ranks, the first wait at the barrier times out with an error that names the late
    rank. Their second wait ends when the late rank reaches the barrier.
    """
    with bps.open() as job:
        t = job.declare("w", "i64", 10)
        t.push_pull()
        text = busy = ""
        t.wait()
        if job.rank == late_rank:
            time.sleep(3 * timeout)
        else:
            try:
                job.checkpoint_barrier(timeout)
            except bps.Timeout as e:
                text = str(e)
            try:
                t.push_pull()
            except bps.Error as e:
                busy = str(e)
        job.checkpoint_barrier(30)
        t.push_pull()
        t.wait()
        return {"text": text, "busy": busy}


def at_barrier(n_elems, late_rank, go):
    """Run rounds of exact sums, with a barrier before one round.

    Rank late_rank enters the barrier only when the file `go` exists. Return the time at which the
    barrier ended, and the duration of the longest round after the barrier.
    """
    longest = passed_at = 0.0
    with bps.open() as job:
        tensors = job.declare_group([("a", "i64", n_elems), ("b", "i64", 7)])
        for r in range(1, 21):
            if r == 6:
                while job.rank == late_rank and not os.path.exists(go):
                    time.sleep(0.005)
                job.checkpoint_barrier(60)
                passed_at = time.monotonic()
            for t in tensors:
                t.input[:] = (1 << job.rank) + (r << 16)
            start = time.monotonic()
            job.push_pull(tensors)
            job.wait(tensors)
            if passed_at:
                longest = max(longest, time.monotonic() - start)
            for t in tensors:
                assert np.all(members_behind(t.output, r) == (1 << job.size) - 1), f"round {r}"
    return {"passed_at": passed_at, "longest": longest}


def resized(sizes, n_elems, ready=None, wait=None, first_phase=0):
    """Run a job in phases. Suspend the job after each phase and resume it in the next phase.

    Phase i has sizes[i] workers. A worker leaves before a phase that has no place for its rank. A
    worker with first_phase > 0 opens the job in phase first_phase. Between phases, rank 0 writes
    the file `ready`.PHASE, and all workers wait for the file `wait`.PHASE.
    """
    seen, job, tensors = [], None, None
    for phase, size in list(enumerate(sizes))[first_phase:]:
        if job is None:
            job = bps.open(size=size, rank=int(os.environ["BPS_RANK"]))
            tensors = job.declare_group([("a", "i64", n_elems), ("b", "i64", 7)])
        elif job.rank >= size:
            job.close()
            return seen
        else:
            job.resume(size, rank=job.rank)
        assert job.size == size
        for r in range(1, 4):
            for t in tensors:
                t.input[:] = (1 << job.rank) + (r << 16)
            job.push_pull(tensors)
            job.wait(tensors)
            for t in tensors:
                assert np.all(members_behind(t.output, r) == (1 << size) - 1)
        if phase + 1 == len(sizes):
            job.close()
        else:
            rank = job.rank
            job.suspend()
            try:
                tensors[0].push_pull()
                raise AssertionError("a suspended job takes submissions")
            except bps.Error as e:
                assert e.code == bps.ECLOSED, str(e)
            if ready and rank == 0:
                open(f"{ready}.{phase}", "w", encoding="ascii").close()
            while wait and not os.path.exists(f"{wait}.{phase}"):
                time.sleep(0.02)
        seen.append([size, job.rank if phase + 1 < len(sizes) else -1])
    return seen


def suspended_in_vain(late):
    """Let suspend() time out at rank 0 before rank 1 calls suspend().

    After the timeout, rank 0 makes the file `late`. Rank 1 waits for this file. Then all ranks
    suspend and resume the job. Return a sum of the resumed job.
    """
    with bps.open() as job:
        t, rank, size = job.declare("a", "i64", 7), job.rank, job.size
        if rank == 0:
            try:
                job.suspend(0.1)
                raise AssertionError("suspend did not wait for the other ranks")
            except bps.Error as e:
                assert e.code == bps.ETIMEDOUT, str(e)
            open(late, "w", encoding="ascii").close()
        while not os.path.exists(late):
            time.sleep(0.005)
        job.suspend()
        job.resume(size, rank=rank)
        t.input[:] = rank + 1
        t.push_pull()
        t.wait(60)
        return int(t.output[6])


def root_lost(n_bytes):
    """Kill rank 0 while the other ranks wait for its broadcast, in a job that may shrink.

    Return the code of the error, and the bytes of the next broadcast, which rank 1 sends.
    """
    job = bps.open(on_agent_loss="shrink")
    data = np.full(n_bytes, 10 + job.rank, np.uint8)
    job.barrier()
    if job.rank == 0:
        os.kill(os.getpid(), 9)
    code = 0
    try:
        job.broadcast(data, root=0)
    except bps.Error as e:
        code = e.code
    job.broadcast(data, root=1)
    job.close()
    return [code, np.unique(data).tolist()]


def late_root(backup, late_s):
    """Run a broadcast whose root is late, in a job with backup machines.

    The other ranks must wait for the root. A sum in this job would not wait for a late rank.
    Return the distinct byte values received.
    """
    with bps.open(backup=backup, backup_grace=0.001) as job:
        # Declare all tensors before the ranks wait for the late root.
        job.broadcast(np.zeros(100_000, np.uint8), root=1)
        data = np.full(100_000, 10 + job.rank, np.uint8)
        if job.rank == 0:
            time.sleep(late_s)
        job.broadcast(data, root=0)
        return np.unique(data).tolist()


def exact_rounds(sizes, stop, trace, dtypes, deterministic=None):
    """Run rounds with tensors of whole numbers, in each of `dtypes`, until the file `stop` appears.

    Every sum is checked. Rank 0 writes the start and end of each round to the file `trace`. Return
    the number of rounds.
    """
    n, over = 0, False
    with (
        bps.open(deterministic=deterministic) as job,
        open(trace if job.rank == 0 else os.devnull, "w", encoding="ascii", buffering=1) as f,
    ):
        tensors = [
            job.declare(f"{d}.{i}", d, n_elems) for d in dtypes for i, n_elems in enumerate(sizes)
        ]
        vote = job.declare("vote", "i64", 1)
        bases = [np.arange(t.input.size) % 61 for t in tensors]
        while not over:
            n += 1
            for t, base in zip(tensors, bases):
                t.input[:] = (base + n % 37) * (
                    job.rank + 1
                )  # all sums are below 2048, so f16 represents them exactly
            vote.input[:] = job.rank == 0 and os.path.exists(stop)
            start = time.monotonic()
            job.push_pull([*tensors, vote])
            job.wait([*tensors, vote], 60)
            f.write(f"{start} {time.monotonic()}\n")
            for t, base in zip(tensors, bases):
                want = (base + n % 37) * (job.size * (job.size + 1) // 2)
                assert np.array_equal(t.output, want.astype(t.output.dtype)), (
                    f"wrong sum: round {n} {t.input.dtype}"
                )
                assert t.contributors == job.size
            over = vote.output[0] > 0
            rest(start)
    return n


def orphan(n_elems, lost, victim, n_rounds, has_gpu=False):
    """Run n_rounds rounds. In the last round, at first only rank `victim` submits its tensor.

    Then the test kills the agent or the executor of the victim, and the victim gets an error. After
    an error, a worker may write to its input, and the victim does so. Then the victim makes the
    file `lost`. Only when this file exists, the other ranks submit the last round. If an error
    occurred, return [code of the error, None]. Otherwise return [0, whether the sum of the last
    round was right].
    """
    job = bps.open()
    if has_gpu:
        job.gpu_open()
    t = job.declare("t", "i64", n_elems)
    try:
        for r in range(1, n_rounds + 1):
            while r == n_rounds and job.rank != victim and not os.path.exists(lost):
                time.sleep(0.005)
            t.input[:] = r
            t.push_pull()
            t.wait(60)
        end = [0, bool((t.output == job.size * n_rounds).all())]
    except bps.Error as e:
        t.input[:] = 1000
        with open(lost, "w", encoding="ascii"):
            end = [e.code, None]
    job.abort()
    return end
