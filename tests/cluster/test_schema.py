"""The JSON output of bpsctl matches docs/reference/status.schema.json."""

import json
import select
import signal
import socket
import subprocess

import pytest

jsonschema = pytest.importorskip("jsonschema")

from cluster import BUILD, DEADLINE_S  # noqa: E402
from schema import SCHEMA, validate  # noqa: E402
from screens import WAITS, words  # noqa: E402


def printed(c, *args):
    p = c.bpsctl("--json", *args)
    assert p.stdout, p
    return json.loads(p.stdout)


def name_of(word):
    return word.replace(" ", "_")


def test_schema_is_a_schema_and_has_every_word():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    orders = {
        "drain",
        "undrain",
        "job kill",
        "mute",
        "unmute",
        "key rotate",
        "key retire",
        "key revoke",
    }
    assert {"order", "key_change"} <= set(SCHEMA["$defs"])
    missing = [w for w in words() if w not in orders and name_of(w) not in SCHEMA["$defs"]]
    assert not missing
    assert len(words()) >= 18


def test_every_word_prints_what_the_schema_says(cluster):
    c = cluster(agents=3, servers=2, scheduler_args=["--server-window", "100ms"])
    c.run("rounds", 3, {"n_elems": 1000, "n_rounds": 2}, job="done")
    c.start_job("rounds", 3, {"n_elems": 30000, "n_rounds": 100000}, job="digits")
    c.start_job("error", 2, WAITS, job="stuck")
    c.start_job("error", 1, {"what": "nothing"}, job="forming", env={"BPS_SIZE": "3"})
    c.wait_for(
        "job 'forming' exists",
        lambda: any(j["name"] == "forming" for j in c.scheduler.status()["jobs"]),
    )
    validate(printed(c, "job", "forming"), "job")
    validate(printed(c, "job", "nobody"), "failure")
    c.wait_for(
        "a job has a known pace", lambda: any(j.get("pace") for j in c.scheduler.status()["jobs"])
    )
    c.wait_for(
        "job 'stuck' waits for a submission",
        lambda: "have not submitted" in c.bpsctl("why-stuck", "stuck").stdout,
    )
    c.servers[1].kill()
    c.wait_for("s1 is down", lambda: "SERVER_DOWN" in c.bpsctl("status").stdout)
    control = ("--scheduler", f"127.0.0.1:{c.scheduler.port}")
    validate(printed(c, *control, "mute", "SERVER_DOWN", "1h"), "order")
    validate(printed(c, *control, "job", "kill", "forming"), "order")
    validate(printed(c, *control, "unmute", "SERVER_DOWN"), "order")
    validate(printed(c, *control, "mute", "SERVER_DOWN", "1h", "--reason", "x"), "order")
    validate(printed(c, *control, "drain", "a2", "--reason", "x"), "order")
    validate(printed(c, *control, "key", "status"), "key_status")
    for word in (
        "status",
        "servers",
        "agents",
        "jobs",
        "why-stuck",
        "events",
        "check",
        "version",
        "help",
        "key new",
    ):
        validate(printed(c, *word.split()), name_of(word))
    d = printed(c, "status")
    assert (
        d["problems"] and d["muted"] and d["jobs"] and d["ended"] and d["members"] and d["missing"]
    ), d
    for name in ("digits", "stuck", "done"):
        validate(printed(c, "job", name), "job")
        validate(printed(c, "advise", name), "advise")
    agent = ("--agent-http", f"127.0.0.1:{c.agents[0].http}")
    validate(printed(c, *agent, "trace", "digits", str(c.dir / "trace.json")), "trace")
    validate(printed(c, "why-stuck", "stuck"), "why-stuck")
    validate(printed(c, "explain"), "explain_all")
    validate(printed(c, "explain", "STRAGGLER"), "explain")
    validate(printed(c, "explain", "BPS_EQUOTA"), "explain")
    validate(
        printed(c, "--daemon", f"127.0.0.1:{c.servers[0].http}", "status"), "status_of_a_server"
    )
    validate(
        printed(c, "--daemon", f"127.0.0.1:{c.agents[0].http}", "status"), "status_of_an_agent"
    )


def test_words_about_keys_print_what_the_schema_says(tmp_path):
    key = tmp_path / "key"
    with socket.socket() as s:  # find a port on which no process listens
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]

    def run(*args):
        command = [
            str(BUILD / "bpsctl"),
            "--json",
            "--key-file",
            str(key),
            "--scheduler",
            f"127.0.0.1:{port}",
            "key",
            *args,
        ]
        return json.loads(
            subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
        )

    d = run("new")
    key.write_text(d["key"])
    key.chmod(0o600)
    validate(d, "key_new")
    validate(run("derive", "server:node3"), "key_derive")
    revoke = ("revoke", "server:node3")
    for args in (("rotate",), revoke, revoke, ("retire", "--force")):
        validate(run(*args), "key_change")
    validate(run("retire", "--force"), "failure")  # there is no previous key any more


def test_orders_that_change_nothing_print_what_the_schema_says(cluster):
    c = cluster(agents=1, servers=2)
    for order in ("undrain NAME", "unmute STRAGGLER"):
        for name in ("s0", "a0"):
            p = c.steer("--json", *order.replace("NAME", name).split())
            assert p.returncode == 0 and "is not" in p.stdout, p
            validate(json.loads(p.stdout), "order")
    for order in ("drain s0", "mute STRAGGLER"):
        for _ in range(2):
            p = c.steer("--json", *order.split())
            assert p.returncode == 0, p
            validate(json.loads(p.stdout), "order")
    for order, status in (
        ("drain nobody", 2),
        ("undrain nobody", 2),
        ("job kill nobody", 2),
        ("mute NONSENSE", 64),
        ("unmute NONSENSE", 64),
        ("mute STRAGGLER soon", 64),
        ("drain " + "x" * 2000, 64),
    ):
        p = c.steer("--json", *order.split())
        assert p.returncode == status, p
        validate(json.loads(p.stdout), "failure")


@pytest.mark.parametrize("word", ["status", "servers", "agents", "jobs", "why-stuck", "check"])
def test_every_line_of_a_watched_word_is_a_document(cluster, word):
    c = cluster(agents=1, servers=1)
    p = subprocess.Popen(
        [
            str(BUILD / "bpsctl"),
            "--scheduler-http",
            f"127.0.0.1:{c.scheduler.http}",
            "--json",
            word,
            "--watch",
            "0.2",
        ],
        stdout=subprocess.PIPE,
        env=c.env,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    for _ in range(2):
        assert select.select([p.stdout], [], [], DEADLINE_S)[0]
        validate(json.loads(p.stdout.readline()), name_of(word))
    c.scheduler.kill(signal.SIGSTOP)
    if word != "check":
        for _ in range(20):  # requests that have begun may still succeed
            assert select.select([p.stdout], [], [], DEADLINE_S)[0]
            d = json.loads(p.stdout.readline())
            if "error" in d:
                break
        validate(d, "failure")
    c.scheduler.kill(signal.SIGCONT)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=DEADLINE_S)
    assert p.returncode in (0, 1, 2, 3)


def test_followed_events_are_documented_objects(cluster):
    c = cluster(agents=0, servers=1)
    p = subprocess.Popen(
        [
            str(BUILD / "bpsctl"),
            "--scheduler-http",
            f"127.0.0.1:{c.scheduler.http}",
            "--json",
            "events",
            "-f",
        ],
        stdout=subprocess.PIPE,
        env=c.env,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert select.select([p.stdout], [], [], DEADLINE_S)[0]
    validate(json.loads(p.stdout.readline()), "events_follow")
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=DEADLINE_S)
    assert p.returncode == 0
