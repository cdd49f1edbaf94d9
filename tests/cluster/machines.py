"""Machines of one test: a machine has a host name and a boot id in namespaces of its own."""

import uuid

from cluster import Daemon

NODE = "node.rack1.example"
# Enter the namespaces of a machine. $1: host name; $2: file with the boot id.
ENTER = """
    echo "$1" >/proc/sys/kernel/hostname &&
        mount --bind "$2" /proc/sys/kernel/random/boot_id || exit 111
    shift 2
    exec "$@"
"""


class OnMachine(Daemon):
    """A daemon on a machine. It may be refused, and end with 75."""

    def __init__(self, machine, program, args):
        self.machine, self.own_args = machine, [str(a) for a in args]
        super().__init__(machine.c, program, f"{program}{machine.nr}", [], is_awaited=False)
        self.may_end_with = {0, 75}

    def spawn(self):
        m = self.machine
        at = ["--listen", f"127.0.0.{m.nr}:0", "--scheduler", f"{m.scheduler}:{m.c.scheduler.port}"]
        self.socket = m.folder / "agent.sock"
        self.args = [*at, *self.own_args]
        if self.program == "bps-agent":
            self.args += ["--socket", str(self.socket)]
        enter = ["unshare", "--uts", "--mount", "sh", "-c", ENTER, "sh"]
        self.prefix = [*enter, m.host_name, str(m.boot_id)]
        return super().spawn()


class Machine:
    """A machine with a host name. Each boot of the machine has another boot id.

    Args:
        nr: last number of the machine's address.
        scheduler: host of the scheduler. Two daemons of one name and one scheduler in one network
            namespace exclude each other (name_claim.h). All machines are in one namespace, so each
            machine and each boot names the scheduler in another form.
    """

    def __init__(self, c, nr, scheduler="127.0.0.1", host_name=NODE):
        self.c, self.nr, self.host_name = c, nr, host_name
        self.boot(scheduler)

    def boot(self, scheduler):
        self.scheduler = scheduler
        boot_id = str(uuid.uuid4())
        self.folder = self.c.make(boot_id)
        self.boot_id = self.folder / "boot_id"
        self.boot_id.write_text(f"{boot_id}\n")

    def start(self, program, *args):
        """Start a daemon without waiting until it is ready."""
        d = OnMachine(self, program, args)
        self.c.daemons.append(d)
        return d

    def agent(self):
        return self.start("bps-agent")

    def server(self):
        memory = ["--sums-memory", "512MiB", "--staging-memory", "64MiB"]
        return self.start("bps-server", "--threads", 2, *memory)
