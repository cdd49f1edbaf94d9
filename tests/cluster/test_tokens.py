"""Job tokens: only a worker with the job's token joins the job, whatever its user id is."""

import secrets
import signal

import bps
from rawclient import F32, Raw

ALICE, BOB = 1, 2
TOKEN, OTHER = secrets.token_hex(32), secrets.token_hex(32)


def two_agents(cluster):
    c = cluster(agents=2, servers=1)
    c.open_to_all()
    return c


def start(c, rank, uid, token, function="collectives", job="shared", args=None, **env):
    """Start one of the job's two workers. Rank r runs on agent r."""
    full = dict(env, BPS_RANK=str(rank), BPS_SIZE="2")
    if token:
        full["BPS_JOB_TOKEN"] = token
    return c.start_job(function, 1, args, job=job, env=full, placement=[rank], uid=uid)


def assert_secret(c):
    for d in c.daemons:
        assert (
            TOKEN not in d.log.read_text()
            and TOKEN not in d.get("/status")
            and TOKEN not in d.get("/metrics")
        )


def test_workers_of_different_users_on_different_hosts_share_a_job_by_its_token(cluster):
    c = two_agents(cluster)
    workers = start(c, 0, ALICE, TOKEN) + start(c, 1, BOB, TOKEN)
    assert [r[:2] for r in c.finish(workers)] == [[0, 2], [1, 2]]
    assert_secret(c)


def test_workers_of_different_users_on_one_host_share_a_job_by_its_token(cluster):
    c = cluster(agents=1, servers=0)
    c.open_to_all()
    env = {"BPS_JOB_TOKEN": TOKEN, "BPS_SIZE": "2"}
    workers = [
        w
        for rank, uid in enumerate((ALICE, BOB))
        for w in c.start_job(
            "collectives", 1, job="shared", env=dict(env, BPS_RANK=str(rank)), uid=uid
        )
    ]
    assert [r[:2] for r in c.finish(workers)] == [[0, 2], [1, 2]]


def test_workers_of_one_user_need_no_token(cluster):
    c = two_agents(cluster)
    assert [r[:2] for r in c.finish(start(c, 0, ALICE, "") + start(c, 1, ALICE, ""))] == [
        [0, 2],
        [1, 2],
    ]


def refused(c, rank, uid, token):
    """Start a worker that must be refused. Return the text of its error."""
    w = start(c, rank, uid, token, "error", args={"what": "nothing"}, BPS_OPEN_TIMEOUT="20s")
    [r] = c.finish(w)
    assert r["code"] == bps.EAUTH and r["seconds"] < 15, r
    return r["text"]


def test_wrong_or_absent_token_is_refused_at_once_and_the_right_one_still_joins(cluster):
    c = two_agents(cluster)
    first = start(c, 0, ALICE, TOKEN)
    c.wait_for("the first worker has joined", lambda: c.scheduler.status()["jobs"])
    assert "has a job token that differs from this worker's" in refused(c, 1, ALICE, OTHER)
    assert "has a job token, and this worker has none" in refused(c, 1, ALICE, "")
    assert [r[:2] for r in c.finish(first + start(c, 1, BOB, TOKEN))] == [[0, 2], [1, 2]]
    assert_secret(c)


def test_job_without_a_token_takes_no_worker_with_one(cluster):
    c = two_agents(cluster)
    first = start(c, 0, ALICE, "")
    c.wait_for("the first worker has joined", lambda: c.scheduler.status()["jobs"])
    assert "was opened without a job token" in refused(c, 1, ALICE, TOKEN)
    assert [r[:2] for r in c.finish(first + start(c, 1, ALICE, ""))] == [[0, 2], [1, 2]]


def test_worker_of_another_user_without_the_token_gets_another_job(cluster):
    c = two_agents(cluster)
    alice = start(c, 0, ALICE, TOKEN)
    c.wait_for("the first worker has joined", lambda: c.scheduler.status()["jobs"])
    bob = start(c, 1, BOB, "") + start(c, 0, BOB, "")
    assert [r[:2] for r in c.finish(bob)] == [[1, 2], [0, 2]]
    [job] = c.scheduler.status()["jobs"]
    assert job["uid"] == ALICE and job["joined"] == 1 and job["has_token"]
    c.finish(alice + start(c, 1, ALICE, TOKEN))


def test_token_that_is_none_is_refused_without_being_shown(cluster):
    c = cluster(agents=1, servers=0)
    for token in (TOKEN[:-1], TOKEN + "0", TOKEN[:-1] + "g"):
        [r] = c.finish(start(c, 0, None, token, "error", args={"what": "nothing"}))
        assert r["code"] == -22 and "BPS_JOB_TOKEN" in r["text"] and token[:8] not in r["text"], r


def test_token_of_another_length_on_the_socket_is_refused(cluster):
    c = cluster(agents=1, servers=0)
    t = Raw(c.agents[0])
    t.say_hello("j", 0, 2, token=b"x" * 31)
    code, text = t.welcome()
    assert code == 22 and "token" in text
    assert t.is_dropped()


def test_worker_is_not_put_into_the_job_of_another_user_who_has_left(cluster):
    c = two_agents(cluster)
    token = bytes.fromhex(TOKEN)
    bob = Raw(c.agents[0], uid=BOB)
    bob.say_hello("shared", 0, 2, flags=2, token=token)
    assert bob.welcome()[0] == 0
    c.wait_for("Bob has joined", lambda: len(c.scheduler.status()["jobs"]) == 1)
    far = Raw(c.agents[1], uid=ALICE).open("shared", 1, 2)
    c.wait_for("Alice has joined", lambda: len(c.scheduler.status()["jobs"]) == 2)
    c.scheduler.kill(signal.SIGSTOP)
    near = Raw(c.agents[0], uid=ALICE).open("shared", 0, 2)  # with this worker the job is complete
    near.close()
    c.wait_for("Alice's worker on agent 0 has left", lambda: c.agents[0].status()["trainers"] == 1)
    c.scheduler.kill(signal.SIGCONT)
    code = far.job()[0]
    assert (code or far.job()[0]) == -bps.EWORKER_LOST
    other = Raw(c.agents[1], uid=ALICE)
    other.say_hello("shared", 1, 2, flags=2, token=token)
    assert other.welcome()[0] == 0
    for t in (bob, other):
        assert t.job()[0] == 0
        assert t.declare(("w", F32, 10))[0][0] == 0
        t.submit(0)
    for t in (bob, other):
        assert t.wait_round(0, 1) == (0, 2)
