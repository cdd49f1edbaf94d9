"""A machine that stalls in a job with backup machines catches up with the others.

Rank 0 of the test starts a cluster of three agents with a worker on each.
"""

import json

import processes
import pytest

# Each worker trains for STEPS steps of STEP_S seconds. Rank 2 stalls in step STALL for three steps.
# The sleeps stand for computing. Each gradient is a power of two of its worker, so the parameter
# shows which workers' gradients are in the average.
SCRIPT = """
import json, os, time
import torch
import bps.torch as bps

STEPS, STEP_S = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
bps.init()
w = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float64))
inner = torch.optim.SGD([w], lr=1.0)
optimizer = bps.DistributedOptimizer(inner, [("w", w)], op=bps.Sum)
n, sums, skipped, values = 0, [], [], []

def record():
    sums.append(int(w.grad[0].item()))
    optimizer.step()
    values.append(w[0].item())

while n < STEPS:
    if os.environ["CATCHES_UP"] == "1" and optimizer.is_behind:
        skipped.append(optimizer.catch_up(STEPS - n, record))
        n += skipped[-1]
        continue
    time.sleep(STEP_S * (4 if n == int(os.environ["STALL"]) and bps.rank() == 2 else 1))
    w.grad = None
    (w.sum() * 2.0 ** bps.rank()).backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        record()
    n += 1
assert optimizer.n_caught_up == sum(skipped)
print("result", json.dumps([sums, skipped, values]), flush=True)
bps.shutdown()
"""


def run(steps, step_s, catches_up, stall=4):
    """Return for each rank: the sum of each step, the steps of each catch_up(), the values of the
    parameter; and the outputs."""
    env = {"STEPS": steps, "STEP_S": step_s, "CATCHES_UP": int(catches_up), "STALL": stall}
    with processes.Cluster(agents=3, servers=1) as cluster:
        started = processes.start(
            SCRIPT, 3, cluster, "late", BPS_BACKUP=1, BPS_BACKUP_GRACE="5ms", **env
        )
        codes, outputs = processes.finish(started)
    assert codes == [0] * 3, outputs
    found = [json.loads(output.split("result ")[1].splitlines()[0]) for output in outputs]
    return found, outputs


def share(sums):
    """Return the share of the steps after the stall whose sum has the gradient of rank 2."""
    later = sums[5:]
    return sum(total >= 4 for total in later) / len(later)


@pytest.mark.parametrize("steps, step_s", [(25, 0.1)])
def test_machine_that_stalled_once_is_in_later_sums_again(steps, step_s):
    (results, outputs) = run(steps, step_s, catches_up=True)
    sums = [r[0] for r in results]
    assert sums[0] == sums[1] == sums[2], "all workers have the same sums"
    assert results[0][2] == results[1][2] == results[2][2], "and the same parameters"
    print("share of later steps:", share(sums[0]), "skipped:", [r[1] for r in results])
    assert share(sums[0]) >= 0.9 - 1 / len(sums[0])
    assert 1 <= sum(results[2][1]) <= 3
    assert "took part in" in outputs[2] and "without its gradients" in outputs[2]


@pytest.mark.parametrize("left", [1, 2])
def test_no_step_follows_the_last_one(left):
    """The stall is in one of the last steps, so no other worker takes part in a further step."""
    results, _ = run(8, 0.1, catches_up=True, stall=8 - left)
    sums = [r[0] for r in results]
    assert [len(s) for s in sums] == [8] * 3 and sums[0] == sums[2]
    assert sum(results[2][1]) == left - 1


def test_machine_that_does_not_catch_up_is_missing_in_later_sums():
    results, _ = run(12, 0.1, catches_up=False)
    assert share(results[0][0]) <= 0.5
