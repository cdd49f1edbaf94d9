"""Check that every non-static function and every struct tag is defined once.

A search for a name, or an index of tags, then leads to one place. The parser relies on the format
of the code: a definition starts in column 0, and the brace that opens the body of a function is
alone in column 0. Static functions, anonymous structs and nested structs do not count.
"""

import collections
import pathlib
import re
import sys

# Names that are defined more than once on purpose.
EXCEPTIONS = {
    "main": "each program has one",
    "LLVMFuzzerTestOneInput": "libFuzzer's entry point, which each target has",
    "bps_output": "tests/cluster/wrong_sum.c is preloaded to replace the library's function",
    "copy_nontemporal": "each processor architecture has one",
    "trainer_send": "test_roster.c is linked with a function of its own",
}
# tests/scale/stub.c is linked instead of the sources that define these functions.
EXCEPTIONS |= dict.fromkeys(("crc32c", "crc32c_portable", "reduce_all", "reduce_finish"), "stub")
EXCEPTIONS |= dict.fromkeys(("reduce_fold", "reduce_isa", "reduce_select"), "stub")
EXCEPTIONS |= dict.fromkeys(("reduce_means_all", "reduce_means_fold"), "stub")
FOLDERS = ["common", "bps-agent", "bps-server", "bps-scheduler", "libbpsclient", "tests"]
FUNCTION = re.compile(
    r"^(?!.*\b(?:static|INLINE)\b)[A-Za-z_][\w \t*]*?\b(\w+)\([^;{}]*?\)[^;{}()=]*\n\{",
    re.MULTILINE,
)
STRUCT = re.compile(r"^(?:typedef )?(?:struct|union) (\w+) *\{", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def main() -> int:
    places: dict[str, list[str]] = collections.defaultdict(list)
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(folder).rglob("*.[ch]")):
            # Replace each comment by its newlines, so that line numbers stay the same.
            text = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), path.read_text())
            for kind, pattern in (("function", FUNCTION), ("struct", STRUCT)):
                for match in pattern.finditer(text):
                    line = text.count("\n", 0, match.start()) + 1
                    places[f"{kind} {match[1]}"].append(f"{path}:{line}")
    bad = 0
    for name, where in sorted(places.items()):
        if len(where) > 1 and name.split()[1] not in EXCEPTIONS:
            bad += 1
            print(f"{name}: {', '.join(where)}")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
