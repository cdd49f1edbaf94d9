"""The tests that may be skipped, and the reasons. tests/run.py and tests/frontends/run.py fail if
another test is skipped.

`make test` installs what the tests need, so most skips are a defect of the machine or of the
Makefile. A row of ALLOWED names a skip that has to do with the machine or the build itself.
"""

import ctypes
import glob
import os
import re
import resource
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAP_SYS_ADMIN = 21
PTRACE_SEIZE = 0x4206


@dataclass(frozen=True)
class Allowed:
    """A kind of skip.

    Attributes:
        test: start of the test's name: "PROGRAM NAME" for a unit test, "frontends/LIST/PART" for a
            test of the front-ends, else the test's file.
        reason: pattern of the reason that the test gives. Unit tests give none.
        when: returns whether the skip is right on this machine, for the named build.
        why: the reason in words.
    """

    test: str
    reason: str
    when: Callable[[str], bool]
    why: str


def is_sanitized(build: str) -> bool:
    return build in ("asan", "tsan")


def has_no_repository(build: str) -> bool:
    return not (ROOT / ".git").exists()


def is_not_root(build: str) -> bool:
    return os.geteuid() != 0


def cannot_mount(build: str) -> bool:
    status = Path("/proc/self/status").read_text()
    return not int(re.search(r"^CapEff:\s*(\w+)", status, re.M)[1], 16) >> CAP_SYS_ADMIN & 1


def lacks_cuda(build: str) -> bool:
    return is_sanitized(build) or not glob.glob(
        os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include", "cuda.h")
    )


def has_rdma(build: str) -> bool:
    return bool(glob.glob("/sys/class/infiniband/*"))


def lacks_ipv6(build: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        return True
    return False


def has_few_descriptors(build: str) -> bool:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 10000


def cannot_lock_memory(build: str) -> bool:
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY


def has_one_congestion_control(build: str) -> bool:
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return len(path.read_text().split()) < 2


def is_there(path: str) -> Callable[[str], bool]:
    return lambda build: os.path.exists(path)


def is_missing(program: str) -> Callable[[str], bool]:
    return lambda build: not shutil.which(program)


def lacks_versions_of_libfabric(build: str) -> bool:
    return os.environ.get("BPS_TEST_PROVIDER") != "tcp" or "LD_LIBRARY_PATH" not in os.environ


def lacks_history(build: str) -> bool:
    if not (ROOT / ".git").exists():
        return True
    command = ("git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository")
    return subprocess.run(command, capture_output=True, check=False).stdout == b"true\n"


def lacks_libfabric(major: int, minor: int) -> Callable[[str], bool]:
    """Return a function that returns whether libfabric is missing or older than this version."""

    def is_older(build: str) -> bool:
        try:
            version = ctypes.CDLL("libfabric.so.1").fi_version()
        except OSError:
            return True
        return version < major << 16 | minor

    return is_older


def has_cuda_driver(build: str) -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def has_only_loopback(build: str) -> bool:
    command = ("ip", "-4", "-o", "addr", "show", "scope", "global")
    return not subprocess.run(command, capture_output=True, check=False).stdout


def cannot_trace(build: str) -> bool:
    with subprocess.Popen(("sleep", "10")) as other:
        failed = ctypes.CDLL(None).ptrace(PTRACE_SEIZE, other.pid, None, None) < 0
        other.kill()
    return failed


def cannot_cut_connections(build: str) -> bool:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            command = ("ss", "-K", "-t", "dst", "127.0.0.1", "dport", "=", str(port))
            return subprocess.run(command, capture_output=True, check=False).returncode != 0


def lacks_memory_cgroup(build: str) -> bool:
    """Return whether a folder made by this process would not be a memory cgroup."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    controllers = v2 / "cgroup.subtree_control"
    has_v2 = controllers.exists() and "memory" in controllers.read_text().split()
    return not (os.access(v1, os.W_OK) or has_v2 and os.access(v2, os.W_OK))


def on_every_machine(build: str) -> bool:
    return True


CLUSTER = "tests/cluster/test_"
SANITIZER = "a sanitizer's library cannot be loaded into this program, or costs too much"
NO_ROOT = "namespaces, mounts and other users need root"
# (list and part of the front-ends' tests, reason, reason in words)
OTHER_RANKS = "rank 0 starts jobs of its own, and the other ranks wait"
OTHER_CLUSTER = "it runs on a cluster with another number of workers"
OTHER_LIST = "another list of requirements tests it"
FRONTENDS = (
    ("torch/compat", "rank 0 starts the scripts", OTHER_RANKS),
    ("torch/elastic", "rank 0 starts the machines", OTHER_RANKS),
    ("torch/equality", "HSDP of 2x2 needs 4 workers", OTHER_CLUSTER),
    ("torch/blocks", "two workers share an agent", OTHER_CLUSTER),
    ("torch/gpu", "one worker has no executor", OTHER_CLUSTER),
    ("torch/gpu", "several workers have an executor", OTHER_CLUSTER),
    ("tensorflow/lost", "for JAX alone", OTHER_LIST),
    ("mxnet/lost", "for JAX alone", OTHER_LIST),
    ("torch/keras", "for TensorFlow alone", OTHER_LIST),
    ("jax/keras", "for TensorFlow alone", OTHER_LIST),
    ("torch/asynchronous_keras", "for TensorFlow alone", OTHER_LIST),
    ("jax/asynchronous_keras", "for TensorFlow alone", OTHER_LIST),
    ("jax/keras", "JAX trains compiled code", "it exists only with other frameworks"),
    ("mxnet/arrays", "could not import 'ml_dtypes': No module named 'ml_dtypes'", OTHER_LIST),
    ("torch/reconfigure", "torchft is not installed", OTHER_LIST),
    ("torch-2.1/c10d", "PyTorch 2.2", OTHER_LIST),
    ("torch-2.1/c10d", "before PyTorch 2.14, the group is not notified", OTHER_LIST),
    ("torch-2.1/torch", "PyTorch 2.3", OTHER_LIST),
    ("torch-2.1/errors", "PyTorch 2.1 has no class for back-ends", OTHER_LIST),
    ("torch-2.1/c10d", "fully_shard came with PyTorch 2.6", OTHER_LIST),
    ("torch-2.1/distributed", "needs PyTorch (2, 2)", OTHER_LIST),
    ("torch-2.1/distributed", "needs PyTorch (2, 4)", OTHER_LIST),
    ("torch-2.1/distributed", "needs PyTorch (2, 6)", OTHER_LIST),
)
ALLOWED = (
    # pytest
    Allowed(CLUSTER, "sanitize[rd]|ThreadSanitizer|Python loads", is_sanitized, SANITIZER),
    Allowed(CLUSTER, "needs? root|by a mount", is_not_root, NO_ROOT),
    Allowed(CLUSTER + "start", "cannot mount here", cannot_mount, "the container forbids mounts"),
    Allowed(CLUSTER + "hostnames", "cannot mount", cannot_mount, "the container forbids mounts"),
    Allowed(CLUSTER + "release", "no repository", has_no_repository, "the tree is an archive"),
    Allowed(CLUSTER, "without (the )?CUDA", lacks_cuda, "the CUDA toolkit is not installed"),
    Allowed(CLUSTER, "has RDMA|has a device", has_rdma, "the machine has an RDMA device"),
    Allowed(CLUSTER + "gpu_runs", "has a driver", has_cuda_driver, "the machine has a GPU"),
    Allowed(
        CLUSTER + "exactness",
        "two versions of libfabric",
        lacks_versions_of_libfabric,
        "make check-providers runs it",
    ),
    Allowed(
        CLUSTER + "bpsrun",
        "has an agent",
        is_there("/run/bps/agent.sock"),
        "the machine's agent would be used",
    ),
    Allowed(
        CLUSTER + "start",
        "there is a journal",
        is_there("/run/systemd/journal/socket"),
        "the machine's journal would be used",
    ),
    Allowed(
        CLUSTER + "install",
        "no systemd-analyze",
        is_missing("systemd-analyze"),
        "make lint installs systemd and checks the units",
    ),
    Allowed(
        CLUSTER + "check",
        "no address but loopback",
        has_only_loopback,
        "the container has no network",
    ),
    Allowed(CLUSTER + "hangs", "ptrace is not allowed", cannot_trace, "ptrace is forbidden"),
    Allowed(
        CLUSTER + "faults",
        "connections cannot be cut",
        cannot_cut_connections,
        "the kernel lacks INET_DIAG_DESTROY, or the container forbids its use",
    ),
    Allowed(
        CLUSTER + "formats",
        "lacks the compatibility mark",
        lacks_history,
        "make upgrade makes the same comparison, and requires the mark",
    ),
    Allowed(
        "tests/faults/",
        "no memory cgroup",
        lacks_memory_cgroup,
        "the container has no memory cgroup",
    ),
    # unit tests
    Allowed("test_name_claim other_user_cannot_block_a_name", "", is_not_root, NO_ROOT),
    Allowed("test_machine longest_host_name_is_read_from_the_kernel", "", cannot_mount, NO_ROOT),
    Allowed("test_keyring foreign_file_is_refused", "", is_not_root, NO_ROOT),
    Allowed("test_keyring credential_of_root_is_read_by_the_service", "", is_not_root, NO_ROOT),
    Allowed("test_ctlchan ipv6_loopback_works", "", lacks_ipv6, "the machine has no IPv6"),
    Allowed("test_tcp_listener version_6_of_ip_works", "", lacks_ipv6, "the machine has no IPv6"),
    Allowed(
        "test_tcp_listener sockets_of_both_ends_have_the_congestion_control",
        "",
        has_one_congestion_control,
        "the kernel has only one congestion control",
    ),
    Allowed(
        "test_tcp_listener connections_beyond_the_limit",
        "",
        has_few_descriptors,
        "the hard limit RLIMIT_NOFILE is too low",
    ),
    Allowed(
        "test_client_results results_in_locked_memory",
        "",
        cannot_lock_memory,
        "RLIMIT_MEMLOCK is too low",
    ),
    Allowed("test_fabric_eager ", "", lacks_libfabric(1, 19), "libfabric is too old"),
    Allowed("test_fabric_channels ", "", lacks_libfabric(2, 2), "libfabric is too old"),
    Allowed(
        "test_device_probe without_a_driver_the_program_does_not_start",
        "",
        has_cuda_driver,
        "the machine has a driver",
    ),
    # front-ends
    *(
        Allowed(f"frontends/{part}", f"^{re.escape(reason)}$", on_every_machine, why)
        for part, reason, why in FRONTENDS
    ),
)


def of_unit(program: str, output: str) -> list[tuple[str, str]]:
    """Return the skipped tests of a cmocka program from its output, which is in TAP format."""
    names = re.findall(r"^(?:not )?ok \d+.*# SKIP ?(\S*)", output, re.M)
    return [(f"{program} {name}", "") for name in names]


def of_pytest(output: str) -> list[tuple[str, str]]:
    """Return (file, reason) of the skipped tests from the output of `pytest -rs`."""
    lines = re.findall(r"^SKIPPED \[(\d+)\] ([^:\n]+)(?::\d+)?: (.*)$", output, re.M)
    return [(test, reason) for n, test, reason in lines for _ in range(int(n))]


def of_workers(test: str, output: str) -> tuple[list[tuple[str, str]], int]:
    """Return what `report` needs about the skipped tests of workers that each run pytest.

    test: name to give to all tests. output: the output of `bpsrun`, which begins each line with the
    rank of a worker.
    """
    plain = re.sub(r"^\[\d+\] ", "", output, flags=re.M)
    found = [(test, reason) for _, reason in of_pytest(plain)]
    counts = re.findall(r"^(?=\d+ [a-z]+\b).*\b(\d+) skipped\b.* in [\d.]+s", plain, re.M)
    return found, sum(map(int, counts))


def allowed(skip: tuple[str, str], build: str) -> Allowed | None:
    """Return the row of the table that allows the skip in this build, or None."""
    test, reason = skip
    for row in ALLOWED:
        if test.startswith(row.test) and re.search(row.reason, reason) and row.when(build):
            return row
    return None


def report(found: list[tuple[str, str]], n_skipped: int, build: str) -> tuple[str, int]:
    """Return lines about the skipped tests, and how many of them are not allowed.

    found: the skipped tests, as of_unit or of_pytest returns them. n_skipped: number of skipped
    tests by the program's own count.
    """
    wrong = max(0, n_skipped - len(found))
    lines = [f"FAIL {wrong} skipped tests are not named"] if wrong else []
    rows = [(skip, allowed(skip, build)) for skip in found]
    good = Counter((skip[0].split()[0], row.why) for skip, row in rows if row)
    bad = Counter(skip for skip, row in rows if not row)
    lines += [f"     {n} skipped: {test}: {why}" for (test, why), n in good.items()]
    lines += [
        f"FAIL {n} skipped: {test}: {reason or 'no reason'} (tests/skips.py does not allow this)"
        for (test, reason), n in bad.items()
    ]
    return "\n".join(lines), wrong + bad.total()
