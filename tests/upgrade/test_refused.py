"""A release with another version of a format is refused in words that name both versions.

Nothing else is lost: other jobs go on, and files stay as they are.
"""

import re

import pytest

from cluster import DEADLINE_S, host_executor
from keeper import kept_cluster
from releases import replace, start_job, strangers
from test_device import Rig

EX_CONFIG = 78


def pairs(name, *same):
    """Parametrize a test with pairs of releases that have different versions of a format.

    The test gets the release that runs, the release that comes, and their versions of the format.
    same: formats that must be equal, because a difference in one of them is refused first.
    """
    return pytest.mark.parametrize(
        "here,other,ours,theirs",
        [
            pytest.param(a, b, a.version(name), b.version(name), id=f"{a}-{b}")
            for pair in strangers(name)
            if all(pair[0].version(other) == pair[1].version(other) for other in same)
            for a, b in (pair, pair[::-1])
        ],
    )


def log_of(daemon):
    return daemon.log.read_text()


def wait_for_words(c, daemon, pattern):
    """Wait until the daemon's log matches a regular expression."""
    c.wait_for(
        f"the log of {daemon.name} has: {pattern}", lambda: re.search(pattern, log_of(daemon))
    )


def ended_with(daemon, status, pattern):
    """Wait until a daemon ends by itself with the status, and with the words in its log."""
    assert daemon.process.wait(DEADLINE_S) == status, log_of(daemon)
    assert re.search(pattern, log_of(daemon)), log_of(daemon)
    daemon.may_end_with.add(status)


def has_failed(c, job, pattern):
    """Wait until all workers of a job have failed. The error of each must have the words."""
    for w in job.workers:
        assert w.process.wait(DEADLINE_S) != 0
        assert re.search(pattern, w.text()), (w.text()[-3000:], c.logs())


@pairs("CTL_PROTO")
@pytest.mark.parametrize("program", ["bps-server", "bps-agent"])
def test_member_with_another_control_protocol(cluster, here, other, ours, theirs, program):
    c = kept_cluster(cluster, build=here.build)
    job = start_job(c, here, 4)
    c.build = other.build
    args = ["--listen", "127.0.0.77:0", "--scheduler", f"127.0.0.1:{c.scheduler.port}"]
    args += ["--socket", c.dir / "stranger.sock"] if program == "bps-agent" else []
    stranger = c.spawn(program, "stranger", "--name", "stranger", *args)
    words = rf"uses control protocol {theirs}, but the scheduler .* uses {ours}:"
    ended_with(stranger, EX_CONFIG, words)
    assert re.search(words, log_of(c.scheduler))
    job.goes_on()
    job.finish()


@pairs("CTL_PROTO", "STATELOG_VERSION")
def test_scheduler_with_another_control_protocol(cluster, here, other, ours, theirs):
    """The members end, because no new start would help. Nothing is lost but the jobs."""
    c = cluster(agents=2, servers=2, build=here.build)
    job = start_job(c, here)
    replace(c.scheduler, other)
    members = [*c.servers, *c.agents]
    words = rf"uses control protocol {ours}, but the scheduler .* uses {theirs}:"
    for m in members:
        ended_with(m, EX_CONFIG, words)
    has_failed(c, job, "agent")
    replace(c.scheduler, here)
    for m in members:
        m.start()
    start_job(c, here).finish()


@pairs("STATELOG_VERSION")
def test_state_log_of_another_format_stays_untouched(cluster, here, other, ours, theirs):
    c = kept_cluster(cluster, build=here.build)
    job = start_job(c, here, 4)
    log, s = c.dir / "state" / "state.log", c.scheduler
    s.pin()
    s.kill()
    before = log.read_bytes()
    s.build = other.build
    with pytest.raises(AssertionError, match="before it served"):
        s.start()
    ended_with(s, EX_CONFIG, rf"state.log' has format {ours}, but this release reads .* {theirs}:")
    assert log.read_bytes() == before
    assert not (log.parent / "state.log.new").exists()
    s.build = here.build
    s.start()
    job.goes_on()
    job.finish()


@pairs("LOCAL_ABI")
def test_library_of_another_protocol(cluster, here, other, ours, theirs):
    c = kept_cluster(cluster, build=here.build)
    job = start_job(c, here, 4)
    stranger = c.start_job("rounds", 2, {"n_elems": 10, "n_rounds": 1}, env=other.env)
    words = rf"libbpsclient \S+ uses protocol version {theirs}, but this .* version {ours}: install"
    for w in stranger:
        assert w.process.wait(DEADLINE_S) != 0
        assert re.search(words, w.text()), w.text()
    job.goes_on()
    job.finish()


@pairs("LOCAL_ABI", "CTL_PROTO", "LEDGER_VERSION")
def test_agent_does_not_go_on_with_a_library_of_another_protocol(
    cluster, here, other, ours, theirs
):
    c = kept_cluster(cluster, build=here.build)
    job = start_job(c, here, 4)
    replace(c.agents[0], other)
    words = rf"libbpsclient uses protocol version {ours}, but this .* uses version {theirs}"
    for w in job.workers[:2]:
        assert w.process.wait(DEADLINE_S) != 0
        assert re.search(rf"cannot continue this job: .*{words}: start the job again", w.text())
    assert re.search(words, log_of(c.agents[0]))
    has_failed(c, job, "bps")
    replace(c.agents[1], other)
    start_job(c, other).finish()


@pairs("LOCAL_ABI")
def test_executor_of_another_protocol(cluster, here, other, ours, theirs):
    program = ["--gpu-program", str(host_executor(other.build))]
    r = Rig(lambda **kw: cluster(**kw, build=here.build), "host", agents=1, args=program)
    args = {"sizes": [10], "n_rounds": 1}
    # With only one worker, no other worker's error can arrive first.
    env = {**r.env, **here.env, "BPS_FORCE_DISTRIBUTED": "1"}
    (w,) = r.c.start_job("device_rounds", 1, args, env=env)
    assert w.process.wait(DEADLINE_S) != 0
    words = rf"uses protocol version {ours}, but bps-agent-host \S+ uses version {theirs}: install"
    assert re.search(words, w.text()), w.text()
    start_job(r.c, here).finish()


@pytest.mark.parametrize("here,other", strangers("BPS_ABI"), ids=str)
def test_library_with_another_interface_than_its_package(cluster, here, other):
    c = cluster(agents=1, servers=1, build=here.build)
    mixed = {**here.env, "BPS_LIBRARY": other.env["BPS_LIBRARY"]}
    (w,) = c.start_job("rounds", 1, {"n_elems": 10, "n_rounds": 1}, env=mixed)
    assert w.process.wait(DEADLINE_S) != 0
    ours, theirs = here.version("BPS_ABI"), other.version("BPS_ABI")
    words = f"package bps needs ABI {ours}, but libbpsclient has {theirs}: install"
    assert re.search(words, w.text()), w.text()


@pairs("LEDGER_VERSION", "CTL_PROTO")
def test_agent_with_another_hand_over(cluster, here, other, ours, theirs):
    c = kept_cluster(cluster, build=here.build)
    job = start_job(c, here, 4)
    a = c.agents[0]
    replace(a, other)
    words = rf"has version {ours}, but this release of bps-agent reads version {theirs}"
    for w in job.workers[:2]:
        assert w.process.wait(DEADLINE_S) != 0
        assert re.search(rf"cannot continue this job: .*{words}", w.text()), w.text()
    assert re.search(rf"cannot continue a job of the previous process: .*{words}", log_of(a))
    has_failed(c, job, "bps")
    # The next hand-over is the release's own. Nothing of the foreign one is left.
    for daemon in (*c.servers, c.agents[1]):
        replace(daemon, other)
    job = start_job(c, other, 4)
    a.die()
    job.goes_on()
    job.finish()
    c.wait_for("the manager keeps no descriptor", lambda: a.names() == ["cluster", "listen"])


def upgrade_servers_first(c, here, other, words):
    """Replace the servers, then the agents. Rounds wait in between, with the words in a log.

    If the releases also differ in the format of the hand-over, the job then fails.
    """
    job = start_job(c, here, 4)
    for s in c.servers:
        replace(s, other)
    for daemon, pattern in words:
        wait_for_words(c, daemon, pattern)
    waits_since = job.rounds()
    for a in c.agents:
        assert job.rounds() == waits_since
        replace(a, other)
    if here.version("LEDGER_VERSION") == other.version("LEDGER_VERSION"):
        job.goes_on()
    else:
        has_failed(c, job, "cannot continue this job|has no record of the job")
        job = start_job(c, other, 4)
    job.finish()


@pairs("TICKET_VERSION", "CTL_PROTO")
def test_rounds_wait_for_data_connections_of_one_version(cluster, here, other, ours, theirs):
    c = kept_cluster(cluster, build=here.build)
    uses = (
        "the peer uses version {} of the data protocol, but this release uses version {}: install"
    )
    words = [
        (c.agents[0], uses.format(theirs, ours)),
        (c.servers[0], "refused a data connection: " + uses.format(ours, theirs)),
    ]
    upgrade_servers_first(c, here, other, words)


@pairs("WIRE_VERSION", "CTL_PROTO")
def test_rounds_wait_for_data_messages_of_one_version(cluster, here, other, ours, theirs):
    c = kept_cluster(cluster, build=here.build)
    words = rf"message has version {ours}, but only version {theirs} is supported"
    upgrade_servers_first(c, here, other, [(c.servers[0], words)])


@pairs("SHM_VERSION")
def test_other_handshake_within_a_host_leaves_the_network(
    cluster, meeting, here, other, ours, theirs
):
    at = ["--same-host-dir", str(meeting)]
    c = kept_cluster(cluster, args=at, server_args=at, build=here.build)
    job = start_job(c, here, 4)
    for s in c.servers:
        replace(s, other)
        job.goes_on()
    words = (
        rf"using the network instead: .* uses version {theirs} of .* uses version {ours}: install"
    )
    wait_for_words(c, c.agents[0], words)
    for a in c.agents:
        replace(a, other)
        job.goes_on()
    c.wait_for(
        "agents and servers share memory again",
        lambda: all(s.status()["same_host"]["connections"] for s in c.servers),
    )
    job.finish()


@pairs("TICKET_VERSION", "CTL_PROTO")
def test_ticket_of_another_version_within_a_host(cluster, meeting, here, other, ours, theirs):
    at = ["--same-host-dir", str(meeting)]
    c = kept_cluster(cluster, args=at, server_args=at, build=here.build)
    words = (
        rf"refused a same-host connection: the peer uses version {ours} of the data protocol, "
        rf"but this release uses version {theirs}: install"
    )
    upgrade_servers_first(c, here, other, [(c.servers[0], words)])
