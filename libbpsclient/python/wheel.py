#!/usr/bin/env python3
"""Write the wheel of the distribution ``bpsclient`` into FOLDER, and print the wheel's path.

    wheel.py VERSION FOLDER [--expression SPDX] --license NAME=FILE... LIBRARY PROGRAM...

The import name is ``bps``, but on the package index this name belongs to another project. The
distribution consists of LIBRARY and the Python modules in the folder ``bps`` beside this file. pip
puts all programs into the ``bin`` folder of the environment. bpsrun finds the daemons there,
because they are in the same folder as bpsrun. The platform tag has a version of glibc: the newest
of the versions that the files need, and at least 2.17. If a file needs a library other than glibc's
libraries and the GPU driver's library, this script fails. The same inputs give the same bytes.

The metadata are METADATA.in with the licence files of PEP 639. SPDX is the licence expression of
all that the wheel contains. By default, it is the project's own licence.
"""

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
LOADER = re.compile(r"ld-linux.*\.so\.\d")
# Programs for GPUs need the driver's library, which belongs to the machine and not to the wheel.
DRIVER = {"libcuda.so.1"}
EPOCH = (1980, 1, 1, 0, 0, 0)


def needs(path: Path) -> tuple[set[str], set[tuple[int, int]]]:
    """Return the names of the libraries that a file needs, and the versions of glibc it needs."""
    text = subprocess.run(
        ["objdump", "-p", path], check=True, capture_output=True, text=True
    ).stdout
    libraries = set(re.findall(r"^  NEEDED +(\S+)", text, re.M))
    versions = re.findall(r" GLIBC_(\d+)\.(\d+)", text)
    return libraries, {(int(major), int(minor)) for major, minor in versions}


def platform_tag(paths: Iterable[Path]) -> str:
    """Return the manylinux tag that fits all files.

    Raises:
        ValueError: a file needs a library that a minimal system lacks.
    """
    oldest = (2, 17)
    for path in paths:
        libraries, versions = needs(path)
        foreign = {name for name in libraries - GLIBC - DRIVER if not LOADER.fullmatch(name)}
        if foreign:
            raise ValueError(
                f"{path} needs {', '.join(sorted(foreign))}: link these libraries statically"
            )
        oldest = max(oldest, *versions)
    return f"manylinux_{oldest[0]}_{oldest[1]}_{os.uname().machine}"


def metadata(args: argparse.Namespace) -> str:
    """Return the text of the file METADATA: that of an installation, with the wheel's licences."""
    text = (HERE / "bpsclient.dist-info" / "METADATA.in").read_text()
    text = text.replace("@VERSION@", args.version)
    names = [f"License-File: {name.partition('=')[0]}.txt\n" for name in args.license]

    def licenses(line: re.Match[str]) -> str:
        return f"License-Expression: {args.expression or line[1]}\n{''.join(names)}"

    return re.sub(r"^License-Expression: (.*)\n", licenses, text, count=1, flags=re.M)


def contents(args: argparse.Namespace, tag: str) -> dict[str, tuple[bytes, bool]]:
    """Return a dict of the wheel's files: name -> (bytes, whether the file is a program)."""
    info, scripts = f"bpsclient-{args.version}.dist-info", f"bpsclient-{args.version}.data/scripts"
    modules = [f for f in (HERE / "bps").rglob("*") if f.suffix == ".py" or f.name == "py.typed"]
    files = {str(f.relative_to(HERE)): (f.read_bytes(), False) for f in modules}
    files[f"bps/{args.library.name}"] = (args.library.read_bytes(), False)
    for program in args.programs:
        files[f"{scripts}/{program.name}"] = (program.read_bytes(), True)
    for text in args.license:
        name, _, file = text.partition("=")
        files[f"{info}/licenses/{name}.txt"] = (Path(file).read_bytes(), False)
    files[f"{info}/METADATA"] = (metadata(args).encode(), False)
    entry_points = HERE / "bpsclient.dist-info" / "entry_points.txt"
    files[f"{info}/entry_points.txt"] = (entry_points.read_bytes(), False)
    wheel = f"Wheel-Version: 1.0\nGenerator: bps\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = (wheel.encode(), False)
    return files


def record(files: dict[str, tuple[bytes, bool]], name: str) -> bytes:
    """Return the contents of the file RECORD, which lists all files with their hashes."""
    lines = []
    for path, (data, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{name},,\n"]).encode()


def write(path: Path, files: dict[str, tuple[bytes, bool]]) -> None:
    """Write the archive. Order, times and modes are fixed, so that equal files give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, is_program) in sorted(files.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            archive.writestr(entry, data, compresslevel=9)


def main() -> int:
    """Write the wheel that the command line describes."""
    parser = argparse.ArgumentParser(description="Write the wheel of the distribution bpsclient.")
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--expression", metavar="SPDX")
    parser.add_argument("--license", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("library", type=Path)
    parser.add_argument("programs", type=Path, nargs="+")
    args = parser.parse_args()
    try:
        tag = f"py3-none-{platform_tag([args.library, *args.programs])}"
    except ValueError as error:
        print(f"wheel.py: {error}", file=sys.stderr)
        return 1
    files = contents(args, tag)
    name = f"bpsclient-{args.version}.dist-info/RECORD"
    files[name] = (record(files, name), False)
    path = args.folder / f"bpsclient-{args.version}-{tag}.whl"
    write(path, files)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
