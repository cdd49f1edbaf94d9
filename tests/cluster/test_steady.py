"""While a job is in its steady state, data threads do not allocate, map memory or page-fault."""

import ctypes
import mmap
import subprocess
from pathlib import Path

import pytest

from cluster import IS_ASAN, PROVIDER, Cluster

HERE = Path(__file__).resolve().parent
ROUNDS, WINDOWS = 100, 12

pytestmark = pytest.mark.skipif(IS_ASAN, reason="the sanitizer has an allocator of its own")


class Counts:
    """Counters of a daemon's data threads: allocator calls, mappings and page faults."""

    def __init__(self, daemon, path):
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 16)
        self.pair = (ctypes.c_uint64 * 2).from_buffer(self.map)
        self.name = daemon.name
        self.tasks = [
            t
            for t in Path(f"/proc/{daemon.process.pid}/task").iterdir()
            if (t / "comm").read_text().startswith("data")
        ]

    def read(self):
        faults = sum(int((t / "stat").read_text().rsplit(")", 1)[1].split()[7]) for t in self.tasks)
        return {"allocations": self.pair[0], "mappings": self.pair[1], "page faults": faults}


@pytest.fixture
def counted(tmp_path):
    """Return a function that makes a Cluster whose daemons are preloaded with count_allocs.c.

    Also return {name of the daemon: file of its counters}.
    """
    library = tmp_path / "count_allocs.so"
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-fno-builtin", "-o", library, HERE / "count_allocs.c"],
        check=True,
    )
    made, files = [], {}

    class Counted(Cluster):
        def add(self, program, name, *args, **kw):
            files[name] = tmp_path / name
            files[name].write_bytes(bytes(16))
            self.env.update(LD_PRELOAD=str(library), COUNT_FILE=str(files[name]))
            try:
                return super().add(program, name, *args, **kw)
            finally:
                del self.env["LD_PRELOAD"], self.env["COUNT_FILE"]

    def make(**kw):
        made.append(Counted(**kw))
        return made[-1], files

    yield make
    problems = [p for c in made for p in c.close()]
    assert not problems, "\n".join(problems)


def is_quiet(window, most):
    return all(window[k] <= most[k] for k in most)


@pytest.mark.parametrize("path", ["network", "same host"])
@pytest.mark.parametrize("n_elems", [1000, 300000])
def test_data_threads_allocate_map_and_fault_on_nothing_in_a_round(counted, meeting, path, n_elems):
    args = ["--same-host-dir", str(meeting)] if path == "same host" else ["--same-host", "off"]
    c, files = counted(agents=2, servers=2, agent_args=args, server_args=args)
    stop = c.dir / "stop"
    args = {"n_elems": n_elems, "stop": str(stop), "seconds": 60}
    started, progress = c.start_running(
        "rounds_until", 2, args, after=100
    )  # do not count allocations of the first rounds, because these rounds fill the pools
    counts = [Counts(d, files[d.name]) for d in [*c.agents, *c.servers]]
    assert all(x.read()["allocations"] > 0 for x in counts), "the counters do not count"
    # The first use of each buffer is a page fault, so the first windows may have page faults. Each
    # daemon must have one window of many rounds without page faults. Over libfabric, some page
    # faults are allowed, because it takes long to use all 16384 entries of libfabric's queue.
    is_fabric = path == "network" and PROVIDER not in ("", "sockets")
    most = {"allocations": 0, "mappings": 0, "page faults": ROUNDS // 2 if is_fabric else 0}
    seen = {x.name: [] for x in counts}
    for _ in range(WINDOWS):
        before = [x.read() for x in counts]
        progress.goes_on(ROUNDS)
        for x, b in zip(counts, before):
            seen[x.name].append({k: v - b[k] for k, v in x.read().items()})
        if all(any(is_quiet(w, most) for w in windows) for windows in seen.values()):
            break
    stop.touch()
    c.finish(started)
    for name, windows in seen.items():
        assert any(is_quiet(w, most) for w in windows), f"{name}: {windows}"
