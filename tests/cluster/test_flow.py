"""While the bytes of one tensor are in flight, they never block other tensors."""


def test_workers_that_submit_in_opposite_orders_do_not_wait_for_each_other(cluster):
    c = cluster(agents=2, servers=1)
    # 2 x 32 MiB are more than any window or staging memory. A deadlock would last 2 s: if a message
    # gets no answer, an agent sends the message again after this time.
    longest = c.run("opposite_orders", 2, {"n_elems": 1 << 19, "n_tensors": 16})
    assert max(longest) < 1.5, longest
