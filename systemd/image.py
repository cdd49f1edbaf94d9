#!/usr/bin/env python3
"""Write an image for containers from the archive of a root file system.

    image.py ROOT.tar IMAGE.tar NAME VERSION COMMIT ARCHITECTURE

The image has one layer. IMAGE.tar is a layout of the Open Container Initiative (OCI), and also has
the file manifest.json, by which docker before release 25 finds its parts. So `docker load`,
`podman load` and `ctr images import` read it. The image's full name is localhost/NAME:VERSION,
because a name without a host would belong to a public registry.

buildah and umoci can write such layouts, too. But buildah needs mounts and a store of its own,
neither writes manifest.json, and the rest is this file: five JSON documents around one archive.
All times are SOURCE_DATE_EPOCH, so the same root gives the same bytes. The script prints the digest
of the image, which a container runtime shows, too.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
CREATED = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
OCI = "application/vnd.oci.image"
NOBODY = "65534:65534"


class Layout:
    """The files of an OCI layout, by their path in the archive."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def add_blob(self, data: bytes, kind: str) -> dict[str, Any]:
        """Add a file that is named by its digest, and return the descriptor of the file."""
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def add_json(self, name: str, document: object) -> None:
        """Add a JSON document under its name."""
        self.files[name] = as_json(document)

    def write(self, path: Path) -> None:
        """Write the archive. All entries have the same owner and time."""
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for name in sorted(self.files):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = len(self.files[name]), EPOCH, 0o644
                archive.addfile(entry, io.BytesIO(self.files[name]))


def as_json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def blob_path(descriptor: dict[str, Any]) -> str:
    """Return the path of a blob in the archive."""
    return "blobs/" + descriptor["digest"].replace(":", "/")


def configuration(root: bytes, title: str, version: str, commit: str, arch: str) -> bytes:
    """Return the image's configuration: what a container of it has unless its user says more."""
    labels = {"title": title, "version": version, "revision": commit, "licenses": "Apache-2.0"}
    return as_json(
        {
            "architecture": arch,
            "os": "linux",
            "created": CREATED,
            "config": {
                "User": NOBODY,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Cmd": ["bpsctl", "help"],
                "WorkingDir": "/",
                "Labels": {f"org.opencontainers.image.{k}": v for k, v in labels.items()},
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": ["sha256:" + hashlib.sha256(root).hexdigest()],
            },
            "history": [{"created": CREATED, "created_by": "make image"}],
        }
    )


def main() -> int:
    """Write the image."""
    if len(sys.argv) != 7:
        print("usage: image.py ROOT.tar IMAGE.tar NAME VERSION COMMIT ARCH", file=sys.stderr)
        return 2
    source, target, title, version, commit, arch = sys.argv[1:]
    root, layout, name = Path(source).read_bytes(), Layout(), f"localhost/{title}:{version}"
    layer = layout.add_blob(gzip.compress(root, 9, mtime=0), "layer.v1.tar+gzip")
    config = layout.add_blob(configuration(root, title, version, commit, arch), "config.v1+json")
    manifest = layout.add_blob(
        as_json(
            {
                "schemaVersion": 2,
                "mediaType": f"{OCI}.manifest.v1+json",
                "config": config,
                "layers": [layer],
            }
        ),
        "manifest.v1+json",
    )
    # containerd reads the first annotation, and all others the second.
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": version}
    layout.add_json(
        "index.json",
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.index.v1+json",
            "manifests": [
                {
                    **manifest,
                    "annotations": names,
                    "platform": {"architecture": arch, "os": "linux"},
                }
            ],
        },
    )
    layout.add_json(
        "manifest.json",
        [{"Config": blob_path(config), "RepoTags": [name], "Layers": [blob_path(layer)]}],
    )
    layout.write(Path(target))
    print(f"{name} {manifest['digest']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
