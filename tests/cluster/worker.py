"""One worker process: worker.py FUNCTION ARGS-JSON RESULT-FILE."""

import json
import sys

import devices
import workers


def main():
    name, args, result_file = sys.argv[1:4]
    result = getattr(devices if hasattr(devices, name) else workers, name)(**json.loads(args))
    with open(result_file, "w", encoding="utf-8") as f:
        json.dump(result, f)


main()
