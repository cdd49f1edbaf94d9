"""bps-keep runs an agent without systemd: it keeps the agent's descriptors, as systemd does."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import BUILD, DEADLINE_S, IS_ASAN, Daemon
from keeper import Job, kept_cluster

KEEP = str(BUILD / "bps-keep")
ENDS_S = 10  # time in which everything has ended after SIGTERM, on a machine under load


def children(pid):
    """Return the process ids of the children of a process with one thread."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid):
    return [d for c in children(pid) for d in (c, *descendants(c))]


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(what, condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}"
        select.select([], [], [], 0.02)


class AgentUnderKeep(Daemon):
    """An agent under bps-keep. The process of this daemon is bps-keep."""

    prefix = (KEEP, "--")

    def start(self):
        """Read the ports. bps-keep also has the pipe, for the next agents, so it does not end."""
        with os.fdopen(self.spawn()) as f:
            assert select.select([f], [], [], DEADLINE_S)[0], self.log.read_text()
            self.port, self.http = (int(f.readline().partition("=")[2]) for _ in range(2))

    def agent_pid(self):
        return next(iter(children(self.process.pid)), None)

    def kill_agent(self, sig=signal.SIGKILL):
        """Kill the agent, and wait until another one runs."""
        before = self.agent_pid()
        os.kill(before, sig)
        self.cluster.wait_for("another agent runs", lambda: self.agent_pid() not in (None, before))


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
def test_job_goes_on_with_exact_sums_when_the_agent_crashes_under_bps_keep(cluster, sig):
    c = kept_cluster(cluster, agents=0)
    for i in range(2):
        c.add_agent(i, kind=AgentUnderKeep)
    job = Job(c, 4)
    job.goes_on()
    for _ in range(4):
        c.agents[0].kill_agent(sig)
        job.goes_on()
    job.finish()  # each worker has compared each sum with the right one
    text = c.agents[0].log.read_text()
    # On a machine under load, an agent may also count as hung.
    assert text.count("starting it again, with ") == 4 + text.count(" hangs: ")


def test_job_goes_on_when_the_agent_hangs_under_bps_keep(cluster):
    c = kept_cluster(cluster, agents=0)
    a = c.add_agent(0, kind=AgentUnderKeep)
    job = Job(c, 2)
    job.goes_on()
    a.kill_agent(signal.SIGSTOP)
    job.goes_on()
    job.finish()
    assert "hangs: it has sent no WATCHDOG=1 for 2 s: killing it\n" in a.log.read_text()


def test_sigterm_ends_the_agent_and_bps_keep_within_seconds(cluster):
    c = kept_cluster(cluster, agents=0)
    a = c.add_agent(0, kind=AgentUnderKeep)
    agent, begun = a.agent_pid(), time.monotonic()
    assert a.stop() == 0
    assert time.monotonic() - begun < ENDS_S
    assert has_ended(agent)


def keep(*command, **kw):
    """Start a command under bps-keep, and return the process of bps-keep."""
    kw.setdefault("env", {"PATH": os.environ["PATH"], **kw.pop("more", {})})
    return subprocess.Popen(
        [KEEP, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw
    )


def end(process):
    """Return the exit code of bps-keep, its standard output and its standard error."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def test_crash_loop_ends_with_an_error_that_names_the_limit_and_the_last_exit_code(tmp_path):
    count = tmp_path / "starts"
    code, _, err = end(keep("--", "sh", "-c", f"echo x >>{count}; exit 3"))
    assert code == 3
    assert count.read_text() == "x\n" * 20
    last = err.splitlines()[-1]
    assert last == (
        "bps-keep: 'sh' exited with code 3, as before: 20 starts in less than 25 s are the limit; "
        "its messages above name the cause"
    )


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 64", 64), ("exit 78", 78), ("exec /nonexistent", 127)],
)
def test_end_that_another_start_cannot_change_ends_bps_keep_with_the_same_code(script, code):
    found, _, err = end(keep("sh", "-c", script))
    assert found == code
    assert "again" not in err
    assert bool(err) == bool(code)


def test_signal_that_kills_the_command_is_in_the_exit_code():
    code, _, err = end(keep("sh", "-c", "kill -SEGV $$"))
    assert code == 128 + signal.SIGSEGV
    assert "was killed by signal 11 (Segmentation fault): starting it again" in err


def test_wrong_use_prints_the_usage():
    assert end(keep())[0] == 64
    assert end(keep("--no-such-option", "true"))[0] == 64
    for option in ("--help", "--version"):
        code, out, err = end(keep(option))
        assert code == 0 and "bps-keep" in out and not err
    code, _, err = end(keep("/no/such/program"))
    assert code == 127 and "cannot run '/no/such/program': No such file or directory" in err


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_bps_keep_passes_signals_on_and_leaves_no_process(sig):
    """The shell ends at the signal with a code of its own. Its child ignores the signal."""
    name = signal.Signals(sig).name[3:]
    script = (
        f"trap 'exit 7' {name}; trap 'echo hup' HUP; (trap '' TERM INT; exec sleep 1000) & "
        "echo ready; while :; do wait; done"
    )
    p = keep("sh", "-c", script)
    assert p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGHUP)
    assert p.stdout.readline() == "hup\n"
    pids, begun = descendants(p.pid), time.monotonic()
    assert len(pids) == 2
    p.send_signal(sig)
    assert end(p)[0] == 7
    assert time.monotonic() - begun < ENDS_S
    assert all(map(has_ended, pids))


def test_second_sigterm_kills_a_command_that_does_not_end():
    p = keep("sh", "-c", "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done")
    assert p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGTERM)
    assert p.stdout.readline() == "term\n"
    p.send_signal(signal.SIGTERM)
    assert end(p)[0] == 128 + signal.SIGKILL


def test_processes_that_the_command_has_started_live_on_when_it_crashes(tmp_path):
    """The second process of the shell finds the child of the first one: as executors on GPUs."""
    pid = tmp_path / "pid"
    script = (
        f"if [ -e {pid} ]; then kill -0 $(cat {pid}) && echo alive; echo $(cat {pid}); exit 0; fi; "
        f"sleep 1000 >/dev/null 2>&1 & echo $! >{pid}; kill -KILL $$"
    )
    code, out, _ = end(keep("sh", "-c", script))
    assert code == 0
    alive, number = out.split()
    assert alive == "alive"
    assert has_ended(int(number))  # it had 2 s to end by itself


def test_orphan_becomes_a_child_of_bps_keep_and_is_reaped():
    p = keep("sh", "-c", "(sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000")
    orphan = int(p.stdout.readline())
    wait_for("the orphan is adopted", lambda: orphan in children(p.pid))
    os.kill(orphan, signal.SIGKILL)
    wait_for("the orphan is reaped", lambda: orphan not in children(p.pid))
    assert p.poll() is None
    p.send_signal(signal.SIGTERM)
    assert end(p)[0] == 128 + signal.SIGTERM


def test_private_folder_is_in_the_first_folder_that_can_be_written_and_vanishes(meeting):
    p = keep(
        "sh",
        "-c",
        "echo $NOTIFY_SOCKET; exec sleep 1000",
        more={"XDG_RUNTIME_DIR": str(meeting)},
    )
    socket = Path(p.stdout.readline().strip())
    assert socket.parent.parent == meeting
    assert socket.is_socket() and socket.parent.stat().st_mode & 0o777 == 0o700
    p.send_signal(signal.SIGTERM)
    assert end(p)[0] == 128 + signal.SIGTERM
    assert not list(meeting.iterdir())


def test_command_ends_when_bps_keep_is_killed():
    p = keep("sh", "-c", "echo $$; exec sleep 1000")
    pid = int(p.stdout.readline())
    p.kill()
    p.communicate(timeout=DEADLINE_S)
    wait_for("the command has ended", lambda: has_ended(pid))


# A command that sends messages, crashes, and prints what its next process finds. Its argument is
# the number of descriptors that a greedy process stores under the longest name.
HOSTILE = r"""
import os, signal, socket, sys

def notify(text, fds=()):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.connect(os.environ["NOTIFY_SOCKET"])
    socket.send_fds(s, [text], fds) if fds else s.send(text)
    s.close()

if os.environ.get("LISTEN_FDS"):
    names = os.environ["LISTEN_FDNAMES"].split(":")
    assert os.environ["LISTEN_PID"] == str(os.getpid())
    assert len(names) == int(os.environ["LISTEN_FDS"])
    print(len(names), names[0], os.pread(3, 10, 0).decode(), names.count("twice"), sep=",")
    for i in range(len(names)):
        os.fstat(3 + i)
    sys.exit(0)

f = os.memfd_create("kept")
os.write(f, b"contents")
notify(b"FDSTORE=1\nFDPOLL=0\nFDNAME=kept", [f])
null = os.open("/dev/null", os.O_RDONLY)
for text in (
    b"", b"\n", b"\0", b"=", b"READY=1", b"FDSTORE", b"FDNAME=", b"FDSTOREREMOVE=1", b"\xff" * 1000,
    b"FDSTOREREMOVE=1\nFDNAME=", b"FDSTOREREMOVE=1\nFDNAME=unknown", b"X" * 5000, b"BARRIER=1",
    b"FDSTORE=1\nFDNAME=" + b"n" * 64, b"FDSTORE=1\nFDNAME=a:b", b"FDSTORE=1", b"FDNAME=x",
    b"FDSTORE=1\nFDNAME=",
):
    notify(text)
    notify(text, [null] * 253)
notify(b"FDSTORE=1\nFDNAME=twice", [null])
notify(b"FDSTORE=1\nFDNAME=gone", [null])
notify(b"FDNAME=gone\nFDSTOREREMOVE=1")
notify(b"FDSTORE=1\nFDNAME=twice", [null])
left = int(sys.argv[1])
while left > 0:
    notify(b"FDSTORE=1\nFDNAME=" + b"g" * 63, [null] * min(left, 253))
    left -= 253
os.kill(os.getpid(), signal.SIGKILL)
"""


# A command that reports that it is alive, and then hangs. Its next process reports nothing.
HANGS = r"""
import os, signal, socket, sys

if os.path.exists(sys.argv[1]):
    sys.exit(0 if signal.sigtimedwait([], 3) is None else 1)
open(sys.argv[1], "w").close()
assert os.environ["WATCHDOG_USEC"] == "2000000" and "WATCHDOG_PID" not in os.environ
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(os.environ["NOTIFY_SOCKET"])
s.send(sys.argv[2].encode())
signal.pause()
"""


@pytest.mark.parametrize("message", ["READY=1\nSTATUS=x", "STATUS=x\nWATCHDOG=1"])
def test_command_is_killed_when_its_watchdog_messages_stop_and_only_then(tmp_path, message):
    begun = time.monotonic()
    command = (sys.executable, "-c", HANGS, str(tmp_path / "mark"), message)
    p = keep(*command, more={"WATCHDOG_PID": "1"})
    code, _, err = end(p)
    assert code == 0, err
    assert 5 <= time.monotonic() - begun < DEADLINE_S
    assert [line.partition(" ")[2].partition(" ")[2] for line in err.splitlines()] == [
        "hangs: it has sent no WATCHDOG=1 for 2 s: killing it",
        "was killed by signal 9 (Killed): starting it again, with 0 descriptors",
    ]


@pytest.mark.parametrize("greedy", [0, 20_000])
@pytest.mark.skipif(IS_ASAN, reason="the sanitizer needs descriptors of its own")
def test_hostile_messages_neither_stop_bps_keep_nor_prevent_the_next_start(greedy):
    code, out, err = end(keep(sys.executable, "-c", HOSTILE, str(greedy)))
    assert code == 0, err
    count, first, contents, twice = out.strip().split(",")
    assert (first, contents, twice) == ("kept", "contents", "2")
    if not greedy:
        assert int(count) == 3 and "no room" not in err
        return
    # 120 KiB for names of 63 bytes
    assert 1500 < int(count) < 2000
    assert len(re.findall("no room for more than", err)) == 1


def test_low_limit_of_open_files_leaves_enough_for_the_next_start():
    command = f'ulimit -n 256; exec "{KEEP}" "$@"'
    p = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-c", HOSTILE, "2000"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert p.returncode == 0, p.stderr
    assert p.stdout.startswith("64,kept,contents,2")
    assert "raise the limit of open files (now 256)" in p.stderr
