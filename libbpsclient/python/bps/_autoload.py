"""Entry point of ``torch.backends``: PyTorch 2.5 and later call it at the end of their import."""


def load() -> None:
    """Make the back-end "bps" known to ``torch.distributed``.

    PyTorch 2.14 finds it by an entry point of its own when it is asked for, so that its import
    stays as it is.
    """
    import torch

    if torch.__version__ < (2, 14) and torch.distributed.is_available():
        from bps.torch import _c10d

        _c10d.register()
