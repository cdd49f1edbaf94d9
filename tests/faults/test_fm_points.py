"""Test each failpoint of each daemon with each action, while a job runs.

A scenario makes a daemon reach the failpoint. The cell waits until the daemon reports that the
fault acted. So a cell whose scenario does not reach the failpoint fails.
"""

import socket
import subprocess
import time

import pytest

from cluster import BUILD
from lab import all_are_back, wait_until

STAY = 5
# time limit of bps_close when no scheduler can confirm that all workers have finished
PATIENCE = {"BPS_TIMEOUT": "20s"}
ENDS_S = 60  # limit in seconds: a second job must end in this time, with or without an error
RELEASE_S = 1  # time in which SIGHUP ends a hang, unless the main thread hangs
SOME = 200000  # elements of a tensor that has partitions on both servers
LARGE = 16 << 20  # elements of a tensor for which each data thread of a server needs more memory
STILL_S = 0.3  # a job whose rounds take 15 ms is blocked if it does no round in this time
FATAL = {"agent.contrib.echo": "drop"}  # the job must end after this action: see FM-E-diverged


class Fault:
    """A fault of a running or starting daemon.

    d: the daemon. text: the fault as a setting, for example server.sum.start=sleep:300ms,count=1.
    """

    def __init__(self, c, job, d, point, action):
        self.c, self.job, self.d, self.point, self.action = c, job, d, point, action
        more = {"sleep": "sleep:300ms", "error": "error:EIO"}.get(action, action)
        # A message that is lost twice in a row takes 6 s (faults.md, B5), so drop only one message
        self.text = f"{point}={more},count={5 if action == 'error' else 1}"
        self.process = None  # the process in which the fault acted

    def arm(self, *more):
        """Set the fault, and more faults, in the running daemon."""
        n = self.d.log.read_text().count("faults will be injected")
        self.d.faults(" ".join([self.text, *more]), is_confirmed=False)
        self.c.wait_for(
            "the daemon has its faults",
            lambda: self.d.log.read_text().count("faults will be injected") > n,
        )
        # remove the faults from the file, so that a restarted daemon does not read them again
        self.d.conf.write_text("")

    def start(self):
        """Restart the daemon with the fault in its settings."""
        self.d.set_faults(self.text)
        if self.d in self.c.agents:  # the service manager restarts the agent
            self.d.process.kill()
        else:
            self.d.kill()
            self.d.begin_again()

    def has_acted(self):
        pid = self.d.acted()[f"{self.point}={self.action}"]
        self.process = next((p for p in self.d.processes if p.pid == pid), None)
        return self.process is not None

    def await_action(self):
        self.c.wait_for(f"the fault {self.text} acts in {self.d.name}", self.has_acted)

    def end(self):
        """End the fault, so that the daemon works again.

        A thread that hangs goes on, because SIGHUP removes the fault. If the main thread hangs, it
        does not receive SIGHUP, and the process is killed, as a service manager's watchdog does.
        """
        d, process = self.d, self.process
        d.conf.write_text("")
        if self.action == "crash":
            process.wait(10)
        elif process.poll() is None:
            n = d.log.read_text().count("reloaded:")
            d.faults("", is_confirmed=False)
            if self.action == "hang" and not wait(
                lambda: d.log.read_text().count("reloaded:") > n, RELEASE_S
            ):
                process.kill()
                process.wait(10)
        if self.point == "daemon.stop":
            process.wait(10)
        if d in self.c.agents:
            return
        if d.process.poll() is not None:
            d.start_again()
        elif d.starting is not None:
            d.await_start()


def wait(condition, seconds):
    """Wait until a condition is true. Return whether it became true in this time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        wait_until(time.monotonic() + 0.01)
    return True


# ---- scenarios: each sets the fault, makes the daemon reach the failpoint, and returns a function
# that ends the scenario after the fault ----


def new_job(c, what, **args):
    args = {"what": what, "args": args, "open": {"open_timeout": 10}}
    return c.start_job("error", 2, args, env=PATIENCE)


def new_jobs(f):
    """Start two jobs. Each job must work or end with an error."""
    f.arm()
    barrier = new_job(f.c, "barrier")
    push = new_job(f.c, "wait_for_servers", timeout=10, n_elems=SOME)
    return lambda: f.c.finish([*barrier, *push], ENDS_S)


def start(f):
    f.start()
    return lambda: None


def memory(f):
    """Let the daemon make memory, for the running job or (if it fails) for a new job of large
    tensors, which must end with an error."""
    if f.action != "error":
        return start(f)
    f.arm()
    large = new_job(f.c, "wait_for_servers", timeout=10, n_elems=LARGE)

    def end():
        results = f.c.finish(large, ENDS_S)
        assert all(r["code"] < 0 for r in results), results
        assert any("memory" in r["text"] for r in results), results

    return end


def stop(f):
    f.arm()
    f.d.process.terminate()
    return lambda: None


def request(f):
    """Request an HTTP page. Do not wait for the answer, which a fault may delay."""
    f.arm()
    s = socket.create_connection(("127.0.0.1", f.d.http), timeout=5)
    s.sendall(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
    return s.close


def agent_restarts(f):
    f.arm()
    f.c.agents[0].die()
    return lambda: None


def server_restarts(f):
    f.arm()
    f.c.servers[0].kill()
    f.c.servers[0].begin_again()
    return f.c.servers[0].await_start


def server_is_lost(f):
    f.arm()
    f.c.servers[0].kill()
    return f.c.servers[0].start_again


def give_partitions_to(c, server):
    """Move all partitions to a server, and let the other server take partitions again."""
    other = next(s.name for s in c.servers if s is not server)
    assert c.steer("drain", other, "--wait").returncode == 0
    assert c.steer("undrain", other).returncode == 0


def move(f):
    """Move partitions to server s1.

    Agents report the results that they have to s1, because most partitions are idle at any time.
    """
    give_partitions_to(f.c, f.c.servers[0])
    f.arm()
    assert f.c.steer("drain", "s0").returncode == 0
    return lambda: f.c.steer("undrain", "s0")


def donation(f):
    """Lose a server when only one of two agents has the results of a round.

    Agent a0 drops all results until the job is blocked. The other server requests the results from
    agent a1.
    """
    agent, server = f.c.agents[0], f.c.servers[0]
    give_partitions_to(f.c, server)
    f.arm()
    agent.faults("agent.result.received=drop")
    seen, since = None, 0.0

    def is_blocked():
        nonlocal seen, since
        at = f.job.rounds(0), f.job.rounds(1)
        if at != seen:
            seen, since = at, time.monotonic()
        return at[1] == at[0] + 1 and time.monotonic() > since + STILL_S

    f.c.wait_for("only agent a1 has the results of a round", is_blocked)
    server.kill()
    agent.faults("")
    return server.start_again


def lost_result(f):
    """Lose a result, so that the agent repeats its contribution."""
    f.arm("agent.result.received=drop,count=1")
    return lambda: None


def order(f):
    f.arm()
    p = subprocess.Popen(
        [str(BUILD / "bpsctl"), "--scheduler", f"127.0.0.1:{f.c.scheduler.port}", "undrain", "s0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=f.c.env,
    )
    return lambda: p.wait(10)


def job_ends(f):
    """End jobs until agents report to the server that they have read its last results.

    The server's main thread is slow, so that it does not remove the partitions of the job before.
    """
    f.arm("member.beat.before-send=sleep:700ms")
    for _ in range(8):
        if f.has_acted():
            break
        f.c.finish(new_job(f.c, "wait_for_servers", timeout=10, n_elems=SOME), ENDS_S)
    return lambda: None


def grown_log(f):
    """Start jobs of many tensors until the scheduler replaces its log by a shorter one."""
    f.arm()
    held = []
    while not f.has_acted():
        held += f.c.start_job(
            "hold", 1, {"n": 20000, "what": "x" * 200}, env={"BPS_FORCE_DISTRIBUTED": "1"}
        )
        assert len(held) < 8
        wait(f.has_acted, 5)

    def end():
        for w in held:
            w.process.kill()
            w.process.wait()

    return end


SCENARIOS = {
    "agent.donate.before-send": donation,
    "agent.have.before-send": move,
    "agent.link.connect": server_restarts,
    "agent.link.down": server_restarts,
    "agent.link.up": server_restarts,
    "agent.retry": lost_result,
    "control.connect": start,
    "daemon.http": request,
    "daemon.ready": start,
    "daemon.stop": stop,
    "member.welcome": start,
    "net.accept": agent_restarts,
    "net.register": memory,
    "scheduler.hello.received": server_restarts,
    "scheduler.log.rename": grown_log,
    "scheduler.member.down": server_is_lost,
    "scheduler.steer.received": order,
    "server.donate.received": donation,
    "server.donation.ask": donation,
    "server.got.received": job_ends,
    "server.have.received": move,
    "server.memory.segment": memory,
    "server.peer.down": agent_restarts,
    "server.peer.up": agent_restarts,
}


def points():
    """Yield the parameters (role, failpoint, actions) for each failpoint of each daemon."""
    for role in ("server", "agent", "scheduler"):
        program = BUILD / f"bps-{role}" / f"bps-{role}"
        if not program.exists():
            continue
        out = subprocess.run(
            [str(program), "--failpoints"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        for line in out.splitlines():
            name, actions = line.split()[0], line.rsplit(";", 1)[1].split()
            actions = [a for a in actions if a != FATAL.get(name)]
            yield pytest.param(role, name, actions, id=f"{role}-{name}")


@pytest.mark.parametrize("role, point, actions", list(points()))
def test_fault_at_any_point_costs_the_running_job_no_round(faulty, cell, role, point, actions):
    """FM-P: a crash, sleep, hang, error or drop happens at this failpoint of one daemon.

    A running job continues with exact sums. A job that is started during the fault either works or
    ends with an error.
    """
    c = faulty(is_kept=True)
    job = c.steady(2, n_tensors=3).wait_rounds()
    d = {"server": c.servers, "agent": c.agents, "scheduler": [c.scheduler]}[role][-1]
    at = time.monotonic()
    for action in actions:
        f = Fault(c, job, d, point, action)
        end = SCENARIOS.get(point, new_jobs)(f)
        f.await_action()
        if action in ("crash", "hang"):
            f.end()
        end()
        f.end()
        c.wait_for("all members are up", lambda: all_are_back(c))
        job.wait_rounds(STAY)
    cell.within("stall", job.stall(at), 5)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
