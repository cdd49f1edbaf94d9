"""Train a small GPT with DistributedDataParallel.

    bpsrun -n 4 -- python gpt_ddp.py
    bpsrun -n 4 -- python gpt_ddp.py --hook

The first command uses the back-end "bps" of torch.distributed. The second command keeps the
script's Gloo group and lets bps average the gradients.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bps.torch
import gpt


def main() -> None:
    """Train, and print the loss of all workers."""
    parser = gpt.arguments(__doc__)
    parser.add_argument("--hook", action="store_true", help="use a Gloo group and the hook of bps")
    args = parser.parse_args()

    # The URL bps:// takes the process's rank and the number of processes from the launcher, which
    # is bpsrun, torchrun, Slurm or Open MPI.
    dist.init_process_group("gloo" if args.hook else "bps", init_method="bps://")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(gpt.build(args))
    if args.hook:
        model.register_comm_hook(bps.torch.HookState(), bps.torch.ddp_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
