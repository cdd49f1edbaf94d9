"""Comparison of the workers' calls, and of the lists of tensors that the workers pass to a call.

Each worker describes its call in a text. The workers then reduce a small tensor of 64-bit integers
with MAX, which has the numbers and the text of the call, and their negative values. So its result
has the largest and the smallest value of each number, and which workers have sent them.

A word of the text has a digest of the whole text in its upper half, and four bytes of the text in
its lower half. So all words of the result belong to the text with the largest digest, and all
negative words to the text with the smallest digest. If the two differ, each worker knows both texts
and their ranks, and no worker has to ask another.

A list of tensors may be longer than the text. Then the text has a digest of the list, and the
workers exchange their lists only if the digests differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bps._library import CODES, Error

# A number n is sent as n * RANKS + rank. Ranks are below RANKS.
RANKS = 1 << 16
TEXT_WORDS = 31
TEXT = struct.Struct(f"<{TEXT_WORDS}I")
LOW = (1 << 32) - 1
SAME_CALLS = (
    "All workers must make the same calls in the same order, with tensors of the same shape and "
    "type"
)
# Name and description of a tensor, for example ("fc.weight", "float32 [4, 2]"). The workers
# compare both. A tensor without a name has its position in the list as its name, see unnamed().
Entry = tuple[str, str]


class Sent(NamedTuple):
    """Numbers and text that workers have sent. Each number has the rank of a worker that sent it.
    `rank` is a worker that sent the text."""

    numbers: list[tuple[int, int]]
    text: str
    digest: int
    rank: int


def n_words(n_numbers: int) -> int:
    """Return the number of 64-bit integers that a comparison of `n_numbers` numbers needs."""
    return 2 * (n_numbers + 1 + TEXT_WORDS)


def write(address: int, numbers: Sequence[int], text: str, rank: int) -> None:
    """Write a worker's numbers and text for the reduction to memory at an address.

    Args:
        address (int): address of :func:`n_words` 64-bit integers.
        numbers (sequence of int): numbers from 0 to 2**46.
        text (str): a text of any length. The other workers can read its first 124 bytes.
        rank (int): rank of the worker.
    """
    raw = text.encode()
    head = zlib.crc32(raw) >> 1 << 32
    words = [n * RANKS + rank for n in numbers]
    words.append(head | rank)
    words += [head | word for word in TEXT.unpack(raw[: TEXT.size].ljust(TEXT.size, b"\0"))]
    packed = struct.pack(f"<{2 * len(words)}q", *words, *[-word for word in words])
    ctypes.memmove(address, packed, len(packed))


def read(address: int, n_numbers: int) -> tuple[Sent, Sent]:
    """Return the largest and the smallest of what the workers have sent, from the result of the
    reduction at an address."""
    n = n_words(n_numbers)
    words = struct.unpack(f"<{n}q", ctypes.string_at(address, 8 * n))
    sides = words[: n // 2], [-word for word in words[n // 2 :]]
    most, least = (_sent(side, n_numbers) for side in sides)
    return most, least


def _sent(words: Sequence[int], n_numbers: int) -> Sent:
    first, *others = words[n_numbers:]
    raw = TEXT.pack(*(word & LOW for word in others)).rstrip(b"\0")
    numbers = [divmod(word, RANKS) for word in words[:n_numbers]]
    return Sent(numbers, raw.decode(errors="ignore"), first >> 32, first & LOW)


def difference(what: str, most: Sent, least: Sent, advice: str) -> Error | None:
    """Return the error about two workers' numbers and texts, or None if they are equal."""
    a, b = ((sent.text, sent.digest, [n for n, _ in sent.numbers]) for sent in (most, least))
    if a == b:
        return None
    first, second = sorted((most, least), key=lambda sent: sent.rank)
    text = f"rank {first.rank} has {first.text}, rank {second.rank} has {second.text}"
    return Error(CODES["EMISMATCH"], f"workers disagree in {what}: {text}. {advice}", first.rank)


def check_values(what: str, array: Any) -> None:
    """Check that an array of NumPy holds values, which can be sent.

    Raises:
        TypeError: the array holds Python objects.
    """
    if array.dtype.hasobject:
        raise TypeError(
            f"{what}: an array of type {array.dtype} holds Python objects, which have no values to "
            f"send: use {what}_object, or convert the array with astype()"
        )


def described(dtype: str, shape: Sequence[int]) -> str:
    """Return type and shape of a tensor as text."""
    return f"{dtype} [{', '.join(map(str, shape))}]"


def unnamed(descriptions: Sequence[str]) -> list[Entry]:
    """Return a list of tensors that have no names."""
    return [(f"#{i}", one) for i, one in enumerate(descriptions)]


class List(NamedTuple):
    """The tensors that a worker passes to a call, and further arguments as text."""

    entries: Sequence[Entry]
    options: str = ""

    def text(self) -> str:
        """Return a text that differs between any two different lists."""
        if [name for name, _ in self.entries] == ["#0"]:
            return f"{self.entries[0][1]}{self.options}"
        raw = hashlib.blake2b(repr([*self.entries]).encode(), digest_size=16).hexdigest()
        return f"{len(self.entries)} tensors with the digest {raw}{self.options}"

    def pack(self) -> bytes:
        """Return the list as bytes for :meth:`unpack`."""
        return json.dumps(self).encode()

    @classmethod
    def unpack(cls, raw: bytes) -> List:
        """Return the list that another worker has packed."""
        entries, options = json.loads(raw)
        return cls([(name, text) for name, text in entries], options)


def order(
    what: str, mine: List, lists: Mapping[int, List], labels: Sequence[str] | None = None
) -> list[int]:
    """Return the positions at which this worker's list has the tensors of the first worker's list.

    Args:
        what (str): the operation, for the text of the error.
        mine (List): this worker's list.
        lists (mapping): the lists of all workers, by rank. The first list determines the order.
        labels (sequence of str, optional): names of this worker's tensors for the text of the
            error. They may differ between the workers.

    Raises:
        Error: EMISMATCH if the lists differ in more than the order of their tensors. The text names
            two workers and what each of them has. Also EMISMATCH if the orders differ and two
            tensors have the same name.
    """
    (first, reference), *others = lists.items()
    for rank, one in others:
        text = ""
        if one.options != reference.options:
            text = f"rank {first} has{reference.options}, rank {rank} has{one.options}"
        elif sorted(one.entries) != sorted(reference.entries):
            text = _first_difference(
                first, dict(reference.entries), rank, dict(one.entries), labels
            )
        if text:
            text = f"workers disagree in {what}: {text}. {SAME_CALLS}"
            raise Error(CODES["EMISMATCH"], text, rank)
    names = [name for name, _ in reference.entries]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        text = (
            f"workers disagree in {what}: the workers have their tensors in different orders, and "
            f"rank {first} has two tensors of the name '{twice}'. {SAME_CALLS}"
        )
        raise Error(CODES["EMISMATCH"], text, first)
    places = {name: i for i, (name, _) in enumerate(mine.entries)}
    return [places[name] for name, _ in reference.entries]


def _first_difference(
    first: int,
    known: Mapping[str, str],
    rank: int,
    given: Mapping[str, str],
    labels: Sequence[str] | None,
) -> str:
    """Return text about the first tensor in which two workers differ."""
    for name, one in known.items():
        if name in given and given[name] != one:
            i = int(name[1:]) if name[:1] == "#" and name[1:].isdecimal() else None
            title = name if i is None or not labels or i >= len(labels) else labels[i]
            return f"tensor '{title}': rank {first} has {one}, rank {rank} has {given[name]}"
    if ("#0" in known or "#0" in given) and len(known) != len(given):
        return f"rank {first} has {len(known)} tensors, rank {rank} has {len(given)} tensors"
    for a, mine, b, other in ((first, known, rank, given), (rank, given, first, known)):
        for name, text in mine.items():
            if name not in other:
                return f"rank {a} has tensor '{name}' of {text}, which rank {b} does not have"
    return f"rank {first} or rank {rank} has two tensors of the same name"
