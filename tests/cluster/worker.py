"""Run one worker process: worker.py FUNCTION ARGS-JSON RESULT-FILE.

worker.py --serve starts such processes when forks.start() asks for them.
"""

import json
import sys

import abstainers
import devices
import devices_more
import forks
import frontend
import valuers
import workers


def main():
    args = sys.argv[1:]
    if args == ["--serve"]:
        args = forks.serve()
    name, arguments, result_file = args
    module = next(
        m for m in (abstainers, devices, devices_more, frontend, valuers, workers) if hasattr(m, name)
    )
    result = getattr(module, name)(**json.loads(arguments))
    with open(result_file, "w", encoding="utf-8") as f:
        json.dump(result, f)


main()
