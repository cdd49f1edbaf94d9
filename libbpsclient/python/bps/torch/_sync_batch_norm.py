"""Batch normalization over the batches of all workers."""

from __future__ import annotations

import torch

from bps._ops import Sum
from bps._sets import ProcessSet, global_process_set
from bps.torch._allreduce import allreduce


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the mean and the variance over the batches of all workers.

    The batches of the workers may differ in size. In evaluation the module runs PyTorch's own batch
    normalization, without the other workers.

    Args:
        num_features (int): number of channels of the input.
        eps (float): constant that is added to the variance.
        momentum (float, optional): weight of a new batch in the running statistics; None: the
            statistics are the average over all batches.
        affine (bool): learn a weight and a bias.
        track_running_stats (bool): keep running statistics for evaluation.
        process_set (ProcessSet): the workers that take part.

    Shape:
        - Input: (N, C, ...), with at least two dimensions.
        - Output: the same.

    Example::

        >>> layer = bps.torch.SyncBatchNorm(64)
        >>> layer(torch.randn(8, 64, 32, 32))
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm needs at least 2 dimensions, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalized input."""
        is_local = not self.training and self.track_running_stats
        if is_local or self.process_set.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        kind = torch.promote_types(input.dtype, torch.float32)
        x = input.to(kind).transpose(0, 1).reshape(self.num_features, -1)
        n_mine = x.shape[1]
        # f64 keeps the digits of a variance that is much smaller than the squared mean.
        mean = x.mean(1).double() if n_mine else x.new_zeros(self.num_features).double()
        square = (x.double() - mean[:, None]).pow(2).sum(1) + n_mine * mean.pow(2)
        mine = torch.cat([mean * n_mine, square, mean.new_tensor([n_mine])])
        total = allreduce(mine, op=Sum, process_set=self.process_set)
        n = total[-1].item()
        mean, square = total[:-1].view(2, -1) / n
        var = (square - mean.pow(2)).clamp_min(0)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), var.detach() * (n / max(n - 1, 1)))
        shape = (1, -1, *[1] * (input.dim() - 2))
        scale = (var + self.eps).rsqrt()
        out = (input.to(kind) - mean.to(kind).view(shape)) * scale.to(kind).view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)

    def _track(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        """Update the running statistics with the mean and variance of a batch."""
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean += share * (mean.to(self.running_mean.dtype) - self.running_mean)
        self.running_var += share * (var.to(self.running_var.dtype) - self.running_var)
