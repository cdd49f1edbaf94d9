#!/usr/bin/env python3
"""Run three jobs under random faults for a given time.

    tests/faults/chaos.py BUILD --seconds 1800 [--seed N] [--report FILE]

A fault happens every few seconds. No sum may be wrong, no call may hang, and no daemon may grow.
The jobs have different options (deterministic, small partitions, several workers on a machine). If
a fault kills a job's trainer, the job may end, and is then restarted. If a job ends for another
reason, this is a failure. The seed determines the faults and the times between them. The timing of
a fault relative to the jobs' messages depends on the machine.
The workers check every sum. The report counts the faults of each kind, the rounds, the wrong sums,
and the calls that exceeded their time-out. For each fault of a failpoint, the report has how often
it acted and how often it was set. The report also has the longest stall. For the last
process of each daemon, the report has the memory, the count of descriptors and the count of
threads. Each of these figures has three values: the value after the first minute of the process,
the value at the end, and the maximum. The exit status is 1 if the report lists a problem.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

try:
    import numpy  # noqa: F401
except ImportError:
    sys.exit(
        f"chaos.py: {sys.executable} lacks numpy, which the trainers need: use another Python, "
        "or install python3-numpy"
    )

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "cluster"),
    str(HERE.parent.parent / "libbpsclient" / "python"),
]

CALL_TIMEOUT_S = 30
# Option open_timeout of the trainers. If a trainer is killed before it has joined, the other
# trainers of its job wait until it has restarted.
OPEN_TIMEOUT_S = 25
NOT_DURABLE = -10020  # error code of a new job while the scheduler cannot write its state
QUIET_S = (0.5, 4.0)  # seconds between two faults: least and most
SAMPLE_S = 10
JOBS = [
    {"name": "plain", "placement": [0, 1, 2], "args": {"n_elems": 100000, "n_tensors": 3}},
    {
        "name": "exact",
        "placement": [0, 1, 1],
        "args": {"n_elems": 30000, "n_tensors": 8, "options": {"deterministic": True}},
    },
    {
        "name": "small",
        "placement": [2, 2, 0],
        "args": {"n_elems": 20000, "options": {"part_bytes": 16384}},
    },
]
# Failpoints for each kind of daemon. These failpoints must not end a job: only the loss of a
# trainer is allowed to end one. If an agent is declared dead, its jobs end. So each fault of an
# agent is shorter than the time after which the scheduler declares the agent dead.
FAILPOINTS = {
    "server": [
        "server.result.before-send=drop,prob=0.05",
        "server.contrib.received=drop,prob=0.05",
        "server.sum.start=sleep:20ms,prob=0.2",
        "server.read.done=error:EIO,prob=0.05",
        "net.read=error:EIO,prob=0.02",
        "server.result.done=crash,count=1",
    ],
    "agent": [
        "agent.contrib.before-send=drop,prob=0.05",
        "agent.result.received=drop,prob=0.05",
        "agent.read.done=error:EIO,prob=0.05",
        "agent.have.before-send=drop,prob=0.3",
        "agent.contrib.prepare=sleep:20ms,prob=0.2",
        "agent.link.connect=error:ECONNREFUSED,prob=0.3",
    ],
    "scheduler": [
        "scheduler.log.write=error:ENOSPC",
        "scheduler.log.fsync=error:EIO",
        "scheduler.beat.received=sleep:50ms,prob=0.3",
        "scheduler.commit.before-send=crash,count=1",
    ],
}


def kinds_of(pid):
    """Return {kind: number of the process's descriptors of this kind}."""
    kinds = Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            name = os.readlink(f"/proc/{pid}/fd/{fd}")
            kinds[name if name.startswith(("/memfd", "anon")) else name.split(":")[0]] += 1
        except OSError:
            pass
    return dict(kinds)


def held_by(pid):
    """Return a process's resident memory in MiB, and its counts of descriptors and threads."""
    text = Path(f"/proc/{pid}/status").read_text()
    rss = int(re.search(r"^VmRSS:\s+(\d+)", text, re.M)[1]) / 1024
    return round(rss, 1), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


class Chaos:
    def __init__(self, cluster, seed):
        self.c = cluster
        self.rng = random.Random(seed)
        self.faults, self.ends = Counter(), Counter()
        self.problems, self.rounds, self.longest = [], 0, 0.0
        self.jobs = {j["name"]: None for j in JOBS}
        self.failed_at = {}  # {job: when one of its workers ended}
        self.events = []  # actions and their times; a problem's text has the last 30 actions
        self.may_end = set()  # jobs that may end because of a fault
        # {daemon: [(seconds since `begin`, the daemon's pid, (MiB, descriptors, threads))]}
        self.samples = {}
        self.starts = Counter()
        self.kinds = {}
        self.begin = time.monotonic()

    def problem(self, text):
        self.problems.append(
            f"at {time.monotonic() - self.begin:.1f} s: {text}; before: {self.events[-30:]}"
        )

    def note(self, what):
        self.faults[what.split(":")[0]] += 1
        self.events.append(f"{time.monotonic() - self.begin:.1f} {what}")

    # ---- jobs ----

    def start_job(self, job):
        self.starts[job["name"]] += 1
        args = dict(
            job["args"], options={"open_timeout": OPEN_TIMEOUT_S, **job["args"].get("options", {})}
        )
        self.jobs[job["name"]] = self.c.steady(
            len(job["placement"]),
            placement=job["placement"],
            timeout=CALL_TIMEOUT_S,
            seconds=1e6,
            pause=0.005,
            **args,
        )

    def look_at(self, job):
        """Restart a job that has ended. Record a problem if no fault can have ended the job."""
        name, steady = job["name"], self.jobs[job["name"]]
        if steady is None:
            self.start_job(job)
        elif steady.has_failed():
            self.failed_at.setdefault(name, time.monotonic())
            patience = time.monotonic() > self.failed_at[name] + CALL_TIMEOUT_S + 15
            if patience or all(w.process.poll() is not None for w in steady.workers):
                del self.failed_at[name]
                self.finish(name, steady, is_told=False)
                self.start_job(job)

    def finish(self, name, steady, is_told):
        """Wait for the workers' results, and record problems. is_told: the test has stopped the
        job."""
        end = time.monotonic() + (CALL_TIMEOUT_S + 15 if is_told else 1)
        for w in steady.workers:
            try:
                r = w.result(end)
            except AssertionError as e:
                text = str(e)
                if w.process.poll() == -signal.SIGKILL:
                    continue  # killed on purpose
                self.problem(
                    f"job {name} rank {w.rank}: "
                    f"{'WRONG SUM' if 'WRONG SUM' in text else text[-800:]}"
                )
                w.process.kill()
                w.process.wait()
                continue
            finally:
                w.out.close() if w.process.poll() is not None else None
            self.rounds += r["rounds"] if w.rank == 0 else 0
            self.longest = max(self.longest, r["longest"])
            if r["code"]:
                self.ends[f"{r['code']}"] += 1
            if r["code"] and r["call_s"] > CALL_TIMEOUT_S + 1:
                self.problem(
                    f"job {name} rank {w.rank}: a call took {r['call_s']:.1f} s: {r['text']}"
                )
            is_refused = r["code"] == NOT_DURABLE and not r["rounds"]
            if r["code"] and name not in self.may_end and not is_refused:
                self.problem(f"job {name} rank {w.rank} ended without a fault: {r['text']}")
        self.c.workers = [w for w in self.c.workers if w not in steady.workers]
        self.c.jobs.remove(steady) if is_told else None
        self.may_end.discard(name)

    # ---- faults; each function returns when the daemon works again ----

    def restart(self, d):
        d.conf.write_text("")
        d.start_again()

    def kill(self, d, role, i):
        sig = self.rng.choice([signal.SIGKILL, signal.SIGTERM])
        if role == "agent":  # the agent's service manager restarts it
            d.die(sig)
            return
        d.kill(sig)
        self.pause(0, 1.5 if role == "server" else 0.5)
        self.restart(d)

    def stop(self, d, role, i):
        d.kill(signal.SIGSTOP)
        self.pause(0.1, {"server": 5, "agent": 2, "scheduler": 8}[role])
        d.kill(signal.SIGCONT)

    def failpoint(self, d, role, i):
        text = self.rng.choice(FAILPOINTS[role])
        self.events.append(text)
        d.faults(f"{text} seed={self.rng.randrange(1 << 30)}")
        self.pause(1, 3)
        if d.process.poll() is None:
            d.faults("")
        else:
            self.restart(d)

    def reset(self, d, role, i):
        self.c.lab.kill_connections(d.host)

    def cut(self, d, role, i):
        self.c.lab.cut(d.host, self.rng.choice([("in", "out"), ("in",), ("out",)]))
        self.pause(0.1, 5 if role != "agent" else 2)
        self.c.lab.mend(d.host)

    def link(self, d, role, i):
        self.c.lab.link(d.host, False)
        self.pause(0.1, 5 if role != "agent" else 2)
        self.c.lab.mend(d.host)

    def trainer(self):
        name = self.rng.choice(list(self.jobs))
        steady = self.jobs[name]
        if steady and not steady.has_failed():
            self.may_end.add(name)
            self.rng.choice(steady.workers).process.send_signal(signal.SIGKILL)
            self.note("trainer kill")

    def trainer_pause(self):
        steady = self.jobs[self.rng.choice(list(self.jobs))]
        p = self.rng.choice(steady.workers).process
        if p.poll() is None:
            self.note("trainer stop")
            p.send_signal(signal.SIGSTOP)
            self.pause(0.1, 4)
            p.send_signal(signal.SIGCONT)

    def one(self):
        role = self.rng.choices(
            ["server", "agent", "scheduler", "trainer", "pause"], [4, 3, 2, 1, 1]
        )[0]
        if role == "trainer":
            return self.trainer()
        if role == "pause":
            return self.trainer_pause()
        daemons = {
            "server": self.c.servers,
            "agent": self.c.agents,
            "scheduler": [self.c.scheduler],
        }[role]
        i = self.rng.randrange(len(daemons))
        kinds = ["kill", "stop", "failpoint", "failpoint", "reset", "cut", "link"]
        kind = self.rng.choice(kinds if self.c.lab else kinds[:4])
        self.note(f"{role} {kind}: {daemons[i].name}")
        getattr(self, kind)(daemons[i], role, i)
        return None

    def pause(self, low, high):
        until = time.monotonic() + self.rng.uniform(low, high)
        while time.monotonic() < until:
            for job in JOBS:
                self.look_at(job)
            self.sample()
            wait(min(0.1, max(0.0, until - time.monotonic())))

    # ---- the run ----

    def sample(self, is_last=False):
        t = time.monotonic() - self.begin
        for d in self.c.daemons:
            seen = self.samples.setdefault(d.name, [])
            if d.process.poll() is None and (is_last or not seen or t - seen[-1][0] > SAMPLE_S):
                try:
                    seen.append((round(t, 1), d.pid, held_by(d.pid)))
                except (OSError, TypeError):
                    pass

    def all_are_back(self):
        members = self.c.scheduler.status()["members"]
        return sum(m["state"] == "up" for m in members) == len(self.c.servers) + len(self.c.agents)

    def run(self, seconds):
        for job in JOBS:
            self.start_job(job)
        self.pause(3, 3)
        while time.monotonic() - self.begin < seconds:
            self.one()
            self.pause(*QUIET_S)
            self.c.wait_for("all members are back", self.quietly(self.all_are_back), 30)
        self.c.wait_for("all members are back", self.quietly(self.all_are_back), 30)
        self.pause(5, 5)
        for name, steady in self.jobs.items():
            steady.stop_file.touch()
            self.finish(name, steady, is_told=True)
        self.c.wait_for(
            "no agent has shared memory of a job",
            lambda: not any(a.status()["shared_bytes"] for a in self.c.agents),
            30,
        )
        self.sample(is_last=True)
        self.kinds = {d.name: kinds_of(d.pid) for d in self.c.agents}

    @staticmethod
    def quietly(condition):
        def ask():
            try:
                return condition()
            except (OSError, AssertionError):
                return False

        return ask

    def growth(self):
        """Return what held_by measured for each daemon's last process. "first" is the first sample
        after the process's first minute, or the first of all samples if the process is younger."""
        rows = {}
        for name, seen in self.samples.items():
            last = [s for s in seen if s[1] == seen[-1][1]]
            settled = [s for s in last if s[0] > last[0][0] + 60] or last
            rows[name] = {
                "lived_s": round(last[-1][0] - last[0][0]),
                "first": settled[0][2],
                "last": last[-1][2],
                "most": [max(s[2][k] for s in last) for k in range(3)],
            }
        return rows


def wait(seconds):
    from lab import wait_until

    wait_until(time.monotonic() + seconds)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="JSON")
    args = parser.parse_args()
    os.environ["BPS_BUILD"] = str(args.build.resolve())
    from lab import Lab, LabCluster

    with Lab(7) as lab:
        c = LabCluster(agents=3, servers=3, lab=lab, is_kept=True)
        chaos = Chaos(c, args.seed)
        try:
            chaos.run(args.seconds)
        except AssertionError as e:
            chaos.problems.append(str(e)[-6000:])
        finally:
            lab.heal()
            acted = list(c.all_acted())
            chaos.problems += c.close()
    report = {
        "seconds": round(time.monotonic() - chaos.begin),
        "seed": args.seed,
        "faults": dict(sorted(chaos.faults.items())),
        "n_faults": sum(chaos.faults.values()),
        "failpoints (acted, set)": {
            fault: [sum(bool(pid) for f, pid in acted if f == fault), n]
            for fault, n in sorted(Counter(f for f, _ in acted).items())
        },
        "job_starts": dict(chaos.starts),
        "rounds": chaos.rounds,
        "wrong_sums": sum("WRONG SUM" in p for p in chaos.problems),
        "hung_calls": sum("hangs" in p or "a call took" in p for p in chaos.problems),
        "longest_stall_s": round(chaos.longest, 2),
        "errors_by_code": dict(chaos.ends),
        "held (MiB, fds, threads)": chaos.growth(),
        "descriptors of agents at the end": chaos.kinds,
        "problems": chaos.problems,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.report:
        args.report.write_text(text + "\n")
    return 1 if chaos.problems else 0


if __name__ == "__main__":
    sys.exit(main())
