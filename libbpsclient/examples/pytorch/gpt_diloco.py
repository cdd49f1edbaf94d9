"""Train a small GPT on machines that a slow network connects.

    bpsrun -n 2 --agents 2 -- python gpt_diloco.py
    bpsrun -n 2 --agents 2 -- python gpt_diloco.py --in-step

With the first command, each worker trains alone for 20 steps, and then exchanges what it has
changed (DiLoCo). With the second command, the workers average their gradients in each step.
"""

import contextlib
import time

import torch

import bps.torch as bps
import gpt


def halves(model: gpt.GPT) -> list[torch.nn.Module]:
    """Return two fragments, which together have all parameters of the model."""
    middle = len(model.blocks) // 2
    first = [model.tokens, model.places, *model.blocks[:middle]]
    second = [*model.blocks[middle:], model.norm, model.head]
    return [torch.nn.ModuleList(first), torch.nn.ModuleList(second)]


def main() -> None:
    """Train, and print the loss of all workers and the time of a step."""
    parser = gpt.arguments(__doc__)
    parser.add_argument("--in-step", action="store_true", help="average gradients in each step")
    parser.add_argument("--sync-every", type=int, default=20, help="steps between two exchanges")
    parser.add_argument("--delay", type=int, default=0, help="steps that hide an exchange")
    parser.add_argument("--fragments", action="store_true", help="exchange two halves in turn")
    parser.add_argument("--int8", action="store_true", help="send 8 bits per value")
    args = parser.parse_args()

    bps.init()
    model = gpt.build(args)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    recipe = contextlib.nullcontext()
    compression = bps.Compression.int8 if args.int8 else bps.Compression.none
    if args.in_step:
        optimizer = bps.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=compression
        )
    else:
        recipe = bps.DiLoCo(
            halves(model) if args.fragments else [model],
            optimizer,
            # With hundreds of exchanges, use the momentum of the paper, 0.9.
            torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.5, nesterov=True),
            sync_every=args.sync_every,
            fragment_sync_delay=args.delay,
            # Keep half of what this worker has learnt in these steps.
            fragment_update_alpha=0.5 if args.delay else 0.0,
            compression=compression,
        )

    losses, start = [], time.monotonic()
    with recipe:
        for step, inputs, targets in gpt.batches(args, bps.rank(), bps.size()):
            optimizer.zero_grad()
            loss = gpt.loss_of(model, inputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if (step + 1) % args.sync_every == 0:
                mean = bps.allreduce(torch.stack(losses).mean(), name="loss").item()
                step_ms = 1000 * (time.monotonic() - start) / len(losses)
                if bps.rank() == 0:
                    print(f"step {step + 1}  loss {mean:.4f}  {step_ms:.0f} ms a step", flush=True)
                losses, start = [], time.monotonic()
    if not args.in_step:
        recipe.restore_parameters()  # the global parameters, for example to save them


if __name__ == "__main__":
    main()
