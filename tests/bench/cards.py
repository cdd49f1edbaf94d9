#!/usr/bin/env python3
"""Measure what a second network card of each machine is worth.

    tests/bench/cards.py build/release [--rate 500] [--second 500,250] [--bytes 32MiB]
        [--agents 2] [--servers 4] [--seconds S] [--repeat R] [--ecmp]

Each host is a network namespace with two links (tests/netlab.sh), the first of --rate Mbit/s. Each
server has a host of its own. In turn, all bytes use the first link, and the servers and the agents
use both: servers listen on the links in turn, and agents have the setting `cards`. --second: speeds
of the second link. --ecmp measures the same without the setting: the machines have an address on
`lo`, and the kernel divides the connections by a hash. --down S: also set the second link of an
agent down for S seconds, and report the longest round, and the goodput from 60 s after the link is
up again. Needs root.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import harness


def ip(lab, host, *words):
    subprocess.run(["ip", "-n", f"{lab.prefix}-{host}", *words], check=True, timeout=60)


def sysctl(lab, host, setting):
    command = ["ip", "netns", "exec", f"{lab.prefix}-{host}", "sysctl", "-qw", setting]
    subprocess.run(command, check=True, timeout=60)


def spread_by_hash(lab):
    """Give each host an address on `lo` that others reach over both links. Return the hosts."""
    address = "10.99.0.{}".format
    n = len(lab.hosts)
    for at in ("sw", *range(1, n + 1)):
        sysctl(lab, at, "net.ipv4.fib_multipath_hash_policy=1")
    for i in range(1, n + 1):
        ip(lab, i, "addr", "add", f"{address(i)}/32", "dev", "lo")
        hops = [f"nexthop via 10.77.{k}.254 dev eth{k}" for k in (0, 1)]
        ip(lab, i, "route", "add", "10.99.0.0/24", "src", address(i), *" ".join(hops).split())
        hops = [f"nexthop via 10.77.{k}.{i} dev br{k}" for k in (0, 1)]
        ip(lab, "sw", "route", "add", f"{address(i)}/32", *" ".join(hops).split())
    return [harness.Host(address(i + 1), h.enter) for i, h in enumerate(lab.hosts)]


def suite(args, lab, processes, folder, cards, second):
    hosts = lab.hosts[1 + args.agents :]
    nic = {h: second if i % cards else args.rate for i, h in enumerate(hosts)}
    return harness.Suite(
        args.build,
        lab,
        processes,
        folder,
        args.agents,
        alone=args.servers,
        server_arg=f"--threads {args.threads}",
        cards=cards,
        nic_mbps=nic,
    )


def set_link(lab, host, is_up):
    ip(lab, "sw", "link", "set", f"p{host}c1", "up" if is_up else "down")


def measure_down(args, second, folder):
    """Return what happens while the second link of the first agent is down."""
    with (
        harness.Lab(1 + args.agents + args.servers, f"{args.rate}mbit", cards=2) as lab,
        suite(args, lab, harness.Processes(None), folder, 2, second) as s,
    ):
        before = s.bench(args.bytes, 1, args.seconds, check=True)
        timers = [
            threading.Timer(2, set_link, (lab, 2, False)),
            threading.Timer(2 + args.down, set_link, (lab, 2, True)),
        ]
        for t in timers:
            t.start()
        during = s.bench(args.bytes, 1, args.down + 62, check=True)
        for t in timers:
            t.join()
        after = s.bench(args.bytes, 1, args.seconds, check=True)
        return (
            f"link down for {args.down} s, {args.rate} + {second}: all sums right, longest round "
            f"{during['max_us'] / 1e6:.2f} s (median before {before['median_us'] / 1e6:.2f} s), "
            f"goodput before {before['goodput_mbps']:.1f}, after {after['goodput_mbps']:.1f} MB/s"
        )


def measure(args, second, folder):
    """Return the goodputs in MB/s with the first link alone, with both, and spread by hash."""
    goodputs = {}
    with harness.Lab(1 + args.agents + args.servers, f"{args.rate}mbit", cards=2) as lab:
        lab.netlab("rate", lab.prefix, f"{second}mbit", "--card", "1")
        processes = harness.Processes(None)
        suites = {"one link": suite(args, lab, processes, folder, 1, args.rate)}
        suites["two links"] = suite(args, lab, processes, folder, 2, second)
        if args.ecmp:
            lab.hosts = spread_by_hash(lab)
            suites["spread by hash"] = suite(args, lab, processes, folder, 1, args.rate)
        try:
            for s in suites.values():
                s.bench(args.bytes, 1, 0.01, check=True)
            for _ in range(args.repeat):
                for name, s in suites.items():
                    figures = s.bench(args.bytes, 1, args.seconds)
                    goodputs.setdefault(name, []).append(figures["goodput_mbps"])
                    print(f"{name}: {figures['goodput_mbps']:.1f} MB/s", file=sys.stderr)
        finally:
            for s in suites.values():
                s.close()
    return goodputs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rate", type=int, default=500, help="Mbit/s of the first link")
    parser.add_argument(
        "--second", type=lambda text: [int(n) for n in text.split(",")], default=[500, 250]
    )
    parser.add_argument("--bytes", type=harness.size_bytes, default=32 << 20)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2, help="data threads of each server")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ecmp", action="store_true")
    parser.add_argument("--down", type=int, help="seconds without the second link")
    args = parser.parse_args()
    print("| links, Mbit/s | goodput, MB/s | over one link |\n|---|---|---|")
    for second in args.second:
        with tempfile.TemporaryDirectory() as folder:
            goodputs = measure(args, second, Path(folder))
        for name, values in goodputs.items():
            ratio = statistics.median(
                v / o for v, o in zip(values, goodputs["one link"], strict=True)
            )
            both = f"{args.rate}" if name == "one link" else f"{args.rate} + {second}, {name}"
            print(f"| {both} | {statistics.median(values):.1f} | {ratio:.2f} |", flush=True)
        if args.down:
            with tempfile.TemporaryDirectory() as folder:
                print(measure_down(args, second, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
