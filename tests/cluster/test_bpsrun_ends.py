"""Nothing of a run is left on any node, whichever of its processes is killed (rule T6)."""

import os
import signal
import time

import pytest
from cluster import IS_ASAN, IS_TSAN
from nodes import Lab, children, descendants, new_key, program_of, wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(IS_ASAN or IS_TSAN, reason="this Python cannot load the sanitized library"),
]
KEY = new_key()
HEAD, MEMBER = 0, 1


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path, 2)
    yield lab
    lab.close()


@pytest.fixture
def pair(lab):
    """Return the two nodes of a job that runs."""
    args = ["-n", 2, "--nnodes", 2, "--head", lab.addr(1)]
    nodes = [lab.train(i, *args, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    nodes[HEAD].goes_on()
    return nodes


def sleepers(lab):
    """Return the processes that the workers have left behind."""
    return [pid for pid, words in lab.processes().items() if words.startswith("sleep")]


def test_end_of_a_job_ends_what_its_workers_have_left_behind(lab, pair):
    assert len(sleepers(lab)) == 4
    assert all(os.getsid(p) != os.getsid(pair[HEAD].pid) for p in sleepers(lab))
    lab.go.touch()
    begun = time.monotonic()
    assert [n.wait() for n in pair] == [0, 0], pair[HEAD].text
    lab.must_be_gone(begun)


@pytest.mark.parametrize("where", [HEAD, MEMBER], ids=["head", "member"])
@pytest.mark.parametrize("victim", ["guard", "runner", "python3", "sleep"])
def test_killed_process_of_bpsrun_or_of_the_workers_ends_all_nodes(lab, pair, victim, where):
    node = pair[where]
    (runner,) = children(node.pid)
    pid = {"guard": node.pid, "runner": runner}.get(victim) or node.named(victim)[0]
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    if victim == "sleep":
        wait_until("the killed process is reaped", lambda: not program_of(pid))
        pair[HEAD].goes_on()
        lab.go.touch()
        begun = time.monotonic()
    lab.must_be_gone(begun)
    codes = [n.wait() for n in pair]
    if victim == "sleep":
        assert codes == [0, 0]
    else:
        assert all(codes), codes
    if victim == "runner":
        assert "was killed by signal 9" in node.text and codes[where] == 128 + 9, node.text


@pytest.mark.parametrize("where", [HEAD, MEMBER], ids=["head", "member"])
@pytest.mark.parametrize("victim", ["bps-server", "bps-agent"])
def test_job_goes_on_without_a_daemon_and_ends_with_the_guard(lab, pair, victim, where):
    os.kill(pair[where].named(victim)[0], signal.SIGKILL)
    pair[HEAD].goes_on()
    pair[where].kill()
    lab.must_be_gone(time.monotonic())


def test_job_ends_without_the_scheduler(lab, pair):
    os.kill(pair[HEAD].named("bps-scheduler")[0], signal.SIGKILL)
    lab.must_be_gone(time.monotonic())
    assert "the job cannot go on without scheduler" in pair[HEAD].text
    assert all(n.wait() for n in pair)


@pytest.mark.parametrize("where", [HEAD, MEMBER], ids=["head", "member"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_one_node_ends_all(lab, pair, sig, where):
    pair[where].kill(sig)
    begun = time.monotonic()
    assert pair[where].wait() == 128 + sig
    lab.must_be_gone(begun)


def test_member_whose_machine_is_cut_off_ends_by_itself(lab, pair):
    """No packet tells the nodes of the loss."""
    lab.netlab("exec", lab.prefix, 2, "ip", "link", "set", "eth0", "down")
    begun = time.monotonic()
    assert pair[MEMBER].wait(40), "the kernel notices within 11 s that the head is gone"
    assert pair[HEAD].wait(40)
    wait_until("nothing is left", lambda: not lab.processes(), begun + 60 - time.monotonic())
    assert not lab.files()


@pytest.mark.parametrize("victim", ["guard", "runner", "bps-scheduler", "python3"])
def test_job_on_one_node_leaves_nothing_behind(lab, victim):
    node = lab.train(1, "-n", 2, "--servers", 1)
    node.goes_on()
    (runner,) = children(node.pid)
    assert set(map(program_of, descendants(runner))) >= {"bps-agent", "sleep"}
    pid = {"guard": node.pid, "runner": runner}.get(victim) or node.named(victim)[0]
    os.kill(pid, signal.SIGKILL)
    lab.must_be_gone(time.monotonic())
    assert node.wait()
