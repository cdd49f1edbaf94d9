"""Checks of start_timeline and stop_timeline, for each framework that Horovod has them for."""

import json
from pathlib import Path

import pytest


def names(path):
    """Return the names of the tensors that have a round in a trace, without those of comparisons of
    calls."""
    events = json.loads(Path(path).read_text())["traceEvents"]
    rounds = [e["name"] for e in events if e.get("cat") == "round"]
    return [name for name in rounds if not name.startswith("c/")]


def check_between_start_and_stop(hvd, folder, reduce):
    """Check which rounds a timeline has, and who writes it.

    reduce: does an allreduce with this name.
    """
    path = folder / "timeline.json"
    reduce("before")
    hvd.barrier()
    hvd.start_timeline(str(path))
    assert path.exists() == (hvd.rank() == 0)  # the file is created at once
    with pytest.raises(ValueError, match=f"'{path}' was started already: call stop_timeline"):
        hvd.start_timeline(str(path))
    hvd.barrier()
    for _ in range(3):
        reduce("inside")
    hvd.stop_timeline()
    reduce("behind")
    with pytest.raises(ValueError, match="no timeline was started in this job"):
        hvd.stop_timeline()
    assert path.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0:
        found = names(path)
        assert sum("inside" in name for name in found) == 3, found
        assert not any("before" in name or "behind" in name for name in found), found
    hvd.barrier()


def check_what_is_refused(hvd):
    """Check arguments that cannot work. The error comes at the start."""
    with pytest.raises(NotImplementedError, match="does not work in cycles: leave mark_cycles out"):
        hvd.start_timeline("/tmp/timeline.json", mark_cycles=True)
    if hvd.rank() == 0:
        with pytest.raises(RuntimeError, match="cannot write the file '/no/folder/t.json'"):
            hvd.start_timeline("/no/folder/t.json")
        with pytest.raises(ValueError, match="no timeline was started"):
            hvd.stop_timeline()


def check_end_of_the_job(hvd, folder, reduce):
    """Check that the end of the job writes a timeline. The job is joined again."""
    path = folder / "timeline.json"
    hvd.start_timeline(str(path))
    hvd.barrier()
    reduce("last")
    hvd.shutdown()
    if hvd.is_initialized():
        raise AssertionError("shutdown has left the job")
    hvd.init()
    with pytest.raises(ValueError, match="no timeline was started in this job"):
        hvd.stop_timeline()
    assert path.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0:
        assert any("last" in name for name in names(path))
