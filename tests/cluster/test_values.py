"""Tensors whose value servers keep from round to round (V1 to V3 of docs/reference/values.md)."""

import errno
import signal
import statistics
import struct

import bps
import pytest
import rawclient
from keeper import Job, kept_cluster
from screens import document, show


@pytest.mark.parametrize("stale", [0, 1, 3, None])
@pytest.mark.parametrize("is_near", [True, False])
def test_each_delta_is_added_once_and_the_bound_holds(cluster, meeting, is_near, stale):
    at = ("--same-host-dir", str(meeting)) if is_near else ()
    c = cluster(agents=3, servers=2, server_args=at, agent_args=at)
    results = c.run("adding", 6, {"stale": stale, "n_rounds": 40, "slow": 5})
    assert all(n == 40 for n, _ in results)
    print("largest leads:", [lead for _, lead in results])
    if stale is not None:
        assert max(lead for _, lead in results) <= stale


def test_worker_without_a_bound_does_not_wait_for_a_slow_one(cluster):
    c = cluster(agents=2, servers=1)
    results = c.run("adding", 2, {"stale": None, "n_rounds": 60, "slow": 1})
    assert results[0][1] > 5, results


@pytest.mark.parametrize("workers", [1, 3])
def test_values_need_no_server_on_one_machine(cluster, workers):
    c = cluster(agents=1, servers=0)
    assert [n for n, _ in c.run("adding", workers, {"stale": 1, "n_rounds": 20})] == [20] * workers


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("stale", [0, None])
def test_one_worker_sets_the_value_and_abstaining_reads_it(cluster, stale, agents):
    c = cluster(agents=agents, servers=1)
    assert c.run("set_and_read", 3, {"stale": stale}) == [[[7.0], [7.0], 3]] * 3


def test_value_without_staleness_is_the_sum_of_all_rounds(cluster):
    c = cluster(agents=2, servers=2)
    assert len(set(c.run("sums_and_value", 4, {"n_rounds": 30}))) == 1


@pytest.mark.parametrize("stale", [0, 2, None])
def test_agent_that_dies_loses_no_delta(cluster, stale):
    c = kept_cluster(cluster)
    job = Job(c, 4, sizes=[64, 70_000], function="adding", args={"stale": stale})
    job.goes_on()
    for _ in range(5):
        c.agents[0].die(signal.SIGKILL)
        job.goes_on()
    job.finish_each()


@pytest.mark.parametrize("stale", [0, 2, None])
def test_server_that_dies_loses_no_delta(cluster, stale):
    c = cluster(agents=2, servers=2)
    job = Job(c, 4, sizes=[64, 70_000], function="adding", args={"stale": stale})
    job.goes_on()
    for i, server in enumerate(c.servers[:2]):
        server.kill()
        job.goes_on()
        c.add_server(2 + i)
        job.goes_on()
    job.finish_each()


@pytest.mark.parametrize(
    "what, code, text",
    [
        ("deterministic", -errno.EINVAL, "the option deterministic cannot have values"),
        ("backup", -errno.EINVAL, "the option backup cannot have values"),
        ("elastic", -errno.EINVAL, "the option elastic cannot have values"),
        ("type", -errno.EINVAL, "a value must be f32 or f64, not i32"),
        ("average", -errno.EINVAL, "workers can only add"),
        ("bounds", bps.EMISMATCH, "stale"),
    ],
)
def test_value_that_cannot_be_is_refused_in_words(cluster, what, code, text):
    c = cluster(agents=2, servers=1)
    for found, words in c.run("refused", 2, {"what": what}):
        assert found == code and text in words, words


def test_time_out_names_the_late_worker_of_the_own_machine(cluster):
    c = cluster(agents=2, servers=1)
    texts = [text for text in c.run("lagging", 4) if text]
    assert texts and all("rank 1" in text for text in texts)
    assert not any("all workers have submitted" in text for text in texts), texts


@pytest.mark.parametrize("stale", [0, 2])
def test_time_out_names_only_the_worker_beyond_the_bound(cluster, stale):
    c = cluster(agents=3, servers=1)
    job = c.start_job("beyond_the_bound", 3, {"stale": stale})

    def is_reported():
        text = c.bpsctl("why-stuck").stdout
        return f"'v' round {3 + stale + 1}: 2 workers waiting" in text and "is at round 3" in text

    c.wait_for("why-stuck names the worker", is_reported)
    results = c.finish(job)
    assert [n for n, _ in results] == [3 + stale + 1] * 3
    for rank in (0, 2):
        text = results[rank][1]
        assert "waiting for rank 1" in text and "submitted up to round 3" in text, text
        assert "rank 0" not in text and "rank 2" not in text, text


def test_workers_without_a_bound_may_leave_after_different_numbers_of_rounds(cluster):
    c = cluster(agents=2, servers=1)
    results = c.run("leaving_values", 2, {"stale": None, "n_rounds": [3, 50]})
    assert results == [[3, 0, ""], [50, 0, ""]]


@pytest.mark.parametrize("agents, n_rounds", [(1, 3), (2, 5)])
def test_worker_that_has_left_too_early_is_named(cluster, agents, n_rounds):
    """A worker gets no answer beyond the bound, or beyond the rounds of its own machine."""
    c = cluster(agents=agents, servers=1)
    first, second = c.run("leaving_values", 2, {"stale": 2, "n_rounds": [3, 50]})
    assert first[0] == 3
    assert second[:2] == [n_rounds, bps.EWORKER_LOST], second
    assert "rank 0" in second[2] and "has left job" in second[2], second


def test_other_operation_of_a_hostile_trainer_leaves_other_jobs_alone(cluster, monkeypatch):
    """A trainer that writes into its ring itself can submit an operation that values do not have.
    The connection of the agent, which other jobs use, must stay."""

    def value_shape(dtype, n_values):
        return rawclient.body(struct.pack("<BBBIQQ", dtype, 1, 0, 0, n_values, 0))

    c = cluster(agents=1, servers=1)
    monkeypatch.setattr(rawclient, "shape", value_shape)
    t = rawclient.Raw(c.agents[0])
    t.say_hello("evil", 0, 1, flags=rawclient.DISTRIBUTED)
    assert t.welcome()[0] == 0 and t.job()[0] == 0
    assert t.declare(("w", rawclient.F32, 10))[0][0] == 0
    t.submit(0, op=rawclient.MAX)
    assert t.is_dropped()
    assert "broke the protocol" not in c.servers[0].log.read_text()


@pytest.mark.parametrize(("stale", "text"), [(None, "no worker waits"), (500, "be 500 rounds")])
def test_operators_see_the_progress_of_an_asynchronous_job(cluster, stale, text):
    c = cluster(agents=2, servers=1)
    stop = c.dir / "stop"
    started, rounds = c.start_running("strolling", 2, {"stop": str(stop), "stale": stale})
    c.wait_for(
        "the rounds of the slower worker are counted",
        lambda: ((c.scheduler.status()["jobs"][0]["pace"]) or {}).get("steps_s", 0) > 1,
    )

    def shows_the_slower_worker():
        ahead = rounds.rounds()  # before the document is made
        return 1 < document(c, "job", "job1")["job"]["pace"]["round"] < ahead

    c.wait_for("the round is that of the slowest machine", shows_the_slower_worker)
    doc = document(c, "job", "job1")
    assert doc["job"]["values"] == {"tensors": 1, "stale": stale}
    assert doc["job"]["pace"]["push_bytes_s"] > 2 * 4 * 70_000
    page = show(c, "job", "job1", status=0)
    assert "asynchronous: " in page and text in page, page
    assert "push_pulls behind" not in page and "p50/p99" not in page, page
    assert "asynchronous" in show(c, "status")
    stop.touch()
    c.finish(started)


def test_bound_helps_against_stalls(cluster):
    """Each worker is late in one of ten steps. The bar is that of the design: 0.85."""
    c = cluster(agents=4, servers=2)
    ratios = []
    for seed in range(3):
        took = {
            stale: max(
                c.run("stalling", 4, {"stale": stale, "n_rounds": 60, "step_s": 0.02, "seed": seed})
            )
            for stale in (0, 2)
        }
        ratios.append(took[2] / took[0])
    print("time with the bound 2 over the bound 0:", [round(r, 3) for r in ratios])
    assert statistics.median(ratios) <= 0.85
