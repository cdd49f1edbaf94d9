"""Formats that two releases share: their versions, and their layouts in the sources.

A source tree is given as a function that returns the text of a file, or None if there is no such
file. So the layouts of the compatibility mark can be read from git.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from repository import without_comments  # noqa: E402

Tree = Callable[[str], "str | None"]
# A layout: the kind of each field in order, such as "STR" or "_Atomic uint64_t [2]".
Layout = list[str]


@dataclass(frozen=True)
class Format:
    """A format with a version.

    Args:
        header: the header that defines the version, or the header of the file that does.
        tables: files whose field tables (common/wire/codec.h) belong to the format. A later release
            may append fields to a table.
        structs: for a file, the names of its structs that belong to the format. They never change,
            except that a later release may append fields to those in SIZED. The list of names is
            empty if all structs of the file belong to the format.
        macros: for a file, the names of its tables that are macros. They never change.
    """

    header: str
    tables: tuple[str, ...] = ()
    structs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    macros: tuple[tuple[str, tuple[str, ...]], ...] = ()


FORMATS = {
    "BPS_ABI": Format("libbpsclient/bps.h", structs=(("libbpsclient/bps.h", ()),)),
    "CTL_PROTO": Format("common/wire/ctlmsg.h", tables=("common/wire/ctlmsg.c",)),
    "GPU_MEMORY_VERSION": Format(
        "common/local/local_gpu.h", structs=(("common/local/local_gpu.h", ("gpu_memory",)),)
    ),
    "LEDGER_VERSION": Format(
        "bps-agent/handover/ledger.h",
        structs=(
            ("bps-agent/handover/ledger.c", ("ledger_head", "ledger_entry")),
            ("bps-agent/handover/ledger_records.h", ()),
            ("bps-agent/handover/cluster_identity.c", ()),
            ("bps-agent/core/core.h", ("agt_kept_part",)),
        ),
    ),
    "LOCAL_ABI": Format(
        "common/local/local.h",
        tables=("common/local/local.c", "common/local/local_gpu.c"),
        structs=(
            ("common/local/local.h", ("local_sqe", "local_entry", "local_control")),
            ("common/local/gpu_slot.h", ()),
            ("common/local/ring_pair.h", ("ring_pair_entry", "ring_pair_ring", "ring_pair_page")),
        ),
    ),
    "SHM_VERSION": Format(
        "common/transport/shm/shm_impl.h",
        structs=(
            (
                "common/transport/shm/shm_impl.h",
                ("shm_page", "shm_challenge", "shm_hello", "shm_welcome", "shm_note"),
            ),
            ("common/transport/shm/shm_ring.h", ("ring_shared",)),
        ),
    ),
    "STATELOG_VERSION": Format(
        "bps-scheduler/statelog.h",
        tables=("bps-scheduler/model/state.c",),
        structs=(("bps-scheduler/statelog.c", ("file_head", "record_head")),),
    ),
    "TICKET_VERSION": Format(
        "common/wire/ticket.h",
        structs=(
            ("common/wire/ticket.c", ("ticket_wire", "proof_wire")),
            ("common/transport/sockets/tcp_frame.h", ("tcp_frame",)),
        ),
    ),
    # test_wire.c has the bytes of each message, but a commit may change them with the layout. So
    # the positions of the fields are compared here.
    "WIRE_VERSION": Format(
        "common/wire/wire.h", macros=(("common/wire/wire.c", ("WIRE_FIELDS",)),)
    ),
}
# Structs that begin with their size. The library reads as many fields as the program has.
SIZED = ("bps_decl",)
# Tables and structs that have another name than at the mark: {"old": "new"}.
RENAMED: dict[str, str] = {}
TO_DO = (
    "Earlier releases may only meet formats that they can read. If this change is not meant to "
    "break a format, undo it. Otherwise follow the steps of docs/CONTRIBUTING.md, 'Formats'."
)


def version(tree: Tree, name: str) -> int | None:
    """Return the version of a format in a tree, or None if the tree does not define it."""
    header = FORMATS[name].header
    for path in (header, f"{header[:-1]}c"):
        if found := re.search(rf"(?m)^#define {name}\s+(\d+)\b", tree(path) or ""):
            return int(found[1])
    return None


def declared(members: str) -> Iterator[str]:
    """Yield the type and the array sizes of each member of a struct. `members`: its C code."""
    for declaration in re.split(r";", members):
        first, *more = " ".join(declaration.split()).split(",")
        found = re.fullmatch(r"(.+?[\s*])(\w+)((?:\[[^\]]*\])*)", first.strip())
        if not found:
            continue
        for declarator in (found[2] + found[3], *more):
            yield found[1].strip() + re.sub(r"^\W*\w+", " ", declarator.strip()).rstrip()


def tables(text: str) -> dict[str, Layout]:
    """Return the field tables of a file by their names."""
    found = re.findall(r"(?s)struct field (\w+)\[\] = \{(.*?)\n?\};", without_comments(text))
    return {name: re.findall(r"FIELD_([A-Z0-9]+)_\(", rows) for name, rows in found}


def structs(text: str, names: tuple[str, ...]) -> dict[str, Layout]:
    """Return the structs of a file that have one of the names, or all if `names` is empty."""
    found = re.findall(r"(?ms)^struct (\w+) \{(.*?)^\}", without_comments(text))
    return {name: list(declared(body)) for name, body in found if name in names or not names}


def macros(text: str, names: tuple[str, ...]) -> dict[str, Layout]:
    """Return the rows of a file's tables that are macros and have one of the names."""
    found = re.findall(r"(?m)^#define (\w+)\(X\b.*\\\n((?:.*\\\n)*.*)", without_comments(text))
    return {name: re.findall(r"X\((.*?)\)", rows) for name, rows in found if name in names}


def broken(mark: Tree, today: Tree) -> Iterator[str]:
    """Yield a sentence for each layout that differs while the version of its format is the same."""
    for name, f in FORMATS.items():
        if version(mark, name) is None or version(mark, name) != version(today, name):
            continue
        for path in f.tables:
            new = tables(today(path) or "")
            for table, fields in tables(mark(path) or "").items():
                if new.get(RENAMED.get(table, table), [])[: len(fields)] != fields:
                    yield f"{path}: the table {table} does not begin with its fields of the mark"
        for find, files in ((structs, f.structs), (macros, f.macros)):
            for path, names in files:
                new = find(today(path) or "", names)
                for layout, rows in find(mark(path) or "", names).items():
                    now = new.get(RENAMED.get(layout, layout), [])
                    if (now[: len(rows)] if layout in SIZED else now) != rows:
                        yield f"{path}: {layout} differs, but {name} is the same as at the mark"
