"""bpsctl agent HOST --topology: an agent's view of its GPUs, read from fake sysfs folders."""

import json
import os

import pytest

from cluster import BUILD, ROOT
from schema import validate

LINES = {p.stem: p.read_text().splitlines() for p in (ROOT / "tests" / "topologies").glob("*.topo")}


def make(root, name):
    """Make the sysfs files of machine `name` in the folder `root`. Return the expected strategy."""
    links = root / "bus" / "pci" / "devices"
    links.mkdir(parents=True)
    expect = None
    for line in LINES[name]:
        word, _, rest = line.partition(" ")
        if word == "expect":
            expect = rest
        elif word == "link":
            os.symlink(rest.split()[1], links / rest.split()[0])
        elif word == "device":
            path, *attrs = rest.split()
            os.symlink(f"../../../devices/{path}", links / path.rsplit("/", 1)[1])
            for attr in attrs:
                key, _, value = attr.partition("=")
                file = root / "devices" / path / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(value + "\n")
    return expect


def fakes(name):
    """Return the fake driver's variables for the GPUs in the machine's description."""
    reports = [line.split() for line in LINES[name] if line.startswith("report ")]
    if not reports:
        return {}
    return {
        "FAKE_CUDA_PCI": ",".join(r[1] for r in reports),
        "FAKE_CUDA_NUMA": ",".join(r[2].partition("=")[2] for r in reports),
    }


def ask(c, i, *flags):
    p = c.bpsctl("agent", f"127.0.0.1:{c.agents[i].http}", "--topology", *flags)
    assert "--json" in flags or all(len(line) < 100 for line in p.stdout.splitlines()), p.stdout
    return p


def test_an_agent_tells_where_its_gpus_are_and_why_it_goes_which_way(cluster, tmp_path):
    c = cluster(agents=0, servers=1)
    for i, name in enumerate(("dgx", "two-switches-both", "one-root")):
        expect = make(tmp_path / name, name)
        c.add_agent(i, "--sysfs", tmp_path / name)
        d = json.loads(ask(c, i, "--json").stdout)
        validate(d, "agent")
        assert d["topology"]["source"] == "sysfs"
        assert d["topology"]["strategy"]["name"] == expect, d
    text = ask(c, 0).stdout
    assert "8 GPUs, 9 cards" in text and "NVLink: all GPUs, since there are NVSwitches" in text, (
        text
    )
    assert "strategy: rs_ag, since NVLink joins the 8 GPUs" in text, text
    assert "reduce-scatter  GPUs 0-7" in text, text
    text = ask(c, 1).stdout
    assert "uplink 0000:17:00.0 of pci0000:17, a switch" in text, text
    assert "GPUs 0-3, 4-7" in text and "the processor adds 2 pieces" in text, text
    assert c.bpsctl("agent", f"127.0.0.1:{c.agents[1].http}").stdout.startswith("bps-agent a1")


def test_a_strategy_that_is_set_is_taken_and_one_that_cannot_be_had_is_told(cluster, tmp_path):
    c = cluster(agents=0, servers=1)
    make(tmp_path / "dgx", "dgx")
    make(tmp_path / "broken", "broken")
    c.add_agent(0, "--sysfs", tmp_path / "dgx", "--gpu-strategy", "ce")
    c.add_agent(1, "--sysfs", tmp_path / "broken")
    c.add_agent(2, "--sysfs", tmp_path / "nowhere")
    text = ask(c, 0).stdout
    assert "strategy: ce (forced), since set by gpu-strategy; auto would choose rs_ag" in " ".join(
        text.split()
    ), text
    p = ask(c, 1)
    assert "! 9 devices or attributes are invalid" in p.stdout and p.returncode == 0, p
    p = ask(c, 2)
    assert "cannot list" in p.stdout and p.returncode == 1, p
    validate(json.loads(ask(c, 2, "--json").stdout), "agent")


def test_this_machine_is_told_as_it_is(cluster):
    c = cluster(agents=1, servers=1)
    p = ask(c, 0)
    assert p.returncode == 0 and "(from sysfs)" in p.stdout, p
    p = c.bpsctl("agent", f"127.0.0.1:{c.servers[0].http}", "--topology")
    assert p.returncode != 0 and "not an agent" in p.stderr, p


FAKE = BUILD / "fake"


@pytest.mark.skipif(
    not (FAKE / "libcuda.so.1").exists() or BUILD.name != "debug",
    reason="built without the CUDA toolkit",
)
def test_the_executor_tells_what_only_the_driver_knows(cluster, tmp_path):
    c = cluster(agents=0, servers=1)
    make(
        tmp_path / "m", "two-switches-both"
    )  # four of the GPUs in "two-switches-both" have the fake driver's PCI addresses
    c.env.update(LD_LIBRARY_PATH=str(FAKE), FAKE_CUDA_GPUS="4", FAKE_CUDA_LINKS="nvlink")
    c.add_agent(0, "--sysfs", tmp_path / "m")
    c.wait_for("the executor has answered", lambda: "from executor" in ask(c, 0).stdout)
    text = ask(c, 0).stdout
    assert "4 GPUs, 2 cards" in text and "Fake GPU 3" in text and "NVLink: all GPUs\n" in text, text
    assert "strategy: rs_ag, since NVLink joins the 4 GPUs" in text, text
    d = json.loads(ask(c, 0, "--json").stdout)
    validate(d, "agent")
    assert d["topology"]["gpus"][0]["uuid"].startswith("GPU-66616b65-")
    c.env.update(FAKE_CUDA_FAULTS="cuInit:1=100")
    c.add_agent(1, "--sysfs", tmp_path / "m")
    c.wait_for("the executor has reported its error", lambda: "executor: " in ask(c, 1).stdout)
    assert "(from sysfs)" in ask(c, 1).stdout
