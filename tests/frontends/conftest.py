"""Keep Python's garbage collector from walking through the modules again and again.

A framework has about a million objects that live until the process ends. Each full collection would
visit all of them, and pytest, the tests and the package collect often.
"""

import gc

gc.disable()  # an import frees next to nothing


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
