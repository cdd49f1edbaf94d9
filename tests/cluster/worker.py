"""One worker process: worker.py FUNCTION ARGS-JSON RESULT-FILE."""

import json
import sys

import devices
import gpus
import workers


def main():
    name, args, result_file = sys.argv[1:4]
    home = next(m for m in (devices, gpus, workers) if hasattr(m, name))
    result = getattr(home, name)(**json.loads(args))
    with open(result_file, "w", encoding="utf-8") as f:
        json.dump(result, f)


main()
