#!/usr/bin/env python3
"""Check the prose of comments and documents: plain English in lines of at most 100 columns.

    tests/prose.py [--count] [FILE...]

Each finding is printed as "FILE:LINE: text". The exit status is 1 if there are findings. With
--count, only the number of findings of each kind is printed. Without files, all files that git
tracks are checked. The rules are in docs/CONTRIBUTING.md, "Prose".
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
LONG_FILE = 100
SOURCES = {".c", ".h", ".py", ".sh", ".md", ".mk"}
OWN_NAMES = {"Makefile", "run"}  # names of source files that have no suffix

# A comment must start with a verb or with the noun that it defines. A pronoun at the start would
# refer to nothing. This pattern matches the starts that are not allowed.
OPENS = re.compile(
    r"(It|Its|They|Them|Their|Those|These|That|This|Who|Whoever|Whom|Whose|What|Which|Of|As|He|His|"
    r"She|Nobody|Somebody|Everybody|Everyone|Anybody|One|Others|Such|Whatever|Theirs|Both|Neither|"
    r"Else|Or|And|But|So|Than|Then)\b"
    # A comment must not start with a question: "Return whether" replaces the question. A sentence
    # without a question mark may start with "Is" or "Has".
    r"|(Is|Are|Has|Have|Does|Can|Was|Were|May|Must|Should) [^.?]*\?"
)

# Expressions that comments must not contain, each with the term to use instead. For example,
# programs report and receive messages; they do not speak or hear.
WORDS = {
    r"former lives?|in a former life|lives of the": "restart, previous process",
    r"anew": "again, from scratch",
    r"in vain": "without effect, discarded",
    r"whoever|whomever": "the process that, a member that",
    r"so many": "that many, this number",
    r"hears? of|heard of|hearing of": "receives, learns",
    r"hears? from|heard from": "receives from",
    r"is heard|are heard|was heard|were heard": "is received, reports",
    r"speaks? of": "names, reports",
    r"(is|are|was|were) told": "is sent, is notified",
    r"(is|are) (not )?to be believed": "is (not) valid",
    r"of before|of old": "previous",
    r"as it (has|had) to be": "correctly",
    r"thrown away": "discarded",
    r"goes away|went away": "closes, ends",
    r"it is none of": "does not belong to",
    r"for ever": "forever, without end",
    r"makes no sense": "is invalid",
    r"beside other work": "under other load",
    r"lest|hitherto|thereof|therein|wherein|whence|whither|thence|henceforth": "plain words",
    r"nobody": "no peer, no process, none",
    r"somebody": "another process, a peer",
    r"everybody": "every worker, all members",
}
WORD = re.compile("|".join(f"(?P<w{i}>\\b(?:{w})\\b)" for i, w in enumerate(WORDS)), re.IGNORECASE)
ADVICE = list(WORDS.values())

Finding = tuple[int, str, str]


def c_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each comment of a C source.

    Comment signs inside strings are ignored.
    """
    token = re.compile(
        r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*(.*?)\*/|//([^\n]*)', re.DOTALL
    )
    for m in token.finditer(text):
        body = m.group(1) if m.group(1) is not None else m.group(2)
        if body is not None:
            plain = re.sub(r"^[ \t]*\*[ \t]?", "", body, flags=re.MULTILINE)
            yield text.count("\n", 0, m.start()) + 1, plain.strip().lstrip("-* ")


def hash_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line number and the text of each run of whole-line # comments."""
    run: list[str] = []
    for n, line in enumerate([*text.split("\n"), ""], 1):
        stripped = line.strip()
        if stripped.startswith("#") and not stripped.startswith(("#!", "#include", "#define")):
            run.append(stripped.lstrip("# "))
        elif run:
            yield n - len(run), " ".join(run).strip()
            run = []


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each docstring of a Python source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node, clean=False)
            if doc is not None:
                yield node.body[0].lineno, doc.strip()


def comments_of(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each comment, docstring or line of prose."""
    if path.suffix in {".c", ".h"}:
        yield from c_comments(text)
    elif path.suffix == ".md":
        yield from ((n, line) for n, line in enumerate(text.split("\n"), 1))
    else:
        yield from hash_comments(text)
        if path.suffix == ".py":
            yield from docstrings(text)


def comment_findings(path: Path, text: str) -> Iterator[Finding]:
    """Yield what is wrong with the words of a file's comments or paragraphs."""
    for n, comment in comments_of(path, text):
        if path.suffix != ".md" and OPENS.match(comment):
            yield n, "opening", f"starts with '{comment.split()[0]}': start with a verb or noun"
        for m in WORD.finditer(comment):
            advice = ADVICE[int((m.lastgroup or "w0")[1:])]
            yield n + comment.count("\n", 0, m.start()), "word", f"'{m.group(0)}': {advice}"


def line_findings(path: Path, text: str) -> Iterator[Finding]:
    """Yield lines that are too long. Skip lines with a URL, and table rows in documents."""
    for n, line in enumerate(text.split("\n"), 1):
        if len(line.expandtabs(8)) <= COLUMNS or "://" in line:
            continue
        if path.suffix == ".md" and line.lstrip().startswith("|"):
            continue
        yield n, "columns", f"{len(line.expandtabs(8))} columns, at most {COLUMNS}"


def head_findings(path: Path, text: str) -> Iterator[Finding]:
    """Yield a finding when a long C source has no opening paragraph."""
    if path.suffix == ".c" and text.count("\n") > LONG_FILE and not text.startswith("/*"):
        yield 1, "head", "has no opening paragraph: what it does, what it does not, its thread"


def check(path: Path) -> list[Finding]:
    """Return all findings of one file."""
    text = path.read_text("utf-8")
    return [
        *comment_findings(path, text),
        *line_findings(path, text),
        *head_findings(path, text),
    ]


def tracked() -> list[Path]:
    """Return the files that git tracks and that have prose."""
    names = subprocess.check_output(("git", "-C", str(ROOT), "ls-files"), text=True).split("\n")
    return [
        ROOT / n
        for n in names
        if (Path(n).suffix in SOURCES or Path(n).name in OWN_NAMES) and n != "tests/prose.py"
    ]


def main() -> int:
    """Check the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", action="store_true", help="print numbers of findings alone")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    for path in args.files or tracked():
        for n, kind, what in check(path):
            counts[kind] += 1
            if not args.count:
                print(f"{path.resolve().relative_to(ROOT)}:{n}: {what}")
    if args.count:
        print(", ".join(f"{kind} {n}" for kind, n in counts.most_common()) or "none")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
