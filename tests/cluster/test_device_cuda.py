"""Tensors in device memory through bps-agent-cuda, over a libcuda and a libnccl that only look like it: the CUDA back-end,
the executor, the agent and the library's calls of the driver, each in its own process, with exact sums at the end."""

import pytest

from cluster import BUILD

FAKE = BUILD / "fake"
CUDA = ["--gpu", "cuda"]

pytestmark = pytest.mark.skipif(
    not (FAKE / "libcuda.so.1").exists() or not (BUILD / "bps-agent" / "bps-agent-cuda").exists() or BUILD.name == "tsan",
    reason="built without the CUDA toolkit",
)


@pytest.fixture(autouse=True)
def fake_gpus(monkeypatch):
    """Eight GPUs for everybody; queued work begins late by chance."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE))
    monkeypatch.setenv("FAKE_CUDA_GPUS", "8")
    monkeypatch.setenv("FAKE_CUDA_DELAY_US", "100")


@pytest.mark.parametrize("mode", ["arena", "import"])
@pytest.mark.parametrize("workers,agents", [(2, 2), (4, 2)])
def test_sums_of_gpus_are_exact(cluster, workers, agents, mode):
    c = cluster(agents=agents, servers=2, agent_args=CUDA)
    c.run("gpu_rounds", workers, {"sizes": [1, 1000, 300001], "n_rounds": 4, "mode": mode})


@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "switch_sum", "roots"])
def test_every_route_gives_the_same_sums_on_gpus(cluster, route):
    c = cluster(agents=2, servers=1, agent_args=[*CUDA, "--gpu-strategy", route])
    c.run("gpu_rounds", 6, {"sizes": [3, 70001], "n_rounds": 3, "route": route})
