"""Make keys with bpsctl, as an operator does."""

import os
import subprocess

from cluster import BUILD, DEADLINE_S


def new_key(path, *words):
    key = subprocess.run(
        [str(BUILD / "bpsctl"), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout
    path.write_text(key)
    os.chmod(path, 0o600)
    return path


def derived(master, who):
    """Derive the key of an identity. Write this key to a file in the folder of the master key.

    Return the path of the file.
    """
    return new_key(
        master.with_name(who.replace(":", "-")), "--key-file", str(master), "key", "derive", who
    )
