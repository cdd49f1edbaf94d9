"""A job on several nodes with a cluster of its own: the same bpsrun in each network namespace."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from cluster import IS_ASAN, IS_TSAN
from nodes import BPSCTL, BPSRUN, LIMIT_S, Lab, new_key

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(IS_ASAN or IS_TSAN, reason="this Python cannot load the sanitized library"),
]
PLACE = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $BPS_JOB $MASTER_ADDR"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"), 4)
    yield lab
    lab.close()


@pytest.fixture
def lab(made, tmp_path):
    """Yield four namespaces. At the end of the test, nothing may be left in them."""
    made.folder, made.started, made.go = tmp_path, [], tmp_path / "go"
    yield made
    for node in made.started:
        if node.process.poll() is None:
            node.kill()
    made.must_be_gone(time.monotonic())


def run_all(nodes):
    """Wait for nodes. Return their exit codes."""
    return [n.wait() for n in nodes]


@pytest.mark.parametrize("n", [2, 4])
def test_same_line_on_each_node_is_one_job(lab, n):
    args = ["-n", 2, "--nnodes", n, "--head", lab.addr(1)]
    nodes = [lab.train(i + 1, *args, rounds=30, BPS_CLUSTER_KEY=KEY) for i in range(n)]
    assert run_all(nodes) == [0] * n, [x.text for x in nodes]
    for x in nodes:
        assert x.text.count(f"all sums of {2 * n} are right") == 2, x.text
        assert "warn" not in x.text and "MASTER_KEY" not in x.text
    first = nodes[0].text.splitlines()[0]
    assert first == f"bpsrun: look: bpsctl --host {lab.addr(1)}:7301 status"
    assert lab.files() == []


KEY = new_key()


def test_head_and_members_find_the_place_and_show_the_cluster(lab):
    """The head chooses the ranks of nodes that have none, and any node can look at the cluster."""
    args = ["-n", 1, "--nnodes", 3, "--head", lab.addr(2), "--no-prefix", "--"]
    command = ["sh", "-c", f"{PLACE}; {BPSCTL} --host $BPS_SCHEDULER_HTTP status; true"]
    nodes = [lab.start(i, *args, *command, BPS_CLUSTER_KEY=KEY) for i in (1, 2, 3)]
    assert run_all(nodes) == [0] * 3, [x.text for x in nodes]
    places = [re.search(r"^\d/3 .*$", x.text, re.M)[0].split() for x in nodes]
    assert sorted(p[0] for p in places) == ["0/3", "1/3", "2/3"]
    assert places[1][0] == "0/3", "the head has rank 0"
    for p in places:
        assert p[1:] == ["0/1", p[0][0], "bpsrun", lab.addr(2)], p
    for x in nodes:
        assert "HEALTH_OK" in x.text or "servers" in x.text, x.text


@pytest.mark.parametrize(
    "variables",
    [
        lambda lab, i: {
            "SLURM_JOB_ID": 4711, "SLURM_STEP_ID": 3, "SLURM_STEP_NUM_NODES": 2,
            "SLURM_NODEID": i, "SLURM_LOCALID": 0, "SLURM_JOB_NODELIST": "10.79.0.[1-4]",
            "SLURM_STEP_NODELIST": "10.79.0.[3-4]", "SLURM_PROCID": i, "SLURM_NTASKS": 2,
        },
        lambda lab, i: {
            "PET_NNODES": 2, "PET_NODE_RANK": i, "PET_MASTER_ADDR": lab.addr(3),
            "PET_MASTER_PORT": 29500, "PET_NPROC_PER_NODE": 2,
        },
        lambda lab, i: {
            "GROUP_WORLD_SIZE": 2, "GROUP_RANK": i, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
            "RANK": i, "WORLD_SIZE": 2, "MASTER_ADDR": lab.addr(3), "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "none",
        },
    ],
    ids=["slurm", "kubeflow", "torchrun"],
)  # fmt: skip
def test_launcher_of_the_nodes_gives_the_place(lab, variables):
    nodes = [
        lab.train(3 + i, "-n", 2, rounds=5, BPS_CLUSTER_KEY=KEY, **variables(lab, i))
        for i in (1, 0)
    ]
    assert run_all(nodes) == [0, 0], [x.text for x in nodes]
    for x in nodes:
        assert x.text.count("all sums of 4 are right") == 2, x.text
    port = 20000 + 2 * (4711 + 3) + 1 if "SLURM_JOB_ID" in variables(lab, 0) else 7301
    assert f"look: bpsctl --host {lab.addr(3)}:{port} status" in nodes[1].text


def test_pods_of_an_indexed_job_need_the_head_and_the_number(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", f"{lab.addr(1)}:7900"]
    nodes = [
        lab.train(i + 1, *args, rounds=5, BPS_CLUSTER_KEY=KEY, JOB_COMPLETION_INDEX=i)
        for i in (1, 0)
    ]
    assert run_all(nodes) == [0, 0], [x.text for x in nodes]
    assert f"{lab.addr(1)}:7901" in nodes[1].text


def test_node_without_a_key_gets_the_way_to_make_one(lab):
    node = lab.start(1, "-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--", "true")
    assert node.wait() == 125
    assert "export BPS_CLUSTER_KEY=$(bpsctl key new)" in node.text, node.text


def test_node_with_another_key_is_refused_and_the_others_go_on(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1)]
    head = lab.train(1, *args, BPS_CLUSTER_KEY=KEY)
    wrong = lab.train(2, *args, BPS_CLUSTER_KEY=new_key())
    assert wrong.wait() == 125
    assert "the head has another cluster key" in wrong.text, wrong.text
    right = lab.train(3, *args, BPS_CLUSTER_KEY=KEY)
    head.goes_on()
    lab.go.touch()
    assert run_all([head, right]) == [0, 0], head.text
    assert f"refused the node at {lab.addr(2)}" in head.text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["-n", 2, "--nnodes", 2], "the head has 1 workers on each node (-n), this node 2"),
        (["-n", 1, "--nnodes", 3], "the head has 2 nodes (--nnodes), this node 3"),
        (["-n", 1, "--nnodes", 2, "--node-rank", 1], "the node rank 1 is taken by another node"),
    ],
)
def test_node_with_another_line_is_refused(lab, args, reason):
    head = lab.train(1, "-n", 1, "--nnodes", 2, "--head", lab.addr(1), BPS_CLUSTER_KEY=KEY)
    member = lab.train(2, "-n", 1, "--nnodes", 2, "--head", lab.addr(1), BPS_CLUSTER_KEY=KEY)
    head.goes_on()
    third = lab.start(3, *args, "--head", lab.addr(1), "--", "true", BPS_CLUSTER_KEY=KEY)
    assert third.wait() == 125 and reason in third.text, third.text
    head.goes_on()
    lab.go.touch()
    assert run_all([head, member]) == [0, 0]


def test_head_that_comes_late_is_waited_for(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1)]
    member = lab.train(2, *args, rounds=5, BPS_CLUSTER_KEY=KEY)
    member.wait_for_text(f"waiting for the head at {lab.addr(1)}:7300: Connection refused")
    head = lab.train(1, *args, rounds=5, BPS_CLUSTER_KEY=KEY)
    assert run_all([head, member]) == [0, 0], member.text


def test_head_that_never_comes_is_an_error(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--start-timeout", "1s"]
    member = lab.start(2, *args, "--", "true", BPS_CLUSTER_KEY=KEY)
    assert member.wait() == 125
    assert f"cannot reach the head at {lab.addr(1)}:7300: Connection refused" in member.text
    assert "--start-timeout" in member.text


def test_nodes_that_never_come_are_an_error_at_the_head(lab):
    args = ["-n", 1, "--nnodes", 3, "--head", lab.addr(1), "--start-timeout", "2s"]
    nodes = [lab.train(i, *args, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    assert run_all(nodes) == [125, 125] or nodes[0].wait() == 125
    assert "only 2 of 3 nodes have come within 2 s" in nodes[0].text, nodes[0].text


def test_failure_of_a_worker_ends_all_nodes(lab):
    fails = "import os, bps; j = bps.open(); os.environ['RANK'] == '2' and os._exit(7)\n"
    fails += "t = j.declare('t', 'f32', 10)\nwhile True: t.push_pull(); t.wait()\n"
    args = ["-n", 1, "--nnodes", 3, "--head", lab.addr(1), "--", "/usr/bin/python3", "-c", fails]
    nodes = []
    for i in (1, 2, 3):  # in this order, so that the ranks are known
        nodes.append(lab.start(i, *args, "", BPS_CLUSTER_KEY=KEY, NODE=i))
        if i == 1:
            nodes[0].wait_for_text("look: ")
    codes = run_all(nodes)
    failed = [i for i, x in enumerate(nodes) if "rank 2 exited with code 7" in x.text]
    assert len(failed) == 1 and codes[failed[0]] == 7, [x.text for x in nodes]
    for i, x in enumerate(nodes):
        assert i in failed or (codes[i] == 1 and "rank 2" in x.text), x.text


def test_node_whose_workers_ignore_the_job_ends_with_the_others(lab):
    """A worker that makes no calls gets no error of the job."""
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--", "sh", "-c"]
    head = lab.start(1, *args, "exec sleep 1000", BPS_CLUSTER_KEY=KEY)
    head.wait_for_text("look: ")
    member = lab.start(2, *args, "exit 9", BPS_CLUSTER_KEY=KEY)
    assert member.wait() == 9
    begun = time.monotonic()
    assert head.wait(15) == 9, head.text
    assert f"node 1 at {lab.addr(2)}:" in head.text
    assert "has ended with exit code 9" in head.text
    lab.must_be_gone(begun)


def test_scheduler_stays_until_every_node_has_left(lab):
    """The workers of the head end first. A scheduler that stops with them is a mutant."""
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--", "sh", "-c"]
    script = f"""
        [ $RANK = 0 ] && exit 0
        sleep 2
        {BPSCTL} --host $BPS_SCHEDULER_HTTP status
        exit 0
    """
    nodes = [lab.start(i, *args, script, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    assert run_all(nodes) == [0, 0], [x.text for x in nodes]
    assert "servers 2/2" in nodes[1].text and "have not ended" not in nodes[0].text


def test_key_is_in_no_command_line_and_not_in_the_workers(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1)]
    nodes = [lab.train(i, *args, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    nodes[0].goes_on()
    found = lab.processes()
    assert len(found) > 10, found
    token = None
    for pid, words in found.items():
        assert KEY not in words, words
        text = Path(f"/proc/{pid}/environ").read_text()
        assert KEY not in text, words
        env = dict(e.split("=", 1) for e in text.split("\0") if "=" in e)
        if words.startswith("/usr/bin/python3"):
            token = token or env["BPS_JOB_TOKEN"]
            assert env["BPS_JOB_TOKEN"] == token and re.fullmatch("[0-9a-f]{64}", token)
            assert "BPS_CLUSTER_KEY" not in env
    assert token
    lab.go.touch()
    assert run_all(nodes) == [0, 0]


def test_key_may_come_from_a_file_that_only_its_owner_reads(lab, tmp_path):
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--key-file", file]
    file.chmod(0o644)
    open_file = lab.start(1, *args, "--", "true")
    assert open_file.wait() == 125 and "is open to group or others" in open_file.text
    file.chmod(0o600)
    nodes = [lab.train(i, *args, rounds=5) for i in (1, 2)]
    assert run_all(nodes) == [0, 0], [x.text for x in nodes]


@pytest.mark.parametrize(("where", "n"), [("all", 2), ("head", 1), ("10.79.0.[2-3]", 1)])
def test_servers_run_where_the_line_says(lab, where, n):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--servers-on", where]
    nodes = [lab.train(i, *args, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    nodes[0].goes_on()
    found = [len(x.named("bps-server")) for x in nodes]
    assert found == {"all": [1, 1], "head": [1, 0]}.get(where, [0, 1])
    assert sum(found) == n
    lab.go.touch()
    assert run_all(nodes) == [0, 0]


def test_cluster_without_any_server_is_refused(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--servers-on", "10.79.0.9"]
    nodes = [lab.train(i, *args, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    assert all(run_all(nodes)), [x.text for x in nodes]
    assert "no node has a server: --servers-on names none of them" in nodes[0].text


def test_interface_chooses_the_address(lab):
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1), "--interface"]
    wrong = lab.start(1, *args, "eth9", "--", "true", BPS_CLUSTER_KEY=KEY)
    assert wrong.wait() == 125
    assert "no interface 'eth9' has an IPv4 address; those with one: lo, eth0" in wrong.text
    nodes = [lab.train(i, *args, "eth0", rounds=5, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    assert run_all(nodes) == [0, 0], [x.text for x in nodes]


def test_command_under_daemons_gets_the_agent_and_the_token_only(lab):
    args = ["--daemons", "--nnodes", 2, "--head", lab.addr(1), "--", "sh", "-c"]
    script = "env | grep -E '^(BPS_|RANK|WORLD|LOCAL_|GROUP_RANK|MASTER_)' | sort"
    nodes = [lab.start(i, *args, script, BPS_CLUSTER_KEY=KEY) for i in (1, 2)]
    assert run_all(nodes) == [0, 0], [x.text for x in nodes]
    names = [re.findall(r"^\[(\d)\] (\w+)=", x.text, re.M) for x in nodes]
    want = {"BPS_AGENT_SOCKET", "BPS_JOB_TOKEN", "BPS_LIBRARY", "BPS_TIMEOUT"}
    for rank, found in enumerate(names):
        assert {n for _, n in found} == want and {r for r, _ in found} == {str(rank)}, found


def test_step_of_slurm_with_running_agents_uses_them_and_its_name(lab):
    env = {"SLURM_JOB_ID": 4711, "SLURM_STEP_ID": 3, "SLURM_STEP_NUM_NODES": 2}
    env |= {"SLURM_NODEID": 1, "SLURM_STEP_NODELIST": "n[1-2]", "BPS_AGENT_SOCKET": "/nonexistent"}
    script = "echo $RANK/$WORLD_SIZE $BPS_JOB $BPS_AGENT_SOCKET"
    node = lab.start(1, "-n", 1, "--", "sh", "-c", script, **env)
    assert node.wait() == 0 and node.text == "[1] 1/2 4711.3 /nonexistent\n", node.text


def test_batch_script_of_slurm_is_one_node(lab):
    """A batch script has the variables of the whole job, but no step."""
    env = {"SLURM_JOB_ID": 4711, "SLURM_NNODES": 4, "SLURM_JOB_NUM_NODES": 4}
    env |= {"SLURM_NODEID": 0, "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_PROCID": 0}
    node = lab.start(1, "-n", 2, "--", "sh", "-c", "echo $RANK/$WORLD_SIZE", **env)
    assert node.wait() == 0, node.text
    assert "[0] 0/2\n" in node.text and "[1] 1/2\n" in node.text, node.text


def test_two_jobs_on_one_head_need_two_ports(lab):
    args = ["-n", 1, "--nnodes", 1, "--head"]
    first = lab.train(1, *args, lab.addr(1), BPS_CLUSTER_KEY=KEY)
    first.goes_on()
    second = lab.start(1, *args, lab.addr(1), "--", "true", BPS_CLUSTER_KEY=KEY)
    assert second.wait() == 125
    assert f"cannot listen on {lab.addr(1)}:7300 for the other nodes: Address" in second.text
    third = lab.train(1, *args, f"{lab.addr(1)}:7400", rounds=3, BPS_CLUSTER_KEY=KEY)
    assert third.wait() == 0, third.text
    lab.go.touch()
    assert first.wait() == 0


@pytest.mark.parametrize(
    ("args", "env", "reason"),
    [
        ("-n 1 --nnodes 2 --head 127.0.0.1", {}, "each node has the head's address 127.0.0.1: set"),
        ("-n 1 --head a:b", {}, "--head: 'a:b' has no valid port"),
        ("-n 1 --head 127.0.0.1", {"BPS_CLUSTER_KEY": "12"}, "BPS_CLUSTER_KEY is not a key of 64"),
        ("-n 1 --head 127.0.0.1 --agent /a", {}, "--agent uses running daemons; --head and"),
        ("-n 1 --head 127.0.0.1 --agents 1", {}, "--agents and --servers are for a job on one"),
        ("--daemons -n 1", {}, "--daemons runs the command once on each node: leave out -n"),
        ("-n 1 --ranks 1", {}, "--ranks '1' is not FIRST/SIZE"),
        ("-n 2 --ranks 1/2", {}, "--ranks 1/2 has no room for 2 workers"),
        ("-n 1", {"SLURM_STEP_NUM_NODES": "two"}, "SLURM_STEP_NUM_NODES='two' is not a number"),
        (
            "-n 1",
            {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_LOCALID": "3"},
            "SLURM_LOCALID is 3: start bpsrun once on each node, with `srun --ntasks-per-node=1`",
        ),
        (
            "-n 1",
            {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[1-"},
            "SLURM_STEP_NODELIST='n[1-' is not a list of nodes: set --head",
        ),
        (
            "-n 1 --nnodes 2 --job j",
            {"BPS_AGENT_SOCKET": "/nonexistent"},
            "a job on several nodes that uses their agents needs --node-rank",
        ),
        (
            "-n 1",
            {"PET_NNODES": "2", "PET_MASTER_ADDR": "a", "BPS_AGENT_SOCKET": "/nonexistent"},
            "a job on several nodes that uses their agents needs --job",
        ),
    ],
)
def test_bad_place_is_refused_with_a_reason(tmp_path, args, env, reason):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("BPS_", "SLURM_", "PET_"))}
    r = subprocess.run(
        [str(BPSRUN), *args.split(), "--", "true"],
        env=clean | env | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert r.returncode == 125 and r.stderr.startswith(f"bpsrun: {reason}"), r
    assert not list(tmp_path.glob("bpsrun-*"))


def test_head_waits_for_a_node_whose_workers_open_no_job(lab):
    """Let the workers of the head end before the other node has started."""
    args = ["-n", 1, "--nnodes", 2, "--head", lab.addr(1)]
    head = lab.start(1, *args, "--", "echo", "here", BPS_CLUSTER_KEY=KEY)
    head.wait_for_text("here")
    other = lab.start(2, *args, "--", "echo", "there", BPS_CLUSTER_KEY=KEY)
    assert run_all([head, other]) == [0, 0], (head.text, other.text)
    assert "there" in other.text, other.text
