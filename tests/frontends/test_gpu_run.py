"""Run C of tests/gpu passes with plain memory in place of a GPU.

Rank 0 starts the run (tests/frontends/run.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 480
pytestmark = pytest.mark.skipif(os.environ["BPS_RANK"] != "0", reason="rank 0 starts the jobs")


def test_the_gpu_run_of_pytorch_passes_over_host_memory():
    run_c = [ROOT / "tests" / "gpu" / "run", "C", "--host", "--limit", LIMIT_S - 30]
    done = subprocess.run(
        [sys.executable, *map(str, run_c)],
        env=dict(processes.environment(), BPS_GPU_BUILD=processes.BUILD.name),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    worst = {a["item"]: a["worst"] for a in answers if "worst" in a}
    assert worst.pop("torch_bf16") > 0 and len(worst) == 8
    assert all(x < 1e-4 for x in worst.values()), worst
    assert {"killed_trainer", "killed_executor"} <= {a["item"] for a in answers}
