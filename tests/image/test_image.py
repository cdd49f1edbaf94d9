"""The images of `make image`: two builds are equal, and the pods of the manifests run in them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pods import Node, Pod

ROOT = Path(__file__).resolve().parent.parent.parent
MANIFESTS = ROOT / "docs" / "guides" / "kubernetes"
IMAGES, AGAIN = Path(os.environ["BPS_IMAGES"]), Path(os.environ["BPS_IMAGES_AGAIN"])
ARCHIVES = sorted(IMAGES.glob("*.tar"))
READY_S, JOB_S = 30, 120


def output(*command: object, **kw: Any) -> str:
    return subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True, **kw
    ).stdout


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wait_for(what: str, condition: Any, texts: Any, seconds: float = READY_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}\n{texts()}"
        select.select([], [], [], 0.05)


def test_second_build_has_the_same_bytes() -> None:
    """The Makefile has built the images again, with another time zone and umask."""
    assert ARCHIVES
    for archive in ARCHIVES:
        assert sha256(archive) == sha256(AGAIN / archive.name), archive.name
    digests = (IMAGES / "DIGESTS").read_text()
    assert digests == (AGAIN / "DIGESTS").read_text()
    assert digests.count("sha256:") == len(ARCHIVES)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda p: p.stem)
def test_other_programs_read_the_image_in_both_of_its_formats(archive: Path) -> None:
    """skopeo uses the code of podman, and reads the files that docker and containerd read."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile("index.json")
        assert file
        (found,) = json.load(file)["manifests"]
    name = found["annotations"]["io.containerd.image.name"]
    assert re.fullmatch(r"localhost/bps(-cuda)?:[\d.]+", name)
    assert f"{name} {found['digest']}\n" in (IMAGES / "DIGESTS").read_text()
    oci = json.loads(output("skopeo", "inspect", f"oci-archive:{archive}"))
    docker = json.loads(output("skopeo", "inspect", f"docker-archive:{archive}:{name}"))
    assert oci["Digest"] == found["digest"]
    raw = [
        json.loads(output("skopeo", "inspect", "--config", f"{kind}:{archive}"))
        for kind in ("oci-archive", "docker-archive")
    ]
    assert raw[0]["rootfs"] == raw[1]["rootfs"]
    assert docker["Architecture"] == output("dpkg", "--print-architecture").strip()


def unpack(archive: Path, work: Path) -> Path:
    """Unpack an image with umoci, and return its root."""
    layout = work / "layout"
    layout.mkdir()
    with tarfile.open(archive) as tar:
        tar.extractall(layout)
    version = archive.stem.rpartition("-")[2]
    output("umoci", "unpack", "--image", f"{layout}:{version}", work / "bundle")
    return work / "bundle" / "rootfs"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the image bps."""
    work = tmp_path_factory.mktemp("image")
    # Users of the containers must be able to enter the folders above the root.
    for folder in (work, *work.parents[: len(work.parents) - 2]):
        folder.chmod(0o755)
    return unpack(next(p for p in ARCHIVES if p.name.startswith("bps-image-")), work)


def test_image_has_the_programs_and_nothing_of_the_machine_that_made_it(image: Path) -> None:
    for name in ("sbin/bps-scheduler", "sbin/bps-server", "sbin/bps-agent", "sbin/bps-keep"):
        assert os.access(image / "usr" / name, os.X_OK), name
    for name in ("usr/bin/apt-get", "etc/apt/sources.list", "etc/hostname", "etc/resolv.conf"):
        assert not (image / name).exists(), name
    assert not [p for d in ("var/log", "tmp", "root") for p in (image / d).rglob("*.log")]
    texts = (p for p in (image / "etc").rglob("*") if p.is_file() and not p.is_symlink())
    assert not [p for p in texts if b"Acquire::" in p.read_bytes()]
    assert output("chroot", image, "bpsctl", "--version").startswith("bpsctl ")


def test_image_for_gpus_has_the_executor(tmp_path: Path) -> None:
    cuda = [p for p in ARCHIVES if p.name.startswith("bps-cuda-image-")]
    if not cuda:
        pytest.skip("no CUDA toolkit")
    root = unpack(cuda[0], tmp_path)
    assert os.access(root / "usr/sbin/bps-agent-cuda", os.X_OK)
    # the driver's library belongs to the node
    missing = re.findall(
        r"(\S+) => not found", output("chroot", root, "ldd", "/usr/sbin/bps-agent-cuda")
    )
    assert missing == ["libcuda.so.1"]


class Cluster:
    """The pods of the manifests on two nodes, whose addresses are on the loopback."""

    def __init__(self, image: Path, work: Path) -> None:
        self.image, self.work = image, work
        self.nodes = [self.node(name, f"127.0.0.{i + 1}") for i, name in enumerate("ab")]
        self.pods: list[Pod] = []
        self.secrets = {n: work / n for n in ("bps-master-key", "bps-member-keys", "bert")}
        self.make_keys()
        one, two = self.nodes
        self.scheduler = self.start("base/scheduler.yaml", "bps-scheduler-0", one)
        self.ready(self.scheduler, "http://127.0.0.1:7301")
        self.servers = [
            self.start("base/servers.yaml", f"bps-server-{i}", n, f"{n.ip}:7303")
            for i, n in enumerate((one, two))
        ]
        self.agents = [
            self.start("base/agents.yaml", f"bps-agent-{n.name}", n, f"{n.ip}:7304")
            for n in (one, two)
        ]
        for i, n in enumerate((one, two)):
            self.ready(self.servers[i], f"http://{n.ip}:7303")
            self.ready(self.agents[i], f"http://{n.ip}:7304")

    def node(self, letter: str, ip: str) -> Node:
        run = self.work / f"run-{letter}"
        run.mkdir()
        return Node(f"node-{letter}", ip, run)

    def make_keys(self) -> None:
        """Make the Secrets, as the guide does."""
        for folder in self.secrets.values():
            folder.mkdir()
        key = self.secrets["bps-master-key"] / "cluster.key"
        key.write_text(output("chroot", self.image, "bpsctl", "key", "new"))
        key.chmod(0o400)
        copy = self.image / "cluster.key"
        copy.write_text(key.read_text())
        copy.chmod(0o400)
        names = [f"agent:{n.name}" for n in self.nodes]
        for name in (*names, "server:bps-server-0", "server:bps-server-1"):
            command = ("bpsctl", "key", "derive", name, "--key-file", "/cluster.key")
            path = self.secrets["bps-member-keys"] / f"{name.replace(':', '.')}.key"
            path.write_text(output("chroot", self.image, *command).strip())
        copy.unlink()
        key.chmod(0o444)  # Kubernetes lets the group of the pod read it
        (self.secrets["bert"] / "token").write_text("5a" * 32)

    def start(
        self, manifest: str, name: str, node: Node, http: str = "", command: list[str] | None = None
    ) -> Pod:
        (fields,) = [
            d["spec"]
            for d in yaml.safe_load_all((MANIFESTS / manifest).read_text())
            if "template" in d.get("spec", {})
        ]
        spec = dict(fields["template"]["spec"], claims=fields.get("volumeClaimTemplates", []))
        if command:
            spec["containers"] = [dict(spec["containers"][0], command=command)]
        # The two nodes share one network here, and small machines have less memory.
        extra = {"BPS_MEMORY": "256MiB", "BPS_USER_MEMORY": "256MiB", "BPS_SUMS_MEMORY": "256MiB"}
        extra.update({"BPS_STAGING_MEMORY": "64MiB", "BPS_THREADS": "1"})
        if http:
            extra["BPS_HTTP"] = http
        else:
            extra.pop("BPS_THREADS")
        known = {e["name"] for c in spec["containers"] for e in c["env"]} | {"BPS_HTTP"}
        extra = {k: v for k, v in extra.items() if k in known}
        work = self.work / f"{name}-{len(self.pods)}"
        pod = Pod(spec, name, node, self.image, work, self.secrets, extra)
        self.pods.append(pod)
        return pod.run()

    def ready(self, pod: Pod, http: str) -> None:
        """Wait until the readiness probe of the pod passes."""

        def passes() -> bool:
            assert all(p.poll() is None for p in pod.processes), pod.text()
            try:
                with urllib.request.urlopen(f"{http}/readyz", timeout=5):
                    return True
            except OSError:
                return False

        wait_for(f"{pod.name} is ready", passes, self.text)

    def text(self) -> str:
        return "".join(p.text() for p in self.pods)

    def job(self, command: list[str] | None = None) -> list[Pod]:
        """Start the two pods of the example job. `command` takes the place of its workers."""
        (fields,) = yaml.safe_load_all((MANIFESTS / "job" / "trainer.yaml").read_text())
        words = fields["spec"]["template"]["spec"]["containers"][0]["command"]
        if command:
            words = [*words[: words.index("--") + 1], *command]
        return [
            self.start("job/trainer.yaml", f"bert-{i}", n, command=words)
            for i, n in enumerate(self.nodes)
        ]


@pytest.fixture(scope="module")
def cluster(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    c = Cluster(image, tmp_path_factory.mktemp("cluster"))
    yield c
    ends = [
        code for pods in (c.agents, c.servers, [c.scheduler]) for p in pods for code in p.stop()
    ]
    assert ends == [0] * 5, c.text()


def test_example_job_of_the_manifests_trains_in_the_image(cluster: Cluster) -> None:
    pods = cluster.job()
    for pod in pods:
        pod.wait(JOB_S)
    accuracies = re.findall(r"test accuracy ([\d.]+)", "".join(p.text() for p in pods))
    assert accuracies and all(float(a) > 0.9 for a in accuracies), cluster.text()


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_sums_stay_exact_when_the_agent_of_a_pod_crashes(cluster: Cluster) -> None:
    """bps-bench compares each sum with the right one. The agent is killed three times."""
    pods = cluster.job(["bps-bench", "--bytes", "1MiB", "--seconds", "8", "--check"])
    agent = cluster.agents[0].processes[0].pid  # of bps-keep

    def serves_trainers() -> bool:
        names = [os.readlink(p) for p in Path(f"/proc/{children(agent)[0]}/fd").iterdir()]
        return any("bps" in n and "memfd" in n for n in names)

    wait_for("the agent has memory of the job", serves_trainers, cluster.text)
    for _ in range(3):
        (before,) = children(agent)
        os.kill(before, signal.SIGKILL)
        wait_for("another agent", lambda b=before: children(agent) not in ([], [b]), cluster.text)
        cluster.ready(cluster.agents[0], f"http://{cluster.nodes[0].ip}:7304")
        assert all(p.poll() is None for pod in pods for p in pod.processes), cluster.text()
    for pod in pods:
        pod.wait(JOB_S)
    text = cluster.agents[0].text()
    # On a machine under load, an agent may also count as hung.
    assert text.count("starting it again, with ") == 3 + text.count(" hangs: ")
    n_rounds = re.findall(r"1 MiB +\d+ +(\d+) ", "".join(p.text() for p in pods))
    assert n_rounds and int(n_rounds[0]) > 10, cluster.text()


def test_root_of_a_container_cannot_be_written(cluster: Cluster) -> None:
    agent = cluster.agents[0].work / "root-agent"
    with pytest.raises(OSError, match="Read-only"):
        (agent / "usr" / "file").touch()
