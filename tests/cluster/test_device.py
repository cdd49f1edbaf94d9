"""Tensors in device memory, on back-end host: plain memory in the place of GPUs, everything else as it is with them."""

import pytest

HOST = ["--gpu", "host"]


@pytest.mark.parametrize("workers,agents", [(2, 2), (4, 2), (2, 1), (4, 1), (8, 2)])
def test_sums_in_device_memory_are_exact(cluster, workers, agents):
    c = cluster(agents=agents, servers=2, agent_args=HOST)
    args = {"sizes": [1, 1000, 300001, 4096], "n_rounds": 6}
    routes = c.run("device_rounds", workers, args)
    assert routes == ["copy" if workers == agents else "ce"] * workers


@pytest.mark.parametrize("route", ["copy", "ce", "rs_ag", "switch_sum", "roots"])
def test_every_route_gives_the_same_sums(cluster, route):
    c = cluster(agents=2, servers=2, agent_args=[*HOST, "--gpu-strategy", route])
    for dtype, op in [("i64", "sum"), ("f32", "sum"), ("f32", "avg"), ("i32", "max"), ("f64", "min"), ("i32", "avg")]:
        c.run("device_rounds", 6, {"sizes": [3, 70001, 512], "n_rounds": 3, "dtype": dtype, "op": op, "route": route})


def test_a_job_has_tensors_in_host_and_in_device_memory(cluster):
    c = cluster(agents=2, servers=1, agent_args=HOST)
    c.run("device_and_host_tensors", 4, {"n_elems": 100003, "n_rounds": 5})
