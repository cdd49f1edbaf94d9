"""`auth = cert`: a peer needs a certificate for its name, signed by the site's authority."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess

import pytest

from cluster import BUILD, DEADLINE_S
from control import PROTO, SERVER, STEER, frame, hello, text

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl command")


def openssl(*args, **kw):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=30, **kw)


class Authority:
    """A certificate authority in a folder, made with the recipe of docs/guides/keys.md."""

    def __init__(self, folder):
        self.dir = folder
        folder.mkdir(exist_ok=True)
        (folder / "index.txt").touch()
        (folder / "ca.cnf").write_text(f"""
[ca]
default_ca = site
[site]
database = {folder}/index.txt
default_md = sha256
default_crl_days = 30
certificate = {folder}/ca.crt
private_key = {folder}/ca.key
new_certs_dir = {folder}
rand_serial = yes
unique_subject = no
policy = any
[any]
commonName = supplied
""")
        openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            3650,
            "-subj",
            "/CN=BPS",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout",
            folder / "ca.key",
            "-out",
            folder / "ca.crt",
        )

    def sign(self, who, is_expired=False, name=None):
        """Sign a certificate with the CN `who`. Return the settings with which a daemon uses it."""
        base = self.dir / (name or who.replace(":", "-"))
        openssl(
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            f"/CN={who}",
            "-keyout",
            f"{base}.key",
            "-out",
            f"{base}.csr",
        )
        dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
        period = dates if is_expired else ("-days", 365)
        files = ("-in", f"{base}.csr", "-out", f"{base}.crt")
        openssl("ca", "-config", self.dir / "ca.cnf", "-batch", "-notext", *period, *files)
        os.chmod(f"{base}.key", 0o600)
        return self.settings(base)

    def settings(self, base, ca=None):
        return [
            "--auth",
            "cert",
            "--tls-cert",
            f"{base}.crt",
            "--tls-key",
            f"{base}.key",
            "--tls-ca",
            str(ca or self.dir / "ca.crt"),
        ]

    def revoke(self, who, ca):
        base = self.dir / who.replace(":", "-")
        openssl("ca", "-config", self.dir / "ca.cnf", "-revoke", f"{base}.crt")
        openssl("ca", "-config", self.dir / "ca.cnf", "-gencrl", "-out", self.dir / "crl.pem")
        ca.write_text((self.dir / "ca.crt").read_text() + (self.dir / "crl.pem").read_text())


@pytest.fixture
def site(tmp_path):
    return Authority(tmp_path / "site")


@pytest.fixture
def certified(cluster, site):
    return cluster(agents=0, servers=0, scheduler_args=site.sign("scheduler:test"))


def spawn_server(c, *args, name="s0"):
    return c.spawn(
        "bps-server",
        name,
        "--listen",
        "127.0.0.100:0",
        "--scheduler",
        f"127.0.0.1:{c.scheduler.port}",
        "--name",
        name,
        *args,
    )


def refused_start(c, *args):
    """Start a server that must refuse these settings. Return its log."""
    p = subprocess.run(
        [
            str(BUILD / "bps-server" / "bps-server"),
            "--listen",
            "127.0.0.100:0",
            "--name",
            "s0",
            "--http",
            "127.0.0.1:0",
            "--scheduler",
            f"127.0.0.1:{c.scheduler.port}",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=c.env,
        check=False,
    )
    assert p.returncode == 78, p
    return p.stderr


def says(c, d, words):
    c.wait_for(f"{d.name} logs '{words}'", lambda: words in d.log.read_text())


def members(c):
    return {m["name"] for m in c.scheduler.status()["members"] if m["state"] == "up"}


def test_cluster_with_certificates_sums_and_is_steered(certified, site):
    c = certified
    for i in range(2):
        c.add_server(i, *site.sign(f"server:s{i}"))
        c.add_agent(i, *site.sign(f"agent:a{i}"))
    c.run("rounds", 4, {"n_elems": 100000, "n_rounds": 5})
    p = c.steer(*site.sign("ctl:alice"), "--json", "key", "status")
    assert p.returncode == 0, p
    assert {m["key"] for m in json.loads(p.stdout)["members"]} == {"certificate"}


def test_certificate_of_another_authority_is_refused(certified, site, tmp_path):
    c = certified
    other = Authority(tmp_path / "other")
    other.sign("server:s0")
    d = spawn_server(c, *other.settings(other.dir / "server-s0", ca=site.dir / "ca.crt"))
    says(c, d, "the other side refuses this certificate")
    says(c, c.scheduler, "control channel: refused a connection")
    assert not members(c)


def test_scheduler_of_another_authority_is_refused(certified, site, tmp_path):
    c = certified
    other = Authority(tmp_path / "other")
    site.sign("server:s0")
    d = spawn_server(c, *site.settings(site.dir / "server-s0", ca=other.dir / "ca.crt"))
    says(c, d, "cannot reach the scheduler")
    assert "certificate" in d.log.read_text()
    assert not members(c)


def test_expired_certificate_is_refused(certified, site):
    c = certified
    d = spawn_server(c, *site.sign("server:s0", is_expired=True))
    says(c, d, "the other side refuses this certificate")
    says(c, c.scheduler, "expired")
    assert not members(c)


@pytest.mark.parametrize("who", ["server:s1", "agent:s0", "ctl:s0", "s0"])
def test_daemon_with_the_certificate_of_another_name_does_not_start(certified, site, who):
    said = refused_start(certified, *site.sign(who))
    assert "its CN has to be server:s0" in said, said


def test_certificate_of_a_member_cannot_steer(certified, site):
    p = certified.steer(*site.sign("server:s0"), "key", "status")
    assert p.returncode == 2 and "its CN has to be ctl:NAME" in p.stderr, p


def answer_to(c, site, who, message):
    """Send a frame over a connection with the certificate of `who`.

    Return the bytes that the scheduler sends until it closes the connection.
    """
    site.sign(who)
    base = site.dir / who.replace(":", "-")
    context = ssl.create_default_context(cafile=site.dir / "ca.crt")
    context.check_hostname = False
    context.load_cert_chain(f"{base}.crt", f"{base}.key")
    got = b""
    with socket.create_connection(("127.0.0.1", c.scheduler.port), timeout=10) as raw:
        with context.wrap_socket(raw) as s:
            s.sendall(message)
            try:
                while chunk := s.recv(4096):
                    got += chunk
            except ssl.SSLError:
                pass
    return got


def test_scheduler_itself_checks_names_and_roles(certified, site):
    c = certified
    zero = (0).to_bytes(4, "little")
    steer = frame(STEER, text("key status"), text(""), zero, zero, text("u"), text("h"))
    assert answer_to(c, site, "ctl:u", steer)[10:14] == zero
    assert answer_to(c, site, "server:s1", steer)[10:14] == (10015).to_bytes(4, "little")
    for who in ("server:s1", "agent:s0", "ctl:s0", "scheduler:s0"):
        assert answer_to(c, site, who, hello(PROTO, "0", name="s0", role=SERVER)) == b"", who
    assert not members(c)


def test_scheduler_needs_a_certificate_of_its_role(cluster, site):
    c = cluster(agents=0, servers=0)
    args = site.sign("server:s0")
    p = subprocess.run(
        [
            str(BUILD / "bps-scheduler" / "bps-scheduler"),
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=c.env,
        check=False,
    )
    assert p.returncode == 78 and "its CN has to be scheduler:NAME" in p.stderr, p


def test_missing_and_open_files_are_refused_by_name(certified, site):
    c = certified
    args = site.sign("server:s0")
    key = site.dir / "server-s0.key"
    os.chmod(key, 0o640)
    assert f"private key '{key}' is open to group or others" in refused_start(c, *args)
    key.unlink()
    assert f"cannot open private key '{key}'" in refused_start(c, *args)
    assert "with auth = cert, tls-ca must name a file" in refused_start(c, *args[:-2])
    args = site.sign("server:s0")
    (site.dir / "server-s0.crt").write_text("nothing\n")
    assert "cannot use the certificate" in refused_start(c, *args)
    site.sign("agent:a0")
    shutil.copy(site.dir / "agent-a0.key", key)
    site.sign("server:s0", name="fresh")
    shutil.copy(site.dir / "fresh.crt", site.dir / "server-s0.crt")
    assert "cannot use the private key" in refused_start(c, *args)


@pytest.mark.parametrize("is_scheduler", [True, False])
def test_peer_with_a_key_and_peer_with_certificates_refuse_each_other(
    cluster, site, tmp_path, is_scheduler
):
    key = tmp_path / "cluster.key"
    key.write_text("0" * 64)
    os.chmod(key, 0o600)
    psk, cert = ["--key-file", str(key)], site.sign("scheduler:x" if is_scheduler else "server:s0")
    c = cluster(agents=0, servers=0, scheduler_args=cert if is_scheduler else psk)
    d = spawn_server(c, *(psk if is_scheduler else cert))
    says(c, d, "cannot reach the scheduler")
    assert not members(c)


def test_revoked_certificate_is_refused_and_its_connections_are_closed(cluster, site, tmp_path):
    ca = tmp_path / "ca-and-list.pem"
    shutil.copy(site.dir / "ca.crt", ca)
    site.sign("scheduler:x")
    c = cluster(agents=0, servers=0, scheduler_args=site.settings(site.dir / "scheduler-x", ca=ca))
    for i in range(2):
        c.add_server(i, *site.sign(f"server:s{i}"))
    c.wait_for("both servers are members", lambda: members(c) == {"s0", "s1"})
    site.revoke("server:s1", ca)
    c.scheduler.kill(signal.SIGHUP)
    c.wait_for("s1 is out", lambda: members(c) == {"s0"})
    says(c, c.servers[1], "refuses this certificate")


def test_reload_of_an_unusable_revocation_list_is_an_error(cluster, site, tmp_path):
    ca = tmp_path / "ca-and-list.pem"
    shutil.copy(site.dir / "ca.crt", ca)
    site.sign("scheduler:x")
    c = cluster(agents=0, servers=0, scheduler_args=site.settings(site.dir / "scheduler-x", ca=ca))
    zero = (0).to_bytes(4, "little")
    key_reload = frame(STEER, text("key reload"), text(""), zero, zero, text("u"), text("h"))
    good = ca.read_text()
    ca.write_text("-----BEGIN X509 CRL-----\nhalf of it")
    for _ in range(2):  # a failed reload must not change the next reload
        got = answer_to(c, site, "ctl:u", key_reload)
        assert got[10:14] != zero and b"cannot use the authorities" in got, got
    c.scheduler.kill(signal.SIGHUP)
    says(
        c,
        c.scheduler,
        "cannot reload, keeping all settings as they are: cannot use the authorities",
    )
    assert "reloaded:" not in c.scheduler.log.read_text()
    ca.write_text(good)
    assert answer_to(c, site, "ctl:u", key_reload)[10:14] == zero


def test_certificate_revoked_in_the_middle_of_its_handshake_is_refused(cluster, site, tmp_path):
    ca = tmp_path / "ca-and-list.pem"
    shutil.copy(site.dir / "ca.crt", ca)
    site.sign("scheduler:x")
    c = cluster(agents=0, servers=0, scheduler_args=site.settings(site.dir / "scheduler-x", ca=ca))
    site.sign("ctl:u")
    context = ssl.create_default_context(cafile=site.dir / "ca.crt")
    context.check_hostname = False
    context.load_cert_chain(site.dir / "ctl-u.crt", site.dir / "ctl-u.key")
    wire_in, wire_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(wire_in, wire_out)
    zero = (0).to_bytes(4, "little")
    with socket.create_connection(("127.0.0.1", c.scheduler.port), timeout=10) as raw:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        raw.sendall(wire_out.read())
        while True:
            wire_in.write(raw.recv(65536))
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
        site.revoke("ctl:u", ca)
        c.scheduler.kill(signal.SIGHUP)
        says(c, c.scheduler, "the certificates have changed")
        tls.write(frame(STEER, text("key status"), text(""), zero, zero, text("u"), text("h")))
        raw.sendall(wire_out.read())
        got = b""
        try:
            while chunk := raw.recv(65536):
                wire_in.write(chunk)
                with contextlib.suppress(ssl.SSLWantReadError):
                    while plain := tls.read():
                        got += plain
        except (ssl.SSLError, ConnectionResetError):
            pass
        assert got == b""


def test_renewed_certificate_is_taken_at_a_reload_without_a_lost_round(certified, site):
    c = certified
    for i in range(2):
        c.add_server(i, *site.sign(f"server:s{i}"))
        c.add_agent(i, *site.sign(f"agent:a{i}"))
    ctl = site.sign("ctl:alice")

    def prints():
        d = json.loads(c.steer(*ctl, "--json", "key", "status").stdout)
        return {m["name"]: m["fingerprint"] for m in d["members"]}

    before = prints()
    assert len(before) == 4
    workers = c.start_job(
        "rounds", 4, {"n_elems": 50000, "n_rounds": 40, "pause": 0.05, "sleep_rank": 0}
    )
    for d in c.servers + c.agents:
        site.sign(f"{'server' if d.name[0] == 's' else 'agent'}:{d.name}")
        d.kill(signal.SIGHUP)
    c.wait_for(
        "all daemons have new certificates",
        lambda: len(prints()) == 4 and not set(prints().values()) & set(before.values()),
    )
    c.finish(workers)
    events = json.loads(c.scheduler.get("/status?events=0"))["events"]
    assert not [e for e in events if " down" in e["text"]], events
