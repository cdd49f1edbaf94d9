"""Quotas of users and jobs on an agent. A user at a limit gets an error. Other users are served."""

import pwd
import select
import struct
import time

import pytest

import bps
from rawclient import ANY_RANK, DEADLINE_S, F32, F64, TEXT, WHY, Raw

ALICE, BOB = 1, 2  # users that exist on every Debian system
CONTROL = 320 + 16384 * (16 + 64)  # bytes of the control page of one trainer
NAME = pwd.getpwuid(ALICE).pw_name


def open_cluster(cluster, *agent_args, **kw):
    c = cluster(agents=1, servers=0, agent_args=[*agent_args], **kw)
    c.open_to_all()
    return c


def worker(c, uid, job, rank=0, size=1):
    """Start a job with one raw worker. Return the worker."""
    t = Raw(c.agents[0], uid).open(job, rank, size)
    code, text, *_ = t.job()
    assert code == 0, text
    return t


def goes_on(c, uid, name="other"):
    """Check that another job of this user is served without errors."""
    t = worker(c, uid, name)
    assert t.declare(("w", F32, 1000))[0][:2] == (0, "")
    t.submit(0)
    assert t.wait_round(0, 1) == (0, 1)
    assert t.finish() == 0
    t.close()


def refusal(t):
    code, text = t.welcome()
    assert code == -bps.EQUOTA, (code, text)
    assert t.is_dropped()
    return text


def account(c, scope, uid):
    """Return the row of the user, or of the user's only job, in the status of quotas.

    Return {} if there is no such row. scope: "user" or "job".
    """
    for row in c.agents[0].status()["quotas"][scope]:
        if row["uid"] == uid:
            return row
    return {}


def await_name(c):
    c.wait_for("the user's name is known", lambda: account(c, "user", ALICE).get("user") == NAME)


def await_use(c, kind, used, scope="user"):
    c.wait_for(
        f"{used} {kind}", lambda: account(c, scope, ALICE).get(kind, {"used": 0})["used"] == used
    )


def refused(c, setting):
    for line in c.agents[0].get("/metrics").splitlines():
        if line.startswith(f'bps_agent_quota_refused_total{{quota="{setting}"}}'):
            return int(float(line.rsplit(" ", 1)[1]))
    raise AssertionError(f"no metric for {setting}")


def test_connections_of_one_user_are_limited_and_another_user_goes_on(cluster):
    c = open_cluster(cluster, "--user-trainers", 3)
    held = [Raw(c.agents[0], ALICE) for _ in range(3)]
    await_use(c, "trainers", 3)
    await_name(c)
    more = Raw(c.agents[0], ALICE)
    text = refusal(more)
    assert text.startswith(
        f"user {NAME} (uid {ALICE}) has 3 of 3 trainer connections on agent-host0;"
    ), text
    assert "--user-trainers" in text
    c.wait_for("the agent counts the refused trainer", lambda: refused(c, "user-trainers") == 1)
    goes_on(c, BOB)
    held.pop().close()
    await_use(c, "trainers", 2)
    goes_on(c, ALICE)


def test_all_connections_together_are_limited(cluster):
    c = open_cluster(cluster, "--max-trainers", 3)
    held = [Raw(c.agents[0], uid) for uid in (ALICE, BOB, ALICE)]
    text = refusal(Raw(c.agents[0], BOB))
    assert "all users together have 3 of 3" in text and "--max-trainers" in text, text
    for t in held:
        t.close()


def test_descriptors_of_one_user_are_limited_and_another_user_goes_on(cluster):
    c = open_cluster(cluster, "--user-descriptors", 8)  # each trainer needs three descriptors
    t = worker(c, ALICE, "a")
    # The tensor needs two arenas, each with one descriptor.
    assert t.declare(("w", F32, 1000))[0][0] == 0
    u = Raw(c.agents[0], ALICE)
    await_use(c, "descriptors", 8)
    assert account(c, "user", ALICE)["descriptors"]["limit"] == 8
    text = refusal(Raw(c.agents[0], ALICE))
    assert "has 8 of 8 descriptors" in text and "--user-descriptors" in text, text
    code, text, _ = t.declare(("large", F32, 1 << 20))[0]
    assert code == -bps.EQUOTA and "'large'" in text and "--user-descriptors" in text, text
    goes_on(c, BOB)
    u.close()


def test_memory_of_one_user_is_limited_and_another_user_goes_on(cluster):
    c = open_cluster(cluster, "--memory", "64MiB", "--user-memory", "32MiB")
    one, two = worker(c, ALICE, "one"), worker(c, ALICE, "two")
    await_name(c)
    assert one.declare(("w", F32, 1 << 20))[0][0] == 0  # three buffers of 4 MiB
    await_use(c, "memory", (12 << 20) + 2 * CONTROL)
    assert two.declare(("w", F32, 1 << 20))[0][0] == 0
    code, text, _ = two.declare(("x", F32, 1 << 20))[0]
    assert code == -bps.EQUOTA, text
    assert (
        text.startswith(f"tensor 'x' (f32 x 1048576): user {NAME} (uid {ALICE}) has 2")
        and "of 32.0 MiB" in text
    ), text
    assert "--user-memory" in text
    c.wait_for("the agent counts the refused memory", lambda: refused(c, "user-memory") == 1)
    assert account(c, "user", ALICE)["memory"]["limit"] == 32 << 20
    goes_on(c, BOB)
    one.close()
    c.wait_for(
        "one of the user's workers has left",
        lambda: account(c, "user", ALICE)["memory"]["used"] < 20 << 20,
    )
    assert two.declare(("x", F32, 1 << 20))[0][0] == 0


def test_memory_of_one_job_is_limited_and_its_users_other_job_goes_on(cluster):
    c = open_cluster(
        cluster, "--memory", "64MiB", "--user-memory", "48MiB", "--job-memory", "13MiB"
    )
    t = worker(c, ALICE, "greedy")
    await_name(c)
    assert t.declare(("w", F32, 1 << 20))[0][0] == 0
    code, text, _ = t.declare(("x", F32, 1 << 20))[0]
    assert (
        code == -bps.EQUOTA
        and f"job 'greedy' of user {NAME} (uid {ALICE}) has 12.0 MiB of 13.0 MiB" in text
    ), text
    assert "--job-memory" in text
    c.wait_for(
        "the agent counts the refusal for the job", lambda: account(c, "job", ALICE)["refused"] == 1
    )
    row = account(c, "job", ALICE)
    assert (
        row["memory"] == {"used": 12 << 20, "limit": 13 << 20}
        and row["job"] == "greedy"
        and row["refused"] == 1
    )
    goes_on(c, ALICE)
    goes_on(c, BOB)
    t.submit(0)  # the existing tensors still work
    assert t.wait_round(0, 1) == (0, 1)


def test_declaration_that_is_refused_leaves_its_name_free(cluster):
    c = open_cluster(cluster, "--user-memory", "8MiB")
    t = worker(c, ALICE, "j")
    for n_elems in (1 << 40, 1 << 26):
        assert t.declare(("w", F64, n_elems))[0][0] == -bps.EQUOTA
    assert t.declare(("w", F32, 700 << 10))[0][0] == -bps.EQUOTA
    await_use(c, "tensors", 0)
    assert t.declare(("w", F32, 400 << 10))[0][:2] == (0, "")
    await_use(c, "tensors", 1)
    assert t.declare(("w", F32, 1000))[0][0] == -bps.EMISMATCH
    t.submit(0)
    assert t.wait_round(0, 1) == (0, 1)
    assert t.finish() == 0
    t.close()


def test_refused_declaration_stays_refused_for_its_worker(cluster):
    c = open_cluster(cluster, "--user-memory", "8MiB")
    t, u = (Raw(c.agents[0], ALICE).open("j", r, 2) for r in range(2))
    assert t.job()[0] == u.job()[0] == 0
    assert t.declare(("w", F32, 380 << 10))[0][0] == 0
    assert u.declare(("w", F32, 380 << 10))[0][0] == -bps.EQUOTA
    code, text, _ = u.declare(("w", F32, 1000))[0]
    assert code == -bps.EMISMATCH and "rank 0 declares f32 x 389120, rank 1" in text, text
    t.close()
    u.close()


def test_memory_of_all_together_is_limited(cluster):
    c = open_cluster(cluster, "--memory", "32MiB", "--user-memory", "32MiB")
    t, u = worker(c, ALICE, "a"), worker(c, BOB, "b")
    assert t.declare(("w", F32, 2 << 20))[0][0] == 0
    code, text, _ = u.declare(("w", F32, 1 << 20))[0]
    assert code == -bps.EQUOTA and "all users together have" in text and "--memory" in text, text


@pytest.mark.parametrize(
    "setting, jobs", [("--job-tensors", ["a"]), ("--user-tensors", ["a", "b"])]
)
def test_tensors_are_limited_and_another_user_goes_on(cluster, setting, jobs):
    c = open_cluster(cluster, setting, 16)
    trainers = [worker(c, ALICE, job) for job in jobs]
    for i in range(16):
        assert trainers[i % len(jobs)].declare((f"t{i}", F32, 4))[0][0] == 0
    code, text, _ = trainers[0].declare(("more", F32, 4))[0]
    assert code == -bps.EQUOTA and "has 16 of 16 tensors" in text and setting in text, text
    c.wait_for("the agent counts the refusal", lambda: refused(c, setting[2:]) == 1)
    # The worker declares the job's tensor t0 again, with a different size.
    assert trainers[0].declare(("t0", F32, 5))[0][0] == -bps.EMISMATCH
    goes_on(c, BOB)
    for t in trainers:
        t.close()
    await_use(c, "tensors", 0)
    goes_on(c, ALICE)


def test_workers_of_a_job_share_its_tensors_in_the_count(cluster):
    c = open_cluster(cluster, "--job-tensors", 16)
    pair = [Raw(c.agents[0], ALICE).open("j", ANY_RANK, 2) for _ in range(2)]
    for t in pair:
        assert t.job()[0] == 0
    for t in pair:
        assert all(s[0] == 0 for s in t.declare(*((f"t{i}", F32, 4) for i in range(16))))
    await_use(c, "tensors", 16, "job")


def test_each_users_job_of_the_same_name_is_a_job_of_its_own(cluster):
    c = open_cluster(cluster)
    jobs = [c.start_job("collectives", 2, job="same", uid=uid) for uid in (ALICE, BOB)]
    for workers in jobs:
        assert [r[:2] for r in c.finish(workers)] == [[0, 2], [1, 2]]


def test_jobs_of_one_user_are_limited_in_the_cluster_and_another_user_goes_on(cluster):
    c = cluster(agents=2, servers=0, scheduler_args=["--user-jobs", "2"])
    c.open_to_all()
    held = [Raw(c.agents[i], ALICE).open(f"j{i}", 0, 2) for i in range(2)]
    c.wait_for("both jobs exist", lambda: len(c.scheduler.status()["jobs"]) == 2)
    code, text, *_ = Raw(c.agents[1], ALICE).open("third", 0, 2).job()
    assert (
        code == -bps.EQUOTA
        and f"the user with uid {ALICE} has 2 jobs, and the limit is 2" in text
        and "--user-jobs" in text
    ), text
    [user] = c.scheduler.status()["users"]
    assert user["uid"] == ALICE and user["jobs"] == {"used": 2, "limit": 2}
    assert 'bps_quota_refused_total{quota="user-jobs"} 1\n' in c.scheduler.get("/metrics")
    goes_on(c, BOB)
    held.pop().close()
    c.wait_for("one job has ended", lambda: len(c.scheduler.status()["jobs"]) == 1)
    goes_on(c, ALICE)


@pytest.mark.parametrize(
    "setting, whose", [("job-share", "the job"), ("user-share", f"the user with uid {ALICE}")]
)
def test_memory_of_servers_is_shared_out_and_another_user_goes_on(cluster, setting, whose):
    c = cluster(agents=1, servers=1, scheduler_args=[f"--{setting}", "1"])  # 1 percent of 512 MiB
    c.open_to_all()
    t = Raw(c.agents[0], ALICE)
    t.say_hello("j", 0, 1, flags=2)  # flag DISTRIBUTED
    assert t.welcome()[0] == 0 and t.job()[0] == 0
    t.declare(("fits", F32, 1 << 20), ("too-much", F32, 1 << 19))
    t.submit(1)
    assert t.wait_round(1, 1)[0] == bps.EQUOTA
    t.send(WHY, struct.pack("<IQ", 1, 1))
    text = t.expect(TEXT).decode(errors="replace")
    assert (
        "tensor 'too-much'" in text
        and whose in text
        and f"--{setting}" in text
        and "already takes 4.0 MiB, and the limit is 5.1 MiB" in text
    ), text
    c.run(
        "rounds",
        1,
        {"n_elems": 1 << 19, "n_rounds": 2},
        env={"BPS_FORCE_DISTRIBUTED": "1"},
        uid=BOB,
    )
    t.submit(0)
    assert t.wait_round(0, 1) == (0, 1)


def test_tensor_refused_to_one_agent_stays_refused_after_a_restart_of_the_scheduler(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=["--job-share", "1"])  # 1 percent of 512 MiB
    c.open_to_all()
    first, second = (Raw(c.agents[i], ALICE).open("j", i, 2) for i in range(2))
    assert first.job()[0] == 0 and second.job()[0] == 0
    first.declare(("too-much", F32, 2 << 20))
    first.submit(0)
    assert first.wait_round(0, 1)[0] == bps.EQUOTA
    c.scheduler.pin()
    c.scheduler.stop()
    at = c.scheduler.args.index("--job-share")
    del c.scheduler.args[at : at + 2]  # the tensor would now be accepted
    c.scheduler.start()
    # Without the first agent's repeated refusal, the second worker would wait for the first.
    second.declare(("too-much", F32, 2 << 20))
    second.submit(0)
    assert second.wait_round(0, 1)[0] == bps.EQUOTA
    second.send(WHY, struct.pack("<IQ", 0, 1))
    text = second.expect(TEXT).decode(errors="replace")
    assert "tensor 'too-much'" in text and "see the first error on that host" in text, text
    for t in first, second:
        assert t.declare(("w", F32, 1000))[0][0] == 0
        t.submit(1)
    assert first.wait_round(1, 1) == second.wait_round(1, 1) == (0, 2)


def why(t):
    t.send(WHY, struct.pack("<IQ", 0xFFFFFFFF, 0))


def test_user_with_too_many_requests_is_slowed_and_another_user_is_not(cluster):
    c = open_cluster(cluster, "--user-requests", 20)
    t, u = worker(c, ALICE, "a"), worker(c, BOB, "b")
    start = time.monotonic()
    for i in range(80):
        t.ask_declare((f"t{i}", F32, 4))
    goes_on(c, BOB)
    for i in range(10):
        assert u.declare((f"t{i}", F32, 4))[0][0] == 0
    assert time.monotonic() - start < 2  # ALICE waits (80 - 40) / 20 = 2 s; BOB does not wait
    for _ in range(80):
        assert t.declared()[0][0] == 0
    assert time.monotonic() - start > 1.5
    assert t.declare(("w", F32, 10))[0][0] == 0
    c.wait_for(
        "the agent counts the slowed declarations",
        lambda: account(c, "user", ALICE)["slowed"] >= 30,
    )


def test_trainer_that_never_stops_asking_is_cut_off_with_the_reason(cluster):
    c = open_cluster(cluster, "--user-requests", 20)
    t = worker(c, ALICE, "a")
    t.sock.setblocking(False)
    end = time.monotonic() + DEADLINE_S
    seen = b""
    while b"--user-requests" not in seen:
        assert time.monotonic() < end, "the trainer is not disconnected"
        select.select([t.sock], [t.sock], [], 0.1)
        try:
            why(t)
        except (BlockingIOError, BrokenPipeError):
            pass
        try:
            seen = t.sock.recv(65536)
        except BlockingIOError:
            pass
    assert b"requests in a row exceeded this limit" in seen
    goes_on(c, BOB)
    c.wait_for("the agent counts the refused request", lambda: refused(c, "user-requests") == 1)


def test_bytes_in_flight_of_one_job_are_limited_and_another_users_job_goes_on(cluster):
    c = cluster(agents=2, servers=1, agent_args=["--job-inflight", "1MiB"])
    c.open_to_all()
    pair = [Raw(a, ALICE) for a in c.agents]
    for r, t in enumerate(pair):
        t.say_hello("j", r, 2, part_bytes=256 << 10)
        assert t.welcome()[0] == 0
    for t in pair:
        assert t.job()[0] == 0
    for t in pair:
        assert t.declare(("w", F32, 1 << 20))[0][0] == 0  # 16 partitions of 256 KiB
    pair[0].submit(0)
    limit = {"used": 1 << 20, "limit": 1 << 20}
    c.wait_for(
        "the job has 1 MiB in flight, its limit",
        lambda: account(c, "job", ALICE).get("inflight") == limit,
    )
    pair[0].send(WHY, struct.pack("<IQ", 0, 1))
    text = pair[0].expect(TEXT).decode(errors="replace")
    assert (
        "12 partitions wait because the job has 1.0 of 1.0 MiB" in text and "--job-inflight" in text
    ), text
    c.run("rounds", 2, {"n_elems": 1 << 17, "n_rounds": 3}, uid=BOB)
    pair[1].submit(0)
    for t in pair:
        assert t.wait_round(0, 1) == (0, 2)


def test_tensor_with_a_partition_beyond_the_bytes_in_flight_is_refused(cluster):
    c = cluster(agents=2, servers=1, agent_args=["--job-inflight", "1MiB"])
    pair = [Raw(a) for a in c.agents]
    for r, t in enumerate(pair):
        t.say_hello("j", r, 2, part_bytes=2 << 20)
        assert t.welcome()[0] == 0
    for t in pair:
        assert t.job()[0] == 0
    for t in pair:
        assert t.declare(("w", F32, 1 << 20))[0][0] == 0
    for t in pair:
        t.submit(0)
        assert t.wait_round(0, 1)[0] == bps.EQUOTA
        t.send(WHY, struct.pack("<IQ", 0, 1))
        text = t.expect(TEXT).decode(errors="replace")
        assert "partitions of 2097152 bytes" in text and "--job-inflight" in text, text
