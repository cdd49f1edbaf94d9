"""Fault matrix, column D: two losses at once.

All sums are exact. faults.md would allow an error, but in none of these cells is one necessary.
"""

import time

import pytest

from lab import wait_until

STAY = 20
ENDS_S = 40
# Upper bound of the grace period of a restarted scheduler, in seconds. The period lasts 8.8 s,
# which is twice the default of --agent-dead. During this period, the scheduler waits for members
# that have not reconnected.
GRACE_S = 10


def lose(c, what):
    """Kill a daemon. Return a function that starts the daemon again.

    If the daemon is an agent, the returned function does nothing, because the service manager
    restarts the agent. The returned function also does nothing if the daemon must stay away.
    """
    kind, _, more = what.partition("-")
    d = {
        "agent": c.agents[1],
        "server": c.servers[0],
        "other": c.servers[1],
        "scheduler": c.scheduler,
    }[kind]
    if kind == "agent":  # the service manager restarts the agent
        d.process.kill()
    else:
        d.kill()
        if more != "gone":
            return d.start_again
    return lambda: None


@pytest.mark.parametrize("gap_s", [0, 0.15, 0.6])
@pytest.mark.parametrize(
    "first, second",
    [
        ("agent", "server"),
        ("agent", "server-gone"),
        ("server", "agent"),
        ("agent", "scheduler"),
        ("scheduler", "server-gone"),
        ("scheduler", "agent"),
        ("server-gone", "other"),
        ("server-gone", "scheduler"),
    ],
)
def test_two_losses_at_once_cost_the_job_no_round(faulty, cell, first, second, gap_s):
    """FM-D: two processes are killed, at the same time or with a gap of 0.15 s or 0.6 s.

    With a gap, the first process may already run again when the second process is killed.
    """
    c = faulty(is_kept=True)
    job = c.steady(2, n_tensors=3).wait_rounds()
    at = time.monotonic()
    again = lose(c, first)
    if gap_s > 0.3:
        again()
    wait_until(at + gap_s)
    back = lose(c, second)
    if gap_s <= 0.3:
        again()
    back()
    job.wait_rounds(STAY, ENDS_S)
    bound_s = GRACE_S + 2 if {first, second} == {"scheduler", "server-gone"} else 5
    cell.within("stall", job.stall(at), bound_s)
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
