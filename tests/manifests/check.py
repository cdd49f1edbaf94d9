#!/usr/bin/env python3
"""Check the manifests for Kubernetes in docs/guides/kubernetes.

    tests/manifests/check.py

Kustomize, which is a part of kubectl, renders each overlay in a copy of the folder, with keys that
were made up. The results are checked against the schemas of Kubernetes (kubernetes-validate), and
against the models of Kubeflow Trainer and of the operator of Prometheus. Unknown fields are errors.
The script also checks that it can fail: it misspells each field of each resource, and the schema
must refuse each of them. And it checks what no schema knows: a variable that a value names is set
before, each image has the version of this tree, and all namespaces follow from the one of base.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor
from kubeflow_trainer_api.models import (
    TrainerV1alpha1ClusterTrainingRuntime,
    TrainerV1alpha1TrainJob,
)
from kubernetes_validate.utils import all_versions

Resource = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "guides" / "kubernetes"
RENDERED = ("overlays/cpu", "overlays/gpu", "overlays/prometheus", "job", "kubeflow")
PLAIN = ("kubeflow/trainjob.yaml",)  # manifests that no kustomization has
# Files that users make, with their contents here.
MADE = {
    "base/cluster.key": "0" * 64,
    "base/members.env": "server.bps-server-0.key=1\nagent.node-a.key=2\n",
    "job/token.env": "token=3\n",
}
OLDEST = "1.27"  # the oldest Kubernetes for which the manifests are made (trainer.yaml)
# Fields whose values have keys that users choose.
FREE = {
    *("annotations", "data", "labels", "limits", "matchLabels", "nodeSelector", "requests"),
    *("selector", "stringData"),
}
MODELS = {
    "PodMonitor": PodMonitor,
    "ClusterTrainingRuntime": TrainerV1alpha1ClusterTrainingRuntime,
    "TrainJob": TrainerV1alpha1TrainJob,
}


def render(folder: Path) -> list[Resource]:
    """Return the resources that Kustomize renders from a folder."""
    kubectl = next(Path(sys.prefix).glob("lib/python*/site-packages/bin/kubectl"))
    done = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode or done.stderr:
        raise SystemExit(f"{folder.name}: {done.stderr}")
    return [r for r in yaml.safe_load_all(done.stdout) if r]


def unknown_to_model(resource: Resource) -> str:
    """Return why the model of the resource's kind refuses it, or an empty string.

    The models ignore unknown fields. So the resource must be the same after it was parsed.
    """
    model = MODELS[resource["kind"]]
    try:
        if hasattr(model, "from_dict"):  # Kubeflow
            written = model.from_dict(resource).to_dict()
        else:
            parsed = model.model_validate(resource)
            written = parsed.model_dump(mode="json", by_alias=True, exclude_unset=True)
    except ValueError as e:
        return " ".join(str(e).split())
    return "" if written == resource else "it has unknown fields"


def problem(resource: Resource, version: str) -> str:
    """Return why a version of Kubernetes refuses the resource, or an empty string."""
    if resource.get("kind") in MODELS:
        return unknown_to_model(resource)
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.ValidationError as e:
        return f"{'.'.join(map(str, e.path))}: {e.message}"
    except kubernetes_validate.SchemaNotFoundError as e:
        return e.message
    return ""


def fields(value: Any) -> Iterator[tuple[Resource, str]]:
    """Yield each field inside a value, as the mapping that has the field, and the field's name."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item)
    elif isinstance(value, dict):
        for name in list(value):
            yield value, name
            # A selector of pods has its own fields; a selector of a Service has none.
            if name not in FREE or {"matchLabels", "matchExpressions"} & set(value[name] or {}):
                yield from fields(value[name])


def misspelt(resource: Resource) -> Iterator[tuple[str, Resource]]:
    """Yield copies of the resource in which one field is misspelt, with the field's name."""
    for i in range(len(list(fields(resource)))):
        changed = copy.deepcopy(resource)
        owner, name = list(fields(changed))[i]
        if name in ("apiVersion", "kind") and owner is changed:
            continue  # these two fields choose the schema
        owner[f"{name}x"] = owner.pop(name)
        yield name, changed


def containers(value: Any) -> Iterator[Resource]:
    """Yield each container inside a resource."""
    for owner, name in fields(value):
        if name in ("containers", "initContainers"):
            yield from owner[name]


def unset_variables(container: Resource) -> list[str]:
    """Return the variables $(NAME) that a container uses, and that are not set before."""
    known: set[str] = set()
    unset = []
    for variable in container.get("env", []):
        unset += [
            n for n in re.findall(r"\$\((\w+)\)", variable.get("value", "")) if n not in known
        ]
        known.add(variable["name"])
    rest = json.dumps([container.get(n) for n in ("command", "args", "volumeMounts")])
    return unset + [n for n in re.findall(r"\$\((\w+)\)", rest) if n not in known]


def own_problems(resources: list[Resource], version: str) -> Iterator[str]:
    """Yield the problems that no schema knows."""
    for c in (c for r in resources for c in containers(r)):
        for name in unset_variables(c):
            yield f"container {c['name']}: $({name}) is not set before it is used"
        image = c["image"]
        if image != "localhost/train:1" and not re.fullmatch(
            rf"localhost/bps(-cuda)?:{re.escape(version)}", image
        ):
            yield f"container {c['name']}: image {image}"


def namespaces(copied: Path) -> Iterator[str]:
    """Change the namespace of base. Yield each resource that is then in another namespace."""
    base = copied / "base" / "kustomization.yaml"
    base.write_text(base.read_text().replace("namespace: bps\n", "namespace: other\n"))
    for r in render(copied / "overlays" / "prometheus"):
        meta = r["metadata"]
        found = meta["name"] if r["kind"] == "Namespace" else meta.get("namespace")
        if found != "other":
            yield f"{r['kind']} {meta['name']} is in the namespace {found}, not in that of base"


def check(name: str, resources: list[Resource], versions: list[str]) -> tuple[list[str], int]:
    """Return the problems of resources, and how many misspelt fields were tried."""
    problems, n_misspelt = [], 0
    for resource in resources:
        is_of_kubernetes = resource["kind"] not in MODELS
        for version in versions if is_of_kubernetes else versions[-1:]:
            if why := problem(resource, version):
                problems.append(f"{name}: {resource['kind']}: Kubernetes {version}: {why}")
        for field, changed in misspelt(resource):
            n_misspelt += 1
            if not problem(changed, versions[-1]):
                kind = resource["kind"]
                problems.append(f"{name}: {kind}: the schema accepts '{field}x' for '{field}'")
    return problems, n_misspelt


def main() -> int:
    """Check all manifests."""
    versions = list(dict.fromkeys(all_versions()))
    versions = versions[[v.rpartition(".")[0] for v in versions].index(OLDEST) :]
    found = re.search(r"(?m)^VERSION\s*:= (\S+)$", (ROOT / "Makefile").read_text())
    assert found
    problems: list[str] = []
    seen: list[Resource] = []
    n_misspelt = 0
    with tempfile.TemporaryDirectory() as work:
        copied = Path(shutil.copytree(FOLDER, Path(work) / "kubernetes"))
        for name, text in MADE.items():
            (copied / name).write_text(text)
        for name in (*RENDERED, *PLAIN):
            if name in PLAIN:
                resources = list(yaml.safe_load_all((copied / name).read_text()))
            else:
                resources = render(copied / name)
            problems += [f"{name}: {p}" for p in own_problems(resources, found[1])]
            new = [r for r in resources if r not in seen]
            seen += new
            more, n = check(name, new, versions)
            problems += more
            n_misspelt += n
        problems += namespaces(copied)
    print("\n".join(problems))
    print(
        f"{len(seen)} resources in {len(RENDERED) + len(PLAIN)} manifests, {len(versions)} "
        f"versions of Kubernetes, {n_misspelt} misspelt fields, {len(problems)} problems"
    )
    return 1 if problems or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
