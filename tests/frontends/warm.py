"""Run scripts in forks of this process, which has imported modules: warm.py --serve MODULE...

forks.start() asks for a fork, and its only argument is the script.
"""

import os
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cluster"))
import forks  # noqa: E402


def main():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of threads, but none runs yet
        (script,) = forks.serve()
    sys.argv = ["-c"]
    exec(compile(script, "<string>", "exec"), globals())  # pickle looks up names in __main__


main()
