#!/usr/bin/env python3
"""Time from the start of bpsrun to the first sum, with one host and with several.

    tests/bench/starting.py BUILD [--hosts 8] [--runs 9] [--share 20]

The hosts are network namespaces. Each runs the same line `bpsrun -n 1 --nnodes N --head ADDRESS`.
The worker is a small C program, so that the time is that of the daemons. A run ends when the last
worker has its sum. The namespaces share the processors of this machine, and real hosts do not. So
each host has the share of one processor that --share states, in percent, by a control group of its
own. All shares together must leave a part of the processors free. With `--share 0` the hosts are
not limited. A third kind of run starts a job of its own on each host at the same time, which needs
about the same processor time as one job on all of them. The kinds take turns; the figures are
medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Lab

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10000
QUOTA_US_MIN = 1000  # of the kernel
END_S = 10  # for killed processes to end
ROOT = Path(__file__).resolve().parents[2]
WORKER = """
#include <bps.h>
#include <err.h>
#include <stdio.h>
#include <time.h>

int main(void)
{
	struct bps *b;
	struct bps_tensor *t;
	struct timespec now;

	if (bps_open(NULL, &b) || bps_declare(b, "t", BPS_F32, 1000, &t) ||
		bps_push_pull(t, BPS_SUM, 0) || bps_wait(t, 0))
		errx(1, "%s", bps_last_error());
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("%lld.%09ld\\n", (long long)now.tv_sec, now.tv_nsec);
	return bps_close(b, 0) ? 1 : 0;
}
"""


ONE, ALL, EACH = "one host", "all hosts", "a job on each host"


def build_worker(build: Path, folder: Path) -> Path:
    """Compile the worker, and return its path."""
    source, program = folder / "worker.c", folder / "worker"
    source.write_text(WORKER)
    library = [f"-L{build}", f"-Wl,-rpath,{build}", "-l:libbpsclient.so.0"]
    command = ["cc", f"-I{ROOT / 'libbpsclient'}", "-o", program, source, *library]
    subprocess.run(list(map(str, command)), check=True)
    return program


class Shares:
    """Control groups, one for each host, that limit its processes to a share of a processor."""

    def __init__(self, n_hosts: int, percent: int) -> None:
        self.groups: list[Path] = []
        if not percent:
            return
        quota_us = PERIOD_US * percent // 100
        if quota_us < QUOTA_US_MIN:
            sys.exit("A share must be at least 10 %: raise --share, or lower --hosts.")
        if percent * n_hosts > 85 * (os.cpu_count() or 1):
            sys.exit(
                "The shares of all hosts are over 85 % of the processors: lower --share or --hosts."
            )
        is_v2 = (CGROUPS / "cgroup.controllers").exists()
        root = CGROUPS if is_v2 else CGROUPS / "cpu"
        limits = {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us}
        if is_v2:
            limits = {"cpu.max": f"{quota_us} {PERIOD_US}"}
        try:
            for i in range(n_hosts):
                group = root / f"bps-start-{os.getpid()}-{i}"
                group.mkdir()
                self.groups.append(group)
                for name, value in limits.items():
                    (group / name).write_text(str(value))
        except OSError as error:
            self.close()
            sys.exit(f"Control groups for processors do not work: {error}. Use --share 0.")

    def __enter__(self) -> Shares:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enter(self, i: int) -> list[str]:
        """Return the start of a command that runs on the i-th host."""
        if not self.groups:
            return []
        return ["sh", "-c", f'echo $$ >{self.groups[i]}/cgroup.procs && exec "$@"', "sh"]

    def close(self) -> None:
        """Remove the groups. Processes that still run in them end first."""
        end = time.monotonic() + END_S
        for group in self.groups:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            while (group / "cgroup.procs").read_text() and time.monotonic() < end:
                time.sleep(0.01)
            group.rmdir()


def start(build: Path, worker: Path, lab: Lab, shares: Shares, i: int, place, env):
    """Start bpsrun on the i-th host. place: its options about nodes."""
    namespace = ["ip", "netns", "exec", f"{lab.prefix}-{i + 1}"]
    line = [*shares.enter(i), *namespace, build / "bpsrun", "-n", 1, *place]
    return subprocess.Popen(
        list(map(str, [*line, "--no-prefix", "--", worker])),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_sum_s(build: Path, worker: Path, lab: Lab, shares: Shares, kind: str, env) -> float:
    """Run one job on one host or on all hosts, or a job on each host. Return the time until the
    last worker has its sum."""
    n = 1 if kind == ONE else len(lab.hosts)
    begun = time.monotonic()
    nodes = []
    for i in range(n):
        size, head = (1, i) if kind == EACH else (n, 0)
        place = ["--nnodes", size, "--head", lab.hosts[head].address]
        nodes.append(start(build, worker, lab, shares, i, place, env))
    ended = []
    for node in nodes:
        out, err = node.communicate(timeout=120)
        if node.returncode:
            sys.exit(f"a node has ended with {node.returncode}: {err}")
        ended.append(float(out))
    return max(ended) - begun


def main() -> None:
    """Measure, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="folder of the build, such as build/release")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--share", type=int, default=20, help="percent of a processor of a host")
    args = parser.parse_args()
    build = args.build.resolve()
    key = subprocess.check_output([build / "bpsctl", "key", "new"], text=True).strip()
    env = {k: v for k, v in os.environ.items() if not k.startswith("BPS_")}
    env["BPS_CLUSTER_KEY"] = key
    times: dict[str, list[float]] = {ONE: [], ALL: [], EACH: []}
    with tempfile.TemporaryDirectory() as folder:
        worker = build_worker(build, Path(folder))
        with Lab(args.hosts, "none") as lab, Shares(args.hosts, args.share) as shares:
            for _ in range(args.runs):
                for kind, found in times.items():
                    found.append(first_sum_s(build, worker, lab, shares, kind, env))
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    for kind, found in times.items():
        shown = " ".join(f"{1000 * t:.0f}" for t in sorted(found))
        print(f"{kind}: median {1000 * medians[kind]:.0f} ms ({shown})")
    print(f"{args.hosts} hosts over one: {medians[ALL] / medians[ONE]:.2f}")
    print(f"{args.hosts} hosts over a job on each: {medians[ALL] / medians[EACH]:.2f}")


if __name__ == "__main__":
    main()
