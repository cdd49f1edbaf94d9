"""Train a small GPT with FSDP2: each worker keeps a part of the parameters.

bpsrun -n 4 -- python gpt_fsdp.py --save model.pt
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import bps.torch  # noqa: F401  registers the address bps:// with torch.distributed
import gpt


def main() -> None:
    """Train, print the loss of all workers, and save the whole model at rank 0."""
    parser = gpt.arguments(__doc__)
    parser.add_argument("--save", type=Path, help="write the whole model to this file")
    args = parser.parse_args()

    # bps:// takes rank and size from bpsrun, torchrun, Slurm or Open MPI.
    dist.init_process_group("bps", init_method="bps://")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = gpt.build(args)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    own = sum(p.to_local().numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    print(f"rank {rank} keeps {own} of {whole} parameters", flush=True)

    for step, inputs, targets in gpt.batches(args, rank, size):
        optimizer.zero_grad()
        loss = gpt.loss_of(model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == args.steps - 1:
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}  loss {mean.item() / size:.4f}", flush=True)
    if args.save:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if rank == 0:
            torch.save(state, args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
