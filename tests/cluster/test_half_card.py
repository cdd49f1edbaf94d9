"""A machine whose network card has half the speed of the others: bpsctl names it first."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))

from lab import Lab, LabCluster  # noqa: E402
from test_steps import adds_up, steps_of  # noqa: E402

pytestmark = [
    pytest.mark.alone,  # the tests compare times
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("tc"),
        reason="hosts with cards of their own need root and tc",
    ),
]
N = 3
N_ELEMS = 250_000  # of each of the three tensors of a step: 24 Mbit of f32 in each direction


@pytest.fixture(scope="module")
def hosts():
    """Yield a lab of the scheduler's host, three servers' hosts and three agents' hosts."""
    with Lab(1 + 2 * N) as lab:
        yield lab


def steps_with_rates(hosts, rates_mbit):
    """Run a job whose machine i has a card of rates_mbit[i]. Return what steps_of returns."""
    c = LabCluster(agents=N, servers=N, lab=hosts)
    try:
        for i in range(N):
            hosts.rate(2 + i, f"{max(rates_mbit)}mbit")
            hosts.rate(2 + N + i, f"{rates_mbit[i]}mbit")
        return steps_of(c, N, {"n_elems": N_ELEMS})
    finally:
        problems = c.close()
        hosts.heal()
        assert not problems, problems


@pytest.mark.parametrize("slow", [0, 2])
def test_the_machine_with_half_a_card_is_named(hosts, slow):
    rates = [200] * N
    _, _, whole, _ = steps_with_rates(hosts, rates)
    rates[slow] = 100
    job, agents, half, (text, findings) = steps_with_rates(hosts, rates)
    assert adds_up(job) and all(map(adds_up, agents.values()))
    name, host = f"a{slow}", f"agent-host{slow}"
    # The machine with the slow card waits for none. The others wait while it sends.
    others = [steps for agent, steps in agents.items() if agent != name]
    assert all(s["last"]["agent"] == name and s["n_last"] >= 8 for s in others), (text, others)
    assert agents[name]["wait_s"] < 0.2 * min(s["wait_s"] for s in others)
    assert [f["code"] for f in findings][0] == "SLOW_CARD", findings
    assert f"card of {host} carries" in findings[0]["text"]
    assert "LATE_MACHINE" not in [f["code"] for f in findings], findings
    gain = findings[0]["gain_s"] / (half[0][0] - whole[0][0])
    print(f"gain over the truth: {gain:.3f}")  # pytest -rP shows it
    # On a quiet machine, the median is 1. Both lengths of a step vary by a few per cent.
    assert 0.6 < gain < 1.6
