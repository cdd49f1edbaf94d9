"""A call that fails returns within its time limit. The error names the missing process or the
mistake in the call."""

import errno
import re
import signal
import socket

import pytest

import bps


def texts(results):
    return "\n".join(r["text"] for r in results)


def test_missing_worker_at_the_start_is_named(cluster):
    c = cluster(agents=2, servers=1)
    started = c.start_job(
        "error", 3, {"what": "nothing", "open": {"open_timeout": 1.5}}, env={"BPS_SIZE": "4"}
    )
    results = c.finish(started)
    for r in results:
        assert r["code"] == bps.ETIMEDOUT, r
        assert re.search(r"missing ranks? [\d, ]*3", r["text"]), r["text"]
        assert 1.4 < r["seconds"] < 5
    # The first worker to time out reports that 3 of 4 workers have joined.
    assert "3 of 4" in texts(results), texts(results)


def test_worker_that_does_not_submit_is_named_with_its_host(cluster):
    c = cluster(agents=2, servers=1)
    args = {"what": "one_is_missing", "linger": 2.0, "args": {"missing_rank": 3, "timeout": 1.5}}
    results = c.run("error", 4, args)
    for r in results[:3]:
        assert r["code"] == bps.ETIMEDOUT, r
        assert "rank 3" in r["text"], r["text"]
        assert "'w'" in r["text"] and "round 2" in r["text"], r["text"]
        assert (r["rank"], r["host"], r["tensor"]) == (None, None, "w"), r
    assert "agent-host1" in results[0]["text"], results[0]["text"]


def test_worker_that_does_not_declare_is_named(cluster):
    c = cluster(agents=2, servers=1)
    results = c.run("error", 2, {"what": "undeclared", "args": {"missing_rank": 1, "timeout": 1.5}})
    assert results[0]["code"] == bps.ETIMEDOUT, results
    assert "rank 1" in results[0]["text"] and "'w'" in results[0]["text"], results[0]["text"]


@pytest.mark.parametrize("faults", [[], ["--faults", "agent.memory.make=sleep:300ms"]])
@pytest.mark.parametrize("placement", [[0, 1], [0, 0]])
def test_mismatch_names_both_workers_and_both_declarations(cluster, placement, faults):
    """Each worker gets EMISMATCH, even if one still waits for memory when the other leaves."""
    c = cluster(agents=2, servers=1, agent_args=faults)
    results = c.run("error", 2, {"what": "mismatch", "args": {"odd_rank": 1}}, placement=placement)
    assert all(r["code"] == bps.EMISMATCH for r in results), results
    for word in ("rank 0", "rank 1", "f32", "f64", "1000"):
        assert word in results[0]["text"], results[0]["text"]
    # The worker with the later declaration is named as the cause. This may be either worker.
    fields = {(r["rank"], r["host"], r["tensor"]) for r in results}
    assert fields <= {(r, f"agent-host{placement[r]}", "w") for r in (0, 1)}, results
    assert len(fields) == 1, results


@pytest.mark.parametrize("placement", [[0, 1], [0, 0]])
def test_different_operations_are_an_error_at_both(cluster, placement):
    c = cluster(agents=2, servers=1)
    results = c.run(
        "error",
        2,
        {"what": "op_mismatch", "linger": 1.0, "args": {"odd_rank": 1}},
        placement=placement,
    )
    assert all(r["code"] == bps.EMISMATCH for r in results), results
    assert "max" in texts(results) and "round 1" in texts(results), texts(results)


@pytest.mark.parametrize("what", ["killed", "killed_with_a_child"])
@pytest.mark.parametrize("placement", [[0, 1, 1], [0, 0, 0]])
def test_death_of_a_worker_ends_the_job_and_names_it(cluster, placement, what):
    c = cluster(agents=2, servers=1)
    started = c.start_job("error", 3, {"what": what, "args": {"victim": 2}}, placement=placement)
    for w in started[:2]:
        r = c.finish([w])[0]
        assert r["code"] == bps.EWORKER_LOST, r
        assert "rank 2" in r["text"] and str(started[2].process.pid) in r["text"], r["text"]
        host = f"agent-host{placement[2]}"
        assert (r["rank"], r["host"], r["tensor"]) == (2, host, "w"), r
        assert r["seconds"] < 10
    started[2].process.wait(10)
    c.run("rounds", 3, {"n_elems": 100, "n_rounds": 3})


def test_missing_server_is_named(cluster):
    c = cluster(agents=2, servers=0)
    results = c.run(
        "error", 2, {"what": "wait_for_servers", "linger": 1.0, "args": {"timeout": 1.5}}
    )
    for r in results:
        assert r["code"] in (bps.ETIMEDOUT, bps.ENOSERVER), r
        assert "no server" in r["text"], r["text"]


def test_server_that_comes_late_is_used(cluster):
    c = cluster(agents=2, servers=0)
    started = c.start_job("error", 2, {"what": "wait_for_servers", "args": {"timeout": 30}})
    c.wait_for(
        "the job runs", lambda: any(j["state"] == "running" for j in c.scheduler.status()["jobs"])
    )
    c.add_server(0)
    assert [r["code"] for r in c.finish(started)] == [0, 0]


def test_waiting_ends_without_servers_and_may_be_repeated(cluster):
    """A wait for a round ends with an error when no server is alive, but the round stays in flight.

    When the server runs again, a second wait gets the exact sum.
    """
    c = cluster(agents=2, servers=1, agent_args=["--stranded-after", "4s"])
    c.servers[0].args[c.servers[0].args.index("--listen") + 1] = f"127.0.0.100:{c.servers[0].port}"
    go, told = c.dir / "go", c.dir / "told"
    started = c.start_job("stranded", 2, {"go": str(go), "told": str(told)})
    c.wait_for(
        "the job runs", lambda: any(j["state"] == "running" for j in c.scheduler.status()["jobs"])
    )
    c.wait_for(
        "a round is done", lambda: c.agents[0].status()["rounds"] and c.agents[1].status()["rounds"]
    )
    c.servers[0].kill()
    go.touch()
    c.wait_for(
        "both workers have got an error",
        lambda: all((c.dir / f"told-{r}").exists() for r in (0, 1)),
    )
    assert "the waiting calls fail now: no server" in c.agents[0].log.read_text()
    c.servers[0].start()
    for text in c.finish(started):
        assert "round 2: no server can be reached" in text and "no server is alive" in text, text


def test_missing_scheduler_is_named(cluster):
    c = cluster(agents=1, servers=0)
    c.scheduler.kill()
    results = c.run("error", 2, {"what": "nothing", "open": {"open_timeout": 1.5}})
    for r in results:
        assert r["code"] in (bps.ETIMEDOUT, bps.ENOSCHED), r
        assert "scheduler" in r["text"] and str(c.scheduler.port) in r["text"], r["text"]


def test_missing_agent_is_named(cluster):
    c = cluster(agents=1, servers=0)
    c.agents[0].stop()
    r = c.run("error", 2, {"what": "nothing"})[0]
    assert r["code"] == bps.ENOAGENT, r
    assert str(c.agents[0].socket) in r["text"], r["text"]


def test_death_of_an_agent_ends_its_jobs_and_names_the_host(cluster):
    c = cluster(agents=2, servers=1, scheduler_args=["--agent-window", "500ms"])
    args = {"what": "one_is_missing", "args": {"missing_rank": 1, "timeout": 20}}
    started = c.start_job("error", 2, args)
    c.wait_for(
        "the job runs", lambda: any(j["state"] == "running" for j in c.scheduler.status()["jobs"])
    )
    c.agents[1].kill()
    r = c.finish(started[:1])[0]
    assert r["code"] == bps.EAGENT_LOST, r
    assert "agent-host1" in r["text"], r["text"]


def test_hung_server_is_replaced_without_a_failed_round(cluster):
    c = cluster(agents=2, servers=2, scheduler_args=["--server-dead", "1500ms"])
    started, _ = c.start_running(
        "rounds", 2, {"n_elems": 200000, "n_rounds": 100, "n_tensors": 4}, after=20
    )
    c.servers[0].kill(signal.SIGSTOP)
    for r in c.finish(started):
        assert r["longest"] > 0.5
    c.servers[0].kill(signal.SIGCONT)
    c.run("rounds", 2, {"n_elems": 200000, "n_rounds": 20})


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_server_costs_no_round(cluster, victim):
    c = cluster(agents=3, servers=2)
    started, _ = c.start_running(
        "rounds", 3, {"n_elems": 200000, "n_rounds": 80, "n_tensors": 4}, after=20
    )
    c.servers[victim].kill()
    c.finish(started)


def test_restarted_server_takes_up_its_partitions(cluster):
    c = cluster(agents=2, servers=1)
    started, _ = c.start_running(
        "rounds", 2, {"n_elems": 200000, "n_rounds": 80, "n_tensors": 4}, after=20
    )
    c.servers[0].kill()
    c.servers[0].start()
    c.finish(started)


def test_killed_scheduler_is_not_noticed_by_running_jobs(cluster):
    c = cluster(agents=2, servers=2)
    started, progress = c.start_running(
        "rounds", 2, {"n_elems": 100000, "n_rounds": 120, "n_tensors": 2}, after=20
    )
    c.scheduler.kill()
    progress.wait(min(progress.rounds() + 40, 100))
    c.scheduler.pin()
    c.scheduler.start()
    c.finish(started)


@pytest.mark.parametrize("workers", [2, 3])
def test_writing_into_a_submitted_buffer_is_detected(cluster, workers):
    c = cluster(agents=2, servers=1)
    results = c.run(
        "error",
        workers,
        {"what": "input_changed", "args": {"n_elems": 1 << 20, "writer": workers - 1}},
        placement=[0] * (workers - 1) + [1],
    )
    assert all(r["code"] == bps.EINPUT_CHANGED for r in results), results
    assert f"rank {workers - 1}" in results[0]["text"], results[0]["text"]


def test_strangers_and_garbage_disturb_no_job(cluster):
    c = cluster(agents=2, servers=1)
    started, _ = c.start_running("rounds", 2, {"n_elems": 100000, "n_rounds": 200, "n_tensors": 2})
    held = []
    targets = [("127.0.0.1", c.scheduler.port), ("127.0.0.100", c.servers[0].port)]
    targets += [("127.0.0.1", d.http) for d in c.daemons]
    for i in range(20):
        for target in targets:
            s = socket.create_connection(target, timeout=5)
            s.sendall([b"", b"\xff" * 4096, b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 32][i % 4])
            held.append(s)
        for a in c.agents:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(str(a.socket))
            s.send(
                [
                    b"\x00",
                    b"\xff" * 4096,
                    b"\x01\x00\x00\x00\x00\x00\x00\x00",
                    b"\x01\x00\x00\x00" * 64,
                ][i % 4]
            )
            held.append(s)
    c.finish(started)
    for s in held:
        s.close()
    for d in c.daemons:
        warnings = [
            line for line in d.log.read_text().splitlines() if line.startswith(("<3>", "<4>"))
        ]
        assert len(warnings) < 30, warnings


def test_status_shows_members_and_jobs(cluster):
    c = cluster(agents=2, servers=2)
    started = c.start_job(
        "error",
        2,
        {"what": "one_is_missing", "args": {"missing_rank": 1, "timeout": 3}},
        job="digits",
    )
    c.wait_for(
        "the job runs", lambda: any(j["state"] == "running" for j in c.scheduler.status()["jobs"])
    )
    p = c.bpsctl("status")
    assert p.returncode in (0, 1), p.stderr
    assert "digits" in p.stdout and "s0" in p.stdout and "servers 2/2" in p.stdout, p.stdout
    assert max(map(len, p.stdout.splitlines())) <= 100
    c.wait_for(
        "rank 0 waits", lambda: re.search(r"rank 1|\b1\b.*wait", c.bpsctl("job", "digits").stdout)
    )
    p = c.bpsctl("job", "digits")
    assert p.returncode in (0, 1), p.stderr
    c.finish(started)
    assert c.bpsctl("version").returncode == 0
    assert c.bpsctl("nonsense").returncode == 64
    port = c.scheduler.http
    c.scheduler.kill()
    p = c.bpsctl("status")
    assert p.returncode == 3 and str(port) in p.stderr + p.stdout, p


def test_limits_of_a_process_are_errors_of_the_call_that_met_them(cluster):
    c = cluster(agents=1, servers=0)
    [files, memory], _ = c.run("limits", 2, {"n_elems": 1 << 20})
    assert files[0] == -errno.EMFILE and "RLIMIT_NOFILE" in files[1] and "ulimit -n" in files[1], (
        files
    )
    assert memory[0] == -errno.ENOMEM and "RLIMIT_AS" in memory[1] and "ulimit -v" in memory[1], (
        memory
    )


def test_declaration_that_the_library_could_not_complete_can_be_repeated(cluster):
    c = cluster(agents=1, servers=0)
    sizes = [1000, 1 << 18, 1 << 20]  # the tensors lie in different pieces of memory
    for after in range(1, 6):  # the first mapping is the control page
        faults = {"BPS_FAULTS": f"client.map=error:ENOMEM,after={after},count=2"}
        for codes in c.run("declare_again", 2, {"sizes": sizes}, job=f"j{after}", env=faults):
            assert codes and set(codes) == {-errno.ENOMEM}, (after, codes)


def test_declaration_that_timed_out_can_be_repeated(cluster):
    c = cluster(
        agents=1,
        servers=0,
        agent_args=["--faults", "agent.trainer.declare=sleep:1s,count=1"],
    )
    codes = c.run("declare_again", 2, {"sizes": [1000, 1 << 18], "timeout": 0.3})
    assert any(codes) and {code for x in codes for code in x} == {bps.ETIMEDOUT}, codes


@pytest.mark.parametrize("n_free", [0, 1, 2])
def test_worker_without_descriptors_cannot_join_and_says_why(cluster, n_free):
    c = cluster(agents=1, servers=0)
    code, text = c.run("open_limited", 1, {"n_free": n_free}, env={"BPS_FORCE_DISTRIBUTED": "1"})[0]
    assert code == -errno.EMFILE and "RLIMIT_NOFILE" in text, text
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 2})
