"""Run scripts in forks of this process, which has imported PyTorch: warm.py --serve.

forks.start() asks for a fork, and its only argument is the script.
"""

import os
import sys

import numpy  # noqa: F401
import torch.distributed  # noqa: F401

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cluster"))
import forks  # noqa: E402


def main():
    (script,) = forks.serve()
    sys.argv = ["-c"]
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})


main()
