"""Train a small GPT-2 with the Trainer of Hugging Face.

    bpsrun -n 4 -- python gpt_trainer.py

The model is built from a configuration, so nothing is downloaded.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import bps.torch  # noqa: F401  registers the address bps:// with torch.distributed
import gpt


class Pieces(Dataset):
    """The text as samples for Hugging Face's language models. Labels equal the inputs, because each
    model shifts its labels internally."""

    def __init__(self, text: gpt.Text) -> None:
        self.text = text

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        piece = self.text[i][0]
        return {"input_ids": piece, "labels": piece}


def main() -> None:
    """Train, and print the Trainer's log at rank 0."""
    args = gpt.arguments(__doc__).parse_args()

    # Create the process group first. Without a group, Trainer would create a Gloo group on CPUs.
    dist.init_process_group("bps", init_method="bps://")
    torch.manual_seed(args.seed)
    config = GPT2Config(
        vocab_size=gpt.N_BYTES,
        n_positions=args.length,
        n_embd=args.width,
        n_layer=args.blocks,
        n_head=args.heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.steps,
            learning_rate=args.lr,
            seed=args.seed,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            ddp_find_unused_parameters=False,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=Pieces(gpt.Text(args.text, args.length)),
        )
        trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
