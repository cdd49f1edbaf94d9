#!/usr/bin/env python3
"""Make the environment of a front-end's tests, and print the path of its Python.

    tests/frontends/environment.py LIST FOLDER

LIST is a file of pinned requirements. The environment is a folder below FOLDER. The folder's name
is a hash of the list, of this script and of Python's version. So the environment is made again only
when one of them changes. PyTorch's index only has builds for CUDA, which depend on gigabytes of
CUDA packages. These packages are left out. One small library takes their place. It defines all
CUDA functions that PyTorch's libraries need. Each function reports that there is no device.
"""

import collections
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL_S = 900
CUDA = re.compile(
    r"(_{0,2}cuda|cu[A-Z]|cublas|cudnn|nccl|cufft|curand|cusparse|cusolver|nvrtc|nvJitLink"
    r"|cupti|cufile|nvshmem|nvtx)"
)
SONAME = re.compile(r"NEEDED.*\[(lib(?:cu|nccl|nv)[^\]]*)\]")


def output(*command: object) -> str:
    return subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True, timeout=INSTALL_S
    ).stdout


def stub_function(name: str) -> str:
    """Return the C source of a stub for the CUDA function with this name. The stub returns an error
    code. If the function's task is to return an error text, the stub returns a text, because
    PyTorch reads the text."""
    if re.search("Error(String|Name)$", name):
        return f'const char *{name}(void) {{ return "no device"; }}\n'
    return f"int {name}(void) {{ return 100; }}\n"


def make_stub(site: Path) -> None:
    """Install one small library under the names of all CUDA libraries that PyTorch loads."""
    folder = site / "torch" / "lib"  # where PyTorch's libraries look for other libraries
    sonames, nodes = set(), collections.defaultdict(set)
    for library in (site / "torch" / "lib").glob("*.so*"):
        sonames |= set(SONAME.findall(output("readelf", "-d", library)))
        for line in output("nm", "-D", "--undefined-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if CUDA.match(name):
                nodes[version.lstrip("@")].add(name)
    names = sorted(set().union(*nodes.values()))
    source, script, stub = folder / "stub.c", folder / "stub.map", folder / "stub.so"
    source.write_text("".join(map(stub_function, names)))
    # The loader also needs the symbols' versions.
    script.write_text(
        "".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in nodes.items() if v)
    )
    output(
        "gcc",
        "-shared",
        "-fPIC",
        "-w",
        "-fno-builtin",
        "-o",
        stub,
        source,
        f"-Wl,--version-script={script}",
    )
    for soname in sonames:
        shutil.copy(stub, folder / soname)


def compile_framework(python: Path, name: str, folder: Path) -> None:
    """Import the framework, so that workers that start at the same time need not compile it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env["PYTHONPYCACHEPREFIX"] = str(folder.resolve() / "pycache")
    code = f"import importlib.util as u; u.find_spec({name!r}) and __import__({name!r})"
    subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, env=env)


def make(requirements: Path, folder: Path) -> Path:
    """Make the environment unless it exists. Return the path of its Python."""
    text = requirements.read_bytes() + Path(__file__).read_bytes() + sys.version.encode()
    place = folder / hashlib.sha256(text).hexdigest()[:16]
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        output(sys.executable, "-m", "venv", "--without-pip", place)
        site = next((place / "lib").glob("python*")) / "site-packages"
        output(
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-compile",
            "--only-binary=:all:",
            "--target",
            site,
            "-r",
            requirements,
        )
        if (site / "torch").exists():
            make_stub(site)
        compile_framework(place / "bin" / "python", requirements.stem.partition("-")[0], folder)
        (place / "complete").touch()
    return place / "bin" / "python"


def main() -> int:
    try:
        print(make(Path(sys.argv[1]), Path(sys.argv[2])))
    except subprocess.CalledProcessError as e:
        print(
            f"{sys.argv[1]}: {' '.join(map(str, e.cmd))} failed: {e.stderr.strip()[-500:]}",
            file=sys.stderr,
        )
        return 1
    except subprocess.TimeoutExpired as e:
        print(f"{sys.argv[1]}: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
