"""Run one worker process: worker.py FUNCTION ARGS-JSON RESULT-FILE.

worker.py --serve starts such processes when forks.start() asks for them.
"""

import importlib
import itertools
import json
import sys

import abstainers
import devices
import devices_more
import forks
import sharders
import steady
import steppers
import valuers
import workers

MODULES = (abstainers, devices, devices_more, sharders, steady, steppers, valuers, workers)


def function_named(name):
    """Return the function of a worker that has this name.

    The functions in frontend.py and unions.py use modules of the package that are not for users,
    so another release may lack them (tests/upgrade). Only workers that run one of these functions
    import them.
    """
    modules = itertools.chain(MODULES, map(importlib.import_module, ("frontend", "unions")))
    return getattr(next(m for m in modules if hasattr(m, name)), name)


def main():
    args = sys.argv[1:]
    if args == ["--serve"]:
        args = forks.serve()
    name, arguments, result_file = args
    result = function_named(name)(**json.loads(arguments))
    with open(result_file, "w", encoding="utf-8") as f:
        json.dump(result, f)


main()
