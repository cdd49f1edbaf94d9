"""Each Python block of docs/guides/migrate-*.md is a complete program that two workers can run."""

import re
import subprocess
import sys

import pytest

from cluster import BUILD, IS_ASAN, ROOT, Cluster

GUIDES = sorted((ROOT / "docs" / "guides").glob("migrate-*.md"))


def python_env(service, **more):
    return dict(
        service.env,
        BPS_LIBRARY=str(BUILD / "libbpsclient.so.0"),
        PYTHONPATH=str(ROOT / "libbpsclient" / "python"),
        OPENBLAS_NUM_THREADS="1",
        BPS_TIMEOUT="20s",
        BPS_AGENT_SOCKET=str(service.agents[0].socket),
        **more,
    )


def programs():
    for guide in GUIDES:
        for i, block in enumerate(
            re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.M | re.S)
        ):
            yield pytest.param(block, id=f"{guide.stem}-{i + 1}")


@pytest.fixture(scope="module")
def service():
    with Cluster(agents=1, servers=1) as c:
        yield c


@pytest.mark.parametrize("text", programs())
@pytest.mark.skipif(IS_ASAN, reason="this Python cannot load the sanitized library by itself")
def test_example_of_a_guide_runs_as_a_job_of_two(text, service, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(text)
    env = python_env(service)
    r = subprocess.run(
        [
            str(BUILD / "bpsrun"),
            "-n",
            "2",
            "--agent",
            str(service.agents[0].socket),
            "--timeout",
            "40s",
            "--",
            sys.executable,
            str(program),
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert r.returncode == 0, r.stdout + r.stderr


PAGES = sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "README.md"]


@pytest.mark.parametrize("guide", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_links_of_a_page_lead_somewhere(guide):
    links = re.findall(r"\]\(([^)#\s]+)", guide.read_text())
    missing = [
        x
        for x in links
        if not x.startswith(("http:", "https:")) and not (guide.parent / x).exists()
    ]
    assert not missing


def containers():
    """Return (file, container, fields) of every container in the manifests for Kubernetes."""
    yaml = pytest.importorskip("yaml")
    folder = ROOT / "docs" / "guides" / "kubernetes"
    for path in sorted([*folder.glob("base/*.yaml"), *folder.glob("job/*.yaml")]):
        for document in yaml.safe_load_all(path.read_text()):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            for c in pod.get("initContainers", []) + pod.get("containers", []):
                yield path.name, c, pod


def test_daemons_of_the_manifests_take_their_settings_and_are_probed_where_they_serve():
    checked = set()
    for name, c, pod in containers():
        names = [word.rpartition("/")[2] for word in c["command"]]
        found = [BUILD / n for n in names if n in ("bps-scheduler", "bps-server", "bps-agent")]
        if not found:
            continue
        (program,) = found
        assert names[: names.index(program.name)] == (
            ["bps-keep", "--"] if program.name == "bps-agent" else []
        )
        assert pod["enableServiceLinks"] is False, (
            name
        )  # with service links, Kubernetes adds variables that look like our settings
        binary = str(program / program.name)
        known = subprocess.run(
            [binary, "--help"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        env = {"HOST_IP": "10.0.0.3"}
        for e in c["env"]:
            if e["name"].startswith("BPS_"):
                assert f"--{e['name'][4:].lower().replace('_', '-')}" in known, (
                    f"{name}: {e['name']} is not a setting"
                )
            env[e["name"]] = e.get("value", "10.0.0.3").replace("$(HOST_IP)", "10.0.0.3")
        r = subprocess.run(
            [binary, "--config", "/dev/null", "--print-config"],
            env=env,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        assert r.returncode == 0, f"{name}: {r.stderr}"
        ports = {p["name"]: p["containerPort"] for p in c.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = c[probe]["httpGet"]
            assert get["path"] in ("/livez", "/readyz")
            assert re.search(
                rf"^http = \S+:{ports.get(get['port'], get['port'])} ;", r.stdout, re.M
            ), f"{name}: {probe}"
        checked.add(program.name)
    assert checked == {"bps-scheduler", "bps-server", "bps-agent"}


def test_job_of_the_manifests_starts_its_workers(tmp_path):
    (command,) = [c["command"] for name, c, _ in containers() if name == "trainer.yaml"]
    values = {
        "$(JOB_COMPLETION_INDEX)": "1",
        "$(JOB_NAME)": "uid",
        "/run/bps/agent.sock": "/nonexistent",
    }
    command = [values.get(word, word) for word in command[1 : command.index("--") + 1]]
    r = subprocess.run(
        [
            str(BUILD / "bpsrun"),
            *command,
            "sh",
            "-c",
            "echo $BPS_RANK/$BPS_SIZE $BPS_JOB $BPS_AGENT_SOCKET",
        ],
        env={"PATH": "/bin:/usr/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert sorted(r.stdout.splitlines()) == [f"[{i}] {i}/8 uid /nonexistent" for i in range(4, 8)]


PLACE = "import bps; j = bps.open(); print(j.rank, j.size, j.local_rank, j.local_size); j.close()"


@pytest.mark.skipif(IS_ASAN, reason="this Python cannot load the sanitized library by itself")
def test_tasks_of_a_slurm_step_are_a_job_that_is_named_after_it(service):
    tasks = []
    for rank in range(3):
        env = python_env(
            service,
            SLURM_PROCID=str(rank),
            SLURM_NTASKS="3",
            SLURM_LOCALID=str(rank),
            SLURM_NTASKS_PER_NODE="3",
            SLURM_JOB_ID="4711",
            SLURM_STEP_ID="2",
        )
        tasks.append(
            subprocess.Popen(
                [sys.executable, "-c", PLACE], env=env, stdout=subprocess.PIPE, text=True
            )
        )
    outputs = [t.communicate(timeout=60)[0] for t in tasks]
    assert outputs == [f"{rank} 3 {rank} 3\n" for rank in range(3)]
    assert "job '4711.2' (3 workers" in " ".join(service.bpsctl("events").stdout.split())


@pytest.mark.skipif(IS_ASAN, reason="this Python cannot load the sanitized library by itself")
def test_bpsrun_in_a_slurm_task_gives_its_workers_their_place(service):
    env = python_env(
        service,
        SLURM_PROCID="0",
        SLURM_NTASKS="64",
        SLURM_LOCALID="0",
        SLURM_JOB_ID="4712",
        SLURM_STEP_ID="0",
    )
    r = subprocess.run(
        [str(BUILD / "bpsrun"), "-n", "2", "--", sys.executable, "-c", PLACE],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sorted(r.stdout.splitlines()) == ["[0] 0 2 0 2", "[1] 1 2 1 2"]
