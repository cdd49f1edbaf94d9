#!/usr/bin/env python3
"""Compare the include lines with tests/layers.txt, which lists what each folder may include.

A folder may include its own headers, and the folders or single headers in its line of
tests/layers.txt. The program prints every include that is not allowed, every permission that no
include uses, every cycle between folders and every folder with more than FILES_MAX sources. The
exit status is 1 when it prints anything. tests/ may include everything. docs/CONTRIBUTING.md
describes the folders.
"""

import collections
import graphlib
import re
import sys
from pathlib import Path

FILES_MAX = 30
# System headers that a pure folder may include. Tickets need sys/random.h for their nonces.
PURE = re.compile(
    r"(assert|endian|errno|inttypes|limits|math|search|std\w+|string|sys/(queue|random)"
    r"|openssl/\w+|immintrin)\.h"
)
CLOCK = "common/base/clock.h"
# Number of cycles of includes between the modules of one folder, which may only fall. A module is
# NAME.c with NAME.h and NAME_impl.h.
CYCLES_MAX = 12
INCLUDE = re.compile(r'^#include (?:"([^"]+)"|<([^>]+)>)', re.M)


def module(path: str) -> str:
    """Return the module to which a file belongs."""
    return re.sub(r"(_impl)?\.[ch]$", "", path)


def modules_in_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the cycles of a graph: the sets of nodes that reach each other."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in sorted(graph.get(node, ())):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            at = stack.index(node)
            cycle = sorted(stack[at:])
            del stack[at:]
            if len(cycle) > 1:
                cycles.append(cycle)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return cycles


def main() -> int:
    allowed, pure, used, wrong = {}, set(), collections.defaultdict(set), []
    for line in Path("tests/layers.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        folder, _, targets = line.partition(":")
        allowed[folder.strip("* ")] = set(targets.split())
        if "*" in folder:
            pure.add(folder.strip("* "))
    count, graph = collections.Counter(), collections.defaultdict(set)
    files = collections.defaultdict(set)  # includes between the files of a folder
    for top in {folder.split("/")[0] for folder in allowed}:
        for source in sorted(Path(top).rglob("*.[ch]")):
            here = str(source.parent)
            count[here] += 1
            if here not in allowed:
                wrong.append(f"{source}: the folder has no line in layers.txt")
                continue
            for ours, system in INCLUDE.findall(source.read_text()):
                there = str(Path(ours).parent)
                match = {ours, there} & allowed[here]
                if ours and there == here:
                    files[module(str(source))].add(module(ours))
                if here in pure and (ours == CLOCK or system and not PURE.fullmatch(system)):
                    wrong.append(f"{source}: a pure folder includes {ours or system}")
                elif ours and there != here:
                    graph[here].add(there)
                    used[here] |= match
                    if not match:
                        wrong.append(f'{source}: {here} may not include "{ours}"')
    for folder, targets in allowed.items():
        wrong += [
            f"layers.txt: {folder} does not use {target}"
            for target in sorted(targets - used[folder])
        ]
    wrong += [
        f"{folder}: {n} sources, at most {FILES_MAX}"
        for folder, n in count.items()
        if n > FILES_MAX
    ]
    files = {name: others - {name} for name, others in files.items()}
    cycles = modules_in_cycles(files)
    if len(cycles) != CYCLES_MAX:
        wrong += [f"files include each other: {', '.join(cycle)}" for cycle in cycles]
        wrong.append(f"{len(cycles)} cycles of includes, CYCLES_MAX is {CYCLES_MAX}")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as cycle:
        wrong.append("folders include each other: " + " <- ".join(cycle.args[1]))
    print(*(f"layers: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
