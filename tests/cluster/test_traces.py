"""Files with traces that environment variables of BytePS and Horovod request."""

import json
from pathlib import Path

import pytest
from slices import assert_nested, slices

BYTEPS = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_START_STEP": "5", "BYTEPS_TRACE_END_STEP": "8"}


def step(c, workers, env, **args):
    """Run a job of a few steps. Return the texts that its workers printed."""
    stop = c.dir / "stop"
    stop.touch()
    given = {"stop": str(stop), "progress": str(c.dir / "progress"), "n_steps": 12}
    started = c.start_job("stepping", workers, given | {"computing": 0.002} | args, env=env)
    c.finish(started)
    return [w.text() for w in started]


def rounds(path):
    """Return the numbers of the rounds in a trace, for each tensor."""
    trace, found = json.loads(Path(path).read_text()), {}
    assert_nested(trace)
    for one in slices(trace, "round"):
        found.setdefault(one["name"], []).append(one["args"]["round"])
    return found


def each(numbers):
    return {name: list(numbers) for name in ("t0", "t1", "t2")}


def test_byteps_variables_write_the_chosen_steps_while_the_job_runs(cluster, tmp_path):
    c = cluster(agents=1, servers=0)
    stop, folder = tmp_path / "stop", tmp_path / "runs" / "traces"  # neither folder exists
    env = dict(BYTEPS, BYTEPS_TRACE_DIR=str(folder))
    args = {"stop": str(stop), "computing": 0.002}
    started, _ = c.start_running("stepping", 2, args, after=23, env=env)
    # Rank 0 has done all steps. Rank 1 has done nearly all of them.
    files = [folder / str(rank) / "comm.json" for rank in range(2)]
    assert [rounds(f) for f in files] == [each(range(5, 9))] * 2
    stop.touch()
    c.finish(started)
    assert [rounds(f) for f in files] == [each(range(5, 9))] * 2
    assert not any("warning" in w.text() for w in started)


def test_workers_of_one_machine_get_their_traces_at_the_same_time(cluster, tmp_path):
    c = cluster(agents=1, servers=0)
    env = dict(BYTEPS, BYTEPS_TRACE_DIR=str(tmp_path), BYTEPS_TRACE_START_STEP="1")
    env["BYTEPS_TRACE_END_STEP"] = "200"
    texts = step(c, 4, env, n_steps=203, computing=0)
    assert not any("warning" in text for text in texts), texts
    for rank in range(4):
        assert rounds(tmp_path / str(rank) / "comm.json") == each(range(1, 201))


def test_a_job_that_ends_before_the_last_step_writes_what_it_has(cluster, tmp_path):
    c = cluster(agents=2, servers=1)
    env = {"BYTEPS_TRACE_ON": "true", "BYTEPS_TRACE_DIR": str(tmp_path)}
    step(c, 2, env)
    # the workers of two agents of one host have the same local rank
    for rank in range(2):
        assert rounds(tmp_path / str(rank) / "comm.json") == each(range(10, 13))


def test_horovods_variable_lets_rank_0_write_all_rounds_at_the_end(cluster, tmp_path):
    c = cluster(agents=2, servers=1)
    path = tmp_path / "timeline.json"
    step(c, 2, {"HOROVOD_TIMELINE": str(path)})
    assert rounds(path) == each(range(1, 13))
    assert [f.name for f in tmp_path.iterdir()] == ["timeline.json"]


def test_dynamic_is_no_file(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    c = cluster(agents=1, servers=0)
    texts = step(c, 2, {"HOROVOD_TIMELINE": "DYNAMIC"})
    assert list(tmp_path.iterdir()) == [] and not any("warning" in text for text in texts)


def test_a_job_of_one_worker_writes_files_without_rounds(cluster, tmp_path):
    c = cluster(agents=1, servers=0)
    path = tmp_path / "timeline.json"
    step(c, 1, {"HOROVOD_TIMELINE": str(path)})
    step(c, 1, dict(BYTEPS, BYTEPS_TRACE_DIR=str(tmp_path)))
    assert rounds(path) == {} == rounds(tmp_path / "0" / "comm.json")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("name", "value"), [("HOROVOD_TIMELINE", "/proc/no/t.json"), ("BYTEPS_TRACE_DIR", "/proc/no")]
)
def test_a_file_that_cannot_be_written_is_a_warning(cluster, workers, name, value):
    c = cluster(agents=1, servers=0)
    env = {name: value} | (BYTEPS if name == "BYTEPS_TRACE_DIR" else {})
    texts = step(c, workers, env)  # the job succeeds
    n_writers = workers if name == "BYTEPS_TRACE_DIR" else 1
    lines = [line for text in texts for line in text.splitlines() if "warning" in line]
    assert len(lines) == n_writers, texts
    assert all(f"no trace is written: trace: cannot write the file '{value}" in x for x in lines)


def test_a_step_that_is_no_number_is_a_warning(cluster, tmp_path):
    c = cluster(agents=1, servers=0)
    env = dict(BYTEPS, BYTEPS_TRACE_DIR=str(tmp_path), BYTEPS_TRACE_END_STEP="-3")
    texts = step(c, 2, env)
    assert "BYTEPS_TRACE_END_STEP=-3 is no number of a step: using 20" in texts[0], texts
    assert rounds(tmp_path / "0" / "comm.json") == each(range(5, 13))
