#!/usr/bin/env python3
"""Check the manifests for Kubernetes in docs/guides/kubernetes against Kubernetes' schemas.

    tests/manifests/check.py

The package kubernetes-validate has the schemas. Unknown fields are errors. The script also checks
that it can fail: it misspells each field of each manifest, and the schema must refuse each of them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "guides" / "kubernetes"
OLDEST = "1.27"  # the oldest Kubernetes for which the manifests are made (trainer.yaml)
# Fields whose values have keys that users choose.
FREE = {
    *("annotations", "data", "labels", "limits", "matchLabels", "nodeSelector", "requests"),
    *("selector", "stringData"),
}


def problem(resource: dict[str, Any], version: str) -> str:
    """Return why a version of Kubernetes refuses the resource, or an empty string."""
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.ValidationError as e:
        return f"{'.'.join(map(str, e.path))}: {e.message}"
    except kubernetes_validate.SchemaNotFoundError as e:
        return e.message
    return ""


def fields(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each field inside a value, as the mapping that has the field, and the field's name."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item)
    elif isinstance(value, dict):
        for name in list(value):
            yield value, name
            # A selector of pods has its own fields; a selector of a Service has none.
            if name not in FREE or "matchLabels" in (value[name] or {}):
                yield from fields(value[name])


def misspelt(resource: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield copies of the resource in which one field is misspelt, with the field's name."""
    for i in range(len(list(fields(resource)))):
        changed = copy.deepcopy(resource)
        owner, name = list(fields(changed))[i]
        if name in ("apiVersion", "kind") and owner is changed:
            continue  # these two fields choose the schema
        owner[f"{name}x"] = owner.pop(name)
        yield name, changed


def main() -> int:
    """Check all manifests."""
    versions = list(dict.fromkeys(all_versions()))
    versions = versions[[v.rpartition(".")[0] for v in versions].index(OLDEST) :]
    problems, n_resources, n_misspelt = [], 0, 0
    paths = sorted(FOLDER.glob("*.yaml"))
    for path in paths:
        for resource in filter(None, yaml.safe_load_all(path.read_text())):
            n_resources += 1
            for version in versions:
                if why := problem(resource, version):
                    problems.append(f"{path.name}: Kubernetes {version}: {why}")
            for name, changed in misspelt(resource):
                n_misspelt += 1
                if not problem(changed, versions[-1]):
                    problems.append(
                        f"{path.name}: the schema accepts '{name}x' instead of '{name}'"
                    )
    print("\n".join(problems))
    print(
        f"{n_resources} resources in {len(paths)} manifests, {len(versions)} versions of "
        f"Kubernetes, {n_misspelt} misspelt fields, {len(problems)} problems"
    )
    return 1 if problems or not n_resources else 0


if __name__ == "__main__":
    sys.exit(main())
