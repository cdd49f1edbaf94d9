#!/usr/bin/env python3
"""Measure how soon a crash is noticed.

    tests/faults/noticed.py BUILD --kills 300

--kills is the count of processes that the program kills with SIGKILL. A third of them are servers,
a third are agents, and a third are trainers. For each kill, the program measures the time until the
crash is noticed. The p99 of these times must not exceed 100 ms. A server's crash is noticed when
the scheduler and all agents have logged that their connections to the server are down. An agent's
crash is noticed when the scheduler has logged that its connection to the agent is down. A trainer's
crash is noticed when a call of another trainer of the job has ended with an error that names the
killed trainer. Exit status 1: the p99 is longer than 100 ms.
"""

import argparse
import datetime
import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "cluster"),
    str(HERE.parent.parent / "libbpsclient" / "python"),
]

BOUND_S = 0.1
LINE = re.compile(r"^<\d>(\S+Z) (.*)$", re.M)


def logged(daemon, pattern, skip):
    """Return the time of the first matching line after byte `skip` of the log, or None."""
    for when, text in LINE.findall(daemon.log.read_text()[skip:]):
        if re.search(pattern, text):
            return datetime.datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp()
    return None


class Kills:
    def __init__(self, c, rng):
        self.c, self.rng = c, rng
        self.job = None

    def is_whole(self):
        members = self.c.scheduler.status()["members"]
        return sum(m["state"] == "up" for m in members) == len(self.c.servers) + len(self.c.agents)

    def kill_daemon(self, d, seen_at):
        """Kill a daemon. Return the seconds until all daemons in seen_at have noticed the crash.

        seen_at: {daemon: pattern of the log line with which the daemon reports the crash}.
        """
        sizes = {w: len(w.log.read_text()) for w in seen_at}
        at = time.time()
        d.process.send_signal(signal.SIGKILL)
        self.c.wait_for(
            "all daemons notice the crash",
            lambda: all(logged(w, p, sizes[w]) for w, p in seen_at.items()),
        )
        seconds = max(logged(w, p, sizes[w]) for w, p in seen_at.items()) - at
        d.process.wait()
        d.start_again()
        self.c.wait_for("all members are up", self.is_whole)
        return max(seconds, 0.0)  # log times are whole ms, so `seconds` may be negative

    def server(self):
        if self.job is None or self.job.has_failed():
            self.job = self.c.steady(2)
        self.job.wait_rounds(5)
        i = self.rng.randrange(len(self.c.servers))
        agents = {a: "connection to a server is down" for a in self.c.agents}
        return self.kill_daemon(
            self.c.servers[i], {self.c.scheduler: rf"server s{i}: up -> suspect", **agents}
        )

    def agent(self):
        if self.job:
            self.job.stop()
            self.job = None
        i = self.rng.randrange(len(self.c.agents))
        return self.kill_daemon(self.c.agents[i], {self.c.scheduler: rf"agent a{i}: up -> suspect"})

    def trainer(self):
        job = self.c.steady(2).wait_rounds(2)
        at = time.monotonic()
        job.workers[1].process.kill()
        (r,) = job.errors([0])
        return r["failed_at"] - at


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["BPS_BUILD"] = str(args.build.resolve())
    from lab import LabCluster

    times = {"server": [], "agent": [], "trainer": []}
    with LabCluster() as c:
        kills = Kills(c, random.Random(args.seed))
        for what, seen in times.items():
            for _ in range(args.kills // 3):
                seen.append(getattr(kills, what)())
    every = sorted(t for seen in times.values() for t in seen)
    p99 = every[min(len(every) - 1, int(0.99 * len(every)))]
    print(
        json.dumps(
            {
                "kills": len(every),
                "p50_ms": round(1e3 * every[len(every) // 2], 1),
                "p99_ms": round(1e3 * p99, 1),
                "worst_ms": round(1e3 * every[-1], 1),
                "bound_ms": 1e3 * BOUND_S,
                "worst_ms_by_process": {k: round(1e3 * max(v), 1) for k, v in times.items()},
            }
        )
    )
    return 1 if p99 > BOUND_S else 0


if __name__ == "__main__":
    sys.exit(main())
