#!/usr/bin/env python3
"""Kill trainers at random points and check that the agent keeps none of their resources.

    tests/faults/crashes.py BUILD --crashes 1000 [--seed N]

Each job has two trainers. One trainer is killed with SIGKILL, either at a failpoint of the library
or at a random moment. A failpoint is set with BPS_FAULTS=POINT=crash,after=N with a random N. The
trainer may be in HELLO, joining, declaring, submitting, waiting or closing. The other trainer
survives or is killed too. After every hundred crashes and at the end, the agent's descriptors,
mappings of shared memory, threads and child processes are counted in /proc. The counts must not be
larger than after the first jobs. The jobs take the failpoints in turn, in a random order. The exit
status is 1 if a count is larger, if a trainer hung or ended with an error, or if at least 5 jobs
took a failpoint and no trainer crashed there.
"""

import argparse
import collections
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "cluster"),
    str(HERE.parent.parent / "libbpsclient" / "python"),
]

AT_ONCE = 4
POINTS = {  # how often, at most, the trainer passes each failpoint before it crashes there
    "client.connect": 0,
    "client.hello.sent": 0,
    "client.joined": 0,
    "client.map": 2,
    "client.declare.sent": 1,
    "client.submit.before-publish": 40,
    "client.submit.published": 40,
    "client.wait": 60,
    "client.waited": 60,
    "client.close": 0,
    "client.close.sent": 0,
}
ROUND_POINTS = [point for point, most in POINTS.items() if most > 10]  # passed in each round
MOMENTS = ["any moment"] * 3  # three jobs in a turn have no failpoint
TRIES = 5  # a point that this many jobs should reach must be reached
CALL_S, OPEN_S = 10, 2


def wait_until(at):
    select.select([], [], [], max(0.0, at - time.monotonic()))


def held_by(pid):
    """Count a process's descriptors, memfds, threads, children and mappings of memfds."""
    proc = Path(f"/proc/{pid}")
    fds = []
    for fd in os.listdir(proc / "fd"):
        try:
            fds.append(os.readlink(proc / "fd" / fd))
        except OSError:
            pass
    maps = sum("memfd:" in line for line in (proc / "maps").read_text().splitlines())
    children = sum(
        len((proc / "task" / t / "children").read_text().split()) for t in os.listdir(proc / "task")
    )
    return {
        "descriptors": len(fds),
        "memfds": sum("memfd:" in f for f in fds),
        "mappings": maps,
        "threads": len(os.listdir(proc / "task")),
        "children": children,
    }


class Trainer:
    """A trainer that runs in a fork of this process.

    A fork starts quickly, because Python and NumPy are already loaded.
    """

    def __init__(self, c, env, args):
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                fd = os.open(c.dir / "trainers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(fd, 1)
                os.dup2(fd, 2)
                os.environ.update(env)
                import steady

                steady.steady(**args)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self.fd = os.pidfd_open(self.pid)
        self.status = None

    def kill(self):
        signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def wait(self, seconds):
        """Return the exit status, negative for a signal. None: killed at the time limit."""
        is_over = bool(select.select([self.fd], [], [], seconds)[0])
        if not is_over:
            self.kill()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status if is_over else None


class Crashes:
    def __init__(self, c, seed):
        self.c, self.rng = c, random.Random(seed)
        self.tried, self.points, self.problems = collections.Counter(), collections.Counter(), []
        self.n_lives = self.n_crashes = 0
        self.turn = []  # points that the next jobs take

    def live(self):
        """Start a job of two trainers. Return the arguments `pair`, `point` and `at` of die().

        If the second trainer is to crash at a failpoint, `point` is that failpoint, and `at` is
        None. Otherwise `point` is "any moment", and `at` is the time at which to kill the second
        trainer.
        """
        self.n_lives += 1
        agent = self.c.agents[0]
        if not self.turn:
            self.turn = [*POINTS, *MOMENTS]
            self.rng.shuffle(self.turn)
        point = self.turn.pop()
        # A crash in a round ends the job. Other jobs must end by themselves.
        seconds = CALL_S if point in ROUND_POINTS else self.rng.uniform(0.05, 0.3)
        args = {
            "stop": str(self.c.dir / "never"),
            "progress": str(self.c.dir / f"crash{self.n_lives % 50}"),
            "n_elems": 3000,
            "timeout": CALL_S,
            "seconds": seconds,
            "options": {"open_timeout": OPEN_S},
        }
        if point != "any moment":
            args["faults"] = {"1": f"{point}=crash,after={self.rng.randint(0, POINTS[point])}"}
        env = {
            "BPS_AGENT_SOCKET": str(agent.socket),
            "BPS_JOB": f"crash{self.n_lives}",
            "BPS_SIZE": "2",
            "BPS_TIMEOUT": f"{CALL_S}s",
        }
        pair = [Trainer(self.c, dict(env, BPS_RANK=str(r)), args) for r in range(2)]
        return (
            pair,
            point,
            time.monotonic() + self.rng.uniform(0, 0.3) if point == "any moment" else None,
        )

    def die(self, pair, point, at):
        survivor, victim = pair
        if at is not None:
            wait_until(at)
            victim.kill()
        ended = victim.wait(CALL_S + OPEN_S + 10)
        if self.rng.random() < 0.3:
            survivor.kill()
            self.n_crashes += 1
        survived = survivor.wait(CALL_S + OPEN_S + 10)
        self.n_crashes += ended == -signal.SIGKILL
        self.tried[point] += 1
        self.points[point] += ended == -signal.SIGKILL
        if ended not in (0, -signal.SIGKILL) or survived not in (0, -signal.SIGKILL):
            self.problems.append(
                f"{point}: the victim ended with {ended}, the other trainer with {survived} "
                "(None: it hung)"
            )

    def run(self, n):
        agent = self.c.agents[0]
        for _ in range(3):
            self.die(*self.live())
        self.settle()
        before, shown = held_by(agent.pid), 0
        self.n_crashes = 0
        while self.n_crashes < n:
            for x in [self.live() for _ in range(AT_ONCE)]:
                self.die(*x)
            if self.n_crashes - shown >= 100 or self.n_crashes >= n:
                shown = self.n_crashes
                self.settle()
                after = self.counted(agent.pid, before)
                print(json.dumps({"crashes": self.n_crashes, **after}), flush=True)
                more = {k: (before[k], v) for k, v in after.items() if v > before[k]}
                if more:
                    self.problems.append(
                        f"after {self.n_crashes} crashes the agent holds more resources: {more}"
                    )
        for point, tries in self.tried.items():
            if tries >= TRIES and not self.points[point]:
                self.problems.append(f"{point}: no trainer crashed there in {tries} jobs")
        return before

    def counted(self, pid, before):
        """Wait until the agent's count of each resource is at most its count in `before`.

        Wait at most ten seconds. Return the counts at the end of the wait.
        """
        end = time.monotonic() + 10
        while True:
            after = held_by(pid)
            if time.monotonic() > end or all(v <= before[k] for k, v in after.items()):
                return after
            wait_until(time.monotonic() + 0.05)

    def settle(self):
        def is_idle():
            s = self.c.agents[0].status()
            return s["trainers"] == 0 and s["shared_bytes"] == 0

        self.c.wait_for("the agent is idle", is_idle)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--crashes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["BPS_BUILD"] = str(args.build.resolve())
    os.environ["BPS_LIBRARY"] = str(args.build.resolve() / "libbpsclient.so.0")
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import steady  # import the module once, before trainers are forked
    from lab import LabCluster

    c = LabCluster(agents=1, servers=1)
    crashes = Crashes(c, args.seed)
    begin = time.monotonic()
    try:
        before = crashes.run(args.crashes)
    except AssertionError as e:
        before = None
        crashes.problems.append(str(e)[-3000:])
    crashes.problems += c.close()
    print(
        json.dumps(
            {
                "crashes": crashes.n_crashes,
                "jobs": crashes.n_lives,
                "seconds": round(time.monotonic() - begin),
                "before": before,
                "by point": dict(crashes.points),
                "problems": crashes.problems[:20],
            },
            indent=1,
        )
    )
    print(
        f"{crashes.n_crashes} crashes in {crashes.n_lives} jobs, {len(crashes.problems)} problems"
    )
    return 1 if crashes.problems else 0


if __name__ == "__main__":
    sys.exit(main())
