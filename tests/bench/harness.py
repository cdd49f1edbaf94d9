"""Helpers of the programs in this folder.

The helpers make hosts with shaped network cards, run programs that measure, start our daemons on
these hosts, and run the competitors. The calling program decides the order of the runs. The
helpers keep no state between runs.
"""

import argparse
import atexit
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NETLAB = HERE.parent / "netlab.sh"
TRACES = HERE.parent / "traces"
TICK = os.sysconf("SC_CLK_TCK")
AUTOGROUP = Path("/proc/self/autogroup")
DEADLINE_S = 600
# Fraction of the link rate that TCP payload gets, with an MTU of 1500 bytes and TCP timestamps.
TCP_PAYLOAD = 1448 / 1514


def size_bytes(text):
    found = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB|)", text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a size: use a whole number of B, KiB, MiB or GiB, such as 16MiB"
        )
    number, unit = found.groups()
    return int(number) << {"B": 0, "": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]


def size_text(n):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n % (1 << shift) == 0:
            return f"{n >> shift} {unit}"
    return f"{n} B"


class Host:
    """A host. cards: the addresses of its network cards, of which the first is `address`."""

    def __init__(self, address, enter, cards=()):
        self.address, self.enter, self.cards = address, enter, [address, *cards]


class Lab:
    """Hosts with the indexes from 0 to `count` - 1, and with network cards of the given rate. If
    `rate` is None, the hosts are loopback addresses. cards: network cards of each host. delay_ms:
    time that each frame takes from host to host."""

    def __init__(self, count, rate=None, queue=None, cc=None, prefix=None, cards=1, delay_ms=None):
        self.prefix, self.rate, self.queue, self.cc = None, rate, queue, cc
        if not rate:
            self.hosts = [Host(f"127.0.{i // 200}.{10 + i % 200}", []) for i in range(count)]
            return
        self.prefix = prefix or f"b{os.getpid() % 1000000}"
        options = ["--cards", str(cards)]
        for name, value in (("queue", queue), ("cc", cc), ("delay", delay_ms)):
            if value:
                options += [f"--{name}", str(value)]
        self.netlab("up", self.prefix, str(count), rate, *options)
        self.hosts = [
            Host(
                self.netlab("addr", self.prefix, str(i + 1)).strip(),
                [NETLAB, "exec", self.prefix, str(i + 1)],
                [
                    self.netlab("addr", self.prefix, str(i + 1), str(k)).strip()
                    for k in range(1, cards)
                ],
            )
            for i in range(count)
        ]

    def netlab(self, *words):
        return subprocess.run(
            [NETLAB, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout

    def slow_down(self, i, mbps):
        """Set the rate of host i's card in both directions.

        The sizes of queue and burst are proportional to the rate, but have minimum values.
        """
        burst, queue = max(mbps * 1000 // 16, 80000), max(mbps * 2000, 2000000)
        for ns, device in ((f"{self.prefix}-{i + 1}", "eth0"), (f"{self.prefix}-sw", f"p{i + 1}")):
            subprocess.run(
                [
                    "tc",
                    "-n",
                    ns,
                    "qdisc",
                    "replace",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    f"{mbps}mbit",
                    "burst",
                    str(burst),
                    "limit",
                    str(self.queue or queue),
                ],
                check=True,
                timeout=60,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def drops(self):
        """Return the number of packets that the shapers have dropped."""
        if not self.prefix:
            return 0
        return sum(
            sum(map(int, line.split()[-2:]))
            for line in self.netlab("stat", self.prefix).splitlines()[1:]
        )

    def close(self):
        if self.prefix:
            self.netlab("down", self.prefix, "--kill")


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def busy_s():
    """Return the CPU seconds that all programs of this machine have used on all processors."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK  # idle time and I/O wait do not count


def favour_session():
    """Set the niceness of this session to -20 until this program exits.

    A kernel with autogroups divides the time between sessions first, by the niceness of each
    session. The niceness of a program counts only among the programs of its session. The file is
    empty for a program outside of these groups, for example in a cgroup of its own.
    """
    before = AUTOGROUP.read_text().split() if AUTOGROUP.exists() else []
    if before:
        AUTOGROUP.write_text("-20")
        atexit.register(AUTOGROUP.write_text, before[-1])


class Processes:
    """Programs on hosts: daemons, and programs that end after a measurement.

    The parameter `priority` sets the priority of all these programs, including daemons. "rt" is a
    real-time priority, above the priority of all programs without a real-time priority. "nice"
    gives the programs, and the session of this program, nearly all processor time under the normal
    scheduler. With the value None, the priority does not change. If more threads are busy than
    there are processors, "rt" distorts the result, because threads that spin, such as Gloo's, keep
    other threads from running.
    """

    PRIORITIES = {"rt": ["chrt", "-f", "10"], "nice": ["nice", "-n", "-20"], None: []}

    def __init__(self, priority):
        self.priority = self.PRIORITIES[priority]
        if priority == "nice":
            favour_session()
        self.daemons = []
        self.ended_cpu_s = 0.0

    def cpu_s(self):
        """Return the CPU seconds of all processes that this object has started."""
        return self.ended_cpu_s + sum(cpu_s(p.pid) for p in self.daemons)

    def spawn(self, host, command, env=None, **kw):
        full = dict(os.environ, **(env or {}))
        return subprocess.Popen(
            [*self.priority, *host.enter, *map(str, command)],
            env=full,
            stdin=subprocess.DEVNULL,
            **kw,
        )

    def run(self, started):
        """Run several commands at the same time. Each item is (host, command, env).

        Return the output of the first command, and the CPU seconds of all commands.
        """
        ps, cpu, failed = [], 0.0, []
        with tempfile.TemporaryFile("w+") as out:
            for i, (host, command, env) in enumerate(started):
                ps.append(
                    self.spawn(host, command, env, stdout=out if i == 0 else subprocess.DEVNULL)
                )
            end = time.monotonic() + DEADLINE_S
            for p in ps:
                pidfd = os.pidfd_open(p.pid)
                if failed or not select.select([pidfd], [], [], max(0, end - time.monotonic()))[0]:
                    # p.kill() would reap the process, and its CPU seconds would be lost
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
                _, status, usage = os.wait4(p.pid, 0)
                p.returncode = os.waitstatus_to_exitcode(status)
                cpu += usage.ru_utime + usage.ru_stime
                self.ended_cpu_s += usage.ru_utime + usage.ru_stime
                if p.returncode:
                    failed.append((p.args, p.returncode))
            if failed:
                raise RuntimeError(f"failed: {failed[0]}")
            out.seek(0)
            return out.read(), cpu


class Suite:
    """Our daemons, which are idle while competitors are measured.

    Host 0 of the lab has the scheduler. The next hosts have the agents. beside: number of servers
    on agents' hosts. Server i of these servers is on the host of agent i modulo the number of
    agents. alone: number of further servers. Each of them has its own host, after the agents'
    hosts. cards: number of network cards of each agent; server i listens on card i modulo this
    number. provider: transport of data connections. meet: if "all", all loopback addresses count as
    one host, so that the daemons use the same-host path. Otherwise each address counts as a host.
    Shaped hosts are always separate. workers: number of workers at each agent.
    """

    def __init__(
        self,
        build,
        lab,
        processes,
        folder,
        agents,
        beside=0,
        alone=0,
        same_host="auto",
        provider="auto",
        meet="all",
        server_arg="",
        agent_arg="",
        nic_mbps=None,
        workers=1,
        cards=1,
    ):
        folder = Path(tempfile.mkdtemp(dir=folder))
        self.build, self.lab, self.processes, self.folder = build.resolve(), lab, processes, folder
        self.same_host, self.provider, self.meet = same_host, provider, meet
        self.workers, self.cards, self.pids = workers, cards, {}
        self.daemons, self.n_jobs, self.n_metrics = [], 0, 0
        self.agent_hosts = lab.hosts[1 : 1 + agents]
        self.server_hosts = [self.agent_hosts[i % agents] for i in range(beside)] + lab.hosts[
            1 + agents : 1 + agents + alone
        ]
        key = folder / "cluster.key"
        key.write_text(
            subprocess.run(
                [self.build / "bpsctl", "key", "new"], check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        )
        key.chmod(0o600)
        self.key = ["--key-file", key]
        try:
            self.start_all(
                agents, beside, shlex.split(server_arg), shlex.split(agent_arg), nic_mbps or {}
            )
        except BaseException:
            self.close()
            raise

    def start_all(self, agents, beside, server_arg, agent_arg, nic_mbps):
        first = self.lab.hosts[0]
        port, self.scheduler_http = self.start(
            first, "bps-scheduler", "scheduler", ["--listen", f"{first.address}:0"]
        )
        to = ["--scheduler", f"{first.address}:{port}"]
        self.server_http, self.agent_http, self.sockets = [], [], []

        def card(host):
            return ["--nic-speed", str(nic_mbps[host])] if host in nic_mbps else []

        for i, host in enumerate(self.server_hosts):
            name = f"agent{i % agents}" if i < beside else f"server{i}"
            _, http = self.start(
                host,
                "bps-server",
                f"s{i}",
                [
                    "--listen",
                    f"{host.cards[i % self.cards]}:0",
                    *to,
                    "--name",
                    f"s{i}",
                    "--host",
                    name,
                    *self.where(host),
                    *card(host),
                    *server_arg,
                ],
            )
            self.server_http.append((host, http))
        for i, host in enumerate(self.agent_hosts):
            self.sockets.append(self.folder / f"a{i}.sock")
            _, http = self.start(
                host,
                "bps-agent",
                f"a{i}",
                [
                    "--listen",
                    f"{host.address}:0",
                    *to,
                    "--socket",
                    self.sockets[i],
                    "--name",
                    f"a{i}",
                    "--host",
                    f"agent{i}",
                    *(["--cards", ",".join(host.cards[1 : self.cards])] if self.cards > 1 else []),
                    *self.where(host),
                    *card(host),
                    *agent_arg,
                ],
            )
            self.agent_http.append((host, http))

    def where(self, host):
        one = self.meet == "all" and not self.lab.prefix
        folder = self.folder / ("loopback" if one else host.address)
        folder.mkdir(exist_ok=True)
        return [
            *("--same-host", self.same_host, "--same-host-dir", folder),
            *("--provider", self.provider),
        ]

    def start(self, host, program, name, options):
        r, w = os.pipe()
        with open(self.folder / f"{name}.log", "wb") as log:
            p = self.processes.spawn(
                host,
                [
                    self.build / program / program,
                    *options,
                    *self.key,
                    "--http",
                    "127.0.0.1:0",
                    "--ready-fd",
                    str(w),
                ],
                stdout=log,
                stderr=log,
                pass_fds=[w],
            )
        os.close(w)
        self.daemons.append(p)
        self.pids.setdefault(program, []).append(p.pid)
        self.processes.daemons.append(p)
        data, end = b"", time.monotonic() + 30
        with os.fdopen(r, "rb", buffering=0) as f:
            while b"HTTP=" not in data or not data.endswith(b"\n"):
                left = end - time.monotonic()
                chunk = f.read(4096) if left > 0 and select.select([f], [], [], left)[0] else b""
                if not chunk:
                    raise RuntimeError(
                        f"{name} does not start:\n{(self.folder / f'{name}.log').read_text()}"
                    )
                data += chunk
        pairs = dict(line.split("=", 1) for line in data.decode().split())
        return int(pairs["PORT"]), pairs["HTTP"].rsplit(":", 1)[-1]

    def cpu(self):
        return sum(cpu_s(p.pid) for p in self.daemons)

    def cpu_of(self):
        """Return {program: CPU seconds of its daemons}."""
        return {program: sum(map(cpu_s, pids)) for program, pids in self.pids.items()}

    def metrics(self, daemons):
        """Return {counter: its sum over daemons of one kind}."""
        total = {}
        for host, port in daemons:
            text = subprocess.run(
                [*host.enter, "curl", "-s", "--max-time", "5", f"http://127.0.0.1:{port}/metrics"],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            for line in text.splitlines():
                if not line.startswith("#") and len(line.split()) == 2:
                    name, value = line.split()
                    total[name] = total.get(name, 0) + float(value)
        return total

    def trainers(self, options):
        """Run the workers, each a bps-bench.

        Return one dict with the figures that rank 0 reports, the CPU seconds per GB of a worker's
        tensors that all processes, the agents and the servers use, and two counters of the agents.
        """
        self.n_jobs += 1
        n, started = len(self.agent_hosts) * self.workers, []
        for rank in range(n):
            i, local = divmod(rank, self.workers)
            host = self.agent_hosts[i]
            env = {
                "BPS_JOB": f"bench{self.n_jobs}",
                "BPS_RANK": str(rank),
                "BPS_SIZE": str(n),
                "BPS_LOCAL_RANK": str(local),
                "BPS_LOCAL_SIZE": str(self.workers),
                "BPS_AGENT_SOCKET": str(self.sockets[i]),
                "BPS_TIMEOUT": "120s",
            }
            started.append((host, [self.build / "bps-bench", "--json", *map(str, options)], env))
        before, counters = self.cpu_of(), self.metrics(self.agent_http)
        out, cpu = self.processes.run(started)
        used = {program: s - before[program] for program, s in self.cpu_of().items()}
        cpu += sum(used.values())
        after = self.metrics(self.agent_http)
        result = json.loads(out)
        figures = result["results"][0]
        moved_gb = result["bytes_moved"] / 1e9
        figures["cpu_s_per_gb"] = cpu / moved_gb
        figures["agents_s_per_gb"] = used["bps-agent"] / moved_gb
        figures["servers_s_per_gb"] = used["bps-server"] / moved_gb
        for name in ("bps_agent_repush_total", "bps_agent_reconnects_total"):
            figures[name] = after.get(name, 0) - counters.get(name, 0)
        return figures

    def bench(self, bytes_, depth, seconds, check=False, dtype=None):
        """Run bps-bench. With `dtype`, the rounds include the copies from and to arrays of f32,
        which have `bytes_` bytes each."""
        options = ["--bytes", bytes_, "--depth", depth, "--seconds", seconds]
        options += ["--copies", "--dtype", dtype] if dtype else []
        return self.trainers([*options, "--check"] if check else options)

    def replay(self, trace, compute_s, fifo, steps):
        options = ["--replay", trace, "--compute", compute_s, "--dtype", "f16", "--rounds", steps]
        return self.trainers([*options, "--fifo"] if fifo else options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for p in reversed(self.daemons):
            self.processes.ended_cpu_s += cpu_s(p.pid)
            p.terminate()
        for p in self.daemons:
            try:
                p.wait(15)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
            self.processes.daemons.remove(p)


def make_others(build, gloo_wanted=True, mpi_wanted=False, ours=("bps-bench",)):
    """Compile the competitors' programs. Our own programs must be built already."""
    missing = [str(build / name) for name in ours if not (build / name).exists()]
    if missing:
        sys.exit(f"{', '.join(missing)} not built: run make BUILD={build.name} bench-build")
    missing = [
        name
        for name, wanted in (("g++", gloo_wanted), ("mpicxx", mpi_wanted))
        if wanted and not shutil.which(name)
    ]
    if missing:
        sys.exit(
            f"{', '.join(missing)} not installed: run tests/install-deps.sh bench, which installs "
            "all competitors"
        )
    if gloo_wanted:
        subprocess.run(
            ["g++", "-O2", "-o", build / "gloo-bench", HERE / "gloo-bench.cc", "-lgloo"], check=True
        )
    if mpi_wanted:
        subprocess.run(
            ["mpicxx", "-O2", "-o", build / "mpi-bench", HERE / "mpi-bench.cc"], check=True
        )


def gloo(build, processes, hosts, algorithm, bytes_, seconds):
    try:
        return gloo_once(build, processes, hosts, algorithm, bytes_, seconds)
    except RuntimeError as e:  # about once in several hundred runs Gloo aborts, so try once more
        print(f"Gloo's {algorithm} failed and is repeated: {e}", file=sys.stderr, flush=True)
        return gloo_once(build, processes, hosts, algorithm, bytes_, seconds)


def gloo_once(build, processes, hosts, algorithm, bytes_, seconds):
    with tempfile.TemporaryDirectory() as store:
        out, cpu = processes.run(
            [
                (
                    h,
                    [
                        build.resolve() / "gloo-bench",
                        i,
                        len(hosts),
                        store,
                        h.address,
                        algorithm,
                        seconds,
                        bytes_,
                    ],
                    None,
                )
                for i, h in enumerate(hosts)
            ]
        )
    figures = json.loads(out)
    figures["cpu_s_per_gb"] = cpu / (figures["bytes_moved"] / 1e9)
    return figures


# Options of Open MPI for shared memory (sm) and TCP. By default Open MPI reduces large sizes in a
# ring. sm-segmented selects the ring with segments.
MPI = {
    "sm": ["--mca", "btl", "self,vader"],
    "sm-segmented": [
        "--mca",
        "btl",
        "self,vader",
        "--mca",
        "coll_tuned_use_dynamic_rules",
        "1",
        "--mca",
        "coll_tuned_allreduce_algorithm",
        "5",
    ],
    "tcp": ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"],
}


def mpi(build, processes, host, n, how, bytes_, seconds):
    command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-n",
        n,
        "--mca",
        "pml",
        "ob1",
        *MPI[how],
        build.resolve() / "mpi-bench",
        seconds,
        bytes_,
    ]
    out, cpu = processes.run([(host, command, None)])
    figures = json.loads(out)
    figures["cpu_s_per_gb"] = cpu / (figures["bytes_moved"] / 1e9)
    return figures


# ---- plain TCP ----


def tcp_receive(address, seconds):
    """Receive a stream for some seconds. Print the rate over the last two thirds of the time."""
    with socket.create_server((address, 0)) as s:
        print(s.getsockname()[1], flush=True)
        s.settimeout(30)
        c, _ = s.accept()
    buf = bytearray(1 << 20)
    c.settimeout(30)
    start = time.monotonic()
    begin, total = None, 0
    while True:
        n = c.recv_into(buf)
        now = time.monotonic()
        if begin is None and now - start > seconds / 3:
            begin, total = now, 0
        elif n:
            total += n
        if not n or now - start > seconds:
            break
    print(json.dumps({"goodput_mbps": total / (now - begin) / 1e6}), flush=True)


def tcp_send(address, port, seconds):
    buf = bytes(1 << 20)
    end = time.monotonic() + seconds + 5
    with socket.create_connection((address, int(port)), 30) as c:
        try:
            while time.monotonic() < end:
                c.sendall(buf)
        except OSError:
            pass  # the receiver has finished and closed the connection


def tcp(processes, sender, receiver, seconds):
    me = [sys.executable, Path(__file__).resolve()]
    r = processes.spawn(
        receiver, [*me, "tcp-receive", receiver.address, seconds], stdout=subprocess.PIPE, text=True
    )
    port = r.stdout.readline().strip()
    s = processes.spawn(sender, [*me, "tcp-send", receiver.address, port, seconds])
    processes.daemons += [r, s]
    try:
        line = r.stdout.readline()
        spent = cpu_s(r.pid)  # read the CPU time while both processes still exist
        spent += cpu_s(s.pid)
    finally:
        for p in (r, s):
            processes.daemons.remove(p)
    processes.ended_cpu_s += spent
    r.wait(60)
    s.wait(60)
    return json.loads(line)


def probe(build, processes, host, *words):
    """Measure one part of a push_pull alone (tests/bench/probe)."""
    out, _ = processes.run([(host, [build.resolve() / "tests" / "bps-probe", *words], None)])
    return json.loads(out)


def trace_bytes(path):
    """Return the bytes of a recorded model whose elements are f16."""
    rows = [
        line.split("\t")
        for line in path.read_text().splitlines()
        if not line.startswith(("#", "name\t"))
    ]
    return 2 * sum(int(r[1]) for r in rows)  # an f16 element has 2 bytes


def most_connections(suite, measure):
    """Call the function `measure`.

    Return the result of the call, and the largest number of data connections that the servers had
    during the call.
    """
    most, done = [0], threading.Event()

    def look():
        while not done.wait(0.2):
            most.append(suite.metrics(suite.server_http)["bps_server_connections"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        figures = measure()
    finally:
        done.set()
        thread.join()
    return {**figures, "connections": max(most)}


def main():
    """Run one end of a TCP stream. tcp() starts this program on each host."""
    if sys.argv[1:2] == ["tcp-receive"]:
        tcp_receive(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1:2] == ["tcp-send"]:
        tcp_send(sys.argv[2], sys.argv[3], float(sys.argv[4]))


if __name__ == "__main__":
    main()
