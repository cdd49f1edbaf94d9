"""Test the wheel: what it contains, and how it works in an empty environment (make wheel-test)."""

import email
import os
import platform
import re
import shutil
import socket
import subprocess
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "libbpsclient" / "python"
BUILD = ROOT / "build"
WHEEL = next((BUILD / "wheel").glob("*.whl"))
PROGRAMS = {"bps-agent", "bps-scheduler", "bps-server", "bpsctl", "bpsrun"}
LIMIT_S = 300
WORKER = """
import bps
with bps.open() as job:
    job.barrier()
    print("worker", job.rank, "of", job.size, "of release", bps.version())
"""
# Check that the statement "import torch" does not import bps.torch.
BACK_END = """
import os, sys, torch
assert not [name for name in sys.modules if name.startswith("bps.torch")]
rank, size = int(os.environ["BPS_RANK"]), int(os.environ["BPS_SIZE"])
torch.distributed.init_process_group("bps", sys.argv[1], rank=rank, world_size=size)
x = torch.tensor(rank + 1)
torch.distributed.all_reduce(x)
print("sum", x.item(), flush=True)
torch.distributed.destroy_process_group()
"""
# PyTorch 2.5 to 2.13 calls the entry point of the package bps at the end of "import torch".
# The script repeats that call under the version number 2.13.0.
AUTOLOAD = """
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.13.0")
torch._import_device_backends()
print(torch.distributed.Backend.backend_list)
"""
# Arguments of the script: $0 the root of a file system, $1 the wheel, $2 the worker's code.
IN_ROOT = """
mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" sh -ec '
rm -rf /venv && python3 -m venv /venv && /venv/bin/pip install -q --no-index "$0"
exec /venv/bin/bpsrun -n 4 --agents 2 -- /venv/bin/python -c "$1"' "$1" "$2"
"""


def output(*command: object) -> str:
    """Run a command in an environment without our variables. Return what it prints."""
    clean = ("BPS_", "PYTHON", "LD_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(clean)}
    done = subprocess.run(
        [str(word) for word in command],
        env=env | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment in which only the wheel is installed."""
    place = tmp_path_factory.mktemp("wheel") / "v"
    output("python3", "-m", "venv", place)
    output(place / "bin" / "pip", "install", "-q", "--no-index", WHEEL)
    return place


def test_the_wheel_has_every_module_the_library_and_all_programs() -> None:
    names = set(zipfile.ZipFile(WHEEL).namelist())
    modules = {str(f.relative_to(PACKAGE)) for f in (PACKAGE / "bps").rglob("*.py")}
    assert modules | {"bps/libbpsclient.so.0", "bps/py.typed"} <= names
    scripts = {Path(name).name for name in names if "/scripts/" in name}
    assert PROGRAMS <= scripts <= PROGRAMS | {"bps-agent-cuda"}


def metadata() -> email.message.Message:
    with zipfile.ZipFile(WHEEL) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_metadata_name_each_licence_file_and_an_expression_of_pep_639() -> None:
    head = metadata()
    assert head["Metadata-Version"] == "2.4" and head["License"] is None
    assert "Apache-2.0" in head["License-Expression"].split(" AND ")
    assert not [c for c in head.get_all("Classifier") if c.startswith("License ::")]
    files = {n for n in zipfile.ZipFile(WHEEL).namelist() if ".dist-info/licenses/" in n}
    assert {n.partition("/licenses/")[2] for n in files} == set(head.get_all("License-File"))
    assert "bps.txt" in head.get_all("License-File")


def test_the_metadata_have_the_versions_of_python_and_numpy_as_an_extra() -> None:
    head = metadata()
    assert head["Requires-Python"] == ">=3.10"
    minors = re.findall(r"Python :: 3\.(\d+)", "\n".join(head.get_all("Classifier")))
    assert minors == sorted(minors) and minors[0] == "10"
    assert head.get_all("Provides-Extra") == ["numpy"]
    assert [re.sub(r"[>=\d.]+;", ";", r) for r in head.get_all("Requires-Dist")] == [
        'numpy; extra == "numpy"'
    ]


def test_the_tag_is_the_newest_glibc_that_a_file_needs(tmp_path: Path) -> None:
    zipfile.ZipFile(WHEEL).extractall(tmp_path)
    versions = set()
    for file in [
        *tmp_path.glob("bpsclient-*.data/scripts/*"),
        tmp_path / "bps" / "libbpsclient.so.0",
    ]:
        symbols = output("readelf", "-W", "--dyn-syms", file)
        versions |= {tuple(map(int, v)) for v in re.findall(r"@GLIBC_(\d+)\.(\d+)", symbols)}
    newest = max(versions)
    assert f"manylinux_{newest[0]}_{newest[1]}_{os.uname().machine}" in WHEEL.name


def test_a_file_that_needs_another_library_is_no_part_of_a_wheel(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (tmp_path / "lib.c").write_text("int f(void) { return 0; }")
    (tmp_path / "main.c").write_text("int f(void); int main(void) { return f(); }")
    library = tmp_path / "libforeign.so"
    output("gcc", "-shared", "-Wl,-soname,libforeign.so", "-o", library, tmp_path / "lib.c")
    output("gcc", "-o", foreign, tmp_path / "main.c", library)
    command = ["python3", PACKAGE / "wheel.py", "0", tmp_path, foreign, foreign]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and f"{foreign} needs libforeign.so" in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_same_files_give_the_same_wheel(tmp_path: Path) -> None:
    zipfile.ZipFile(WHEEL).extractall(tmp_path / "x")
    info = next((tmp_path / "x").glob("*.dist-info"))
    licenses = [f"--license={f.stem}={f}" for f in sorted((info / "licenses").iterdir())]
    programs = reversed(sorted(next((tmp_path / "x").glob("*.data")).glob("scripts/*")))
    library = tmp_path / "x" / "bps" / "libbpsclient.so.0"
    version = WHEEL.name.split("-")[1]
    spdx = f"--expression={metadata()['License-Expression']}"
    names = metadata().get_all("License-File")
    licenses.sort(key=lambda word: names.index(f"{word.split('=')[1]}.txt"))
    again = output(
        "python3", PACKAGE / "wheel.py", version, tmp_path, spdx, *licenses, library, *programs
    )
    assert Path(again.strip()).read_bytes() == WHEEL.read_bytes()


def test_nothing_is_installed_beside_the_wheel(installed: Path) -> None:
    packages = output(installed / "bin" / "pip", "list", "--format=freeze").split()
    names = {package.split("==")[0] for package in packages}
    assert names - {"pip", "setuptools"} == {"bpsclient"}


def test_four_workers_run_in_an_empty_environment(installed: Path) -> None:
    bin_ = installed / "bin"
    text = output(bin_ / "bpsrun", "-n", 4, "--servers", 2, "--", bin_ / "python", "-c", WORKER)
    assert sorted(re.findall(r"worker (\d) of 4", text)) == ["0", "1", "2", "3"], text


def test_the_programs_report_the_version_of_the_wheel(installed: Path) -> None:
    for program in ("bpsrun", "bpsctl", "bps-server"):
        assert WHEEL.name.split("-")[1] in output(installed / "bin" / program, "--version")


@pytest.fixture(scope="module")
def with_torch(installed: Path) -> Path:
    """Return an environment that has the wheel and also finds the front-ends' test packages."""
    make = [HERE / "environment.py", HERE / "torch.txt", BUILD / "frontends"]
    made = subprocess.run(["python3", *make], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    find = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(output(installed / "bin" / "python", "-c", find).strip())
    (site / "torch.pth").write_text(output(made.stdout.strip(), "-c", find))
    return installed


def test_torch_finds_the_back_end_without_an_import(with_torch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    bin_ = with_torch / "bin"
    text = output(bin_ / "bpsrun", "-n", 2, "--", bin_ / "python", "-c", BACK_END, meeting)
    assert text.count("sum 3") == 2, text


def test_older_torch_loads_the_back_end_with_its_import(with_torch: Path) -> None:
    assert "'bps'" in output(with_torch / "bin" / "python", "-c", AUTOLOAD)


def test_four_workers_train_with_pytorch(with_torch: Path) -> None:
    digits = ROOT / "libbpsclient" / "examples" / "pytorch" / "digits.py"
    bin_ = with_torch / "bin"
    text = output(bin_ / "bpsrun", "-n", 4, "--", bin_ / "python", digits, "--epochs", 8)
    accuracy = [float(a) for a in re.findall(r"accuracy ([\d.]+)%", text)]
    assert accuracy[-1] > 85, text


@pytest.fixture(scope="module")
def slim() -> Path:
    """Return the root of a Debian system with Python, but without our programs' libraries."""
    root = BUILD / "wheel" / "slim"
    if os.geteuid() or not shutil.which("mmdebstrap"):
        pytest.skip("making a Debian system needs root and mmdebstrap")
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
        packages = "--include=python3,python3-venv"
        output("mmdebstrap", "-q", "--variant=minbase", packages, codename, root)
        (root / "complete").touch()
    return root


def test_four_workers_run_where_only_python_is_installed(slim: Path) -> None:
    libraries = [f.name for f in (slim / "usr" / "lib").rglob("lib*.so*")]
    assert not [n for n in libraries if re.match("lib(fabric|uv|event|jansson|inih|numa)[-.]", n)]
    (slim / WHEEL.name).write_bytes(WHEEL.read_bytes())
    unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    text = output(*unshare, "sh", "-ec", IN_ROOT, slim, f"/{WHEEL.name}", WORKER)
    assert sorted(re.findall(r"worker (\d) of 4", text)) == ["0", "1", "2", "3"], text
