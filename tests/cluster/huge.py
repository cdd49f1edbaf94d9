"""Sum one tensor of more than 2^32 elements. `make huge` runs these tests.

The tests are not part of `make test`, because they need 20 GiB of memory. The first test runs one
worker with BPS_FORCE_DISTRIBUTED. Four buffers take 4 GiB each: the worker's input, its two
outputs, and the server's sum.
"""


def test_tensor_of_more_than_4_gi_elements_is_summed_right(cluster):
    c = cluster(agents=1, servers=0, agent_args=["--memory", "14GiB", "--user-memory", "14GiB"])
    c.add_server(0, "--sums-memory", "12GiB")
    n = (1 << 32) + 12345
    assert c.run("huge", 1, {"n_elems": n}, deadline_s=900, env={"BPS_FORCE_DISTRIBUTED": "1"}) == [
        n
    ]


def test_tensor_of_more_than_4_gi_elements_is_summed_right_within_a_machine(cluster):
    c = cluster(agents=1, servers=0, agent_args=["--memory", "18GiB", "--user-memory", "18GiB"])
    n = (1 << 32) + 12345
    assert c.run("huge", 2, {"n_elems": n}, deadline_s=900) == [n, n]
