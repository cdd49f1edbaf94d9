"""The examples and tutorials of the frameworks other than PyTorch, with two workers.

Each test starts one example or tutorial as a job of its own.
"""

import re
import shutil
import subprocess
from pathlib import Path

import jobs
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "libbpsclient" / "examples"
TUTORIAL = ROOT / "docs" / "tutorial"
# Arguments with which each framework's benchmark uses a small neural network and small images.
SMALL = {
    "tensorflow": ("--model", "MobileNet", "--image-size", 32),
    "keras": ("--model", "MobileNet", "--image-size", 32),
    "jax": ("--model", "resnet14", "--width", 8, "--image-size", 32),
    "mxnet": ("--model", "mobilenetv2_0.25", "--image-size", 64),
}
every_framework = pytest.mark.parametrize("framework", jobs.FRAMEWORKS)


def run(script, folder, *arguments, n=2):
    """Run a Python program as a job of n workers. Return what each worker prints."""
    words = [str(word) for word in (script, *arguments)]
    start = f"runpy.run_path({str(script)!r}, run_name='__main__')"
    codes, outputs = jobs.start(f"import runpy, sys\nsys.argv = {words}\n{start}\n", folder, n=n)
    assert not any(codes), outputs
    return outputs


def accuracies(outputs):
    return [float(found) for found in re.findall(r"accuracy ([\d.]+)", "".join(outputs))]


@every_framework
def test_the_example_learns_the_digits(tmp_path, framework):
    outputs = run(EXAMPLES / framework / "digits.py", tmp_path)
    assert accuracies(outputs)[-1] > 0.85, outputs


@every_framework
def test_the_benchmark_prints_the_images_of_all_workers(tmp_path, framework):
    few = ("--batch-size", 2, "--num-batches-per-iter", 1, "--num-iters", 2)
    script = EXAMPLES / framework / "synthetic_benchmark.py"
    first = run(script, tmp_path, *few, *SMALL[framework])[0]
    own = float(re.search(r"Img/sec per worker: ([\d.]+)", first)[1])
    total = float(re.search(r"Total img/sec on 2 worker\(s\): ([\d.]+)", first)[1])
    assert total > own > 0


@every_framework
def test_the_changes_of_the_tutorial_make_a_script_distributed(tmp_path, framework):
    page = (TUTORIAL / f"{framework}.md").read_text()
    script, changes = tmp_path / "train.py", tmp_path / "switch.diff"
    script.write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    changes.write_text(re.search(r"```diff\n(--- train.py\n.*?)```", page, re.S)[1])
    shutil.copy(EXAMPLES / "digits.csv", tmp_path)
    alone = run(script, tmp_path, n=1)
    subprocess.run(["patch", script, changes], check=True, capture_output=True)
    for outputs in (alone, run(script, tmp_path, n=1), run(script, tmp_path, n=2)):
        assert accuracies(outputs)[-1] > 86, outputs
        assert not accuracies(outputs[1:]), outputs


@every_framework
def test_every_example_is_named_in_its_tutorial(framework):
    page = (TUTORIAL / f"{framework}.md").read_text()
    for example in (EXAMPLES / framework).glob("*.py"):
        assert f"`{example.name}`" in page, example
