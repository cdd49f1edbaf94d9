"""Failed starts: the error on stderr, and the exit status for the service manager.

Exit status 64: the command line is wrong. 78: no start can succeed until an operator changes
something. 75: a later start may succeed.
"""

import ctypes
import os
import re
import signal
import socket
import struct
import subprocess

import pytest

import control
from cluster import BUILD, DEADLINE_S, IS_ASAN, PROVIDER

CANNOT_MOUNT = 111  # exit status of a child process that could not mount
DAEMONS = ["bps-scheduler", "bps-server", "bps-agent"]


class Place:
    """A folder, and functions that run daemons in it. The daemons are expected to fail."""

    def __init__(self, path):
        self.path = path
        self.started = []
        drop = ("BPS_", "LD_PRELOAD", "ASAN_OPTIONS")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}

    def args(self, program, *more):
        """Return valid flags of the program. Flags in `more` override them."""
        own = {
            "bps-scheduler": ["--listen", "127.0.0.1:0"],
            "bps-server": ["--listen", "127.0.0.100:0", "--name", f"s{os.getpid()}"],
            "bps-agent": [
                "--listen",
                "127.0.0.10:0",
                "--name",
                f"a{os.getpid()}",
                "--socket",
                str(self.path / "a.sock"),
            ],
        }[program]
        return [str(BUILD / program / program), "--http", "127.0.0.1:0", *own, *map(str, more)]

    def run(self, program, *more, **kw):
        return subprocess.run(
            self.args(program, *more),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=self.env,
            check=False,
            **kw,
        )

    def refuses(self, status, words, program, *more, **kw):
        """Check that the program ends with the exit status `status`.

        The last line of its stderr must be an error that contains each of the strings in `words`.
        """
        p = self.run(program, *more, **kw)
        last = (p.stderr.strip().splitlines() or [""])[-1]
        assert p.returncode == status, (p.returncode, p.stderr)
        assert last.startswith("<3>"), p.stderr
        for word in words:
            assert word in last, (word, last)

    def start(self, program, *more, **kw):
        p = subprocess.Popen(
            self.args(program, *more),
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self.env,
            **kw,
        )
        self.started.append(p)
        return p


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    for p in place.started:
        p.kill()
        p.wait()


def key_file(path, name="cluster.key"):
    file = path / name
    file.write_text("ab" * 32)
    file.chmod(0o600)
    return file


# ---- the command line ----


@pytest.mark.parametrize("program", DAEMONS)
@pytest.mark.parametrize(
    "flags, words",
    [
        (["--lisen", "1"], ["unknown flag '--lisen'", "did you mean '--listen'?"]),
        (["--listen"], ["flag --listen needs a value"]),
        (["--log-level=loud"], ["flag --log-level", "not one of: error, warn, info, debug, trace"]),
        (["-x"], ["unknown flag '-x'"]),
        (["serve"], ["unexpected argument 'serve'"]),
    ],
)
def test_bad_command_line_ends_with_64(place, program, flags, words):
    place.refuses(64, words, program, *flags)


# ---- files and environment ----


@pytest.mark.parametrize(
    "text, words",
    [
        ("log-level = info\nrubbish\n", [":2: the line is neither 'name = value' nor '[section]'"]),
        (
            "listen = 127.0.0.1:1\n\nlisten = 127.0.0.1:2\n",
            [":3: 'listen' is already set in line 1"],
        ),
        ("lisen = 127.0.0.1:1\n", [":1: unknown setting 'lisen' (did you mean 'listen'?)"]),
        (
            "listen = 127.0.0.1:99999\n",
            [":1: listen: '127.0.0.1:99999' has no valid port (0 to 65535)"],
        ),
        ("[database]\nname = x\n", [":1: unknown section '[database]'", "only '["]),
        ("log-level = inf\n", [":1: log-level:", "did you mean 'info'?"]),
        ("name = " + 64 * "x" + "\n", [":1: name:", "has 64 characters (allowed: 0 to 63)"]),
        ("x" * 300, [":1: the line is longer than 198 characters"]),
    ],
)
@pytest.mark.parametrize("program", DAEMONS)
def test_bad_file_ends_with_78_and_names_the_line(place, program, text, words):
    file = place.path / "x.conf"
    file.write_text(text)
    place.refuses(78, [f"{file}{words[0]}", *words[1:]], program, "--config", file)


@pytest.mark.parametrize(
    "program, line, words",
    [
        ("bps-scheduler", "server-dead = 3", ["server-dead: '3' is not a duration such as 500us"]),
        ("bps-scheduler", "server-dead = 3 minutes", ["'3 minutes' is not a duration"]),
        ("bps-scheduler", "beat = 1ms", ["beat: '1ms' is out of range (allowed: 10ms to 1min)"]),
        ("bps-server", "peer-window = 8MB", ["peer-window: '8MB' is not a size such as 64KiB"]),
        ("bps-server", "threads = 65", ["threads: '65' is out of range (allowed: 0 to 64)"]),
        ("bps-agent", "max-trainers = many", ["max-trainers: 'many' is not an integer"]),
    ],
)
def test_bad_value_ends_with_78_and_says_what_is_allowed(place, program, line, words):
    file = place.path / "x.conf"
    file.write_text(f"\n{line}\n")
    place.refuses(78, [f"{file}:2: ", *words], program, "--config", file)
    place.refuses(78, words, program, "--check-config", "--config", file)


@pytest.mark.parametrize("program", DAEMONS)
def test_file_that_cannot_be_read_ends_with_78(place, program):
    place.refuses(
        78, ["cannot open '/nonexistent': No such file"], program, "--config", "/nonexistent"
    )
    place.refuses(78, [f"cannot read '{place.path}'"], program, "--config", place.path)
    place.env["BPS_CONFIG"] = "/nonexistent"
    place.refuses(78, ["cannot open '/nonexistent': No such file"], program)


def test_error_in_a_drop_in_is_named_with_its_file(place):
    file = place.path / "x.conf"
    file.write_text("")
    (place.path / "x.conf.d").mkdir()
    drop_in = place.path / "x.conf.d" / "10-net.conf"
    drop_in.write_text("http = here\n")
    place.refuses(78, [f"{drop_in}:1: http: 'here' has no port"], "bps-server", "--config", file)


def test_bad_environment_ends_with_78_and_similar_names_are_suggested(place):
    place.env["BPS_SERVER_DEAD"] = "soon"
    place.refuses(78, ["environment BPS_SERVER_DEAD: server-dead: 'soon'"], "bps-scheduler")
    place.env = {
        **Place(place.path).env,
        "BPS_SERVER_DAED": "9s",
        "BPS_JOB": "x",
        "BPS_AGENT_SOCKET": "y",
    }
    p = place.run("bps-scheduler", "--check-config")
    assert p.returncode == 0
    assert p.stderr == (
        "<4>environment variable BPS_SERVER_DAED is not a setting and has no effect "
        "(did you mean 'BPS_SERVER_DEAD'?)\n"
    )


def test_values_that_contradict_each_other_end_with_78(place):
    words = [
        "server-dead and agent-dead must be at least 3 times the setting beat, so at least 3000 ms",
    ]
    place.refuses(78, words, "bps-scheduler", "--beat", "1s", "--server-dead", "2s")
    place.refuses(
        78, words, "bps-scheduler", "--beat", "1s", "--server-dead", "2s", "--check-config"
    )


def test_print_config_shows_file_and_line_of_each_value(place):
    file = place.path / "x.conf"
    file.write_text("[server]\nspin = 10us\nthreads = 2\n")
    (place.path / "x.conf.d").mkdir()
    drop_in = place.path / "x.conf.d" / "50-threads.conf"
    drop_in.write_text("threads = 3\n")
    place.env["BPS_PING"] = "1s"
    p = place.run("bps-server", "--config", file, "--print-config")
    assert p.returncode == 0, p.stderr
    lines = dict(line.split(" = ", 1) for line in p.stdout.splitlines())
    assert lines["spin"] == f"10us ; {file}:2"
    assert lines["threads"] == f"3 ; {drop_in}:1"
    assert lines["ping"] == "1s ; environment BPS_PING"
    assert lines["http"] == "127.0.0.1:0 ; flag --http"
    assert lines["ping-dead"] == "2s ; default"


# ---- keys ----


@pytest.mark.parametrize(
    "program, flags, words",
    [
        (
            "bps-scheduler",
            ["--listen", "0.0.0.0:0"],
            ["without a cluster key", "loopback", "set a key file"],
        ),
        (
            "bps-server",
            ["--listen", "192.0.2.1:0"],
            ["without a cluster key", "loopback", "set --key-file"],
        ),
        (
            "bps-agent",
            ["--listen", "192.0.2.1:0"],
            ["without a cluster key", "loopback", "set --key-file"],
        ),
        (
            "bps-server",
            ["--scheduler", "192.0.2.1:7300"],
            ["only a loopback address", "'192.0.2.1'", "--key-file"],
        ),
        (
            "bps-agent",
            ["--scheduler", "192.0.2.1:7300"],
            ["only a loopback address", "'192.0.2.1'", "--key-file"],
        ),
    ],
)
def test_without_a_key_only_loopback_is_used(place, program, flags, words):
    place.refuses(78, words, program, *flags)


@pytest.mark.parametrize("program", DAEMONS)
@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda f: f.unlink(), ["cannot open key file", "No such file"]),
        (lambda f: f.chmod(0o640), ["is open to group or others, mode 0640", "chmod 0400"]),
        (
            lambda f: f.write_text("too short\n"),
            ["holds neither 32 bytes nor 64 hex digits", "openssl rand"],
        ),
        (
            lambda f: (f.rename(f.with_name("real")), f.symlink_to(f.with_name("real"))),
            ["is a symbolic link"],
        ),
    ],
)
def test_bad_key_file_ends_with_78_and_says_what_to_do(place, program, damage, words):
    file = key_file(place.path)
    damage(file)
    place.refuses(78, [str(file), *words], program, "--key-file", file)


# ---- addresses, sockets, devices ----


def listener():
    s = socket.create_server(("127.0.0.1", 0))
    return s, s.getsockname()[1]


@pytest.mark.parametrize("program", DAEMONS)
def test_http_port_in_use_ends_with_75(place, program):
    s, port = listener()
    words = [
        f"cannot listen for HTTP on 127.0.0.1:{port}: Address already in use",
        "ss -ltnp",
        "choose another port",
    ]
    place.refuses(75, words, program, "--http", f"127.0.0.1:{port}")
    s.close()


@pytest.mark.parametrize("program", ["bps-scheduler", "bps-server"])
def test_listen_port_in_use_ends_with_75(place, program):
    s, port = listener()
    place.refuses(
        75,
        [str(port), "Address already in use", "choose another port"],
        program,
        "--listen",
        f"127.0.0.1:{port}",
    )
    s.close()


@pytest.mark.parametrize("program", DAEMONS)
def test_address_of_another_machine_ends_with_75(place, program):
    flags = ["--listen", "192.0.2.1:0", "--key-file", key_file(place.path)]
    words = [
        "192.0.2.1",
        "Cannot assign requested address",
        "no interface of this machine has that address",
    ]
    place.refuses(75, words, program, *flags)


@pytest.mark.parametrize("program", ["bps-server", "bps-agent"])
def test_unknown_provider_is_refused_with_the_list_of_those_there_are(place, program):
    words = ["flag --provider", "'nosuch' is not one of: auto, sockets, tcp, verbs"]
    place.refuses(64, words, program, "--provider", "nosuch")


@pytest.mark.skipif(
    os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"),
    reason="has a device",
)
@pytest.mark.parametrize("program", ["bps-server", "bps-agent"])
def test_provider_without_its_device_ends_with_78(place, program):
    words = ["provider 'verbs' finds no RDMA device", "driver", "--provider sockets"]
    place.refuses(78, words, program, "--provider", "verbs")


def test_socket_path_that_cannot_be_used_ends_with_78(place):
    file = place.path / "a.sock"
    file.write_text("precious")
    place.refuses(
        78, [f"'{file}' exists and is not a socket", "choose another --socket"], "bps-agent"
    )
    assert file.read_text() == "precious"
    missing = place.path / "none" / "a.sock"
    place.refuses(
        78,
        [f"cannot listen on '{missing}': No such file", "create its directory"],
        "bps-agent",
        "--socket",
        missing,
    )
    place.refuses(
        78,
        ["no such group 'nosuch'", "--socket-group"],
        "bps-agent",
        "--socket-group",
        "nosuch",
        "--socket",
        place.path / "b.sock",
    )
    place.refuses(64, ["socket:", "characters"], "bps-agent", "--socket", "/" + 120 * "x")


def test_socket_that_another_agent_serves_ends_with_75(cluster, place):
    c = cluster(agents=1, servers=0)
    words = [
        f"another bps-agent already serves '{c.agents[0].socket}'",
        f"(pid {c.agents[0].process.pid})",
        "choose another",
    ]
    place.refuses(75, words, "bps-agent", "--socket", c.agents[0].socket)


def test_socket_of_a_dead_agent_is_taken_over(cluster):
    c = cluster(agents=1, servers=0)
    c.agents[0].kill()
    assert os.path.exists(c.agents[0].socket)
    c.agents[0].start()
    c.run("rounds", 1, {"n_elems": 100, "n_rounds": 2})


# ---- the state folder ----


def test_state_folder_that_cannot_be_used_ends_with_78(place):
    file = place.path / "file"
    file.write_text("")
    place.refuses(
        78,
        [f"cannot open '{file}': Not a directory", "choose another"],
        "bps-scheduler",
        "--state-dir",
        file,
    )
    place.refuses(
        78,
        ["cannot make '/nonexistent/state': No such file", "create the folder above it"],
        "bps-scheduler",
        "--state-dir",
        "/nonexistent/state",
    )
    state = place.path / "state"
    state.mkdir()
    (state / "state.log").write_text("something else, and long enough for a head")
    place.refuses(
        78,
        [f"'{state}/state.log' is not a state log", "is --state-dir right?"],
        "bps-scheduler",
        "--state-dir",
        state,
    )


def test_state_folder_of_another_scheduler_ends_with_75(cluster, place):
    c = cluster(agents=0, servers=0)
    words = [f"another bps-scheduler uses '{c.dir}/state'", "choose another --state-dir"]
    place.refuses(75, words, "bps-scheduler", "--state-dir", c.dir / "state")


def own_mounts(mount_all):
    """Return a function to pass as preexec_fn.

    The function enters a mount namespace and calls mount_all(mount). If the child cannot enter the
    namespace or mount_all fails, the child exits with CANNOT_MOUNT.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18

    def mount(source, target, kind, flags, data):
        return libc.mount(source, os.fsencode(target), kind, flags, data) == 0

    def begin():
        ok = libc.unshare(CLONE_NEWNS) == 0 and mount(None, "/", None, MS_REC | MS_PRIVATE, None)
        if not ok or not mount_all(mount):
            os._exit(CANNOT_MOUNT)

    return begin


def full_tmpfs(path, bytes_):
    """Return a function to pass as preexec_fn.

    The function mounts a file system of `bytes_` bytes at `path`, and fills all its space.
    """

    def mount_all(mount):
        if not mount(b"tmpfs", path, b"tmpfs", 0, f"size={bytes_}".encode()):
            return False
        with open(path / "filler", "wb", buffering=0) as f:
            try:
                while f.write(b"x" * 512):
                    pass
            except OSError:
                pass
        return True

    return own_mounts(mount_all)


def test_full_disk_at_the_start_ends_with_75_and_names_the_file(place):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    state = place.path / "state"
    state.mkdir()
    p = place.run("bps-scheduler", "--state-dir", state, preexec_fn=full_tmpfs(state, 4096))
    if p.returncode == CANNOT_MOUNT:
        pytest.skip("cannot mount here")
    assert p.returncode == 75, (p.returncode, p.stderr)
    assert re.search(
        rf"<3>cannot write '{state}[^']*': No space left on device \(free some space there\)",
        p.stderr,
    ), p.stderr


def test_read_only_disk_at_the_start_ends_with_75(place):
    """The disk may be writable later, so the service manager has to start the daemon again."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    state = place.path / "state"
    state.mkdir()
    read_only = own_mounts(lambda mount: mount(b"tmpfs", state, b"tmpfs", 1, b""))
    p = place.run("bps-scheduler", "--state-dir", state, preexec_fn=read_only)
    if p.returncode == CANNOT_MOUNT:
        pytest.skip("cannot mount here")
    assert p.returncode == 75, (p.returncode, p.stderr)
    assert "Read-only file system" in p.stderr and "--state-dir" in p.stderr, p.stderr


def libfabric():
    """Return the path under which the dynamic linker finds libfabric, or None."""
    lines = subprocess.run(
        ["ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return next(
        (line.rsplit(" => ", 1)[1] for line in lines if line.split()[0] == "libfabric.so.1"), None
    )


@pytest.mark.parametrize("program", ["bps-server", "bps-agent"])
def test_missing_libfabric_stops_only_daemons_that_use_it(place, program):
    if os.geteuid() != 0 or not libfabric():
        pytest.skip("hides the library by a mount")
    hide = own_mounts(
        lambda mount: mount(b"/dev/null", os.path.realpath(libfabric()), None, 0x1000, None)
    )  # 0x1000 is MS_BIND
    words = ["libfabric cannot be opened", "package libfabric1"]
    place.refuses(78, words, program, "--provider", "verbs", preexec_fn=hide)
    with place.start(program, "--scheduler", "127.0.0.1:1", preexec_fn=hide) as d:
        said = next((line for line in d.stderr if "cannot reach the scheduler" in line), None)
        d.kill()
    assert said, f"{program} did not try to reach the scheduler"


# ---- two daemons of one name ----


@pytest.mark.parametrize("program, which", [("bps-server", "s0"), ("bps-agent", "a0")])
def test_second_daemon_of_a_name_on_a_host_ends_with_75_and_the_first_goes_on(
    cluster, place, program, which
):
    c = cluster(agents=1, servers=1)
    first = c.daemon(which)
    p = place.start(program, "--name", which, "--scheduler", f"127.0.0.1:{c.scheduler.port}")
    _, text = p.communicate(timeout=DEADLINE_S)
    assert p.returncode == 75, text
    words = (
        f"another {program} with the name '{which}' already runs on this machine (pid "
        f"{first.process.pid}; this one is pid {p.pid})"
    )
    assert words in text and "choose another --name" in text, text
    assert "replaced" not in c.scheduler.log.read_text()
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})
    first.kill()
    first.start()


# ---- two providers in one cluster ----


@pytest.mark.parametrize(
    "program, role, other",
    [
        ("bps-server", "server", "agent 'a0' on agent-host0"),
        ("bps-agent", "agent", "server 's0' on server-host0"),
    ],
)
def test_member_with_another_provider_ends_with_75_and_names_both(
    cluster, place, program, role, other
):
    if not libfabric():
        pytest.skip("libfabric is not installed")
    c = cluster(agents=1, servers=1)
    usual = PROVIDER or "sockets"
    odd = "sockets" if usual == "tcp" else "tcp"
    if role == "server":
        c.servers[0].stop()
        c.wait_for("server s0 is down", lambda: c.member("s0")["state"] == "down")
    p = place.start(
        program,
        *("--name", "odd", "--host", "odd-host", "--provider", odd),
        *("--scheduler", f"127.0.0.1:{c.scheduler.port}"),
    )
    _, text = p.communicate(timeout=DEADLINE_S)
    assert p.returncode == 75, text
    words = [
        f"{role} 'odd' on odd-host uses provider '{odd}', but {other}",
        f"uses '{usual}': set `provider` to the same value on all servers and agents",
    ]
    if odd == "tcp":
        words += ["opened libfabric: version=", "provider=tcp"]
    assert all(w in text for w in words), text
    assert c.member("a0")["provider"] == c.agents[0].status()["provider"] == usual


# ---- stopping a start ----


def signals_of(pid, field):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(rf"^{field}:\s*(\w+)", f.read(), re.M)[1], 16)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", DAEMONS)
def test_stop_in_the_first_moments_is_a_clean_end(place, program, sig):
    p = place.start(program)
    bit = 1 << (sig - 1)
    # Wait until the program has blocked the signal or installed a handler for it. Before that, the
    # signal would kill the process.
    while (
        not (signals_of(p.pid, "SigBlk") | signals_of(p.pid, "SigCgt")) & bit and p.poll() is None
    ):
        pass
    p.send_signal(sig)
    _, text = p.communicate(timeout=DEADLINE_S)
    assert p.returncode == 0, (p.returncode, text)
    assert f"stopping: signal={sig.name[3:]}" in text, text


@pytest.mark.skipif(IS_ASAN, reason="the sanitizer handles crashes")
@pytest.mark.parametrize("program", DAEMONS)
def test_crash_ends_with_its_signal(place, program):
    p = place.start(program)
    for line in p.stderr:
        if "starting: " in line:
            break
    p.send_signal(signal.SIGABRT)
    p.communicate(timeout=DEADLINE_S)
    assert p.returncode == -signal.SIGABRT


# ---- peers that refuse the daemon ----


def test_member_of_another_protocol_gets_both_versions(cluster):
    c = cluster(agents=0, servers=0)
    answer = control.answer_to(c.scheduler.port, control.hello(77, "0.0.9"))
    assert struct.unpack_from("<H", answer, 4)[0] == control.REFUSE, answer
    for word in (
        b"'old' on host (release 0.0.9) uses control protocol 77",
        b"the scheduler (release ",
        b"install the same",
    ):
        assert word in answer, answer


def test_names_of_strangers_cannot_add_lines_to_the_log(cluster):
    c = cluster(agents=0, servers=0)
    evil = "x'\n<0>the disk is gone job=7\r\x1b[2J\u202e"
    for proto in (1, 77):
        with socket.create_connection(("127.0.0.1", c.scheduler.port), timeout=DEADLINE_S) as s:
            s.sendall(control.hello(proto, "1", name=evil, host=evil))
            s.recv(4096)
    c.wait_for(
        "the scheduler rejects protocol 77",
        lambda: "control protocol 77" in c.scheduler.log.read_text(),
    )
    log = c.scheduler.log.read_text()
    assert "\\n<0>the disk is gone" in log and "\\x1b[2J\\xe2\\x80\\xae" in log, log
    assert not [line for line in log.splitlines() if not re.match(r"<[3-7]>\S+Z \S", line)], log
    assert all(ord(ch) >= 32 or ch == "\n" for ch in log), log
    out = c.bpsctl("status").stdout + c.bpsctl("agents").stdout + c.bpsctl("events").stdout
    assert "\x1b" not in out and "\n<0>" not in out, out


@pytest.mark.parametrize("code, status", [(10014, 78), (10017, 75), (10012, 75)])
@pytest.mark.parametrize("program", ["bps-server", "bps-agent"])
def test_refused_member_ends_with_the_reason_of_the_scheduler(place, program, code, status):
    """Code 10014: protocol versions of member and scheduler differ. A new start would fail too."""
    listener_, port = listener()
    listener_.settimeout(DEADLINE_S)
    p = place.start(program, "--scheduler", f"127.0.0.1:{port}")
    s, _ = listener_.accept()
    s.settimeout(DEADLINE_S)
    assert s.recv(4096)
    s.sendall(
        control.frame(
            control.REFUSE,
            struct.pack("<I", code),
            control.text("speaks protocol 1, the scheduler 2\nx"),
        )
    )
    _, text = p.communicate(timeout=DEADLINE_S)
    s.close()
    listener_.close()
    assert p.returncode == status, (p.returncode, text)
    assert (
        "<3>the scheduler refuses this member: speaks protocol 1, the scheduler 2\\nx\n" in text
    ), text


def test_member_with_the_wrong_key_says_so_and_goes_on_trying(cluster):
    c = cluster(agents=0, servers=0)
    c.scheduler.stop()
    c.scheduler.args += ["--key-file", str(key_file(c.dir))]
    c.scheduler.start()
    wrong = c.dir / "wrong.key"
    wrong.write_text("cd" * 32)
    wrong.chmod(0o600)
    d = c.spawn(
        "bps-server",
        "s0",
        "--listen",
        "127.0.0.100:0",
        "--scheduler",
        f"127.0.0.1:{c.scheduler.port}",
        "--name",
        "s0",
        "--key-file",
        wrong,
    )
    c.wait_for(
        "the daemon logs the reason", lambda: "key" in d.log.read_text().partition("why=")[2]
    )
    assert d.process.poll() is None


# ---- the journal ----


def private_journal(folder):
    """Return a function for preexec_fn that makes the folder appear as /run/systemd/journal."""
    MS_BIND = 0x1000

    def mount_all(mount):
        if not mount(b"tmpfs", "/run", b"tmpfs", 0, b"size=1m"):
            return False
        os.makedirs("/run/systemd/journal")
        return mount(os.fsencode(folder), "/run/systemd/journal", None, MS_BIND, None)

    return own_mounts(mount_all)


def test_journal_gets_lines_with_fields(place):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = place.path / "journal"
    folder.mkdir()
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(folder / "socket"))
    journal.settimeout(DEADLINE_S)
    r, w = os.pipe()
    st = os.fstat(w)
    place.env["JOURNAL_STREAM"] = f"{st.st_dev}:{st.st_ino}"
    p = subprocess.Popen(
        place.args("bps-scheduler"), stderr=w, env=place.env, preexec_fn=private_journal(folder)
    )
    os.close(w)
    lines = []
    while not lines or not lines[-1]["MESSAGE"].startswith("serving: "):
        if p.poll() == CANNOT_MOUNT:
            pytest.skip("cannot mount here")
        lines.append(dict(f.split("=", 1) for f in journal.recv(8192).decode().splitlines()))
    p.terminate()
    assert p.wait(DEADLINE_S) == 0
    start = lines[0]
    assert (
        start["MESSAGE"].startswith("starting: program=bps-scheduler") and start["PRIORITY"] == "6"
    ), start
    assert start["SYSLOG_IDENTIFIER"] == "bps-scheduler" and start["BPS_PID"] == str(p.pid), start
    assert start["MESSAGE_ID"] == "b096ad5a5e794e7c8b0c08bdba811ecc", start
    # the warning about the missing --state-dir
    assert lines[1]["PRIORITY"] == "4" and "MESSAGE_ID" not in lines[1], lines
    assert os.read(r, 4096) == b"", "a line of the journal is repeated on stderr"
    os.close(r)


def test_journal_gets_last_words_by_the_stream_that_names_the_unit(place):
    """A daemon sends its last log lines to the journal by a stream.

    systemd finds the unit of a stream, but not the unit of a datagram whose sender has ended.
    """
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = place.path / "journal"
    folder.mkdir()
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(folder / "socket"))
    r, w = os.pipe()
    st = os.fstat(w)
    place.env["JOURNAL_STREAM"] = f"{st.st_dev}:{st.st_ino}"
    p = subprocess.Popen(
        place.args("bps-scheduler", "--http", "192.0.2.1:1"),
        stderr=w,
        env=place.env,
        preexec_fn=private_journal(folder),
    )
    os.close(w)
    status = p.wait(DEADLINE_S)
    if status == CANNOT_MOUNT:
        pytest.skip("cannot mount here")
    assert status == 75
    assert b"192.0.2.1" in os.read(r, 4096)
    os.close(r)
    journal.close()


def test_journal_that_is_gone_leaves_standard_error(place):
    r, w = os.pipe()
    st = os.fstat(w)
    place.env["JOURNAL_STREAM"] = f"{st.st_dev}:{st.st_ino}"
    if os.path.exists("/run/systemd/journal/socket"):
        pytest.skip("there is a journal here")
    p = subprocess.run(
        place.args("bps-scheduler", "--http", "192.0.2.1:1"),
        stderr=w,
        env=place.env,
        timeout=DEADLINE_S,
    )
    os.close(w)
    assert p.returncode == 75
    assert os.read(r, 4096).startswith(b"<6>starting: program=bps-scheduler")
    os.close(r)
