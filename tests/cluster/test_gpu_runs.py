"""Run the programs of tests/gpu, which test real GPUs, with fake CUDA libraries."""

import json
import os
import pathlib
import subprocess
import time

import pytest

from cluster import BUILD, ROOT

RUN = ROOT / "tests" / "gpu" / "run"
PROGRAMS = BUILD / "tests" / "gpu"
FAKE = BUILD / "fake"

pytestmark = pytest.mark.alone  # each run keeps dozens of threads busy, within time limits
needs_toolkit = pytest.mark.skipif(
    not (PROGRAMS / "a").exists()
    or not (FAKE / "libcuda.so.1").exists()
    or BUILD.name in ("asan", "tsan"),
    reason="built without the CUDA toolkit, or with a sanitizer",
)


def wait_for(what, condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def run(*args, **env):
    full = dict(os.environ, **env)
    return subprocess.run(
        [str(RUN), *args, "--programs", str(PROGRAMS)],
        capture_output=True,
        text=True,
        timeout=100,
        env=full,
        check=False,
    )


def over_fakes(*args, **env):
    p = run(*args, BPS_GPU_FAKE="1", LD_LIBRARY_PATH=str(FAKE), BPS_GPU_SECONDS="0.2", **env)
    lines = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    assert lines and all(a["fake"] for a in lines), p
    assert "FAKE LIBRARIES, NO GPU" in p.stdout
    assert all(len(line) <= 100 for line in p.stdout.splitlines() if not line.startswith("{")), (
        p.stdout
    )
    return p, {a["item"]: a for a in lines}


@pytest.mark.parametrize("which", "ABCD")
def test_a_machine_without_a_driver_is_told_in_one_sentence(which):
    p = run(which, LD_LIBRARY_PATH="")
    if p.returncode != 77:
        pytest.skip("this machine has a driver")
    assert (
        p.stderr == "tests/gpu/run: this machine has no CUDA driver (libcuda.so.1 is not there)\n"
        and not p.stdout
    )


A_ITEMS = [
    "attributes",
    "vmm",
    "legacy_ipc",
    "maker_killed",
    "importer_killed",
    "two_mappings",
    "null_stream",
]


@needs_toolkit
@pytest.mark.parametrize("item", [*A_ITEMS, "vmm_other_user", "host_store", "poison"])
def test_run_a_passes_all_items_over_fakes(item):
    p, answers = over_fakes("A", "--only", item)
    assert p.returncode == 0 and answers[item]["ok"], p


@needs_toolkit
@pytest.mark.parametrize("attribute, name", [(102, "vmm"), (103, "posix_fd"), (122, "memops64")])
def test_run_a_reports_attributes_that_a_gpu_lacks(attribute, name):
    p, answers = over_fakes("A", "--only", "attributes", FAKE_CUDA_LACKS=str(attribute))
    assert p.returncode == 1 and answers["attributes"]["why"] == f"{name} is not 1", p


@needs_toolkit
def test_run_a_reports_the_drivers_attributes_of_addresses():
    p, answers = over_fakes("A", "--only", "pointer_attributes")
    kinds = {
        f"pointer_attributes_{kind}" for kind in ("alloc", "vmm", "first", "second", "imported")
    }
    assert p.returncode == 0 and set(answers) == kinds, p
    second = answers["pointer_attributes_second"]
    assert (second["mapping_base"], second["mapping_size"], second["handle_types"]) == (
        0,
        4 << 20,
        1,
    )


@needs_toolkit
def test_run_a_reports_a_driver_that_does_not_know_mappings():
    p, answers = over_fakes(
        "A", "--only", "pointer_attributes", FAKE_CUDA_FAULTS="cuPointerGetAttribute:18=801"
    )
    assert p.returncode == 1 and answers["pointer_attributes_vmm"]["mapping_base"] == "error 801", p
    assert not answers["pointer_attributes_vmm"]["ok"] and answers["pointer_attributes_alloc"]["ok"]


@needs_toolkit
def test_run_a_reports_the_call_that_fails():
    p, answers = over_fakes(
        "A", "--only", "vmm", FAKE_CUDA_FAULTS="cuMemExportToShareableHandle:1=801"
    )
    assert p.returncode == 1 and "cuMemExportToShareableHandle" in answers["vmm"]["why"], p
    assert "FAILS" in p.stdout


@needs_toolkit
@pytest.mark.alone
@pytest.mark.parametrize("item", ["host_store", "stream_to_host"])
def test_run_a_does_not_wait_for_a_process_that_is_gone(item):
    begin = time.monotonic()
    p, answers = over_fakes("A", "--only", item, FAKE_CUDA_FAULTS="cuStreamWaitValue64:1000=700")
    assert p.returncode == 1 and "cuStreamWaitValue64" in answers[item]["why"], p
    assert time.monotonic() - begin < 30  # the time limit of the item is 60 s


@needs_toolkit
def test_run_a_compares_imported_memory_and_each_of_its_factors():
    p, answers = over_fakes("A", "--only", "importer")
    sizes = {
        f"importer_{way}_{size}" for way in ("d2h", "h2d", "both") for size in ("4MiB", "128MiB")
    }
    assert p.returncode == 0 and set(answers) == sizes | {"pin_memfd"}, p
    for item in sizes:
        assert (
            answers[item]["own_memfd_gbytes_s"] > 0 and answers[item]["imported_alloc_gbytes_s"] > 0
        )


@needs_toolkit
def test_run_b_compares_every_kind_of_work():
    p, answers = over_fakes("B")
    tiny = {f"tiny_copies_{way}_{size}" for way in ("out", "in") for size in ("64B", "4KiB")}
    kinds = {
        "copy_out",
        "copy_in",
        "copy_both",
        "parts_out",
        "parts_in",
        "post_only",
        "tiny_one_row_in_4KiB",
        "small_kernels",
        "1GiB_kernels",
    } | tiny
    assert p.returncode == 0 and set(answers) == kinds | {"trainer_alone"}, p
    assert all(
        answers[kind]["wait_p50_us"] > 0 and answers[kind]["alone_p99_us"] > 0 for kind in kinds
    )
    assert {kind for kind in kinds if "bar_keeps" in answers[kind]} == {
        k for k in kinds if k[:5] in ("copy_", "parts")
    }


@needs_toolkit
@pytest.mark.parametrize("only, n", [("post_only", 1), ("tiny_copies", 4)])
def test_run_b_measures_only_what_is_asked_for(only, n):
    p, answers = over_fakes("B", "--only", only)
    assert p.returncode == 0 and len(answers) == n + 1, p
    assert all(item.startswith(only) for item in answers if item != "trainer_alone")


@needs_toolkit
def test_run_b_reports_the_call_that_fails():
    p, answers = over_fakes(
        "B", "--only", "post_only", FAKE_CUDA_FAULTS="cuStreamWriteValue64:9=700"
    )
    assert p.returncode == 1 and "cuStreamWriteValue64" in answers["post_only"]["why"], p


@needs_toolkit
def test_run_d_sees_one_gpu_without_nccl_and_refusals_handled():
    p, answers = over_fakes("D", FAKE_CUDA_GPUS="2")
    assert p.returncode == 0 and all(a["ok"] for a in answers.values()), p
    assert answers["one_gpu"]["nccl_loaded"] is False
    assert "abort_ms" in answers["one_rank"] and "first_abort_ms" in answers["nobody_comes"]
    assert "one GPU" in answers["two_members"]["says"]
    assert answers["two_gpus"]["outcome"] == "works"
    assert "skip" in answers["two_ranks"]


@needs_toolkit
def test_run_d_reports_a_clique_on_two_gpus_that_does_not_work():
    p, answers = over_fakes(
        "D", "--only", "two_gpus", FAKE_CUDA_GPUS="2", FAKE_CUDA_FAULTS="ncclReduceScatter:1=2"
    )
    assert p.returncode == 1 and "reduce-scatter" in answers["two_gpus"]["why"], p


def pretend(tmp_path, text):
    """Run item D with a shell script in place of its program."""
    program = tmp_path / "d"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    env = dict(os.environ, BPS_GPU_FAKE="1", LD_LIBRARY_PATH=str(FAKE))
    command = [str(RUN), "D", "--programs", str(tmp_path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


GOOD = """echo '{"item": "good", "ok": true}'"""


@needs_toolkit
@pytest.mark.parametrize(
    "text,item,why",
    [
        (f"{GOOD}; exit 1", "end", "ended with 1"),
        (f"{GOOD}; kill -SEGV $$", "end", "ended with -11"),
        (f"""echo '{{"expect": ["good", "more"]}}'; {GOOD}""", "more", "was not reached"),
        ("exit 0", None, None),
    ],
)
def test_run_that_breaks_off_fails(tmp_path, text, item, why):
    p = pretend(tmp_path, text)
    out, err = p.communicate(timeout=60)
    answers = {
        a["item"]: a
        for a in map(json.loads, (line for line in out.splitlines() if line.startswith("{")))
    }
    assert p.returncode == 1, (out, err)
    assert item is None or (not answers[item]["ok"] and why in answers[item]["why"]), out


@needs_toolkit
def test_a_run_that_is_ended_leaves_nothing_and_has_its_table(tmp_path):
    p = pretend(tmp_path, f"{GOOD}; sleep 1000 & echo $! >{tmp_path}/child; wait")
    child = tmp_path / "child"
    wait_for("the program runs", lambda: child.exists() and child.read_text().strip())
    assert "good" in p.stdout.readline()
    p.terminate()
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 1 and "good" in out and "ended by SIGTERM" in out, out
    pid = int(child.read_text())
    wait_for(
        "the child of the program has ended",
        lambda: (
            not os.path.exists(f"/proc/{pid}")
            or " Z " in pathlib.Path(f"/proc/{pid}/stat").read_text()
        ),
    )


@needs_toolkit
@pytest.mark.parametrize(
    "call, says",
    [
        ("ncclReduceScatter", "reduce-scatter"),
        ("ncclAllGather", "all-gather"),
        ("ncclReduce", "reduction"),
        ("ncclBroadcast", "broadcast"),
        ("ncclCommInitRankConfig", "does not open"),
    ],
)
def test_run_d_reports_a_clique_of_one_that_does_not_work(call, says):
    p, answers = over_fakes("D", "--only", "one_rank", FAKE_CUDA_FAULTS=f"{call}:1=2")
    assert p.returncode == 1 and says in answers["one_rank"]["why"], p
