"""Tests of bpsrun with plain commands (ranks, output, failures) and with private daemons.

BPS_BUILD names the build folder; the default is build/debug.
"""

import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BPS_BUILD", ROOT / "build" / "debug")).resolve()
BPSRUN = BUILD / "bpsrun"
DIGITS = BUILD / "bps-digits"
DAEMONS = [BUILD / d / d for d in ("bps-scheduler", "bps-server", "bps-agent")]
LIMIT_S = 60
LOOK = "bpsrun: look: bpsctl "

needs_daemons = pytest.mark.skipif(
    not all(d.exists() for d in DAEMONS), reason="daemons are not built"
)


def environment(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BPS_", "BYTEPS_", "DMLC_"))}
    env["XDG_RUNTIME_DIR"] = str(tmp_path)
    env["BPS_TIMEOUT"] = "30s"
    return env


def bpsrun(tmp_path, *args, program=BPSRUN):
    return subprocess.run(
        [str(program), *map(str, args)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def plain(tmp_path, *args):
    return bpsrun(tmp_path, "--agent", "/nonexistent", *args)


def test_each_worker_gets_its_place(tmp_path):
    r = plain(
        tmp_path,
        "-n",
        3,
        "--job",
        "j",
        "--",
        "sh",
        "-c",
        "echo $BPS_RANK/$BPS_SIZE $BPS_LOCAL_RANK/$BPS_LOCAL_SIZE $BPS_JOB $BPS_AGENT_SOCKET",
    )
    assert r.returncode == 0
    assert sorted(r.stdout.splitlines()) == [f"[{i}] {i}/3 {i}/3 j /nonexistent" for i in range(3)]


MEETING = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK"
MEETING += " $MASTER_ADDR $MASTER_PORT"


def test_each_worker_gets_the_variables_of_torchrun(tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    r = plain(tmp_path, "-n", 2, "--no-prefix", "--", "sh", "-c", MEETING)
    first, second = sorted(r.stdout.splitlines())
    seen = re.fullmatch(r"0/2 0/2 0 127\.0\.0\.1 (\d+)", first)
    assert seen and second == f"1/2 1/2 0 127.0.0.1 {seen[1]}"
    with socket.create_server(("127.0.0.1", int(seen[1]))):
        pass  # the port is free
    nodes = ["--nnodes", 2, "--node-rank", 1]
    r = plain(tmp_path, "-n", 1, *nodes, "--job", "j", "--no-prefix", "--", "sh", "-c", MEETING)
    assert r.stdout.split() == ["1/2", "0/1", "1"]


def test_a_meeting_point_that_the_user_has_set_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "10.9.8.7")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    r = plain(tmp_path, "-n", 1, "--no-prefix", "--", "sh", "-c", MEETING)
    assert r.stdout.split() == ["0/1", "0/1", "0", "10.9.8.7"]


def test_workers_of_a_run_share_a_token_that_no_other_run_has(tmp_path):
    runs = [
        plain(
            tmp_path, "-n", 2, "--no-prefix", "--", "sh", "-c", "echo $BPS_JOB_TOKEN"
        ).stdout.split()
        for _ in range(2)
    ]
    for first, second in runs:
        assert first == second and re.fullmatch("[0-9a-f]{64}", first)
    assert runs[0][0] != runs[1][0]


def test_token_of_the_environment_is_passed_on_and_several_nodes_make_none(tmp_path):
    show = ("--no-prefix", "--", "sh", "-c", "echo ${BPS_JOB_TOKEN-none}")
    several = ("-n", 1, "--nnodes", 2, "--node-rank", 0, "--job", "j")
    assert plain(tmp_path, *several, *show).stdout == "none\n"
    for options in (several, ("-n", 1)):
        r = subprocess.run(
            [str(BPSRUN), "--agent", "/nonexistent", *map(str, options), *show],
            env=dict(environment(tmp_path), BPS_JOB_TOKEN="ab" * 32),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert r.stdout == "ab" * 32 + "\n"


def test_ranks_of_a_later_node_begin_behind_the_earlier_nodes(tmp_path):
    r = plain(
        tmp_path,
        "-n",
        2,
        "--nnodes",
        3,
        "--node-rank",
        2,
        "--job",
        "j",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        "echo $BPS_RANK/$BPS_SIZE $BPS_LOCAL_RANK/$BPS_LOCAL_SIZE",
    )
    assert sorted(r.stdout.splitlines()) == ["4/6 0/2", "5/6 1/2"]


def test_lines_stay_whole_and_stdout_and_stderr_stay_separate(tmp_path):
    r = plain(tmp_path, "-n", 2, "--", "sh", "-c", "printf 'a\\nb'; echo err >&2")
    assert sorted(r.stdout.splitlines()) == ["[0] a", "[0] b", "[1] a", "[1] b"]
    assert sorted(r.stderr.splitlines()) == ["[0] err", "[1] err"]


OPEN_TWICE = """
import sys
sys.path.insert(0, sys.argv[1])
import bps
for _ in range(2):
    bps.open().close()
"""
# Variables of BytePS and Horovod that are switched off by 0 and false, variables for which each
# value has an effect, and a number that has an effect above 1.
SWITCHES = (
    "BYTEPS_ENABLE_GDB", "BYTEPS_ENABLE_IPC", "BYTEPS_ENABLE_MIXED_MODE",
    "BYTEPS_NUMA_ON", "BYTEPS_SCHEDULING_CREDIT",
    "BYTEPS_TELEMETRY_ON", "DMLC_ENABLE_RDMA", "DMLC_ENABLE_UCX",
    "HOROVOD_AUTOTUNE", "HOROVOD_DISABLE_GROUP_FUSION", "HOROVOD_ELASTIC",
    "HOROVOD_ENABLE_XLA_OPS", "HOROVOD_HIERARCHICAL_ALLGATHER", "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_STALL_CHECK_DISABLE", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_TIMELINE_MARK_CYCLES", "HOROVOD_TORUS_ALLREDUCE", "PS_HEARTBEAT_TIMEOUT", "PS_RESEND",
)  # fmt: skip
VALUES = (
    "BYTEPS_DEBUG_SAMPLE_TENSOR", "BYTEPS_KEY_HASH_FN", "BYTEPS_NCCL_GROUP_SIZE",
    "BYTEPS_PCIE_SWITCH_SIZE", "BYTEPS_REDUCE_ROOTS", "BYTEPS_SOCKET_PATH",
    "BYTEPS_VISIBLE_CPU_CORES", "HOROVOD_CACHE_CAPACITY", "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CYCLE_TIME", "HOROVOD_ELASTIC_TIMEOUT", "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_GLOO_IFACE", "HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_IFACE", "HOROVOD_NUM_NCCL_STREAMS", "HOROVOD_RESET_LIMIT",
    "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_THREAD_AFFINITY",
)  # fmt: skip


@needs_daemons
@pytest.mark.skipif(BUILD.name in ("asan", "tsan"), reason="Python loads the library")
@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("2", {*SWITCHES, *VALUES, "HOROVOD_SIZE"}),
        ("1", {*SWITCHES, *VALUES}),
        ("0", {*VALUES}),
        ("False", {*VALUES}),
        ("", set()),
    ],
)
def test_ignored_variables_of_byteps_and_horovod_are_warned_of_once_per_job(tmp_path, value, names):
    env = dict(environment(tmp_path), BPS_LIBRARY=str(BUILD / "libbpsclient.so.0"))
    env |= dict.fromkeys((*SWITCHES, *VALUES, "HOROVOD_SIZE"), value)
    r = subprocess.run(
        [BPSRUN, "-n", "2", "--servers", "1", "--no-prefix", "--", "/usr/bin/python3"]
        + ["-c", OPEN_TWICE, ROOT / "libbpsclient" / "python"],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert r.returncode == 0, r.stderr
    warnings = [line for line in r.stderr.splitlines() if "warning" in line]
    assert len(warnings) == len(names), r.stderr
    for name in names:
        assert sum(f" {name}={value} is ignored" in line for line in warnings) == 1, r.stderr
    assert all("unset it" in line for line in warnings)


def test_first_failure_is_the_result_and_ends_the_others(tmp_path):
    r = plain(tmp_path, "-n", 3, "--", "sh", "-c", "[ $BPS_RANK = 1 ] && exit 7; exec sleep 100")
    assert r.returncode == 7
    assert "rank 1 exited with code 7" in r.stderr


def test_killed_worker_is_reported_with_its_signal(tmp_path):
    r = plain(tmp_path, "-n", 1, "--", "sh", "-c", "kill -9 $$")
    assert r.returncode == 128 + 9
    assert "rank 0 was killed by signal 9" in r.stderr


def test_time_out_ends_the_job(tmp_path):
    r = plain(tmp_path, "-n", 2, "--timeout", "200ms", "--", "sleep", 100)
    assert r.returncode == 124 and "--timeout" in r.stderr, r


def test_command_that_cannot_run_is_126_or_127(tmp_path):
    r = plain(tmp_path, "-n", 1, "--", "/nonexistent/program")
    assert r.returncode == 127 and "/nonexistent/program" in r.stderr, r
    r = plain(tmp_path, "-n", 1, "--", tmp_path)  # a folder
    assert r.returncode == 126 and f"{tmp_path}" in r.stderr, r


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ("-n 0", "-n '0' is not a number from 1 to 1024"),
        ("-n x", "-n 'x' is not a number from 1 to 1024"),
        ("-n 1x", "-n '1x' is not a number from 1 to 1024"),
        ("-n -1", "-n '-1' is not a number from 1 to 1024"),
        ("", "-n, the number of workers, is missing"),
        ("-n 1 --agents 2", "--agents 2 is more than the number of workers, 1"),
        ("-n 1 --servers 0", "--servers '0' is not a number from 1 to"),
        ("-n 1 --nnodes 2", "a job on several nodes needs --job"),
        ("-n 1 --nnodes 2 --node-rank 2 --job j", "--node-rank 2 is not below --nnodes 2"),
        ("-n 1 --job " + "x" * 300, "--job must have 1 to "),
        ("-n 1 --timeout 5", "--timeout '5' is not a number with a unit"),
        ("-n 1 --on-agent-loss wait", "--on-agent-loss 'wait' is neither abort nor shrink"),
        ("-n 1 --agent /a --servers 1", "--agent uses running daemons"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(tmp_path, args, reason):
    started = tmp_path / "started"
    r = bpsrun(tmp_path, *args.split(), "--", "touch", started)
    assert (r.returncode, r.stdout) == (125, "")
    assert r.stderr.startswith(f"bpsrun: {reason}"), r.stderr
    assert not started.exists()


def test_missing_command_and_unknown_option_are_refused_with_the_usage(tmp_path):
    for args, reason in (
        (["-n", 1], "bpsrun: the command is missing"),
        (["-n", 1, "--"], "bpsrun: the command is missing"),
        (["-n", 1, "--nonsense", "--", "true"], "unrecognized option '--nonsense'"),
    ):
        r = bpsrun(tmp_path, *args)
        first, _, rest = r.stderr.partition("\n")
        assert r.returncode == 125 and reason in first and rest.startswith("usage: bpsrun"), r


@pytest.mark.parametrize(
    ("args", "instead"),
    [
        ("--min-np 2 --max-np 4 true", "set BPS_ELASTIC=1 and BPS_MAX_SIZE"),
        ("--host a:2 -n 2 true", "write -H or --hosts"),
        ("--output-filename logs -n 2 true", "write --log-dir DIR"),
        ("-n 2 --verbose true", "write --status"),
        ("--network-interface eth0 -n 2 true", "write --interface NAME"),
        ("--autotune -n 2 true", "leave it out"),
        ("--gloo -n 2 true", "leave it out"),
        ("--prefix-output-with-timestamp -n 2 true", "each line begins with the rank"),
        ("-prefix-timestamp -n 2 true", "-prefix-timestamp is an option of horovodrun"),
        ("-p 22 -n 2 true", "-p is an option of horovodrun: write --rsh 'ssh -p PORT'"),
        ("-p22 -n 2 true", "-p is an option of horovodrun: write --rsh 'ssh -p PORT'"),
        ("-i key -n 2 true", "write --rsh 'ssh -i FILE'"),
        ("--log-hide-timestamp -n 2 true", "set `log-level`"),
        ("--no-log-hide-timestamp -n 2 true", "set `log-level`"),
    ],
)
def test_option_of_horovodrun_is_refused_with_what_to_write_instead(tmp_path, args, instead):
    r = plain(tmp_path, *args.split())
    assert (r.returncode, r.stdout, r.stderr.count("\n")) == (125, "", 1), r
    assert "is an option of horovodrun: " in r.stderr and instead in r.stderr, r.stderr


def test_command_may_have_the_options_of_horovodrun(tmp_path):
    r = plain(tmp_path, "-n", 1, "--no-prefix", "echo", "-np", "2", "--check-build")
    assert (r.returncode, r.stdout) == (0, "-np 2 --check-build\n"), r


def test_signal_reaches_the_workers_and_is_the_result(tmp_path):
    p = subprocess.Popen(
        [
            str(BPSRUN),
            "-n",
            "2",
            "--agent",
            "/nonexistent",
            "--",
            "sh",
            "-c",
            "trap 'echo got it; exit 0' INT; sleep 60 & echo ready; wait",
        ],
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell cannot trap a signal that was ignored when the shell started
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [p.stdout.readline() for _ in range(2)]
    assert all("ready" in line for line in lines)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=LIMIT_S)
    assert p.returncode == 128 + signal.SIGINT
    assert out.count("got it") == 2


def wait_for(path):
    """Wait until a file exists."""
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.01)


def test_user_signals_reach_the_workers_and_the_job_goes_on(tmp_path):
    script = "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo ready; "
    script += "while :; do sleep 0.01; done"
    options = ["-n", "2", "--agent", "/nonexistent", "--no-prefix", "--timeout", f"{LIMIT_S}s"]
    command = [BPSRUN, *options, "--", "sh", "-c", script]
    with subprocess.Popen(
        list(map(str, command)), env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as p:
        for sent, line in ((None, "ready"), (signal.SIGUSR1, "one"), (signal.SIGUSR2, "two")):
            if sent:
                p.send_signal(sent)
            assert [p.stdout.readline() for _ in range(2)] == [f"{line}\n"] * 2
        assert p.wait(LIMIT_S) == 0


def test_hangup_of_the_terminal_does_not_end_a_job_under_nohup(tmp_path):
    """The job's shell runs on a pseudo terminal, which the test closes."""
    go, done = tmp_path / "go", tmp_path / "done"
    os.mkfifo(go)
    worker = f"touch {tmp_path}/started; read x < {go}; echo $x > {done}.new; mv {done}.new {done}"
    options = f"-n 1 --agent /nonexistent --timeout {LIMIT_S}s"
    job = f"nohup {BPSRUN} {options} -- sh -c '{worker}' > {tmp_path}/out 2>&1"
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.environ.clear()
            os.environ.update(environment(tmp_path))
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
            os.execv("/bin/sh", ["sh", "-c", f"{job} & wait"])
        finally:
            os._exit(127)
    wait_for(tmp_path / "started")
    shell = os.pidfd_open(pid)
    os.close(terminal)
    assert select.select([shell], [], [], LIMIT_S)[0]
    os.close(shell)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGHUP
    go.write_text("ended well\n")
    wait_for(done)
    assert done.read_text() == "ended well\n"


def test_grace_is_the_time_until_workers_are_killed(tmp_path):
    script = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    options = ["-n", "1", "--grace", "200ms", "--agent", "/nonexistent"]
    command = [BPSRUN, *options, "--timeout", f"{LIMIT_S}s", "--", "sh", "-c"]
    with subprocess.Popen(
        [*map(str, command), script], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout.readline() == "[0] ready\n"
        begun = time.monotonic()
        p.terminate()
        assert p.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert 0.2 <= time.monotonic() - begun < 8  # the default is 10 s


def test_progress_bars_are_shown_before_their_lines_end(tmp_path):
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"printf 'begin\\n\\r10%%'; read x < {go}; printf '\\r20%%\\r30%%\\nend\\r\\n'"
    options = ["-n", "1", "--agent", "/nonexistent", "--timeout", f"{LIMIT_S}s"]
    command = [BPSRUN, *options, "--", "sh", "-c", script]
    with subprocess.Popen(
        list(map(str, command)), env=environment(tmp_path), stdout=subprocess.PIPE
    ) as p:
        shown = b""
        while b"10%" not in shown:
            assert select.select([p.stdout], [], [], LIMIT_S)[0]
            shown += os.read(p.stdout.fileno(), 1000)
        go.write_text("go\n")
        shown += p.stdout.read()
        assert p.wait(LIMIT_S) == 0
    assert shown == b"[0] begin\n[0] 10%\r[0] 20%\r[0] 30%\n[0] end\n"


def test_workers_die_with_bpsrun(tmp_path):
    p = subprocess.Popen(
        [
            str(BPSRUN),
            "-n",
            "1",
            "--agent",
            "/nonexistent",
            "--no-prefix",
            "--",
            "sh",
            "-c",
            "echo $$; exec sleep 100",
        ],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = int(p.stdout.readline())
    fd = os.pidfd_open(worker)
    p.kill()
    p.wait(timeout=LIMIT_S)
    assert select.select([fd], [], [], LIMIT_S)[0]  # a pidfd is readable when its process has ended
    os.close(fd)
    p.stdout.close()


def test_daemon_that_does_not_start_is_shown_with_its_log(tmp_path):
    program = tmp_path / "bin" / "bpsrun"
    program.parent.mkdir()
    shutil.copy(BPSRUN, program)
    scheduler = program.parent / "bps-scheduler"
    scheduler.write_text("#!/bin/sh\necho '<3>no room left' >&2\nexit 1\n")
    scheduler.chmod(scheduler.stat().st_mode | stat.S_IXUSR)
    r = bpsrun(tmp_path, "-n", 2, "--servers", 1, "--", "true", program=program)
    assert r.returncode == 125
    assert "scheduler did not start" in r.stderr
    assert "scheduler: no room left" in r.stderr
    assert not list(tmp_path.glob("bpsrun-*"))


def train(tmp_path, name, *args):
    out = tmp_path / name
    r = bpsrun(tmp_path, *args, "--", DIGITS, "--weights-out", out)
    assert r.returncode == 0, r.stderr
    accuracy = float(re.search(r"test accuracy ([0-9.]+) %", r.stdout)[1])
    tolerance = float(re.search(r"tolerance ([0-9.e-]+)", r.stdout)[1])
    return memoryview(out.read_bytes()).cast("f"), accuracy, tolerance


@needs_daemons
@pytest.mark.parametrize(
    "args",
    [
        ["-n", 2, "--servers", 1],
        ["-n", 4, "--servers", 2, "--agents", 2],
        ["-n", 3, "--servers", 2, "--agents", 3],
    ],
)
def test_weights_do_not_depend_on_the_number_of_workers(tmp_path, args):
    alone, accuracy, _ = train(tmp_path, "alone", "-n", 1, "--agent", "/nonexistent")
    assert accuracy > 90
    many, accuracy, tolerance = train(tmp_path, "many", *args)
    assert accuracy > 90
    assert len(alone) == len(many) == 650
    assert max(abs(a - b) for a, b in zip(alone, many)) <= tolerance
    assert not list(tmp_path.glob("bpsrun-*"))


@needs_daemons
@pytest.mark.parametrize(
    "args", [("-n", 2, "--agents", 2, "--servers", 1), ("-n", 4, "--agents", 2, "--servers", 2)]
)
def test_deterministic_training_gives_the_same_bits_run_after_run(tmp_path, args):
    seen = set()
    for i in range(3):
        weights = tmp_path / f"w{i}"
        r = bpsrun(
            tmp_path,
            *args,
            "--",
            "env",
            "BPS_DETERMINISTIC=1",
            DIGITS,
            "--epochs",
            5,
            "--weights-out",
            weights,
        )
        assert r.returncode == 0, r.stderr
        seen.add(weights.read_bytes())
    assert len(seen) == 1


@needs_daemons
def test_job_without_an_agent_gets_a_clear_error(tmp_path):
    if os.path.exists("/run/bps/agent.sock"):
        pytest.skip("this machine has an agent")
    r = bpsrun(tmp_path, "-n", 1, "--", "true")
    assert r.returncode == 0
    first, look = r.stderr.splitlines()
    assert first == (
        "bpsrun: cannot connect to the agent at /run/bps/agent.sock: No such file or directory; "
        "starting a separate cluster for the job"
    )
    assert bpsrun(tmp_path, "-n", 1, "--servers", 1, "--", "true").stderr.startswith(LOOK)
    assert look.startswith(LOOK)


@needs_daemons
def test_a_separate_cluster_prints_a_command_that_shows_it(tmp_path):
    go = tmp_path / "go"
    args = ["-n", 2, "--servers", 1, "--", "sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done"]
    p = subprocess.Popen(
        [str(BPSRUN), *map(str, args)],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = p.stderr.readline()
        assert line.startswith(LOOK), line
        command = [BUILD / "bpsctl", *line.removeprefix(LOOK).split()]

        def is_shown():
            shown = subprocess.run(command, capture_output=True, text=True, timeout=10)
            return "servers 1/1  agents 1/1" in shown.stdout

        end = time.monotonic() + LIMIT_S
        while not is_shown():
            assert time.monotonic() < end, command
    finally:
        go.touch()
        p.communicate(timeout=LIMIT_S)
    assert p.returncode == 0


@needs_daemons
def test_daemons_logs_are_not_shown_when_a_worker_fails(tmp_path):
    command = "echo last words >&2; [ $BPS_RANK = 0 ] && exit 3; exec sleep 100"
    r = bpsrun(tmp_path, "-n", 2, "--servers", 1, "--", "sh", "-c", command)
    assert r.returncode == 3
    # rank 1 may be stopped before it writes
    first, *lines = [line for line in r.stderr.splitlines() if line != "[1] last words"]
    assert first.startswith(LOOK)
    assert lines == ["[0] last words", "bpsrun: rank 0 exited with code 3"], r.stderr
    assert not list(tmp_path.glob("bpsrun-*"))


@needs_daemons
def test_private_daemons_together_promise_no_more_than_the_memory_of_the_machine(tmp_path):
    r = bpsrun(tmp_path, "-n", 3, "--servers", 2, "--agents", 3, "--", BUILD / "bpsctl", "status")
    assert r.returncode == 0 and "3 agents" in r.stdout and "HOST_MEMORY" not in r.stdout, r.stdout


@needs_daemons
def test_memory_of_private_servers_can_be_set_in_the_environment(tmp_path, monkeypatch):
    kept = environment
    monkeypatch.setitem(
        globals(), "environment", lambda path: {**kept(path), "BPS_SUMS_MEMORY": "32MiB"}
    )
    r = bpsrun(tmp_path, "-n", 1, "--servers", 1, "--", BUILD / "bpsctl", "status", "--json")
    assert f'"quota_bytes":{32 << 20}' in r.stdout.replace(" ", ""), r.stdout


def children(pid):
    try:
        return [
            int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def children_named(pid, name):
    """Return the children of the runner, which is the only child of bpsrun, that have a name."""
    found = []
    for p in [p for runner in children(pid) for p in children(runner)]:
        try:
            if pathlib.Path(f"/proc/{p}/comm").read_text().strip() == name:
                found.append(p)
        except OSError:
            pass
    return found


ROUNDS = """
import os, sys, bps
with bps.open() as job:
    t = job.declare("w", "i64", 40000)
    for r in range(int(sys.argv[1])):
        t.input[:] = job.rank + r
        t.push_pull()
        out = t.wait()
        assert (out == job.size * r + job.size * (job.size - 1) // 2).all()
        if job.rank == 0 and r % 10 == 0:
            print("round", r, flush=True)
print("all sums are right", flush=True)
"""


def rounds_script(tmp_path):
    """Write ROUNDS to a file. Return its path, and the environment that it needs."""
    script = tmp_path / "rounds.py"
    script.write_text(ROUNDS)
    return script, dict(
        environment(tmp_path),
        PYTHONPATH=str(ROOT / "libbpsclient" / "python"),
        BPS_LIBRARY=str(BUILD / "libbpsclient.so.0"),
        OPENBLAS_NUM_THREADS="1",
    )


LEAVES = """
import atexit, os, sys, time
import bps
job = bps.open()
t = job.declare("t", "f32", 1000)
way = sys.argv[1]
if job.rank == 1 and way == "raise":
    # the exit handlers of frameworks need time, too
    atexit.register(time.sleep, 0.5)
    job.abort()
    raise RuntimeError("out of data")
if job.rank == 1:
    try:
        job.close(0.2 if way == "0" else None)
    except bps.Error:
        time.sleep(60 if way == "hang" else 0.5)
    sys.exit(int(way))
t.push_pull()
t.wait()
"""


@needs_daemons
@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize(
    "way,code,lines",
    [
        ("raise", 1, ["rank 1 exited with code 1"]),
        ("3", 3, ["rank 1 exited with code 3"]),
        (
            "0",
            1,
            [
                "rank 1 exited with code 0 before the other workers had finished",
                "rank 0 exited with code 1",
            ],
        ),
        ("hang", 1, ["rank 0 exited with code 1"]),
    ],
)
def test_worker_that_makes_others_fail_is_named_although_they_exit_first(
    tmp_path, agents, way, code, lines
):
    script, env = rounds_script(tmp_path)
    script.write_text(LEAVES)
    options = ["-n", "2", "--agents", str(agents), "--grace", "100ms"]
    command = [BPSRUN, *options, "--", "/usr/bin/python3", script, way]
    r = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    said = [line for line in r.stderr.splitlines() if line.startswith("bpsrun: ")]
    assert said[0].startswith(LOOK)
    assert (r.returncode, said[1:]) == (code, [f"bpsrun: {line}" for line in lines]), r


@needs_daemons
def test_agent_that_is_killed_is_restarted_and_the_job_goes_on(tmp_path):
    script, env = rounds_script(tmp_path)
    command = [
        BPSRUN,
        "-n",
        "4",
        "--agents",
        "2",
        "--servers",
        "1",
        "--",
        "/usr/bin/python3",
        script,
        "600",
    ]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        out, kills = [], 0
        for line in p.stdout:
            out.append(line)
            if "round" in line and kills < 3:
                agents = children_named(p.pid, "bps-agent")
                os.kill(agents[kills % len(agents)], signal.SIGKILL)
                kills += 1
        assert p.wait(LIMIT_S) == 0, "".join(out)
    text = "".join(out)
    assert text.count("all sums are right") == 4, text
    assert kills == 3 and text.count("was restarted; the job goes on") == 3, text


CGROUPS = pathlib.Path("/sys/fs/cgroup")


@pytest.fixture
def small_group():
    """Make a control group that may use 512 MiB. Return the file that takes its processes."""
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    base = CGROUPS if is_v2 else CGROUPS / "memory"
    group = base / f"bps-test-{os.getpid()}"
    group.mkdir()
    limit = group / ("memory.max" if is_v2 else "memory.limit_in_bytes")
    limit.write_text(str(512 << 20))
    yield group / "cgroup.procs"
    end = time.monotonic() + LIMIT_S
    while (group / "cgroup.procs").read_text():
        assert time.monotonic() < end, "processes stay in the control group"
        time.sleep(0.01)
    group.rmdir()


@needs_daemons
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a control group")
def test_memory_of_the_control_group_limits_private_daemons(tmp_path, small_group):
    """The tensors do not fit into the group. They are refused, and nothing is killed."""
    command = [BPSRUN, "-n", "4", "--servers", "1", "--", BUILD / "bps-bench", "--bytes", "256MiB"]
    r = subprocess.run(
        list(map(str, command)),
        env=environment(tmp_path),
        preexec_fn=lambda: small_group.write_text(str(os.getpid())),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert r.returncode == 1, r
    assert "shared memory on" in r.stderr and "bps-agent's --" in r.stderr, r.stderr
    assert "killed" not in r.stderr, r.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a control group")
def test_worker_that_is_killed_for_lack_of_memory_is_reported_so(tmp_path, small_group):
    script = "x = bytearray(2 << 30)"
    r = subprocess.run(
        [str(BPSRUN), "-n", "1", "--agent", "/nonexistent", "--", "/usr/bin/python3", "-c", script],
        env=environment(tmp_path),
        preexec_fn=lambda: small_group.write_text(str(os.getpid())),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert r.returncode == 128 + signal.SIGKILL, r
    words = "rank 0 was killed for lack of memory: the control group may use 512 MiB"
    assert words in r.stderr, r.stderr


@needs_daemons
@pytest.mark.parametrize("program", ["bps-scheduler", "bps-server", "bps-agent"])
def test_job_ends_when_a_daemon_that_it_needs_has_ended_for_good(tmp_path, program):
    """Workers that wait for the daemon do not wait for their time-out."""
    script, env = rounds_script(tmp_path)
    # with one agent, the job would need no server
    agents = "2" if program == "bps-server" else "1"
    options = ["-n", "2", "--servers", "1", "--agents", agents, "--timeout", f"{LIMIT_S}s"]
    command = [BPSRUN, *options, "--", "/usr/bin/python3", script, "1000000000"]
    with subprocess.Popen(
        list(map(str, command)),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as p:
        out, has_begun = [], False
        for line in p.stdout:
            out.append(line)
            if ("round" in line and not has_begun) or "was restarted" in line:
                has_begun = True
                while not (found := children_named(p.pid, program)):
                    assert p.poll() is None, "".join(out)  # the next process begins as bpsrun
                os.kill(found[0], signal.SIGKILL)
        assert p.wait(LIMIT_S) == 125, "".join(out)
    text = "".join(out)
    assert "the job cannot go on without" in text and "stopping it" in text, text
