"""Start small jobs for a test that itself runs as a job. The small jobs use the same agent."""

import itertools
import os

import processes

# The frameworks that the list of requirements has (run.py). A test of one of them may not be
# skipped because the framework cannot be imported.
FRAMEWORKS = os.environ["FRAMEWORKS"].split()
_numbers = itertools.count()

# Python code for workers. kill_me() records the time and kills the calling worker. Another worker
# calls report() with its error. report() prints the error and the time since the kill.
KILL_ME = """
def kill_me():
    import os, signal, time
    with open(os.environ["KILLED_AT"], "w") as f:
        f.write(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)

def report(error):
    import os, time
    with open(os.environ["KILLED_AT"]) as f:
        seconds = time.monotonic() - float(f.read())
    print(f"after {seconds:.3f} s: {type(error).__name__}: {error}", flush=True)
"""


def start(script, folder, n=2, **more):
    """Run a script as a job of n workers. Return their exit codes and outputs.

    Args:
        script (str): Python code.
        folder (Path): the folder in which the script runs.
        n (int): number of workers.
        more: environment variables.
    """
    keep = ("BPS_LIBRARY", "BPS_AGENT_SOCKET", "BPS_TIMEOUT")
    env = {k: v for k, v in os.environ.items() if not k.startswith("BPS_") or k in keep}
    env |= {
        "BPS_JOB": f"small.{os.getpid()}.{next(_numbers)}",
        "KILLED_AT": str(folder / "killed"),
        **more,
    }
    env |= {"BPS_SIZE": str(n), "BPS_LOCAL_SIZE": str(n)}
    return processes.finish(
        [
            processes.worker(
                KILL_ME + script, folder, env | {"BPS_RANK": str(rank), "BPS_LOCAL_RANK": str(rank)}
            )
            for rank in range(n)
        ]
    )
