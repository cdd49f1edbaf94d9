"""Small changes (mutants) of the C code of a core.

An operator finds the places in the body of a function that it can change. It works on a masked copy
of the text: comments, strings, preprocessor lines, and code whose changes no test needs to notice
are replaced by characters that no operator matches. The operators rely on the code's format
(.clang-format): a binary operator has space on both sides, and the braces of a function's body are
in column 0.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from repository import C_TEXT, without_comments  # noqa: E402

# Masked by `@`: statements and calls in which nothing is changed. Assertions and logs decide
# nothing, and failpoints are tested with real daemons. Constant tables are data.
SKIPPED = re.compile(
    r"\b(?:assert|_Static_assert|log_\w+|FAILPOINT\w*|va_start|va_end)\(|\bstatic const\b"
)
FUNCTION = re.compile(
    r"^[A-Za-z_][^;{}]*?\b(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
PAIRS = (
    *(("<", "<="), ("<=", "<"), (">", ">="), (">=", ">"), ("==", "!="), ("!=", "==")),
    *(("&&", "||"), ("||", "&&"), ("+", "-"), ("-", "+"), ("+=", "-="), ("-=", "+=")),
    *(("&", "|"), ("|", "&"), ("|=", "&=")),
)
SWAPS = dict(PAIRS)
BINARY = re.compile(
    r"(?<= )(" + "|".join(re.escape(a) for a in sorted(SWAPS, key=len, reverse=True)) + r")(?=\s)"
)
ONE = re.compile(r"\s[-+]\s1(?![\w.])")
CONSTANT = re.compile(r"\b(?:true|false)\b|(?<=\breturn )(?:0|-E[A-Z]+|BPS_E[A-Z]+)(?=;)")
NOT = re.compile(r"(?<=[\s(])!(?=[\w(*])")
CONDITION = re.compile(r"\b(?:if|while) \(")
FOR = re.compile(r"\bfor \(")
# A call whose result is not used, an assignment, or a step of a counter, at a statement's start.
PLACE = r"\*?\w+(?:->\w+|\.\w+|\[[^\]\n]*\])*"
STATEMENT = re.compile(
    rf"(?:(?<=[;{{}}:)])|(?<=\belse)|(?<=\bdo))\s+"
    rf"((?!return\b)(?:{PLACE}(?:\+\+|--);|(?:{PLACE}\(|{PLACE} [-+*/|&]?= )[^;{{}}]*;))"
)


@dataclass(frozen=True)
class Change:
    """A replacement of ``text[start:end]``."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """A change of one file.

    Args:
        path: the file, from the root of the tree.
        function: the function that is changed.
        line: the first changed line, counted from 1.
        before: the changed lines without the change, with single spaces.
        after: the same lines with the change.
        change: the change itself.
    """

    path: str
    function: str
    line: int
    before: str
    after: str
    change: Change

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}\n    - {self.before}\n    + {self.after}"

    def text(self, source: str) -> str:
        """Return the source with the change. The numbers of the lines stay the same."""
        old = source[self.change.start : self.change.end]
        missing = old.count("\n") - self.change.new.count("\n")
        return (
            source[: self.change.start]
            + self.change.new
            + "\n" * missing
            + source[self.change.end :]
        )


def closing(text: str, start: int) -> int:
    """Return the index after the parenthesis that closes the one at ``text[start]``."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise ValueError(f"no parenthesis closes the one at {start}")


def cover(text: str, start: int, end: int, mark: str) -> str:
    """Return the text with each character of the range replaced by a mark, except newlines."""
    return text[:start] + re.sub(r"[^\n]", mark, text[start:end]) + text[end:]


def masked(text: str) -> str:
    """Return the text with all parts masked that no operator may change."""
    for match in C_TEXT.finditer(text):
        text = cover(text, *match.span(), " ")
    for match in SKIPPED.finditer(text):
        if match[0].endswith("("):
            end = closing(text, match.end() - 1)
        else:
            end = text.index(";", match.end())
        text = cover(text, match.start(), end, "@")
    return text


def swap_operators(code: str) -> Iterator[Change]:
    """Change a comparison, an `and` or `or`, or the sign of a sum."""
    for match in BINARY.finditer(code):
        if not ONE.match(code, match.start() - 1):
            yield Change(*match.span(), SWAPS[match[1]])


def drop_ones(code: str) -> Iterator[Change]:
    """Leave out a `+ 1` or `- 1`."""
    for match in ONE.finditer(code):
        yield Change(*match.span(), "")


def change_constants(code: str) -> Iterator[Change]:
    """Change a truth value, or return success instead of an error and the reverse."""
    new = {"true": "false", "false": "true", "0": "1"}
    for match in CONSTANT.finditer(code):
        yield Change(*match.span(), new.get(match[0], "0"))


def drop_nots(code: str) -> Iterator[Change]:
    """Leave out a `!`."""
    for match in NOT.finditer(code):
        yield Change(*match.span(), "")


def negate_conditions(code: str) -> Iterator[Change]:
    """Negate a condition of ``if`` or ``while``, unless another operator does the same."""
    for match in CONDITION.finditer(code):
        start, end = match.end(), closing(code, match.end() - 1) - 1
        condition = code[start:end]
        is_simple = not re.search(r"&&|\|\|", condition)
        if "@" not in condition and not (is_simple and re.search(r"^!| [=!<>]=? ", condition)):
            yield Change(start, end, "!(\0)")


def remove_statements(code: str) -> Iterator[Change]:
    """Remove a call whose result is not used, an assignment, or a step of a counter."""
    for match in FOR.finditer(code):
        code = cover(code, match.start(), closing(code, match.end() - 1) - 1, " ")
    for match in STATEMENT.finditer(code):
        if "@" not in match[1]:
            yield Change(*match.span(1), ";")


OPERATORS: tuple[Callable[[str], Iterator[Change]], ...] = (
    *(swap_operators, drop_ones, change_constants, drop_nots, negate_conditions),
    remove_statements,
)


def lines_of(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the range of the whole lines that contain a range."""
    last = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if last < 0 else last


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return all mutants of a file, in the order of their places."""
    found = []
    plain = without_comments(text)
    for function in FUNCTION.finditer(hidden := masked(text)):
        body, at = function[2], function.start(2)
        for operator in OPERATORS:
            for change in operator(body):
                start, end = at + change.start, at + change.end
                new = change.new.replace("\0", text[start:end])
                first, last = lines_of(plain, start, end)
                found.append(
                    Mutant(
                        path,
                        function[1],
                        hidden.count("\n", 0, start) + 1,
                        " ".join(plain[first:last].split()),
                        " ".join((plain[first:start] + new + plain[end:last]).split()),
                        Change(start, end, new),
                    )
                )
    return sorted(found, key=lambda m: (m.change.start, m.change.end, m.change.new))


def ranked(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """Return the mutants in a random order.

    The order depends on the mutants' text and not on the numbers of their lines. So if one function
    changes, the order of the mutants of all other functions stays the same.
    """
    seen: Counter[tuple[str, str, str]] = Counter()
    keys = {}
    for mutant in mutants:
        name = mutant.function, mutant.before, mutant.after
        seen[name] += 1
        key = "\0".join((str(seed), mutant.path, *name, str(seen[name])))
        keys[mutant] = hashlib.sha256(key.encode()).digest()
    return sorted(mutants, key=keys.__getitem__)


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Divide ``count`` over files in proportion to their sizes (method of largest remainders)."""
    total = sum(sizes.values())
    exact = {path: count * size / total for path, size in sizes.items()}
    result = {path: int(share) for path, share in exact.items()}
    by_rest = sorted(exact, key=lambda path: (result[path] - exact[path], path))
    for path in by_rest[: count - sum(result.values())]:
        result[path] += 1
    return result


@dataclass(frozen=True)
class Entry:
    """A paragraph of the list of mutants that no test catches.

    Args:
        path: the file.
        function: the function.
        before: the changed lines without the change, with single spaces.
        after: the same lines with the change.
        kind: ``equivalent`` if the change has no effect that anyone could see, else ``accepted``.
        reason: why.
    """

    path: str
    function: str
    before: str
    after: str
    kind: str
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        """Return whether the entry is about this mutant."""
        theirs = mutant.path, mutant.function, mutant.before, mutant.after
        return theirs == (self.path, self.function, self.before, self.after)

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.after}"


ENTRY = re.compile(r"(\S+) (\w+)\n- (.*)\n\+ (.*)\n(equivalent|accepted): ((?:.|\n)+)")


def read_entries(path: Path) -> list[Entry]:
    """Read the list of mutants that no test catches.

    Raises:
        ValueError: a paragraph does not have the form of an entry.
    """
    entries = []
    for paragraph in path.read_text().strip().split("\n\n"):
        text = "\n".join(x for x in paragraph.splitlines() if not x.startswith("#"))
        if not text:
            continue
        match = ENTRY.fullmatch(text)
        if not match:
            raise ValueError(f"{path.name}: a paragraph is not an entry:\n{paragraph}")
        entries.append(Entry(*match.groups()))
    return entries
