"""Where the time of a step goes: the lines of `bpsctl job` and the metric of the agents."""

import json

import pytest

PHASES = ("local_s", "queue_s", "push_s", "wait_s", "sum_s", "pull_s")


def steps_of(c, workers, args):
    """Run a job. Return the steps of the job and of each host, and what its workers measured."""
    stop = c.dir / "stop"
    started, _ = c.start_running("stepping", workers, dict(args, stop=str(stop)), after=23)
    answer = c.bpsctl("--json", "job", "job1")
    text = c.bpsctl("job", "job1").stdout
    stop.touch()
    measured = c.finish(started)
    doc = json.loads(answer.stdout)
    print(text, measured)
    return doc["steps"], {a["name"]: a["steps"] for a in doc["agents"]}, measured, text


def adds_up(steps):
    total = steps["computing_s"] + sum(steps[p] for p in PHASES)
    return 0.99 < total / steps["length_s"] < 1.01


def test_the_machine_that_computes_longer_is_named(cluster):
    c = cluster(agents=3, servers=2)
    job, agents, measured, text = steps_of(c, 3, {"sleeper": 2})
    assert adds_up(job) and all(map(adds_up, agents.values()))
    slow, fast = agents["a2"], agents["a0"]
    assert fast["n"] == 10
    for rank, steps in enumerate(agents.values()):
        length, waited = measured[rank]
        assert abs(steps["length_s"] - length) < 0.03 * length
        assert abs(steps["exposed_s"] - waited) < 0.03 * length
    # The first machine waits for the sleeper, which waits for no machine.
    assert 0.9 < fast["wait_s"] / 0.03 < 1.1, fast
    assert slow["wait_s"] < 0.003, slow
    assert fast["last"]["agent"] == job["last"]["agent"] == "a2" and fast["n_last"] == 10
    assert job["worst"]["agent"] == "a2" and "computes longest" in text


@pytest.mark.parametrize("sleeper", [0, 1])
def test_a_worker_that_is_late_on_its_own_machine_is_local(cluster, sleeper):
    c = cluster(agents=1, servers=0)
    job, _, _, _ = steps_of(c, 2, {"sleeper": sleeper})
    assert adds_up(job)
    # one of two workers waits for 30 ms, so the mean is 15 ms
    assert 0.8 < job["local_s"] / 0.015 < 1.2, job
    assert job["wait_s"] == 0 and job["last"] is None
