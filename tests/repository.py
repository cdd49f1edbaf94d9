"""Functions that several scripts of the tests use: git commands, and C code without comments."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# Parts of C code that are not code: comments, preprocessor lines, strings and characters.
C_TEXT = re.compile(
    r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:\\\n|[^\n])*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'",
    re.DOTALL | re.MULTILINE,
)


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a git command in the repository at `root`."""
    command = ("git", "-C", str(root), *words)
    return subprocess.run(command, check=False, capture_output=True, text=True)


def commit_of(root: Path) -> str:
    """Return the short name of the commit at `root`.

    It ends in "-dirty" if tracked files have other changes than results of runs.
    """
    name = git(root, "rev-parse", "--short=8", "HEAD").stdout.strip() or "unknown"
    has_changes = git(root, "diff", "--quiet", "HEAD", "--", ":!docs/results").returncode == 1
    return f"{name}-dirty" if has_changes else name


def without_comments(text: str) -> str:
    """Return C code with spaces in place of comments. Comments of preprocessor lines stay."""

    def spaces(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if match[0].startswith("/") else match[0]

    return C_TEXT.sub(spaces, text)
