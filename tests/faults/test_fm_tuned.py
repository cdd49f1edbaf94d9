"""Fault matrix, columns S and A with short time limits: faults are noticed within 2.2 s."""

import re
import signal
import time

import pytest

QUICK = ["--beat", "200ms", "--server-dead", "1400ms", "--agent-dead", "1400ms"]
NOTICED_S = 2.2
HOW = ["stop", "down", "both", "in", "out"]


def notice(c, cell, daemon, lab, how):
    """Stop or cut off the daemon until it is declared dead.

    Then continue or reconnect the daemon, and wait until it is a member again.
    """
    at = time.monotonic()
    if how == "stop":
        daemon.kill(signal.SIGSTOP)
    else:
        lab.cut_off(daemon.host, how)
    given_up = re.compile(rf" {daemon.name}: \w+ -> down")
    c.wait_for("the daemon is declared dead", lambda: given_up.search(c.scheduler.log.read_text()))
    cell.within("noticed", time.monotonic() - at, NOTICED_S)
    if how == "stop":
        daemon.kill(signal.SIGCONT)
    else:
        lab.mend(daemon.host)
    c.wait_for(
        "the daemon is up again",
        lambda: f"{daemon.name}: down -> up" in c.scheduler.log.read_text(),
    )


@pytest.mark.parametrize("how", HOW)
def test_server_is_declared_dead_within_short_limits(faulty, cell, lab, how):
    """FM-S-tuned: the server hangs, its link is down, or packets are lost.

    The server is declared dead within NOTICED_S. Its partitions move, and no round is lost.
    """
    c = faulty(lab=lab, scheduler_args=QUICK)
    job = c.steady(2).wait_rounds()
    notice(c, cell, c.servers[0], lab, how)
    job.wait_rounds(20).stop()


@pytest.mark.parametrize("how", HOW)
def test_agent_is_declared_dead_within_short_limits(faulty, cell, lab, how):
    """FM-A-tuned: the agent hangs, its link is down, or packets are lost.

    The agent is declared dead within NOTICED_S. Other jobs go on.
    """
    c = faulty(lab=lab, scheduler_args=QUICK)
    job = c.steady(1, placement=[0]).wait_rounds()
    notice(c, cell, c.agents[1], lab, how)
    job.wait_rounds(20).stop()
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
