"""Agents with two network cards: both carry bytes, and the job goes on without one of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))

from cluster import BUILD  # noqa: E402
from lab import Lab, LabCluster  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"),
    reason="hosts with cards of their own need root and tc",
)
AGENT_HOSTS = (4, 5)
LONGEST_ROUND_S = 3


class CardCluster(LabCluster):
    """Two servers on one card each, and two agents on two cards each."""

    def card_of(self, name):
        return int(name[1:]) % 2 if name[0] == "s" and name[1:].isdigit() else 0

    def add(self, program, name, *args, kind=None):
        if program == "bps-agent":
            args = (*args, "--cards", self.lab.addr(self.host_of(name), 1))
        return super().add(program, name, *args, kind=kind)


@pytest.fixture(scope="module")
def hosts():
    """Yield a lab of five hosts with two cards: the scheduler, two servers, two agents."""
    with Lab(5, cards=2) as lab:
        yield lab


@pytest.fixture
def cluster(hosts):
    made = []

    def make(**kw):
        made.append(CardCluster(agents=2, servers=2, lab=hosts, **kw))
        return made[-1]

    yield make
    problems = [p for c in made for p in c.close()]
    hosts.heal()
    assert not problems, "\n".join(problems)


def cards(agent):
    return json.loads(agent.get("/status"))["cards"]


def connections(agent):
    return [card["connections"] for card in cards(agent)]


def check(c, agent):
    """Return what `bpsctl check` says of the agent's network cards: a list of (state, text)."""
    conf = c.dir / f"conf-{agent.name}"
    conf.mkdir(exist_ok=True)
    (conf / "agent.conf").write_text(f"http = 127.0.0.1:{agent.http}\n")
    command = [*agent.prefix, BUILD / "bpsctl", "--json", "check", "--config-dir", conf]
    out = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=30, check=False
    ).stdout
    found = [r for r in json.loads(out)["checks"] if r["name"] == "network cards"]
    return [(r["state"], r["what"]) for r in found]


def test_both_cards_carry_bytes_each_of_its_subnet(cluster):
    c = cluster()
    job = c.steady(n_elems=200000).wait_rounds(5)
    assert check(c, c.agents[0]) == [("ok", "all 2 cards of the agent have connections")]
    for i, agent in enumerate(c.agents):
        seen = cards(agent)
        assert [card["name"] for card in seen] == ["eth0", "eth1"]
        assert [card["address"] for card in seen] == [c.lab.addr(AGENT_HOSTS[i], k) for k in (0, 1)]
        assert [card["connections"] for card in seen] == [2, 2]
        got = [card["received_bytes"] for card in seen]
        assert min(got) > 0.5 * max(got) > 0, got
    job.stop()


@pytest.mark.alone
@pytest.mark.parametrize("threads", [2, 4])
def test_job_goes_on_when_a_card_loses_its_carrier_and_uses_it_again_later(cluster, threads):
    always = ("--faults", "agent.io.load=drop") if threads == 4 else ()
    c = cluster(agent_args=("--threads", threads, *always))
    job = c.steady(n_elems=200000).wait_rounds(5)
    assert connections(c.agents[0]) == [2, 2]
    c.lab.link(AGENT_HOSTS[0], False, card=1)
    job.wait_rounds(5)
    c.wait_for("all connections use the other card", lambda: connections(c.agents[0]) == [4, 0])
    c.lab.link(AGENT_HOSTS[0], True, card=1)
    job.wait_rounds(5)
    if threads == 2:  # the card must have a carrier for 30 s
        c.wait_for("the card is used again", lambda: connections(c.agents[0]) == [2, 2], 60)
        job.wait_rounds(5)
    results = job.stop()
    assert max(r["longest"] for r in results) < LONGEST_ROUND_S, results


@pytest.mark.alone
def test_job_goes_on_when_the_path_of_a_card_is_dead(cluster):
    """The card still has a carrier, so the agent notices the silence of its connections."""
    c = cluster()
    job = c.steady(n_elems=200000).wait_rounds(5)
    c.lab.cut(AGENT_HOSTS[0], card=1)
    job.wait_rounds(5)
    assert connections(c.agents[0]) == [4, 0]
    assert "are silent, so it is left out" in c.agents[0].log.read_text()
    results = job.stop()
    assert max(r["longest"] for r in results) < LONGEST_ROUND_S + 1, results


def test_card_that_cannot_reach_a_server_is_not_used_for_it(cluster):
    c = cluster()
    c.lab.rules(AGENT_HOSTS[0], f"out ip daddr {c.lab.addr(3, 1)} reject", card=1)
    job = c.steady(n_elems=200000).wait_rounds(5)
    assert connections(c.agents[0]) == [4, 0]
    said = (
        f"eth1 ({c.lab.addr(AGENT_HOSTS[0], 1)}) has no connection, while the agent's other cards"
    )
    assert check(c, c.agents[0]) == [("warn", f"{said} have")]
    job.stop()


def test_restart_of_a_server_leaves_no_card_out(cluster):
    c = cluster()
    job = c.steady(n_elems=200000).wait_rounds(5)
    for server in c.servers:
        server.may_end_with.add(-signal.SIGKILL)
        server.kill()
        job.wait_rounds(3)
        server.start_again()
        c.wait_for("both cards are used", lambda: connections(c.agents[0]) == [2, 2])
    job.wait_rounds(5).stop()
    assert "is left out" not in c.agents[0].log.read_text()


def test_address_with_a_label_is_of_its_interface(cluster):
    agent, address = AGENT_HOSTS[0], "10.78.1.99"
    c = cluster()
    c.lab.inside(agent, *f"ip addr add {address}/24 dev eth1 label eth1:x".split())
    a = c.agents[0]
    a.stop()
    a.args[a.args.index("--cards") + 1] = address
    a.start()
    job = c.steady(n_elems=200000).wait_rounds(5)
    assert [card["name"] for card in cards(a)] == ["eth0", "eth1"]
    assert connections(a) == [2, 2]
    job.stop()
    c.lab.inside(agent, "ip", "addr", "del", f"{address}/24", "dev", "eth1")


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two processors")
def test_io_threads_run_near_their_card(cluster, tmp_path):
    for card, cpus in (("eth0", "0"), ("eth1", "1")):
        (tmp_path / "class" / "net" / card / "device").mkdir(parents=True)
        (tmp_path / "class" / "net" / card / "device" / "local_cpulist").write_text(f"{cpus}\n")
    c = cluster(agent_args=("--sysfs", tmp_path))
    allowed = {}
    for task in Path(f"/proc/{c.agents[0].pid}/task").iterdir():
        status = dict(x.split(":\t", 1) for x in (task / "status").read_text().splitlines())
        allowed[status["Name"]] = status["Cpus_allowed_list"]
    assert allowed["io0"] == "0" and allowed["io1"] == "1", allowed
    assert allowed["data0"] not in ("0", "1")


@pytest.mark.parametrize(
    "status, value, words",
    [
        (75, "10.78.200.1", "cannot use --cards 10.78.200.1: Cannot assign requested address"),
        (78, "eth1", "--cards needs the numeric address of this machine"),
        (78, "10.78.0.4", "--cards names the address 10.78.0.4 twice, or that of --listen"),
        (78, "10.78.0.44", "10.78.0.4 and 10.78.0.44 are both of network card eth0: leave one"),
    ],
)
def test_wrong_cards_are_refused(cluster, status, value, words):
    c = cluster()
    a = c.agents[0]
    if value == "10.78.0.44":
        c.lab.inside(AGENT_HOSTS[0], *f"ip addr add {value}/24 dev eth0 label eth0:1".split())
    command = [*a.prefix, BUILD / "bps-agent" / "bps-agent", *a.args]
    command += ["--name", "other", "--socket", c.dir / "other.sock", "--cards", value]
    p = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=30, check=False
    )
    assert p.returncode == status and words in p.stderr, p.stderr
