"""Run one worker process: worker.py FUNCTION ARGS-JSON RESULT-FILE."""

import json
import sys

import devices
import devices_more
import frontend
import workers


def main():
    name, args, result_file = sys.argv[1:4]
    module = next(m for m in (devices, devices_more, frontend, workers) if hasattr(m, name))
    result = getattr(module, name)(**json.loads(args))
    with open(result_file, "w", encoding="utf-8") as f:
        json.dump(result, f)


main()
