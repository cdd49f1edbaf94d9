"""Staging memory of GPUs on a machine with two NUMA nodes: its pages must be on the wanted node."""

import pytest
from test_device import Rig, needs_cuda, staging


@needs_cuda
@pytest.mark.parametrize("n_elems", [1000, 1 << 20])
@pytest.mark.parametrize(
    "numa, nodes", [("0,1", "0,1/-"), ("1,1", "1,1/1"), ("1,0", "1,0/-"), ("-1,1", "-,1/-")]
)
def test_pages_of_staging_memory_lie_on_the_gpus_nodes(cluster, numa, nodes, n_elems):
    """Check small tensors and large tensors.

    The main thread allocates memory for small tensors. Another thread allocates memory for large
    tensors.
    """
    r = Rig(
        cluster,
        "cuda",
        agents=2,
        gpus=2,
        args=["--gpu-strategy", "ce"],
        agent_env={"FAKE_CUDA_NUMA": numa},
    )
    stop = r.c.dir / "stop"
    job = r.start("gpu_until", 4, {"d": str(r.c.dir), "n_elems": n_elems, "n_tensors": 1})
    r.c.wait_for("rounds", lambda: (r.c.dir / "rounds").exists())
    for a in r.c.agents:
        assert f" nodes={nodes} " in a.log.read_text(), a.log.read_text()
        pieces = staging(a)
        inputs, sums = nodes.split("/")
        wished = {f"prefer:{n}" for n in {*inputs.split(","), sums} - {"-"}} | (
            {"default"} if "-" in nodes else set()
        )
        assert {policy for policy, _ in pieces} == wished, pieces
        for policy, pages in pieces:
            assert policy == "default" or set(pages) == {int(policy[-1])}, pieces
    stop.touch()
    r.c.finish(job)
