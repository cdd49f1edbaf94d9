#!/usr/bin/env python3
"""Measure what I/O threads of an agent are worth, on a machine with few cores.

    tests/bench/io_threads.py build/release [--threads 1,2,4] [--slow 8] [--agents 2] [--workers 1]
        [--rate 1gbit] [--bytes 64MiB] [--seconds S] [--repeat R] [--out PREFIX]

Several threads are faster on two cores only if each thread is slow. So each data thread and each
I/O thread of the agents gets a control group with --slow percent of a processor; the workers, the
servers and all other threads have the rest. All numbers of threads are measured in turn, with
clusters of their own on the loopback, which does not count as one host. A figure is a ratio to one
thread in the same run. --slow 0 gives all threads whole processors: this shows the cost of the
threads for small tensors (--bytes 4KiB). --workers: workers of each agent, whose tensors the agent
sums. --rate: hosts of their own with links of this rate (tests/netlab.sh), instead of the loopback.
Needs root and control groups of version 1.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import harness

CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20000


def threads_of(pid):
    """Return {name: id} of the threads that own connections."""
    found = {}
    while "data0" not in found:  # a thread gives itself its name shortly after its start
        found = named_threads(pid)
    return found


def named_threads(pid):
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith(("data", "io")) and name.lstrip("dataio").isdigit():
            # the threads of libuv's pool, which start later, have the name of the data thread
            found[name] = min(found.get(name, int(task.name)), int(task.name))
    return found


def busy_s(pid, tid):
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0]) / 1e9


class SlowThreads:
    """Control groups in which each thread of the agents has a share of a processor."""

    def __init__(self, percent):
        self.percent, self.groups = percent, []

    def slow_down(self, pids):
        if not self.percent:
            return
        for pid in pids:
            for name, tid in threads_of(pid).items():
                group = CPU / f"bps-slow-{pid}-{name}"
                group.mkdir()
                self.groups.append(group)
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US * self.percent // 100))
                (group / "tasks").write_text(str(tid))

    def close(self):
        """Remove the groups, while their threads still run."""
        for group in self.groups:
            for tid in (group / "tasks").read_text().split():
                (CPU / "tasks").write_text(tid)
            group.rmdir()


def share_discarded(before, after):
    """Return the share of the received bytes that came with an offer and were discarded."""
    got, lost = (
        after[name] - before[name]
        for name in ("bps_agent_received_bytes_total", "bps_agent_discarded_bytes_total")
    )
    return lost / got if got else 0.0


def measure(args, build, folder):
    """Return {threads: list of results}, one result for each repetition."""
    results = {n: [] for n in args.threads}
    with harness.Lab(1 + args.agents + args.servers, args.rate) as lab:
        processes = harness.Processes(None)
        for _ in range(args.repeat):
            for n in args.threads:
                slow = SlowThreads(args.slow)
                suite = harness.Suite(
                    build,
                    lab,
                    processes,
                    folder,
                    args.agents,
                    alone=args.servers,
                    same_host="off",
                    server_arg="--threads=4",
                    agent_arg=f"--threads={n} {args.agent_arg}",
                    workers=args.workers,
                )
                try:
                    pids = suite.pids["bps-agent"]
                    slow.slow_down(pids)
                    before = {p: {k: busy_s(p, t) for k, t in threads_of(p).items()} for p in pids}
                    counted = suite.metrics(suite.agent_http)
                    figures = suite.bench(args.bytes, 1, args.seconds, args.check)
                    used = {
                        k: statistics.mean(busy_s(p, threads_of(p)[k]) - before[p][k] for p in pids)
                        for k in before[pids[0]]
                    }
                    figures["discarded"] = share_discarded(counted, suite.metrics(suite.agent_http))
                finally:
                    slow.close()
                    suite.close()
                io = [s for k, s in used.items() if k.startswith("io")]
                mean = statistics.mean(io) if io else used["data0"]
                figures["data_over_io"] = used["data0"] / mean if mean else 0.0
                results[n].append(figures)
                print(
                    f"threads {n}: {figures['goodput_mbps']:8.1f} MB/s, median "
                    f"{figures['median_us']:.0f} us, CPU {figures['cpu_s_per_gb']:.2f} s/GB, data "
                    f"thread over I/O thread {figures['data_over_io']:.2f}, discarded "
                    f"{figures['discarded']:.2%}",
                    file=sys.stderr,
                    flush=True,
                )
    return results


def table(args, results):
    one = results[args.threads[0]]
    lines = [
        "| threads | goodput, MB/s | over the first row | median, us | over the first row "
        "| CPU s/GB | data thread / I/O thread | discarded |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n, rows in results.items():
        ratio = statistics.median(
            r["goodput_mbps"] / o["goodput_mbps"] for r, o in zip(rows, one, strict=True)
        )
        slower = statistics.median(
            r["median_us"] / o["median_us"] for r, o in zip(rows, one, strict=True)
        )
        middle = {k: statistics.median(r[k] for r in rows) for k in rows[0] if k != "bytes"}
        lines.append(
            f"| {n} | {middle['goodput_mbps']:.1f} | {ratio:.2f} | {middle['median_us']:.0f} "
            f"| {slower:.2f} | {middle['cpu_s_per_gb']:.2f} | {middle['data_over_io']:.2f} "
            f"| {middle['discarded']:.1%} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument(
        "--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4]
    )
    parser.add_argument("--slow", type=int, default=8, help="percent of a processor for a thread")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="workers of each agent")
    parser.add_argument("--rate", help="rate of hosts' links, such as 1gbit")
    parser.add_argument("--bytes", type=harness.size_bytes, default=64 << 20)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--agent-arg", default="", help="further options of bps-agent")
    parser.add_argument("--check", action="store_true", help="check every sum (costs time)")
    parser.add_argument("--out", type=Path, help="prefix of the files for the results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(args, args.build.resolve(), Path(folder))
    text = table(args, results)
    print(text)
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text + "\n")


if __name__ == "__main__":
    main()
