"""Agents with I/O threads: all sums are right, and the threads run only under load."""

import signal

import pytest

from keeper import Job, kept_cluster
from reference import same_everywhere
from test_start import libfabric

ALWAYS = ["--faults", "agent.io.load=drop"]  # the threads run all the time


def figure(agent, name):
    for line in agent.get("/metrics").splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def io_threads_running(agent):
    return figure(agent, "bps_agent_io_threads_running")


@pytest.mark.parametrize("same_host", ["auto", "off"])
@pytest.mark.parametrize("workers,agents,servers", [(4, 2, 2), (3, 3, 1), (4, 1, 1)])
def test_sums_are_right_with_io_threads(cluster, workers, agents, servers, same_host):
    where = ["--same-host", same_host]
    c = cluster(
        agents=agents,
        servers=servers,
        server_args=where,
        agent_args=["--threads", "3", *ALWAYS, *where],
    )
    args = {
        "dtypes": ["f32", "f16", "bf16", "i64", "u8"],
        "ops": ["sum", "avg", "max"],
        "sizes": [1, 17, 4095, (1 << 20) + 3],
    }
    same_everywhere(c.run("matrix", workers, args))


def start_rounds(c, n_elems):
    stop = c.dir / "stop"
    args = {"n_elems": n_elems, "n_tensors": 4, "stop": str(stop)}
    started, progress = c.start_running("rounds_while", 2, args)
    return started, progress, stop


def finish(c, started, stop):
    stop.touch()
    c.finish(started)  # the workers have compared every sum


def test_io_threads_run_under_load_and_are_parked_at_rest(cluster):
    c = cluster(agents=2, servers=2, agent_args=["--threads", "2", "--same-host", "off"])
    started, _, stop = start_rounds(c, 1 << 20)
    c.wait_for("the threads run", lambda: io_threads_running(c.agents[0]) == 2)
    finish(c, started, stop)
    c.wait_for("the threads are parked", lambda: io_threads_running(c.agents[0]) == 0)
    c.run("rounds", 2, {"n_elems": 100, "n_rounds": 3})
    assert figure(c.agents[0], "bps_agent_io_threads") == 2
    assert figure(c.agents[0], "bps_agent_data_busy_seconds_total") > 0


def test_agent_has_no_io_thread_while_the_speed_of_its_card_is_unknown(cluster):
    c = cluster(agents=1, servers=1)
    c.run("rounds", 2, {"n_elems": 100, "n_rounds": 3})
    assert figure(c.agents[0], "bps_agent_io_threads") == 0


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_number_of_io_threads_may_change_at_a_restart(cluster, sig):
    """K7: the next process has 1, then 3 threads, and the job goes on."""
    c = kept_cluster(cluster, args=["--threads", "4", *ALWAYS])
    job = Job(c, 4)
    job.goes_on()
    agent = c.agents[0]
    at = agent.args.index("--threads") + 1
    for n in ("1", "3"):
        agent.args[at] = n
        agent.die(sig)
        job.goes_on()
    job.finish()


def test_lost_server_costs_no_round_with_io_threads(cluster):
    c = cluster(agents=2, servers=2, agent_args=["--threads", "2", *ALWAYS])
    started, progress, stop = start_rounds(c, 50000)
    c.servers[0].may_end_with.add(-signal.SIGKILL)
    c.servers[0].kill()
    progress.goes_on()
    finish(c, started, stop)


def test_agent_whose_io_thread_hangs_ends_itself(cluster):
    """C5: the beat of the data thread is the oldest beat of all threads that run."""
    faults = "agent.io.load=drop agent.io.turn=hang,after=100"
    c = cluster(agents=1, servers=1, agent_args=["--threads", "2", "--faults", faults])
    c.agents[0].may_end_with.add(70)
    assert c.agents[0].process.wait(30) == 70


@pytest.mark.skipif(not libfabric(), reason="libfabric is not installed")
def test_sums_are_right_with_io_threads_over_libfabric(cluster):
    where = ["--same-host", "off", "--provider", "tcp"]
    c = cluster(
        agents=2,
        servers=2,
        server_args=where,
        agent_args=["--threads", "3", *ALWAYS, *where],
    )
    args = {"dtypes": ["f32", "bf16"], "ops": ["sum"], "sizes": [1, 4095, (1 << 20) + 3]}
    same_everywhere(c.run("matrix", 4, args))
    started, progress, stop = start_rounds(c, 50000)
    c.servers[0].may_end_with.add(-signal.SIGKILL)
    c.servers[0].kill()
    progress.goes_on()
    finish(c, started, stop)
