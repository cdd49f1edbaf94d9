"""Runs the containers of the manifests for Kubernetes in a chroot of an image.

A Node has the folders that a node of Kubernetes has. A Pod runs the containers of one pod on it:
first the init containers, one after the other, then the others. Each has the users, groups,
variables, volumes and the read-only root of its manifest. It shares the network of this process.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Fields = dict[str, Any]
STOP_S = 20


def mount(*args: object) -> None:
    subprocess.run(["mount", *map(str, args)], check=True)


@dataclass
class Node:
    """A node. Its folder /run/bps is `run`."""

    name: str
    ip: str
    run: Path


@dataclass
class Pod:
    """A pod of a manifest.

    Args:
        spec: the pod's fields.
        name: the name of the pod.
        node: the node on which the pod runs.
        image: the unpacked root of the image.
        work: a new folder for mounts and logs.
        secrets: the folder of each Secret, which has its entries as files.
        extra: variables that the manifest does not set, or sets to other values.
    """

    spec: Fields
    name: str
    node: Node
    image: Path
    work: Path
    secrets: dict[str, Path]
    extra: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def volume(self, name: str, key: str) -> Path:
        """Return the folder of a volume, or the file of it if a Secret has the entry `key`."""
        claims = [v["metadata"]["name"] for v in self.spec.get("claims", [])]
        volume = next((v for v in self.spec.get("volumes", []) if v["name"] == name), {})
        if "secret" in volume:
            return self.secrets[volume["secret"]["secretName"]] / key
        if "hostPath" in volume:
            assert volume["hostPath"]["path"] == "/run/bps"
            return self.node.run
        assert "emptyDir" in volume or name in claims, f"{self.name}: volume {name}"
        folder = self.work / f"volume-{name}"
        if not folder.exists():
            folder.mkdir()
            group = self.spec["securityContext"]["fsGroup"]
            mount("-t", "tmpfs", "-o", f"mode=2775,gid={group}", name, folder)
        return folder

    def environment(self, container: Fields) -> dict[str, str]:
        facts = {
            "status.hostIP": self.node.ip,
            "spec.nodeName": self.node.name,
            "metadata.name": self.name,
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": self.name[-1],
            "metadata.labels['batch.kubernetes.io/controller-uid']": "uid-of-the-job",
        }
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        for e in container.get("env", []):
            source = e.get("valueFrom", {})
            if "secretKeyRef" in source:
                entry = self.secrets[source["secretKeyRef"]["name"]] / source["secretKeyRef"]["key"]
                env[e["name"]] = entry.read_text()
            elif "fieldRef" in source:
                env[e["name"]] = facts[source["fieldRef"]["fieldPath"]]
            else:
                env[e["name"]] = expand(e["value"], env)
        return {**env, **self.extra}

    def root(self, container: Fields, env: dict[str, str]) -> Path:
        """Return a new root with the volumes of a container."""
        root = self.work / f"root-{container['name']}"
        root.mkdir()
        layers = [self.work / f"{kind}-{container['name']}" for kind in ("upper", "under")]
        for layer in layers:
            layer.mkdir()
        # A runtime makes the mount points before it makes the root read-only.
        mount("-t", "tmpfs", "points", layers[0])
        for kind in ("upper", "work"):
            (layers[0] / kind).mkdir()
        options = f"lowerdir={self.image},upperdir={layers[0]}/upper,workdir={layers[0]}/work"
        mount("-t", "overlay", "-o", options, "overlay", root)
        for m in container.get("volumeMounts", []):
            source = self.volume(m["name"], expand(m.get("subPathExpr", ""), env))
            point = root / m["mountPath"].lstrip("/")
            if source.is_dir():
                point.mkdir(parents=True, exist_ok=True)
            else:
                point.parent.mkdir(parents=True, exist_ok=True)
                point.touch()
            mount("--bind", source, point)
            if m.get("readOnly"):
                mount("-o", "remount,bind,ro", point)
        mount("-t", "proc", "proc", root / "proc")
        mount("-t", "tmpfs", "dev", root / "dev")
        (root / "dev" / "shm").mkdir(mode=0o1777)
        (root / "dev" / "shm").chmod(0o1777)
        for name in ("null", "zero", "random", "urandom"):
            os.mknod(root / "dev" / name, 0o20666, os.stat(f"/dev/{name}").st_rdev)
            (root / "dev" / name).chmod(0o666)
        # what the name server of Kubernetes answers
        (root / "etc" / "hosts").write_text("127.0.0.1 localhost bps-scheduler\n")
        if container.get("securityContext", {}).get("readOnlyRootFilesystem"):
            mount("-o", "remount,ro", root)
        return root

    def start(self, container: Fields) -> subprocess.Popen[bytes]:
        env = self.environment(container)
        security = {**self.spec["securityContext"], **container.get("securityContext", {})}
        uid, gid = security["runAsUser"], security["runAsGroup"]
        groups = [gid, *security.get("supplementalGroups", [])]
        groups += [security["fsGroup"]] if "fsGroup" in security else []
        capabilities = security.get("capabilities", {}).get("add", [])
        may = ["-all", *(f"+{c.lower()}" for c in capabilities)]
        command = [
            *("chroot", str(self.root(container, env)), "setpriv", "--no-new-privs"),
            *(f"--reuid={uid}", f"--regid={gid}", "--groups", ",".join(map(str, groups))),
            *("--bounding-set", ",".join(may), "--"),
            *(expand(word, env) for word in container["command"]),
        ]
        with open(self.log(container["name"]), "ab") as log:
            return subprocess.Popen(
                command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def log(self, container: str) -> Path:
        return self.work / f"{container}.log"

    def text(self) -> str:
        logs = sorted(self.work.glob("*.log"))
        return "".join(f"--- {self.name} {p.name}\n{p.read_text()[-4000:]}" for p in logs)

    def run(self) -> Pod:
        """Run the init containers, and start the others."""
        self.work.mkdir()
        for container in self.spec.get("initContainers", []):
            assert self.start(container).wait(STOP_S) == 0, self.text()
        self.processes = [self.start(c) for c in self.spec["containers"]]
        return self

    def wait(self, seconds: float) -> None:
        """Wait until all containers have ended well."""
        end = time.monotonic() + seconds
        for p in self.processes:
            assert p.wait(end - time.monotonic()) == 0, self.text()

    def stop(self) -> list[int]:
        """End the containers as the deletion of the pod does. Return their exit codes."""
        for p in self.processes:
            p.terminate()
        return [p.wait(STOP_S) for p in self.processes]


def expand(text: str, env: dict[str, str]) -> str:
    """Replace $(NAME) by the value of a variable."""
    return re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), text)
