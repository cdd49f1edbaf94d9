"""Entry point ``torch.backends``: PyTorch 2.5 and later call :func:`load` when they are
imported."""


def load() -> None:
    """Register the back-end "bps" with ``torch.distributed``.

    If a script names the back-end, PyTorch 2.14 and later find the back-end by another entry point,
    ``torch.distributed.backends``. With these versions this function does nothing, so that the
    import of PyTorch takes no extra time.
    """
    import torch

    if torch.__version__ < (2, 14) and torch.distributed.is_available():
        from bps.torch import _c10d

        _c10d.register()
