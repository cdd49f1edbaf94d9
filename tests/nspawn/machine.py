"""Machines with their own systemd, in containers on one bridge.

A machine is a systemd-nspawn container. Its file system is an overlay of a common root. What the
machine writes stays in memory and vanishes when the machine ends. Tests control the machine from
outside by entering its namespaces. Every wait has a deadline.
"""

import os
import subprocess
import time
from pathlib import Path

ROOT = os.environ["BPS_NSPAWN_ROOT"]
DEBS = os.environ["BPS_NSPAWN_DEBS"]
GROUPS = os.environ["BPS_NSPAWN_GROUPS"].split()
DEADLINE_S = 60
ENV = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
}


class Failed(AssertionError):
    pass


def wait_for(what, condition, deadline_s=DEADLINE_S, explain=lambda: ""):
    """Call the condition until it returns a true value. Return this value."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"not within {deadline_s} s: {what}\n{explain()}")
        time.sleep(0.05)  # there is no event for changes in another machine


class Machine:
    def __init__(self, name, address):
        self.name, self.address = name, address
        self.console = open(
            f"{os.environ.get('TMPDIR', '/tmp')}/bps-nspawn-{os.getpid()}-{name}.log", "w+b"
        )
        os.unlink(self.console.name)
        start = time.monotonic()
        groups = [Path(g, name) for g in GROUPS]
        for g in groups:  # units of the same name in two machines need different control groups
            g.mkdir()
        joins = "".join(f"echo 0 >{g}/cgroup.procs && " for g in groups)
        self.process = subprocess.Popen(
            [
                "sh",
                "-c",
                joins + 'exec "$@"',
                "sh",
                "systemd-nspawn",
                "--quiet",
                f"--directory={ROOT}",
                "--boot",
                "--volatile=overlay",
                "--network-bridge=bps0",
                f"--machine={name}",
                f"--hostname={name}",
                "--register=no",
                "--keep-unit",
                "--capability=all",
                f"--bind-ro={DEBS}:/packages",
                "--console=pipe",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.console,
            stderr=self.console,
        )
        self.leader = None
        wait_for(f"{name} is up", self._is_up, explain=self.screen)
        self.sh(f"ip addr add {address}/24 dev host0; ip link set host0 up")
        self.boot_s = time.monotonic() - start

    def _is_up(self):
        # systemd-nspawn forks twice, so the first child that appears may not be the final one
        if self.process.poll() is not None:
            raise Failed(f"{self.name} has ended:\n{self.screen()}")
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        if not children:
            return False
        self.leader = children[0]
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in (
            "running",
            "degraded",
        )

    def screen(self):
        self.console.seek(0)
        return self.console.read().decode(errors="replace")[-4000:]

    def command(self, *args):
        return ["nsenter", "-t", self.leader, "-a", "--", *args]

    def run(self, *args, check=True, timeout=DEADLINE_S, text=None):
        r = subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=ENV,
            check=False,
            input=text,
        )
        if check and r.returncode:
            raise Failed(f"{self.name}: {args} ended with {r.returncode}:\n{r.stdout}{r.stderr}")
        return r

    def sh(self, script, **kw):
        return self.run("sh", "-c", script, **kw).stdout

    def start(self, *args):
        """Start a process in the machine, without waiting for its end."""
        return Running(self, args)

    def write(self, path, text, mode="644"):
        self.run(
            "sh",
            "-c",
            f'mkdir -p "$(dirname {path})" && umask 077 && cat >{path} && chmod {mode} {path}',
            text=text,
        )

    def show(self, unit, *names):
        out = self.run("systemctl", "show", unit, "-p", ",".join(names)).stdout
        values = dict(line.split("=", 1) for line in out.splitlines())
        return [values[n] for n in names] if len(names) > 1 else values[names[0]]

    def journal(self, unit):
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout

    def wait_active(self, unit):
        wait_for(
            f"{unit} on {self.name} is active",
            lambda: self.show(unit, "ActiveState") == "active",
            explain=lambda: self.run("systemctl", "status", "--no-pager", unit, check=False).stdout,
        )

    def files(self, *packages):
        return [
            str(next(Path(DEBS).glob(f"{p}_*.deb"))).replace(DEBS, "/packages") for p in packages
        ]

    def install(self, *packages):
        return self.run(
            "apt-get",
            "install",
            "-y",
            "--no-install-recommends",
            *self.files(*packages),
            timeout=120,
        )

    def stop(self):
        if self.process.poll() is None:
            try:
                self.run("systemctl", "poweroff", check=False, timeout=10)
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.console.close()


class Running:
    def __init__(self, machine, args):
        self.name = f"{args[0]} on {machine.name}"
        self.process = subprocess.Popen(
            machine.command(*args),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENV,
            stdin=subprocess.DEVNULL,
        )

    def finish(self, timeout=120):
        try:
            out = self.process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed(
                f"{self.name} does not end:\n{self.process.communicate()[0][-4000:]}"
            ) from None
        if self.process.returncode:
            raise Failed(f"{self.name} ended with {self.process.returncode}:\n{out[-4000:]}")
        return out

    def is_running(self):
        return self.process.poll() is None
