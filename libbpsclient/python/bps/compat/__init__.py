"""Run unmodified scripts of Horovod and BytePS over this package.

Start the script with ``python -m bps.compat train.py``, or put one line before its first import::

    import bps.compat.horovod          # or bps.compat.byteps
    import horovod.torch as hvd        # this package from now on

The modules ``horovod.torch`` and ``byteps.torch`` then hold the calls of :mod:`bps.torch`. Those of
TensorFlow, Keras and MXNet hold the calls of :mod:`bps.tensorflow`, :mod:`bps.keras` and
:mod:`bps.mxnet`. A name that has no counterpart raises NotImplementedError with the remedy.
"""
