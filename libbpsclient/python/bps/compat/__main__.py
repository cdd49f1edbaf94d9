"""Run a script of Horovod or BytePS. Modules of bps replace the modules of these two packages.

Usage: ``python -m bps.compat train.py [arguments]`` or ``python -m bps.compat -m module
[arguments]``.
"""

import os
import runpy
import sys


def main() -> None:
    """Run the script or module from the command line as ``__main__``."""
    import bps.compat.byteps
    import bps.compat.horovod  # noqa: F401

    words = sys.argv[1:]
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words or words[0].startswith("-"):
        sys.exit("usage: python -m bps.compat SCRIPT [ARGUMENTS], or -m MODULE [ARGUMENTS]")
    sys.argv = words
    if is_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(words[0]):
        sys.exit(f"python -m bps.compat: there is no script '{words[0]}'")
    # Because of -m, Python has put the current folder into sys.path[0]. A script expects its own
    # folder there, so that it can import modules from this folder.
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
