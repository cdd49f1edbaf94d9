"""Run unmodified scripts of Horovod and BytePS over this package.

Start the script with ``python -m bps.compat train.py``, or put one line before its first import::

    import bps.compat.horovod          # or bps.compat.byteps
    import horovod.torch as hvd        # bps.torch under this name

The modules ``horovod.torch`` and ``byteps.torch`` then hold the calls of :mod:`bps.torch`. The
modules for TensorFlow, Keras and MXNet hold the calls of :mod:`bps.tensorflow`, :mod:`bps.keras`
and :mod:`bps.mxnet`. A name that bps does not have raises NotImplementedError, whose text says what
to use instead.
"""
