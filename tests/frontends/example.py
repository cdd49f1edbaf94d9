"""Run an example as the main program, then print a hash of the parameters that it trained.

    python example.py SCRIPT [ARGUMENT...]

The hash covers this worker's parameters after the last step of the last optimizer.
"""

import hashlib
import runpy
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

seen: list[torch.optim.Optimizer] = []


def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
    seen[:] = [optimizer]


def main() -> None:
    script = Path(sys.argv[1]).resolve()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    register_optimizer_step_post_hook(keep)
    runpy.run_path(str(script), run_name="__main__")
    digest = hashlib.sha256()
    for group in seen[0].param_groups:
        for p in group["params"]:
            p = p.to_local() if hasattr(p, "to_local") else p
            digest.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
    print("parameters", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
