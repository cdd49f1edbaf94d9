"""Keys that are rotated while jobs run, and keys that are revoked."""

import json
import shutil
import signal

import pytest

import bps
from keys import derived, new_key

MEMBERS = ("server:s0", "server:s1", "agent:a0", "agent:a1")


@pytest.fixture
def keyed(cluster, master):
    """Return a cluster of two servers and two agents, each with its own key."""
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", master])
    c.master = master
    for i in range(2):
        c.add_server(i, "--key-file", derived(master, f"server:s{i}"))
    for i in range(2):
        c.add_agent(i, "--key-file", derived(master, f"agent:a{i}"))
    return c


def key(c, *words, status=0):
    p = c.steer("--key-file", c.master, "key", *words)
    assert p.returncode == status, p
    return p.stdout + p.stderr


def key_users(c):
    """Return how many members are connected with the current and with the previous key."""
    d = json.loads(c.steer("--key-file", c.master, "--json", "key", "status").stdout)
    return {k["key"]: k["members"] for k in d["keys"]}


def daemon(c, who):
    return c.daemon(who.split(":")[1])


def give_new_key(c, who):
    derived(c.master, who)
    daemon(c, who).kill(signal.SIGHUP)


def long_job(c, seconds=30):
    """Start a job that checks every sum until its stop file appears or `seconds` seconds are over.

    Return the workers, the Progress and the path of the stop file.
    """
    stop = c.dir / "stop"
    args = {"n_elems": 50000, "stop": str(stop), "seconds": seconds}
    return *c.start_running("rounds_until", 4, args, after=3), stop


def test_job_runs_over_a_whole_rotation_with_exact_sums(keyed):
    c = keyed
    workers, progress, stop = long_job(c)
    key(c, "rotate")
    assert key_users(c) == {"current": 0, "previous": 4}
    progress.goes_on()
    assert "4 members use the previous key" in key(c, "retire", status=2)
    for who in MEMBERS:
        give_new_key(c, who)
        progress.goes_on()
    c.wait_for("all members use the new key", lambda: key_users(c) == {"current": 4, "previous": 0})
    key(c, "retire")
    progress.goes_on()
    assert key_users(c) == {"current": 4}
    stop.touch()
    c.finish(workers)
    assert not [text for _, text in c.events() if "down" in text or "restarted" in text], c.events()


def test_scheduler_that_restarts_in_a_rotation_takes_both_keys(keyed):
    c = keyed
    key(c, "rotate")
    give_new_key(c, "server:s0")
    c.wait_for("s0 has the new key", lambda: key_users(c) == {"current": 1, "previous": 3})
    c.scheduler.kill()
    c.scheduler.pin()
    c.scheduler.start()
    c.wait_for("all members are connected", lambda: key_users(c) == {"current": 1, "previous": 3})
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})


def test_new_key_that_the_scheduler_does_not_know_yet_costs_no_round(keyed, tmp_path):
    c = keyed
    workers, progress, stop = long_job(c)
    other = new_key(tmp_path / "other.key", "key", "new")
    for who in MEMBERS:
        derived(other, who)  # replace the member's valid key in its file
        daemon(c, who).kill(signal.SIGHUP)
        c.wait_for(
            "the key is refused",
            lambda: "does not accept the new key yet" in daemon(c, who).log.read_text(),
        )  # noqa: B023
    progress.goes_on()
    assert key_users(c) == {"current": 4}
    stop.touch()
    c.finish(workers)


def test_members_left_with_a_retired_key_return_with_the_new_key(keyed):
    c = keyed
    key(c, "rotate")
    for who in MEMBERS[:2]:
        give_new_key(c, who)
    c.wait_for(
        "the servers have the new key", lambda: key_users(c) == {"current": 2, "previous": 2}
    )
    assert "connections closed: 2" in key(c, "--force", "retire")
    c.wait_for(
        "agents with the old key are rejected",
        lambda: "keys do not match" in daemon(c, "agent:a0").log.read_text(),
    )
    for who in MEMBERS[2:]:
        give_new_key(c, who)
    c.wait_for("all members use the new key", lambda: key_users(c) == {"current": 4})
    c.run("rounds", 4, {"n_elems": 1000, "n_rounds": 3})


def test_revoked_server_is_removed_and_the_job_goes_on(keyed):
    c = keyed
    workers, progress, stop = long_job(c)
    assert "connections closed: 1" in key(c, "revoke", "server:s1")
    c.wait_for("s1 is dead", lambda: c.member("s1")["state"] == "down")
    progress.goes_on()
    assert "server:s1#" in key(c, "status")
    assert "is revoked" in key(c, "derive", "server:s1", status=2)
    # After the next rotation, a revoked member can join again with its new key.
    key(c, "rotate")
    give_new_key(c, "server:s1")
    c.wait_for("s1 is back", lambda: key_users(c)["current"] == 1)
    stop.touch()
    c.finish(workers)


def data_connections(c):
    return sum(s.status()["connections"] for s in c.servers)


def test_revoked_agent_loses_its_data_connections(keyed):
    c = keyed
    workers = c.start_job(
        "error", 4, {"what": "one_is_missing", "args": {"missing_rank": 3, "timeout": 50}}
    )
    c.wait_for("both agents are connected", lambda: data_connections(c) >= 2)
    before = data_connections(c)
    key(c, "revoke", "agent:a1")
    # Check only the workers of a0, because a1 is cut off and cannot notify its workers.
    for told in c.finish(workers[:2]):
        assert told["code"] == bps.EAGENT_LOST, told
    c.wait_for(
        "the data connections of agent a1 are closed", lambda: data_connections(c) <= before // 2
    )


def test_revocation_outlives_the_scheduler(keyed):
    c = keyed
    key(c, "revoke", "agent:a1")
    c.scheduler.kill()
    c.scheduler.pin()
    c.scheduler.start()
    c.wait_for("the other members are connected", lambda: key_users(c) == {"current": 3})
    log = daemon(c, "agent:a1").log
    size = log.stat().st_size
    c.wait_for("a1 is rejected again", lambda: log.stat().st_size > size)
    c.wait_for(
        "the scheduler logs that the key is revoked",
        lambda: "the peer's key is revoked" in c.scheduler.log.read_text(),
    )
    assert key_users(c) == {"current": 3}


def test_scheduler_with_a_copy_of_the_key_file_must_be_restarted(cluster, master, tmp_path):
    copy = tmp_path / "credential"
    shutil.copy(master, copy)
    c = cluster(agents=0, servers=0, scheduler_args=["--key-file", copy])
    c.master = master
    assert "systemctl restart bps-scheduler" in key(c, "rotate", status=1)
    c.scheduler.kill()
    assert "did not receive the request" in key(c, "--force", "retire", status=1)


def test_reload_by_signal_takes_the_file_too(keyed):
    c = keyed
    text = c.master.read_text().split("\n")[0]
    fresh = new_key(c.dir / "fresh", "key", "new").read_text()
    c.master.write_text(f"{fresh}previous {text}\n")
    c.scheduler.kill(signal.SIGHUP)
    c.wait_for("the new key is current", lambda: key_users(c) == {"current": 0, "previous": 4})
    c.master.write_text("nonsense\n")
    c.scheduler.kill(signal.SIGHUP)
    c.wait_for(
        "the scheduler reports that it cannot reload",
        lambda: "cannot reload" in c.scheduler.log.read_text(),
    )
    c.master.write_text(f"{fresh}previous {text}\n")
    assert key_users(c) == {"current": 0, "previous": 4}
