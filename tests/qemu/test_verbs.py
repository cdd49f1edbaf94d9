"""Real daemons over libfabric's provider verbs, on the kernel's software RDMA device (rdma_rxe)."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, DEADLINE_S
from keeper import KeptDaemon

DTYPES = ["f32", "f16", "i32"]
# Numbers of elements. Tensors of up to 16 KiB are sent inside a message. The largest tensor has
# many partitions.
SIZES = [1, 4096, 50_000, 200_000]
PART_BYTES = 64 << 10


@pytest.mark.parametrize("program, n_tests", [("test_net", 18), ("test_fabric", 10)])
def test_transport_keeps_its_promises_on_verbs(program, n_tests):
    """Run the transport's unit tests with provider verbs. Tests of TCP itself are skipped."""
    env = dict(
        os.environ,
        BPS_TEST_PROVIDER="verbs",
        BPS_TEST_ADDRESS="10.9.9.1",
        CMOCKA_MESSAGE_OUTPUT="TAP",
    )
    p = subprocess.run(
        [str(BUILD / "tests" / program)], capture_output=True, text=True, env=env, check=False
    )
    passed = re.findall(r"^ok \d+(?!.*# SKIP)", p.stdout, re.M)
    assert p.returncode == 0 and len(passed) >= n_tests, p.stdout[-6000:] + p.stderr[-2000:]


def rdma(*words):
    return subprocess.run(["rdma", *words], capture_output=True, text=True, check=True).stdout


def counted(kind, daemon):
    """Return how many queue pairs, memory regions, ... the daemon has in the kernel."""
    owners = [
        re.search(r" pid (\d+) ", line) for line in rdma("resource", "show", kind).splitlines()
    ]
    return len(
        [m for m in owners if m and Path(f"/proc/{daemon.process.pid}/task/{m[1]}").exists()]
    )


def packets():
    return int(Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts").read_text())


def received(daemon):
    return daemon.status()["received_bytes"]


def test_sums_of_all_sizes_and_types_are_exact_and_come_over_the_device(verbs):
    c = verbs(agents=2, servers=2)
    before = packets()
    args = {"dtypes": DTYPES, "ops": ["sum"], "sizes": SIZES, "rounds": 2, "part_bytes": PART_BYTES}
    results = c.run("matrix", 4, args)
    assert all(r == results[0] for r in results)  # the digests of all sums are equal at all workers
    members = c.servers + c.agents
    assert all(counted("qp", d) >= 2 and counted("mr", d) >= 2 for d in members), rdma(
        "resource", "show"
    )
    # Each agent has received all sums. Each packet has at most 4 KiB.
    total = sum(map(received, members))
    assert total > 2 * 2 * sum(SIZES) * (4 + 2 + 4) and packets() - before >= total // 4096
    for d in members:
        assert d.status()["same_host"]["received_bytes"] == 0
        assert "<3>" not in d.log.read_text(), d.log.read_text()


class Rounds:
    """A job that checks all sums until it is stopped."""

    def __init__(self, c, workers=2):
        self.c, self.stop, self.trace = c, c.dir / "stop", c.dir / "trace"
        args = {
            "sizes": [200_000, 1000, 70_001],
            "stop": str(self.stop),
            "trace": str(self.trace),
            "deterministic": True,
        }
        self.job = c.start_job("kept_rounds", workers, args)
        self.go_on()

    def done(self):
        return self.trace.read_text().count("\n") if self.trace.exists() else 0

    def go_on(self, n=3):
        want = self.done() + n
        self.c.wait_for(
            f"{n} more rounds",
            lambda: self.done() >= want or any(w.process.poll() for w in self.job),
        )
        assert self.done() >= want, "\n".join(w.text() for w in self.job)

    def finish(self):
        self.stop.touch()
        results = self.c.finish(self.job)
        assert all(r == results[0] for r in results)
        return results[0][0]


def start_again(server):
    """Restart a killed server with the same address."""
    at = server.args.index("--listen") + 1
    server.args[at] = f"{server.args[at].split(':')[0]}:{server.port}"
    server.start()


def test_job_goes_on_with_exact_sums_when_servers_are_killed_and_started_again(verbs):
    c = verbs(agents=2, servers=2)
    job = Rounds(c)
    for server, other in (c.servers, c.servers[::-1]):
        server.kill()
        job.go_on()
        start_again(server)
        before = received(server)
        other.kill()  # all partitions of `other` move to the server that was restarted
        job.go_on()
        assert received(server) > before
        start_again(other)
        job.go_on()
    assert job.finish() >= 18


def test_agent_that_comes_back_registers_its_trainers_memory_again(verbs):
    c = verbs(agents=1, servers=2)
    kept = c.add_agent(1, kind=KeptDaemon)
    job = Rounds(c)
    for _ in range(2):
        kept.die()
        job.go_on()
    assert counted("mr", kept) >= 2
    job.finish()


def test_io_threads_of_an_agent_register_memory_once(verbs):
    """The I/O threads share a protection domain, and a job's memory is registered once in it."""
    c = verbs(agents=1, servers=2)
    one, three = c.agents[0], c.add_agent(1, "--threads", "3", "--faults", "agent.io.load=drop")
    # From now on there are connections, and the buffers for their messages are registered.
    c.run("rounds", 2, {"n_elems": 60_000, "n_rounds": 2, "n_tensors": 3})
    c.wait_for("memory is free", lambda: not any(a.status()["shared_bytes"] for a in c.agents))
    before = {a: counted("mr", a) for a in (one, three)}
    job = Rounds(c)
    job.go_on()
    added = {a: counted("mr", a) - before[a] for a in (one, three)}
    assert added[three] == added[one] > 0
    assert counted("pd", three) == counted("pd", one)
    job.finish()


def test_jobs_that_end_leave_nothing_registered(verbs):
    c = verbs(agents=2, servers=2)
    members = c.servers + c.agents

    def use():
        c.run("rounds", 2, {"n_elems": 60_000, "n_rounds": 2, "n_tensors": 3})
        c.wait_for(
            "memory is free",
            lambda: (
                not any(a.status()["shared_bytes"] for a in c.agents)
                and not any(s.status()["sums_bytes"] for s in c.servers)
            ),
        )

    def held():
        return [counted(kind, d) for d in members for kind in ("mr", "qp", "cq", "pd")]

    use()
    before = held()
    assert all(before)
    for _ in range(2):
        use()
    c.wait_for(
        "the daemons hold no more kernel objects than before",
        lambda: all(n <= m for n, m in zip(held(), before)),
    )


def end_of_another(c, daemon, *args, prefix=()):
    """Start a second process that runs the program of `daemon`. The second process must end by
    itself. Return the exit status and the log of the second process."""
    command = [
        *prefix,
        str(BUILD / daemon.program / daemon.program),
        *daemon.args,
        "--name",
        "another",
        *args,
    ]
    p = subprocess.run(
        [*command, "--http", "127.0.0.1:0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=c.env,
        check=False,
        timeout=DEADLINE_S,
    )
    return p.returncode, p.stderr


def test_port_in_use_is_reported(verbs):
    c = verbs(agents=0, servers=1)
    status, text = end_of_another(c, c.servers[0], "--listen", f"10.9.9.100:{c.servers[0].port}")
    assert (
        status == 75 and "Address already in use" in text and "rdma resource show cm_id" in text
    ), text


def may_lock(limit_bytes):
    """Return a prefix for a command. The prefix limits the memory that the command may lock."""
    return (
        "prlimit",
        f"--memlock={limit_bytes}:{limit_bytes}",
        "setpriv",
        "--bounding-set=-ipc_lock",
    )


def test_daemon_that_may_not_lock_memory_says_so_and_ends(verbs):
    c = verbs(agents=1, servers=1)
    for d, args in ((c.agents[0], ("--socket", str(c.dir / "another.sock"))), (c.servers[0], ())):
        status, text = end_of_another(c, d, *args, prefix=may_lock(8 << 20))
        assert status == 78 and "only 8192 KiB" in text and "LimitMEMLOCK=infinity" in text, text


def test_auto_chooses_verbs_where_the_address_is_on_an_active_port(verbs):
    c = verbs(agents=0, servers=0)
    here = c.add_server(0, "--provider", "auto")
    assert here.status()["provider"] == "verbs", here.log.read_text()
    status, text = end_of_another(c, here, "--listen", "127.0.0.1:0")
    assert status == 75 and "provider 'auto' means 'sockets': address=127.0.0.1" in text, text
    assert "server 's0' on server-host0 uses 'verbs': set `provider` to the same value" in text
