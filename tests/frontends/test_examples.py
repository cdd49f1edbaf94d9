"""The examples learn, and all workers end with the same parameters.

Rank 0 runs each example as a job of its own (tests/frontends/run.py).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXAMPLES = ROOT / "libbpsclient" / "examples" / "pytorch"
PAGES = ROOT / "docs" / "tutorial" / "pytorch"
LIMIT_S = 480
MAX_LINES = 150
pytestmark = pytest.mark.skipif(os.environ["BPS_RANK"] != "0", reason="rank 0 starts the jobs")


def run(example, *arguments, n=2, options=(), status=0):
    """Run an example as a job of n workers. Return its output, with the rank before each line."""
    worker = [sys.executable, "-W", "ignore", HERE / "example.py", EXAMPLES / example, *arguments]
    command = [processes.BUILD / "bpsrun", "-n", n, "--timeout", f"{LIMIT_S}s", *options, "--"]
    done = subprocess.run(
        [str(word) for word in command + worker],
        env=processes.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == status, done.stdout[-4000:]
    return done.stdout


def accuracy_of(*command, folder):
    """Run a script of the tutorial. Return the accuracies that it prints."""
    text = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=processes.environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    ).stdout
    return [float(a) for a in re.findall(r"accuracy ([\d.]+)%", text)]


def parameters(text):
    """Return {rank: hash of the worker's parameters} from the output of an example."""
    return dict(re.findall(r"^\[(\d+)\] parameters (\w+)$", text, re.M))


def same_everywhere(text, n=2):
    hashes = parameters(text)
    return len(hashes) == n and len(set(hashes.values())) == 1


def losses(text):
    return [float(loss) for loss in re.findall(r"^\[0\] step \d+  loss ([\d.]+)$", text, re.M)]


def accuracies(text, rank=0):
    pattern = rf"^\[{rank}\] .*accuracy ([\d.]+)%$"
    return [float(a) for a in re.findall(pattern, text, re.M)]


def test_every_example_is_short_and_has_a_page():
    pages = [page.read_text() for page in PAGES.glob("[!R]*.md")]
    for example in EXAMPLES.glob("*.py"):
        assert len(example.read_text().splitlines()) <= MAX_LINES, example
        assert any(f"`{example.name}`" in page for page in pages), example


@pytest.mark.parametrize("options", [(), ("--bf16",)], ids=["f32", "bf16"])
def test_digits_are_recognized(options, tmp_path):
    model = tmp_path / "model.pt"
    text = run("digits.py", "--epochs", 8, "--save", model, *options)
    assert accuracies(text)[-1] >= 88 and same_everywhere(text)
    assert model.exists()


def test_the_benchmark_trains_resnet_50_and_prints_the_images_of_all_workers():
    small = ("--image-size", 32, "--batch-size", 2)
    few = ("--num-warmup-batches", 1, "--num-batches-per-iter", 1, "--num-iters", 2)
    text = run("synthetic_benchmark.py", *small, *few)
    assert "25,557,032 parameters" in text and same_everywhere(text)
    own = float(re.search(r"Img/sec per worker: ([\d.]+)", text)[1])
    total = float(re.search(r"Total img/sec on 2 worker\(s\): ([\d.]+)", text)[1])
    assert total > own > 0


def test_the_benchmark_waits_per_layer():
    small = ("--model", "resnet26", "--width", 16, "--image-size", 32, "--batch-size", 2)
    few = ("--num-warmup-batches", 1, "--num-batches-per-iter", 2, "--num-iters", 2)
    text = run("synthetic_benchmark.py", *small, *few, "--cross-barrier", "--bf16-allreduce")
    assert same_everywhere(text) and "Total img/sec" in text


def test_gpt_learns_the_same_with_ddp_with_the_hook_and_with_fsdp(tmp_path):
    model = tmp_path / "model.pt"
    ways = {
        "back-end": run("gpt_ddp.py", "--steps", 21),
        "hook": run("gpt_ddp.py", "--steps", 21, "--hook"),
        "shards": run("gpt_fsdp.py", "--steps", 21, "--save", model),
    }
    for way, text in ways.items():
        found = losses(text)
        assert len(found) == 3 and found[-1] < 0.65 * found[0], (way, text)
        # The sums differ only in the order of their additions.
        assert found == pytest.approx(losses(ways["back-end"]), abs=2e-3), way
    assert same_everywhere(ways["back-end"]) and same_everywhere(ways["hook"])
    assert model.exists() and len(set(parameters(ways["shards"]).values())) == 2


@pytest.mark.parametrize("options", [(), ("--delay", 5, "--fragments", "--int8"), ("--in-step",)])
def test_gpt_learns_with_an_exchange_every_20_steps(options):
    text = run("gpt_diloco.py", "--steps", 80, *options, options=("--agents", 2))
    found = [float(x) for x in re.findall(r"^\[0\] step \d+  loss ([\d.]+)  \d+ ms", text, re.M)]
    assert len(found) == 4 and found[-1] < 0.75 * found[0], text


def test_gpt_learns_with_the_trainer_of_hugging_face():
    pytest.importorskip("transformers")
    text = run("gpt_trainer.py", "--steps", 30)
    found = [float(loss) for loss in re.findall(r"'loss': '?([\d.]+)", text)]
    assert len(found) == 3 and found[-1] < 0.8 * found[0] and same_everywhere(text)
    samples = float(re.search(r"'train_samples_per_second': '?([\d.]+)", text)[1])
    steps = float(re.search(r"'train_steps_per_second': '?([\d.]+)", text)[1])
    assert samples / steps == pytest.approx(8, rel=0.05), "four samples of each of two workers"


def test_training_goes_on_when_a_worker_leaves():
    options = ("--agents", 3, "--on-agent-loss", "shrink")
    text = run("elastic.py", "--epochs", 6, "--leave", 1, n=3, options=options)
    assert re.search(r"^\[0\] rank 0: the workers have changed", text, re.M)
    assert set(parameters(text)) == {"0", "2"} and same_everywhere(text)
    assert accuracies(text)[-1] >= 80 and len(accuracies(text, rank=1)) == 1


def test_the_changes_of_the_tutorial_make_a_script_distributed(tmp_path):
    page = (PAGES / "switch.md").read_text()
    script, changes = tmp_path / "train.py", tmp_path / "switch.diff"
    script.write_text(re.search(r"```python\n(import torch\n.*?)```", page, re.S)[1])
    changes.write_text(re.search(r"```diff\n(--- train.py\n.*?)```", page, re.S)[1])
    shutil.copy(EXAMPLES.parent / "digits.csv", tmp_path)
    alone = accuracy_of(sys.executable, script, folder=tmp_path)
    subprocess.run(["patch", script, changes], check=True, capture_output=True)
    one = accuracy_of(sys.executable, script, folder=tmp_path)
    bpsrun = [processes.BUILD / "bpsrun", "-n", 4, "--"]
    four = accuracy_of(*bpsrun, sys.executable, script, folder=tmp_path)
    for found in (alone, one, four):
        assert len(found) == 1 and found[0] > 87, (alone, one, four)
