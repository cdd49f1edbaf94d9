"""A bpsrun that starts a job's nodes on other hosts, through a command that takes ssh's place."""

import os
import signal
import subprocess
import time

import pytest
from cluster import IS_ASAN, IS_TSAN
from nodes import BPSRUN, LIMIT_S, Lab, children, new_key, program_of, wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(IS_ASAN or IS_TSAN, reason="this Python cannot load the sanitized library"),
]
# Runs a command on a host in a session of its own, with no more connection to the caller than the
# pipes of its standard streams, as ssh does. Host 10.79.0.I is the I-th namespace.
RSH = """#!/bin/sh
exec 3<&0
[ "$1" = -o ] && shift 2
echo "$@" >>{folder}/commands
host=${{1##*.}}; shift
setsid env -i GO={go} ip netns exec {prefix}-$host "$@" <&3 3<&- &
exec 3<&-
wait $!
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"), 3)
    yield lab
    lab.close()


@pytest.fixture
def lab(made, tmp_path):
    made.folder, made.started, made.go = tmp_path, [], tmp_path / "go"
    made.rsh = tmp_path / "rsh"
    made.rsh.write_text(RSH.format(folder=tmp_path, go=made.go, prefix=made.prefix))
    made.rsh.chmod(0o755)
    yield made
    for node in made.started:
        if node.process.poll() is None:
            node.kill()
    made.must_be_gone(time.monotonic())


def hosts(lab, *slots):
    """Return the list for -H: the namespaces with these numbers of workers."""
    return ",".join(f"{lab.addr(i + 1)}:{n}" for i, n in enumerate(slots))


def start(lab, *args, **env):
    return lab.train(0, "--rsh", lab.rsh, *args, **env)


@pytest.mark.parametrize("slots", [(2, 2), (1, 1, 1), (3, 1)])
def test_workers_are_divided_among_the_hosts(lab, slots):
    node = start(lab, "-H", hosts(lab, *slots), rounds=5)
    assert node.wait() == 0, node.text
    for rank in range(sum(slots)):
        assert f"[{rank}] all sums of {sum(slots)} are right" in node.text, node.text


def test_number_of_workers_may_be_smaller_than_the_slots(lab):
    node = start(lab, "-np", 3, "-H", hosts(lab, 2, 2, 2), rounds=5)
    assert node.wait() == 0 and node.text.count("all sums of 3 are right") == 3, node.text
    assert len((lab.folder / "commands").read_text().splitlines()) == 2, "the third has no worker"


def test_hosts_may_come_from_a_file_and_rsh_may_have_options(lab):
    file = lab.folder / "hosts"
    file.write_text(f"# comment\n{lab.addr(1)} slots=2\n\n{lab.addr(2)}:1  # another\n")
    for option in ("--hostfile", "-hostfile"):
        node = lab.train(0, "--rsh", f"{lab.rsh} -o BatchMode=yes", option, file, rounds=3)
        assert node.wait() == 0, node.text
        assert node.text.count("all sums of 3 are right") == 3


def test_list_of_hosts_may_have_brackets(lab):
    node = start(lab, "-H", "10.79.0.[1-3]:1", rounds=3)
    assert node.wait() == 0 and node.text.count("all sums of 3 are right") == 3, node.text


def test_a_host_alone_needs_no_network(lab):
    node = start(lab, "-H", hosts(lab, 2), rounds=3)
    assert node.wait() == 0 and node.text.count("all sums of 2 are right") == 2, node.text
    assert "look: bpsctl --host 127.0.0.1:" in node.text


def test_this_host_needs_no_rsh(lab):
    node = lab.train(0, "--rsh", "/nonexistent", "-H", "localhost:2", rounds=3)
    assert node.wait() == 0 and node.text.count("all sums of 2 are right") == 2, node.text


def test_command_runs_once_on_each_host_under_daemons(lab):
    args = ["--rsh", lab.rsh, "-H", hosts(lab, 4, 4), "--daemons", "--", "sh", "-c"]
    node = lab.start(
        0, *args, "echo ${RANK-none} ${BPS_JOB_TOKEN:+token}; test -S $BPS_AGENT_SOCKET"
    )
    assert node.wait() == 0, node.text
    assert sorted(node.text.splitlines())[:2] == ["[0] none token", "[1] none token"], node.text


def test_words_of_the_command_arrive_as_they_are(lab):
    words = ["", "a b", "'\"$HOME\\", "*", *map(str, range(1000))]
    args = ["--rsh", lab.rsh, "-H", hosts(lab, 1, 1), "--no-prefix", "--", "printf", "<%s>"]
    node = lab.start(0, *args, *words)
    assert node.wait() == 0, node.text
    lines = [line for line in node.text.splitlines() if line.startswith("<")]
    assert lines == ["".join(f"<{w}>" for w in words)] * 2


def test_variables_and_folder_reach_the_workers(lab):
    script = "echo $A-$B-$BPS_SOME-$GO-${C:-unset}; pwd"
    args = ["--rsh", lab.rsh, "-H", hosts(lab, 1, 1), "-x", "A", "-x", "B=b c"]
    node = lab.start(0, *args, "--", "sh", "-c", script, A="a", C="c", BPS_SOME=1)
    assert node.wait() == 0, node.text
    lines = [line for line in node.text.splitlines() if line.startswith("[")]
    assert sorted(lines) == [
        f"[{i}] {t}" for i in (0, 1) for t in (os.getcwd(), f"a-b c-1-{lab.go}-unset")
    ]


def test_key_and_command_are_in_no_command_line(lab):
    key = new_key()
    node = start(lab, "-H", hosts(lab, 1, 1), BPS_CLUSTER_KEY=key)
    node.goes_on()
    found = lab.processes()
    for pid, words in found.items():
        assert key not in words, words
        with open(f"/proc/{pid}/environ") as f:
            assert key not in f.read(), words
    commands = (lab.folder / "commands").read_text().splitlines()
    # The two shells start at the same time, so either may write first.
    assert sorted(commands) == [f"{lab.addr(i)} {BPSRUN} --stdin" for i in (1, 2)]
    lab.go.touch()
    assert node.wait() == 0


@pytest.mark.parametrize("shown", ["7", "0"])
def test_failure_on_one_host_is_the_result(lab, shown):
    """Workers that do not use bps end, too."""
    args = ["--rsh", lab.rsh, "-H", hosts(lab, 1, 1), "--", "sh", "-c"]
    node = lab.start(
        0, *args, f"[ $RANK = 1 ] && exit {shown}; exec sleep {1000 if shown == '7' else 1}"
    )
    begun = time.monotonic()
    assert node.wait() == int(shown), node.text
    if shown == "7":
        assert f"{lab.addr(2)}: bpsrun has ended with exit code 7" in node.text
    lab.must_be_gone(begun + 10)


@pytest.mark.parametrize("victim", ["guard", "runner", "rsh"])
def test_nothing_is_left_on_the_hosts_when_a_process_here_is_killed(lab, victim):
    node = start(lab, "-H", hosts(lab, 1, 1))
    node.goes_on()
    (runner,) = children(node.pid)
    os.kill({"guard": node.pid, "runner": runner, "rsh": children(runner)[0]}[victim], 9)
    lab.must_be_gone(time.monotonic())
    assert node.wait()


@pytest.mark.parametrize("victim", ["bpsrun", "runner", "bps-scheduler", "python3"])
def test_nothing_is_left_when_a_process_on_a_host_is_killed(lab, victim):
    node = start(lab, "-H", hosts(lab, 1, 1))
    node.goes_on()
    inside = {p for p in lab.inside() if program_of(p) == "bpsrun"}
    runners = [p for p in inside if p in {c for q in inside for c in children(q)}]
    chosen = {"runner": runners, "bpsrun": sorted(inside - set(runners))}
    pids = chosen.get(victim) or [p for p in lab.inside() if program_of(p) == victim]
    os.kill(pids[0], signal.SIGKILL)
    lab.must_be_gone(time.monotonic())
    assert node.wait()


def test_signal_gives_the_workers_their_grace(lab):
    script = "trap 'sleep 4; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    args = ["--rsh", lab.rsh, "-H", hosts(lab, 1, 1), "--", "sh", "-c", script]
    node = lab.start(0, *args)
    wait_until("the workers are ready", lambda: node.text.count("ready") == 2)
    node.kill(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM
    assert node.text.count("saved") == 2, node.text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ("-H a:0", "-H 'a:0': the host number 1 is not HOST or HOST:N"),
        ("-H a:x", "-H 'a:x': the host number 1 is not HOST or HOST:N"),
        ("-H a:2,", "-H 'a:2,' is not a list of 1 to 1024 hosts"),
        ("-H a[1-", "-H 'a[1-' is not a list of 1 to 1024 hosts"),
        ("-H a:2,b:2 -np 5", "the hosts have room for 4 workers, not for 5"),
        ("-H localhost:1,b:1", "'localhost' is another machine on each host"),
        ("-H a:1 --nnodes 2", "-H gives each host its place"),
        ("-H a:1 --agent /a", "-H starts the daemons of the job"),
        ("--hostfile /nonexistent", "cannot read the hosts from '/nonexistent': No such file"),
    ],
)
def test_bad_hosts_are_refused_with_a_reason(tmp_path, args, reason):
    r = subprocess.run(
        [str(BPSRUN), "--rsh", "/nonexistent", *args.split(), "--", "true"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert r.returncode == 125 and r.stderr.startswith(f"bpsrun: {reason}"), r


def test_rsh_that_cannot_run_is_named(lab):
    node = lab.start(0, "--rsh", "/nonexistent", "-H", hosts(lab, 1, 1), "--", "true")
    assert node.wait() == 127
    assert "cannot run '/nonexistent'" in node.text, node.text


def test_order_needs_a_bpsrun_that_sends_it():
    r = subprocess.run(
        [str(BPSRUN), "--stdin"],
        check=False,
        input="nonsense\0",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (
        r.returncode == 125 and "--stdin is for a bpsrun that another one has started" in r.stderr
    )
