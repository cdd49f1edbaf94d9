#!/usr/bin/env python3
"""Change the cores in small ways, and check that a unit test or the simulator notices each change.

    tests/mutation/mutation.py BUILD --sources FILES [options] -- COMPILER FLAG...

`make mutation` builds the programs and starts this script. In the folder BUILD, the cores are
shared libraries (mutation.mk). For each mutant, only the changed file is compiled, and one library
is linked again, in a folder of its own. The unit tests of the daemon run with the new library, then
the simulator. The first program that fails has caught the mutant, and no other program runs. A
program that uses far more processor time than without the change has also caught the mutant.

The mutants are drawn in proportion to the lines of the files. A mutant that does not compile, or
whose optimized object is the same as without the change, does not count, and another one is drawn.
The list (accepted.txt) explains the mutants that nothing catches:

- equivalent: the change has no effect that anyone could see. These mutants count neither as caught
  nor as not caught.
- accepted: a test could catch the mutant. The entry has the reason why none does.

The exit status is 1 in each of these cases: less than MIN_CAUGHT of the mutants that are not
equivalent are caught; a mutant survives that is not on the list; an entry of the list is stale,
which means that it matches no mutant of today's code, or one that is caught.
"""

from __future__ import annotations

import argparse
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutants import Entry, Mutant, masked, mutants_of, ranked, read_entries, shares

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY, SIM_LIBRARY = "cores.so", "cores-sim.so"
SIM = "sim"
MIN_CAUGHT = 0.9
# A program that needs ten times as long as all others together, for one test.
LEFT_OUT = ("test_sched_limit",)
# A mutant may use TIMES the processor time that a program needs without the change, and at least
# LEAST_S seconds.
TIMES, LEAST_S = 4, 3
# Limits of the memory of a mutant that allocates without end. The sanitizers reserve far more
# address space than they use, so their programs have a limit of their own.
SIM_MEMORY_BYTES = 4 << 30
SANITIZERS = {"ASAN_OPTIONS": "hard_rss_limit_mb=4096"}


@dataclass(frozen=True)
class Program:
    """A test program with its arguments.

    Args:
        command: the program and its arguments.
        limit_s: the program is killed when it has used this much processor time.
    """

    command: tuple[str, ...]
    limit_s: int = 120

    @property
    def name(self) -> str:
        """The file name of the program."""
        return Path(self.command[0]).name

    def passes(self, folder: Path) -> bool:
        """Run the program with the library in a folder. Return whether it succeeded."""

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (self.limit_s, self.limit_s))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.name == SIM:
                resource.setrlimit(resource.RLIMIT_AS, (SIM_MEMORY_BYTES, SIM_MEMORY_BYTES))

        try:
            done = subprocess.run(
                self.command,
                cwd=ROOT,
                env={**os.environ, **SANITIZERS, "LD_LIBRARY_PATH": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=limit,
                timeout=20 * self.limit_s,  # a program that waits uses no processor time
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


class Cores:
    """A way in which the cores are compiled and linked as a shared library.

    Args:
        programs: folder of the programs that are linked with the library.
        library: the file name of the library.
        objects: folder of the objects.
        sources: the files of the cores.
        command: the compiler and its flags.
    """

    def __init__(
        self, programs: Path, library: str, objects: Path, sources: list[str], command: list[str]
    ) -> None:
        self.programs = programs
        self.library = library
        self.objects = objects
        self.sources = sources
        self.command = (*command, "-w", "-g0")

    def compile(self, path: str, text: str, ret_object: Path) -> bool:
        """Compile the text of a file. Return whether it compiles."""
        # The compiler reads a pipe, so that the file's name is the same for each text.
        done = subprocess.run(
            (*self.command, "-xc", "-", "-c", "-o", str(ret_object)),
            cwd=ROOT,
            input=f'#line 1 "{path}"\n{text}'.encode(),
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode == 0

    def link(self, path: str, changed: Path) -> None:
        """Link the library beside an object that replaces the object of ``path``."""
        objects = [
            changed if other == path else (self.objects / other).with_suffix(".o")
            for other in self.sources
        ]
        name = f"-Wl,-soname,{self.library}"
        library = changed.with_name(self.library)
        subprocess.run((*self.command, "-shared", name, "-o", library, *objects), check=True)


class Bench:
    """Compiles and tests mutants.

    Args:
        unit: the cores of the unit tests.
        sim: the cores of the simulator.
        seeds: the count of the simulator's histories.
    """

    def __init__(self, unit: Cores, sim: Cores, seeds: int) -> None:
        self.unit, self.sim = unit, sim
        self.plain: dict[str, bytes] = {}  # objects of the simulator without a change
        self.histories = self.timed(sim, SIM, "--seeds", f"1..{seeds}")[1]
        self.units: dict[str, list[Program]] = {}
        for daemon in {path.split("/")[0] for path in unit.sources}:
            timed = []
            for test in sorted((ROOT / "tests/unit" / daemon).rglob("test_*.c")):
                if test.stem in LEFT_OUT:
                    continue
                # The linker writes the library's name into the programs that need the library.
                if LIBRARY.encode() in (unit.programs / test.stem).read_bytes():
                    timed.append(self.timed(unit, test.stem))
            self.units[daemon] = [program for _, program in sorted(timed, key=lambda x: x[0])]

    def timed(self, cores: Cores, *words: str) -> tuple[float, Program]:
        """Run a program without a change. Return its processor time, and the program.

        Raises:
            SystemExit: the program fails.
        """
        program = Program((str(cores.programs / words[0]), *words[1:]))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not program.passes(cores.programs):
            sys.exit(f"{' '.join(program.command)} fails without a change")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return used, Program(program.command, round(max(LEAST_S, TIMES * used)))

    def counts(self, mutant: Mutant, source: str, folder: Path) -> bool:
        """Return whether a mutant compiles to another object than the text without the change."""
        changed, plain = folder / "sim.o", folder / "plain.o"
        if mutant.path not in self.plain:
            self.sim.compile(mutant.path, source, plain)
            self.plain[mutant.path] = plain.read_bytes()
        return (
            self.sim.compile(mutant.path, mutant.text(source), changed)
            and changed.read_bytes() != self.plain[mutant.path]
        )

    def catcher(self, mutant: Mutant, folder: Path) -> str | None:
        """Return the name of the program that catches a mutant, or "" if none does.

        Returns ``None`` if the mutant does not count.
        """
        source = (ROOT / mutant.path).read_text()
        changed = folder / "unit.o"
        if not self.counts(mutant, source, folder):
            return None
        if not self.unit.compile(mutant.path, mutant.text(source), changed):
            return None
        self.unit.link(mutant.path, changed)
        for program in self.units[mutant.path.split("/")[0]]:
            if not program.passes(folder):
                return program.name
        self.sim.link(mutant.path, folder / "sim.o")
        return "" if self.histories.passes(folder) else SIM


def drawn(
    bench: Bench, waiting: dict[str, deque[Mutant]], counts: dict[str, int], jobs: int
) -> list[tuple[Mutant, str]]:
    """Test the first mutants of each file that count, and return them with their catchers."""
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
    done: list[tuple[Mutant, str]] = []
    lock = threading.Lock()
    total, start = sum(counts.values()), time.monotonic()

    def one(path: str) -> None:
        folder = folders.get()
        try:
            test_one(folder, path)
        finally:
            folders.put(folder)

    def test_one(folder: Path, path: str) -> None:
        while waiting[path]:
            mutant = waiting[path].popleft()
            catcher = bench.catcher(mutant, folder)
            if catcher is None:
                continue
            with lock:
                done.append((mutant, catcher))
                print(
                    f"[{len(done)}/{total}, {time.monotonic() - start:.0f} s] "
                    f"{catcher or 'SURVIVED'}: {mutant}",
                    flush=True,
                )
            return

    with tempfile.TemporaryDirectory(dir=bench.unit.programs) as top:
        for i in range(jobs):
            folder = Path(top) / str(i)
            folder.mkdir()
            folders.put(folder)
        with ThreadPoolExecutor(jobs) as pool:
            tasks = [pool.submit(one, path) for path, n in counts.items() for _ in range(n)]
            for task in tasks:
                task.result()
    return done


def stale(
    entries: list[Entry], mutants: list[Mutant], results: list[tuple[Mutant, str]]
) -> list[str]:
    """Return a line for each entry that matches no mutant, or only mutants that are caught."""
    lines = []
    for entry in entries:
        catchers = [catcher for mutant, catcher in results if entry.covers(mutant)]
        if not any(entry.covers(mutant) for mutant in mutants):
            lines.append(f"accepted.txt: today's code has no such mutant: {entry}")
        elif catchers and all(catchers):
            lines.append(f"accepted.txt: {catchers[0]} catches the mutant: {entry}")
    return lines


def verdict(
    results: list[tuple[Mutant, str]], entries: list[Entry], mutants: list[Mutant]
) -> tuple[bool, str]:
    """Judge the results.

    Args:
        results: the mutants that ran, each with the program that caught it.
        entries: the list of mutants that nothing catches.
        mutants: all mutants of the code.

    Returns:
        Whether the run succeeds, and the text to print.
    """
    kind_of = {m: e.kind for m, catcher in results for e in entries if e.covers(m) and not catcher}
    survivors = [m for m, catcher in results if not catcher]
    new = [m for m in survivors if m not in kind_of]
    caught = [m for m, catcher in results if catcher]
    equivalent = sum(kind == "equivalent" for kind in kind_of.values())
    by_sim = sum(catcher == SIM for _, catcher in results)
    share = len(caught) / max(1, len(results) - equivalent)
    errors = stale(entries, mutants, results)
    counts = (
        f"{len(results)} mutants, {len(caught)} caught ({by_sim} by the simulator alone), "
        f"{equivalent} equivalent, {len(survivors) - equivalent} survived, "
        f"of these {len(new)} not on the list: {share:.1%} caught"
    )
    lines = [*(f"survived, not on the list: {m}" for m in new), *errors, counts]
    return bool(results) and share >= MIN_CAUGHT and not new and not errors, "\n".join(lines)


def main() -> int:
    """Run the mutants and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("build", type=Path, help="the build folder")
    parser.add_argument("compiler", nargs="+", help="the compiler and its flags, after --")
    parser.add_argument("--sources", required=True, help="the files of the cores")
    parser.add_argument("--unit-flags", default="", help="more flags for the unit tests' cores")
    parser.add_argument("--sim-flags", default="", help="more flags for the simulator's cores")
    parser.add_argument("--count", type=int, default=200, help="count of mutants (200)")
    parser.add_argument("--draw", type=int, default=1, help="number of the random draw (1)")
    parser.add_argument("--seeds", type=int, default=2000, help="histories per mutant (2000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--only", default="", help="run only mutants of paths that begin so")
    args = parser.parse_args()
    entries = read_entries(Path(__file__).with_name("accepted.txt"))
    sources = args.sources.split()
    texts = {path: (ROOT / path).read_text() for path in sources}
    mutants = {path: mutants_of(path, text) for path, text in texts.items()}
    all_mutants = [mutant for some in mutants.values() for mutant in some]
    if wrong := stale(entries, all_mutants, []):
        sys.exit("\n".join(wrong))
    chosen = [path for path in sources if path.startswith(args.only) and mutants[path]]
    sizes = {
        path: sum(bool(line.strip()) for line in masked(texts[path]).splitlines())
        for path in chosen
    }
    waiting = {path: deque(ranked(mutants[path], args.draw)) for path in chosen}
    build = args.build.resolve()
    unit, sim = (
        Cores(
            build / "mutation", library, build / objects, sources, [*args.compiler, *flags.split()]
        )
        for library, objects, flags in (
            (LIBRARY, "mutation-obj", args.unit_flags),
            (SIM_LIBRARY, "sim-obj", args.sim_flags),
        )
    )
    bench = Bench(unit, sim, args.seeds)
    results = drawn(bench, waiting, shares(sizes, args.count), args.jobs)
    is_good, text = verdict(results, entries, all_mutants)
    print(text)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
