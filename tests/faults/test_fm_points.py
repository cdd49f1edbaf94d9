"""Test each failpoint of each daemon with each action, while a job runs and another job starts."""

import subprocess
import time

import pytest

from cluster import BUILD

STAY = 5
# time limit of bps_close when no scheduler can confirm that all workers have finished
PATIENCE = {"BPS_TIMEOUT": "20s"}
ENDS_S = 60  # limit in seconds: a second job must end in this time, with or without an error
UNMET = ("daemon.stop",)  # while a job runs, no daemon reaches these failpoints
FATAL = {"agent.contrib.echo": "drop"}  # the job must end after this action: see FM-E-diverged


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
            if name not in UNMET:
                actions = [a for a in actions if a != FATAL.get(name)]
                yield pytest.param(role, name, actions, id=f"{role}-{name}")


def arm(d, point, action):
    more = {"sleep": "sleep:300ms", "error": "error:EIO"}.get(action, action)
    # A message that is lost twice in a row takes 6 s (faults.md, B5), so drop only one message
    count = 5 if action == "error" else 1
    n = d.log.read_text().count("faults will be injected")
    d.faults(f"{point}={more},count={count}", is_confirmed=False)
    d.cluster.wait_for(
        "the daemon has its failpoints",
        lambda: d.log.read_text().count("faults will be injected") > n,
    )
    # remove the failpoint from the file, so that a restarted daemon does not read it again
    d.conf.write_text("")


def revive(d, role):
    """Remove the faults of a daemon that runs. Restart a server or a scheduler that has ended.

    If an agent has ended, its service manager restarts it.
    """
    if role != "agent" and d.process.poll() is not None:
        d.start_again()
    elif d.process.poll() is None:
        d.faults("", is_confirmed=False)


@pytest.mark.parametrize("role, point, actions", list(points()))
def test_fault_at_any_point_costs_the_running_job_no_round(faulty, cell, role, point, actions):
    """FM-P: a crash, sleep, error or drop happens at this failpoint of one daemon.

    A running job continues with exact sums. A job that is started during the fault either works or
    ends with an error.
    """
    c = faulty(is_kept=True)
    job = c.steady(2, n_tensors=3).wait_rounds()
    d = {"server": c.servers, "agent": c.agents, "scheduler": [c.scheduler]}[role][-1]
    at = time.monotonic()
    for action in actions:
        if action == "hang":
            continue  # threads that hang are covered by FM-S-thread, FM-A-thread, FM-H-stop
        arm(d, point, action)
        second = c.start_job(
            "error", 2, {"what": "barrier", "open": {"open_timeout": 10}}, env=PATIENCE
        )
        pushed = c.start_job(
            "error",
            2,
            {"what": "wait_for_servers", "args": {"timeout": 10}, "open": {"open_timeout": 10}},
            env=PATIENCE,
        )
        for w in (*second, *pushed):
            w.process.wait(ENDS_S)
            assert w.process.returncode == 0, w.text()
        revive(d, role)
        job.wait_rounds(STAY)
        # The daemon does not reach some failpoints until it handles the end of the second job. So
        # the daemon may crash after the first revive(), and a second revive() is necessary.
        revive(d, role)
    cell.within("stall", job.stall(at), 5)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
