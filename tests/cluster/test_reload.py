"""After SIGHUP, a daemon reads settings from its files again. Some changes are refused."""

import os
import re
import signal

import pytest

from keeper import Manager


def conf(c, name, text):
    path = c.dir / f"{name}.conf"
    path.write_text(text)
    return path


def reload(c, d):
    """Send SIGHUP to the daemon d of the cluster c. Return the log lines of the reload."""
    at = len(d.log.read_text())
    d.process.send_signal(signal.SIGHUP)
    c.wait_for(
        "the reload's end", lambda: re.search(r"reloaded: |cannot reload", d.log.read_text()[at:])
    )
    return re.sub(r"(?m)^(<\d>)\S+Z ", r"\1", d.log.read_text()[at:])  # remove the time stamps


def test_reload_of_the_scheduler_changes_times_of_running_cluster(cluster):
    c = cluster(agents=0, servers=0)
    c.scheduler.stop()
    path = conf(c, "scheduler", "server-window = 1min\nbeat = 100ms\nname = one\n")
    c.scheduler.args += ["--config", str(path)]
    c.scheduler.start()
    server = c.add_server(0)

    path.write_text("server-window = 300ms\nbeat = 200ms\nname = one\n")
    log = reload(c, c.scheduler)
    assert f"<6>server-window: 1min -> 300ms source='{path}:1'" in log, log
    kept = (
        "<4>beat: the old value 100ms stays in force; the new value 200ms takes effect after a "
        f"restart: source='{path}:2'"
    )
    assert kept in log, log
    assert "reloaded: settings_changed=1" in log and "name:" not in log, log
    config = c.scheduler.get("/config").splitlines()
    assert f"server-window = 300ms ; {path}:1" in config
    assert f"beat = 100ms ; {path}:2; after a restart: 200ms ({path}:2)" in config
    server.kill()
    c.wait_for(
        "the server is dead after the new time",
        lambda: c.scheduler.status()["members"][0]["state"] == "down",
        deadline_s=10,
    )


def test_file_with_an_error_changes_nothing(cluster):
    c = cluster(agents=0, servers=0)
    c.scheduler.stop()
    path = conf(c, "scheduler", "log-level = info\n")
    c.scheduler.args += ["--config", str(path)]
    c.scheduler.start()
    for text, why in (
        (
            "log-level = debug\nserver-daed = 3s\n",
            "unknown setting 'server-daed' (did you mean 'server-dead'?)",
        ),
        ("log-level = debug\nserver-dead = 3\n", "server-dead: '3' is not a duration such as"),
        ("log-level = debug\nserver-dead = 1h1\n", "server-dead: '1h1' is not a duration such as"),
    ):
        path.write_text(text)
        log = reload(c, c.scheduler)
        assert f"<3>cannot reload, keeping all settings as they are: {path}:2: {why}" in log, log
        assert "<7>" not in log
    path.write_text("log-level = debug\nserver-dead = 200ms\n")
    log = reload(c, c.scheduler)
    assert (
        "cannot reload, keeping all settings as they are: server-dead and agent-dead must be "
        "at least 3 times the setting beat" in log
    ), log
    os.unlink(path)
    assert f"cannot open '{path}': No such file" in reload(c, c.scheduler)


def test_environment_and_flags_of_the_start_stay_in_force(cluster):
    c = cluster(agents=0, servers=0)
    c.scheduler.stop()
    path = conf(c, "scheduler", "agent-window = 7s\n")
    c.scheduler.args += ["--config", str(path), "--server-window", "2s"]
    c.env["BPS_AGENT_WINDOW"] = "9s"
    c.scheduler.start()
    path.write_text("agent-window = 8s\nserver-window = 3s\n")
    assert "reloaded: settings_changed=0" in reload(c, c.scheduler)


def test_drop_in_takes_effect_at_a_reload(cluster):
    c = cluster(agents=0, servers=0)
    path = conf(c, "scheduler", "log-level = info\n")
    c.scheduler.stop()
    c.scheduler.args += ["--config", str(path)]
    c.scheduler.start()
    drop_ins = c.make("scheduler.conf.d")
    (drop_ins / "50-debug.conf").write_text("# for a while\nlog-level = debug\n")
    assert f"log-level: info -> debug source='{drop_ins}/50-debug.conf:2'" in reload(c, c.scheduler)


def test_limits_of_a_running_agent_change(cluster):
    c = cluster(agents=0, servers=0)
    path = conf(c, "agent", "max-trainers = 1\n")
    c.add_agent(0, "--config", path)
    results = c.run("error", 2, {"what": "nothing", "open": {"open_timeout": 1.0}})
    assert any(r["code"] for r in results), results
    path.write_text("max-trainers = 2\nmemory = 1GiB\nwindow = 1MiB\nlisten = 127.0.0.9:0\n")
    log = reload(c, c.agents[0])
    for line in ("max-trainers: 1 -> 2", "memory: 0 -> 1GiB", "window: 0 -> 1MiB", "changed=3"):
        assert line in log, log
    assert "listen" not in log, log  # the command line has precedence for `listen`
    c.run("rounds", 2, {"n_elems": 1000, "n_rounds": 3})


def test_larger_limit_of_tensors_holds_for_trainers_that_connect_later(cluster):
    c = cluster(agents=0, servers=0)
    path = conf(c, "agent", "max-tensors = 16\n")
    c.add_agent(0, "--config", path)
    early, _ = c.start_running("rounds", 2, {"n_elems": 100, "n_rounds": 2000, "n_tensors": 16})
    path.write_text("max-tensors = 300\n")
    assert "max-tensors: 16 -> 300" in reload(c, c.agents[0])
    c.run("rounds", 2, {"n_elems": 100, "n_rounds": 20, "n_tensors": 300})
    c.finish(early)
    path.write_text("max-tensors = 20\n")
    reload(c, c.agents[0])
    started = c.start_job("rounds", 2, {"n_elems": 100, "n_rounds": 2, "n_tensors": 21})
    assert all(w.process.wait(60) != 0 for w in started)
    # After the first worker has left with the error below, the second may get a different error.
    said = [w.text() for w in started]
    assert any("has declared 20 tensors, and the limit is 20" in text for text in said), said


def test_window_of_a_running_server_changes(cluster):
    c = cluster(agents=2, servers=0)
    path = conf(c, "server", "peer-window = 8MiB\nspin = 50us\n")
    c.add_server(0, "--config", path)
    started = c.start_job("rounds", 2, {"n_elems": 1 << 20, "n_rounds": 30})
    path.write_text("peer-window = 1MiB\nspin = 10us\n")
    log = reload(c, c.servers[0])
    assert (
        "peer-window: 8MiB -> 1MiB" in log
        and "spin: the old value 50us stays in force; the new value 10us takes effect" in log
    ), log
    c.finish(started)


def new_key(c, name):
    path = c.dir / name
    path.write_text(c.bpsctl("key", "new").stdout)
    path.chmod(0o600)
    return path


def test_key_file_is_read_again(cluster):
    c = cluster(agents=0, servers=0)
    key = new_key(c, "cluster.key")
    c.scheduler.stop()
    c.scheduler.args += ["--key-file", str(key)]
    c.scheduler.start()
    assert "key=unchanged" in reload(c, c.scheduler)
    os.replace(new_key(c, "other.key"), key)
    assert "the key file has changed" in reload(c, c.scheduler)
    key.chmod(0o644)
    log = reload(c, c.scheduler)
    assert "cannot reload" in log and "is open to group or others" in log, log


@pytest.mark.parametrize("which", ["scheduler", "s0", "a0"])
def test_service_manager_is_notified_of_a_reload(cluster, tmp_path, which):
    c = cluster(agents=1, servers=1)
    d = c.daemon(which)
    d.stop()
    manager = Manager(tmp_path / "notify")
    c.env.update(manager.env)
    d.start()
    manager.wait_for("READY=1")
    assert "changed=0" in reload(c, d)
    manager.wait_for("RELOADING=1")
    manager.wait_for("READY=1")
