"""The Python binding, tested in jobs of one worker, which need no daemons."""

import ctypes
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys
from uuid import UUID

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BPS_BUILD", ROOT / "build" / "debug")).resolve()
os.environ.setdefault("BPS_LIBRARY", str(BUILD / "libbpsclient.so.0"))
sys.path.insert(0, str(ROOT / "libbpsclient" / "python"))
import bps  # noqa: E402

if BUILD.name == "asan" and "libasan" not in os.environ.get("LD_PRELOAD", ""):
    pytest.skip(
        "a sanitized library needs LD_PRELOAD=libasan.so (tests/run.py sets it)",
        allow_module_level=True,
    )


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in list(os.environ):
        if (
            name.startswith(("BPS_", "BYTEPS_", "DMLC_", "SLURM_", "OMPI_"))
            and name != "BPS_LIBRARY"
        ):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("dtype", [d for d in bps.DTYPES if d not in bps.BLOCKS])
def test_tensor_of_each_type_comes_back(dtype):
    with bps.open() as job:
        t = job.declare(dtype, dtype, (2, 3))
        assert t.output is None
        t.input[:] = np.arange(6).reshape(2, 3)
        t.push_pull(bps.AVG)
        assert (t.wait() == np.arange(6).reshape(2, 3)).all()
        assert t.contributors == 1 and t.info == (1, 1, 1, False, False)
        with pytest.raises(ValueError):
            t.output[0] = 1


def test_copy_is_delivered_by_the_wait():
    with bps.open() as job:
        t = job.declare("t", "f32", 3)
        out = np.zeros(3, np.float32)
        t.push_pull_copy([1, 2, 3], out)
        assert not out.any()
        t.wait(1)
        assert out.tolist() == [1, 2, 3]
        with pytest.raises(ValueError):
            t.push_pull_copy([1, 2], out)
        with pytest.raises(ValueError):
            t.push_pull_copy([1, 2, 3], np.zeros(3, np.float64))


def test_wait_for_some_returns_completed_tensors_and_outputs_alternate():
    with bps.open() as job:
        a, b = job.declare_group([("a", "f32", 2), ("b", "i64", (1, 2))])
        for r in (1, 2, 3):
            a.input[:] = b.input[:] = r
            b.push_pull()
            a.push_pull()
            assert job.wait_some([a, b]) == [b, a]
            assert (a.outputs[r & 1] == r).all() and (b.outputs[r & 1] == [[r, r]]).all()
        assert job.wait_some([]) == []
        with pytest.raises(ValueError):
            a.outputs[0][0] = 1


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_floats_are_filled_and_read_with_a_factor(dtype):
    with bps.open() as job:
        t = job.declare("t", dtype, (2, 3))
        values = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
        with pytest.raises(bps.Error, match="no round"):
            t.read()
        t.fill(values, 0.5)
        t.push_pull()
        t.wait()
        assert (t.read(4) == 2 * values).all()
        if dtype != "bf16":
            assert (t.output == values / 2).all()
        for wrong in (values.astype(np.float64), values[:1]):
            with pytest.raises(ValueError, match="needs 6 of f32"):
                t.fill(wrong)
        with pytest.raises(bps.Error, match="use bps_input and bps_output"):
            job.declare("i", "i32", 6).fill(values)


@pytest.mark.parametrize(("dtype", "levels"), [("q8", 254), ("q4", 14), ("sign", 1)])
def test_blocks_are_filled_and_read_with_a_residual(dtype, levels):
    with bps.open() as job:
        n = 1000
        t, raw = job.declare("t", dtype, (10, 100)), job.declare("raw", "f32", n)
        values = np.sin(np.arange(n, dtype=np.float32)).reshape(10, 100)
        residual = np.zeros(n, np.float32)
        t.fill(values, 2, residual)
        t.push_pull(bps.AVG)
        t.wait()
        got = t.read()
        assert got.shape == (10, 100)
        assert np.abs(got.reshape(-1) + residual - 2 * values.reshape(-1)).max() < 1e-6
        assert np.abs(residual).max() <= 2 / levels * 1.001
        assert t.input.shape == (-(-n // bps.BLOCKS[dtype][0]), bps.BLOCKS[dtype][1])
        assert t.n_bytes == t.input.nbytes and (t.output == t.input).all()
        total = got.astype(np.float64)
        for _ in range(9):  # the residual gives back what was lost
            t.fill(values, 2, residual)
            t.push_pull()
            t.wait()
            total += t.read()
        assert np.abs(total.reshape(-1) + residual - 20 * values.reshape(-1)).max() < 1e-4
        for wrong in (residual[1:], residual.astype(np.float64), residual[::-1]):
            with pytest.raises(ValueError, match="residual must be"):
                t.fill(values, residual=wrong)
        with pytest.raises(bps.Error, match="only q8, q4 and sign take a residual"):
            raw.fill(values.reshape(-1), residual=residual)
        with pytest.raises(bps.Error, match=f"operation on single values, not on {dtype}"):
            t.push_pull(bps.MAX)
        with pytest.raises(ValueError, match="use fill"):
            t.push_pull_copy(values)


def test_collectives_keep_type_and_shape():
    with bps.open() as job:
        job.barrier()
        assert job.allgather(np.ones((2, 2), np.int16)).shape == (1, 2, 2)
        assert job.broadcast(np.arange(5.0)).tolist() == [0, 1, 2, 3, 4]


def test_error_has_code_and_sentence():
    with bps.open() as job:
        job.declare("t", "f32", 3)
        with pytest.raises(bps.Error, match=r"declared it before as f32 x 3") as e:
            job.declare("t", "f32", 4)
        assert e.value.code == bps.EMISMATCH
    with pytest.raises(bps.Error, match="is bps-agent running") as e:
        bps.open(rank=0, size=2, agent_socket="/nonexistent")
    assert e.value.code == bps.ENOAGENT


def test_unknown_type_and_unknown_gpu_are_refused():
    with bps.open(rank=0, size=1) as job:
        for call in (
            lambda: job.declare("t", "float32", 3),
            lambda: job.gpu_declare("t", "float32", 3, 4096),
        ):
            with pytest.raises(
                bps.Error, match="'float32' is not an element type: use one of i8, .*f32"
            ) as e:
                call()
            assert e.value.code == -errno.EINVAL
        with pytest.raises(bps.Error, match="is not an element type"):
            job.declare("t", ["f32"], 3)
        for uuid in (
            b"short",
            "GPU-1234",
            "GPU-not hexadecimal",
            bytes(17),
            16,
            [256] * 16,
            ["x"] * 16,
        ):
            with pytest.raises(bps.Error, match="16 bytes"):
                job.gpu_open(uuid)
        good = "8a2f0c5e-11d2-4b6b-9f77-0123456789ab"
        for uuid in (
            bytes(16),
            bytearray(16),
            memoryview(bytes(16)),
            [7] * 16,
            UUID(good),
            good,
            f"GPU-{good}",
        ):
            # The uuid is accepted. gpu_open() fails because the job has one worker.
            with pytest.raises(bps.Error, match="one worker"):
                job.gpu_open(uuid)


def test_closed_job_is_refused():
    job = bps.open()
    t = job.declare("t", "f32", 1)
    job.close()
    job.close()
    for call in (t.push_pull, t.poll, job.barrier, lambda: job.rank):
        with pytest.raises(bps.Error) as e:
            call()
        assert e.value.code == bps.ECLOSED


def test_every_name_in_the_linkers_map_is_exported():
    names = [
        line.strip(" \t;\n")
        for line in open(ROOT / "libbpsclient" / "libbpsclient.map")
        if "bps_" in line
    ]
    header = (ROOT / "libbpsclient" / "bps.h").read_text()
    assert set(names) == set(re.findall(r"^BPS_API[^;(]*?\b(bps_\w+)\(", header, re.M))
    lib = ctypes.CDLL(os.environ["BPS_LIBRARY"])
    assert all(hasattr(lib, name) for name in names)


def test_codes_are_those_of_the_header():
    header = (ROOT / "libbpsclient" / "bps.h").read_text()
    for name, code in bps.CODES.items():
        assert f"BPS_{name} = {code}" in header
    assert f"#define BPS_ABI {bps.ABI}\n" in header


def test_library_that_is_not_found_says_how_to_name_it(monkeypatch):
    monkeypatch.setenv("BPS_LIBRARY", "/nonexistent/libbpsclient.so.0")
    with pytest.raises(OSError, match="/nonexistent.*BPS_LIBRARY"):
        bps._library.load()


def test_library_of_another_abi_is_refused(monkeypatch):
    monkeypatch.setattr(bps._job, "ABI", bps.ABI + 1)
    with pytest.raises(bps.Error, match="one release") as e:
        bps.open()
    assert e.value.code == bps.EVERSION


@pytest.mark.parametrize(
    "compiler", ["gcc -std=c99 -x c", "g++ -std=c++98 -x c++", "g++ -std=c++11 -x c++"]
)
def test_header_is_plain_c99_and_cpp(compiler, tmp_path):
    command, *flags = compiler.split()
    if not shutil.which(command):
        pytest.skip(f"no {command} here")
    source = tmp_path / "use"
    source.write_text(
        '#include "libbpsclient/bps.h"\nint main(void) { return bps_version() == 0; }\n'
    )
    subprocess.run(
        [
            command,
            *flags,
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT}",
            "-c",
            source,
            "-o",
            tmp_path / "o",
        ],
        check=True,
    )
